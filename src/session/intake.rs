//! Who is answered: linked chats, listed senders, and in groups only when addressed. Everybody else is ignored without
//! a word, and their words are not kept.

use crate::config::{Link, Mention, Telegram};

/// A reason to ignore; the words in the store.
pub const NOT_LINKED: &str = "not linked";
/// See [`NOT_LINKED`].
pub const NOT_LISTED: &str = "sender not listed";
/// See [`NOT_LINKED`].
pub const NOT_ADDRESSED: &str = "not addressed";
/// See [`NOT_LINKED`].
pub const FROM_A_BOT: &str = "from a bot";
/// See [`NOT_LINKED`].
pub const NOT_A_PERSON: &str = "not from a person";

/// What decides whether a message is taken up.
#[derive(Clone, Copy, Debug)]
pub struct Speaker {
    /// The chat.
    pub chat: i64,
    /// The immutable id of who wrote; none for channels and anonymous admins.
    pub sender: Option<u64>,
    /// It is a bot.
    pub is_bot: bool,
    /// The agent was named, answered or commanded.
    pub addressed: bool,
}

/// Finds the link under which a message is taken up.
///
/// # Errors
/// Why it is ignored.
pub fn admit<'a>(account: &'a Telegram, speaker: &Speaker) -> Result<&'a Link, &'static str> {
    let link = account.links.iter().find(|link| link.chat == speaker.chat).ok_or(NOT_LINKED)?;
    if speaker.is_bot {
        return Err(FROM_A_BOT);
    }
    let sender = speaker.sender.ok_or(NOT_A_PERSON)?;
    if !link.senders.contains(&sender) {
        return Err(NOT_LISTED);
    }
    if link.mention == Mention::Required && !speaker.addressed {
        return Err(NOT_ADDRESSED);
    }
    Ok(link)
}

/// A command for the daemon itself, found at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its word, without the slash.
    pub word: &'static str,
    /// It does not wait for the queue.
    pub urgent: bool,
}

const COMMANDS: &[(&str, Command)] = &[
    ("help", Command { word: "help", urgent: false }),
    // What Telegram's clients send when a chat is opened for the first time.
    ("start", Command { word: "help", urgent: false }),
    ("new", Command { word: "new", urgent: false }),
    ("stop", Command { word: "stop", urgent: true }),
    ("status", Command { word: "status", urgent: true }),
];

/// Reads `/word` or `/word@name` at the start of `text`; a text that merely begins with a slash is no command.
#[must_use]
pub fn command(text: &str, our_name: Option<&str>) -> Option<Command> {
    let first = text.trim_start().strip_prefix('/')?.split_whitespace().next()?;
    let (word, name) = first.split_once('@').map_or((first, None), |(word, name)| (word, Some(name)));
    if let Some(name) = name
        && !our_name.is_some_and(|ours| ours.eq_ignore_ascii_case(name))
    {
        return None;
    }
    let word = word.to_ascii_lowercase();
    COMMANDS.iter().find(|(known, _)| *known == word).map(|(_, command)| *command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_of_ours_are_commands() {
        for (text, expected) in [
            ("/stop", Some("stop")),
            ("/STOP now", Some("stop")),
            ("/stop@Watch_bot", Some("stop")),
            ("/stop@other_bot", None),
            ("/start", Some("help")),
            ("/stopwatch", None),
            ("/etc/hosts: what is it?", None),
            ("stop", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(command(text, Some("watch_bot")).map(|command| command.word), expected, "{text}");
        }
    }
}
