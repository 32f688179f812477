//! Macros that every room uses; here because a macro has to be read before its users.

/// Dies here, as under SIGKILL, when the environment asks for this point by name. Nothing in a release build.
///
/// `MIDWATCH_CRASH_AT=inbox.stored` names the first pass, `inbox.stored:3` the third. A test reads the names from the
/// source, so no point can be forgotten.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::domain::crash::passed($name);
    };
}
