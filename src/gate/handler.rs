//! What a tool is to the gate.

use std::fmt;

use futures_util::future::BoxFuture;

use super::Admitted;
use crate::domain::{Origin, SessionId, Stop, TurnId};
use crate::model::ToolSchema;
use crate::policy::{EffectClass, Mode};

/// What a tool says of itself before it may be registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// What the model sees.
    pub schema: ToolSchema,
    /// Its effect class.
    pub class: EffectClass,
    /// The argument that grants are matched against.
    pub subject: Option<&'static str>,
    /// It looks at everything beneath its subject.
    pub walks: bool,
}

/// What a handler may know of where it runs.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// The session's mode.
    pub mode: Mode,
    /// The link whose rights it has.
    pub link: Option<String>,
    /// Who began the turn.
    pub sender: String,
    /// Asked when the turn is cancelled or the daemon stops.
    pub stop: Stop,
}

/// What a handler returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// What the model reads.
    pub text: String,
    /// It failed.
    pub is_error: bool,
    /// Whose words the text holds.
    pub origin: Origin,
}

impl Finished {
    /// A failure in the tool's own words.
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true, origin: Origin::Operator }
    }
}

/// A tool. Only the gate can call [`Handler::run`], because only it makes an [`Admitted`].
pub trait Handler: Send + Sync {
    /// What it is; never changes.
    fn declaration(&self) -> &Declaration;

    /// Resolves the subject as policy matches it: `./notes//a.md` is `notes/a.md`. None where it makes no sense.
    fn subject(&self, arguments: &serde_json::Map<String, serde_json::Value>) -> Option<String>;

    /// Whether the arguments fit.
    ///
    /// # Errors
    /// What does not, for the model.
    fn check(&self, arguments: &serde_json::Map<String, serde_json::Value>) -> Result<(), String>;

    /// Does it. Ends early when `context.stop` is asked; a dropped future ends the work soon after.
    fn run<'a>(&'a self, admitted: &'a Admitted, context: &'a ToolContext) -> BoxFuture<'a, Finished>;
}

impl fmt::Debug for dyn Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handler({})", self.declaration().schema.name)
    }
}
