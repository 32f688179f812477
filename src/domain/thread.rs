//! What a conversation is called: platform, account, chat and topic. The reply goes where the message came from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a message came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelKind {
    /// A Telegram bot account.
    Telegram,
    /// The local console on the Unix socket.
    Console,
}

impl ChannelKind {
    /// The word in keys, files and the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Telegram => "telegram",
            Self::Console => "console",
        }
    }
}

impl fmt::Display for ChannelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ChannelKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "telegram" => Ok(Self::Telegram),
            "console" => Ok(Self::Console),
            _ => Err(format!("`{text}` is no channel kind")),
        }
    }
}

/// One conversation on one platform.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadKey {
    /// The platform.
    pub kind: ChannelKind,
    /// Our account there: the bot's numeric id, or `local` for the console.
    pub account: String,
    /// The chat's id; for the console the session's name.
    pub chat: String,
    /// The topic within the chat, where there is one.
    pub thread: Option<String>,
}

impl fmt::Display for ThreadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.kind, self.account, self.chat)?;
        self.thread.as_ref().map_or(Ok(()), |thread| write!(f, ":{thread}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_stands_at_the_end_of_the_key() {
        let mut key = ThreadKey {
            kind: ChannelKind::Telegram,
            account: "4242".into(),
            chat: "-1001".into(),
            thread: Some("7".into()),
        };
        assert_eq!(key.to_string(), "telegram:4242:-1001:7");
        key.thread = None;
        assert_eq!(key.to_string(), "telegram:4242:-1001");
    }
}
