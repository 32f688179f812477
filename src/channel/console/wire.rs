//! What client and daemon say to each other on the socket. JSON; fields are added, never renamed.

use serde::{Deserialize, Serialize};

use crate::domain::{InboxId, TurnId};

/// `POST /v1/say`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Say {
    /// The client's own number for this message: saying it twice is saying it once.
    pub id: String,
    /// The session's name.
    pub session: String,
    /// The words.
    pub text: String,
}

/// Its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Said {
    /// The message, for `GET /v1/messages/ID`.
    pub message: InboxId,
}

/// The first event of `GET /v1/events`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// The turn at work in that session.
    pub running: Option<TurnId>,
}

/// `POST /v1/cancel`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The session's name.
    pub session: String,
}

/// `POST /v1/link`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The channel file's name; none means the only one.
    pub channel: Option<String>,
}

/// Its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Code {
    /// What is sent in the chat.
    pub code: String,
    /// The channel it is for.
    pub channel: String,
    /// Until when, RFC 3339.
    pub valid_until: String,
}

/// Any failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// What failed.
    pub error: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}

/// Whether `name` can be a console session's name.
#[must_use]
pub fn is_session_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}
