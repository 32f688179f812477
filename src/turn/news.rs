//! What people who watch a turn hear while it runs. Nothing here is a promise; the store is.

use serde::{Deserialize, Serialize};

use crate::domain::{CallId, EndReason, SessionId, Timestamp, TurnId};
use crate::model::ModelError;

/// One piece of news.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum News {
    /// A turn began, or went on after a restart.
    Opened {
        /// Which.
        turn: TurnId,
    },
    /// Words of an answer that is still being made.
    Text {
        /// The words since the last piece.
        text: String,
    },
    /// The attempt failed: the words so far count for nothing.
    Restarted,
    /// The model proposed a call.
    Call {
        /// Which.
        call: CallId,
        /// The tool's name as proposed.
        tool: String,
    },
    /// A call has its result.
    Result {
        /// Which.
        call: CallId,
        /// It failed or was refused.
        is_error: bool,
    },
    /// The turn ended, and this is the whole answer as stored.
    Ended {
        /// Which.
        turn: TurnId,
        /// How.
        reason: EndReason,
        /// What the chat is shown.
        text: String,
    },
    /// Look at the store: a message may have its end.
    Changed,
    /// The turn was put aside and goes on after the daemon's next start.
    Suspended {
        /// Which.
        turn: TurnId,
    },
}

/// Who watches.
pub trait Audience: Send + Sync {
    /// Hears; must not block.
    fn hear(&self, session: SessionId, news: News);

    /// A model was asked and answered, or did not.
    fn asked(&self, model: &str, failed: Option<&ModelError>, now: Timestamp);
}
