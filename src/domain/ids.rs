//! Ids are types, so that one cannot stand where another is meant, and short, because people type them in a chat.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Text that is no id of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {kind} id; one looks like `{example}`")]
pub struct IdError {
    text: String,
    kind: &'static str,
    example: String,
}

macro_rules! row_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(i64);

        impl $name {
            /// The id of row `row`.
            #[must_use]
            pub fn from_row(row: i64) -> Self {
                Self(row)
            }

            /// The row this id names.
            #[must_use]
            pub fn row(self) -> i64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let digits = text.trim().strip_prefix(concat!($prefix, "-"));
                digits.and_then(|d| d.parse().ok()).filter(|row| *row > 0).map(Self).ok_or_else(|| IdError {
                    text: text.chars().take(40).collect(),
                    kind: $prefix,
                    example: concat!($prefix, "-17").to_owned(),
                })
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }
    };
}

row_id!(
    /// One inbound message as it stands in the inbox.
    InboxId, "in"
);
row_id!(
    /// One turn: from its cause to its end. The operator types it back: `turns retry turn-17`.
    TurnId, "turn"
);
row_id!(
    /// One part of a reply in the outbox: `replies resend reply-17`.
    OutboxId, "reply"
);
row_id!(
    /// One checkpoint of a session's chain.
    CheckpointId, "cp"
);
row_id!(
    /// One canonical message of a session's history, numbered within its session from 1.
    MessageId, "msg"
);

/// One tool call: the turn that proposed it and its number there. Ours, never the provider's: `why call-17-1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CallId {
    turn: TurnId,
    number: u32,
}

impl CallId {
    /// The `number`th call of `turn`, counted from 1.
    #[must_use]
    pub fn new(turn: TurnId, number: u32) -> Self {
        Self { turn, number }
    }

    /// The turn that proposed the call.
    #[must_use]
    pub fn turn(self) -> TurnId {
        self.turn
    }

    /// The call's number within its turn, counted from 1.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call-{}-{}", self.turn.row(), self.number)
    }
}

impl FromStr for CallId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (turn, number) = text.trim().strip_prefix("call-")?.split_once('-')?;
            let turn = turn.parse().ok().filter(|t: &i64| *t > 0)?;
            Some(Self::new(TurnId::from_row(turn), number.parse().ok().filter(|n: &u32| *n > 0)?))
        };
        parse().ok_or_else(|| IdError {
            text: text.chars().take(40).collect(),
            kind: "call",
            example: "call-17-1".to_owned(),
        })
    }
}

impl From<CallId> for String {
    fn from(id: CallId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for CallId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

/// The agent's side of one thread, for ever: UUIDv5 of the thread's first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(Uuid);

/// Names session ids; changing it would make every thread a stranger.
const SESSION_NAMESPACE: Uuid = Uuid::from_u128(0x6d69_6477_6174_6368_8000_7365_7373_696f);

impl SessionId {
    /// The id that the thread with this key was or will be minted with.
    #[must_use]
    pub fn of_key(key: &str) -> Self {
        Self(Uuid::new_v5(&SESSION_NAMESPACE, key.as_bytes()))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SessionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Uuid::parse_str(text.trim()).map(Self).map_err(|_| IdError {
            text: text.chars().take(40).collect(),
            kind: "session",
            example: SessionId::of_key("console:local:main").to_string(),
        })
    }
}

/// One start of the daemon. Leases that carry another one are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(Uuid);

impl BootId {
    /// A new one.
    #[must_use]
    pub fn new(rng: &dyn crate::domain::Rng) -> Self {
        Self(Uuid::from_u64_pair(rng.next_u64(), rng.next_u64()))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_print_is_what_we_accept() {
        let turn = TurnId::from_row(17);
        assert_eq!(turn.to_string().parse::<TurnId>().unwrap(), turn);
        let call = CallId::new(turn, 3);
        assert_eq!(call.to_string(), "call-17-3");
        assert_eq!(call.to_string().parse::<CallId>().unwrap(), call);
        let session = SessionId::of_key("telegram:4242:-1001:7");
        assert_eq!(session.to_string().parse::<SessionId>().unwrap(), session);
    }

    #[test]
    fn a_wrong_id_says_what_a_right_one_looks_like() {
        for text in ["", "17", "turn-", "turn-0", "turn--1", "reply-17"] {
            assert!(text.parse::<TurnId>().unwrap_err().to_string().ends_with("one looks like `turn-17`"), "{text}");
        }
        assert!("call-17".parse::<CallId>().is_err());
    }

    #[test]
    fn a_session_id_never_changes() {
        assert_eq!(SessionId::of_key("telegram:4242:-1001:7").to_string(), "470f2c4b-221d-5c2d-8b4c-192413a32b38");
    }
}
