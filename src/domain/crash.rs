//! Named crash points: each place between two durable steps.
//!
//! `crash_point!("inbox.stored")` does nothing unless the process was started with `MIDWATCH_CRASH_AT=inbox.stored`
//! (or `inbox.stored:3` for the third pass): then the process dies there as under `kill -9`. Release builds hold none
//! of it. A test reads the names from the source, so a point cannot be forgotten.

/// Counts a pass of `point`, and does not return when the environment named this very pass.
#[cfg(debug_assertions)]
pub fn passed(point: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    static WANTED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("MIDWATCH_CRASH_AT").ok()?;
        let (name, pass) = text.split_once(':').map_or((text.as_str(), 1), |(n, p)| (n, p.parse().unwrap_or(1)));
        Some((name.to_owned(), pass))
    });
    let Some((name, pass)) = wanted else { return };
    if name == point && SEEN.fetch_add(1, Ordering::SeqCst) + 1 == *pass {
        // SIGKILL leaves no time for destructors or buffers, which is the point.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
