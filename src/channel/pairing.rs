//! Links a chat by a one-time code that the operator reads on the machine and sends in the chat.
//!
//! ```text
//! midwatch link telegram ─▶ code (10 minutes, five tries) ─▶ /link CODE in the chat
//!   ─▶ claimed, in the commit that stores the message ─▶ [[link]] appended to the file ─▶ reload ─▶ "linked"
//! ```
//! A crash after the claim is made good at the next start: the claim holds all that the file needs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::{Appended, NewLink, append_link, free_name};
use crate::domain::Rng;
use crate::reply;
use crate::session::SharedServices;
use crate::store::outbox::Target;
use crate::store::timeline::{self, Entry};
use crate::store::{StoreError, outbox, pins};

/// How long a code holds.
pub const VALID_FOR: Duration = Duration::from_secs(600);
/// What an operator's private chat may do from the start; every other link begins with nothing.
const OPERATOR_MAY: &[&str] = &["read_file", "list_files", "search_files"];
/// No letters that are read for one another: 32 signs, 5 bits each.
const SIGNS: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";

/// What a claimed code is turned into.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// `kind:account`.
    pub channel: String,
    /// The chat.
    pub chat: i64,
    /// Its topic, for the answer.
    pub topic: Option<String>,
    /// Who sent the code, and so may speak.
    pub sender: u64,
    /// A name to make the link's name from.
    pub title: String,
    /// The chat is private.
    pub private: bool,
}

/// A new code of 40 random bits, as people type it.
#[must_use]
pub fn new_code(rng: &dyn Rng) -> String {
    let bits = rng.next_u64();
    let sign = |at: u32| char::from(SIGNS[(bits >> (5 * at) & 31) as usize]);
    let half = |from: u32| (from..from + 4).map(sign).collect::<String>();
    format!("{}-{}", half(0), half(4))
}

/// What is stored of a code: neither case nor dashes count.
#[must_use]
pub fn digest(code: &str) -> String {
    let plain: String = code.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).collect();
    Sha256::digest(plain).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the code of `/link CODE`; nothing for any other text.
#[must_use]
pub fn code_in(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    let command = words.next()?;
    let command = command.split_once('@').map_or(command, |(command, _)| command);
    let code = words.next()?;
    (command.eq_ignore_ascii_case("/link") && words.next().is_none() && code.len() <= 32).then_some(code)
}

/// Turns claimed codes of `channel` into links: appends to the file, reads the files again, tells the chat.
///
/// # Errors
/// The store's. A file that cannot be written is told in the chat and in the log, and the code is void.
pub async fn finish_claims(services: &SharedServices, channel: &str, file: &std::path::Path) -> Result<(), StoreError> {
    let claims = services.store.read("read claimed codes", pins::claimed).await?;
    for (id, claim) in claims {
        let Ok(pair) = serde_json::from_value::<Pair>(claim) else { continue };
        if pair.channel != channel {
            continue;
        }
        let (told, name) = link(services, file, &pair);
        crash_point!("pairing.file_written");
        let now = services.clock.now();
        let done = name.is_some();
        services
            .store
            .write("finish a pairing", move |db| {
                if !pins::finish(db, id, done)? {
                    return Ok(());
                }
                let target = Target {
                    channel: pair.channel.clone(),
                    chat: pair.chat.to_string(),
                    thread: pair.topic.clone(),
                    reply_to: None,
                };
                outbox::insert(db, &target, (None, None), &reply::plain(&told), now)?;
                let detail = serde_json::json!({ "chat": pair.chat, "sender": pair.sender, "link": name });
                let kind = if done { "link.paired" } else { "link.failed" };
                timeline::append(db, &Entry { kind, detail, ..Entry::default() }, now)
            })
            .await?;
        services.wake_couriers();
    }
    Ok(())
}

/// Writes the link; returns what the chat is told, and the link's name if it stands.
fn link(services: &SharedServices, file: &std::path::Path, pair: &Pair) -> (String, Option<String>) {
    let snapshot = services.snapshot();
    let taken: Vec<&String> = snapshot.links.keys().collect();
    let is_operator = snapshot.config.operator.telegram.contains(&pair.sender);
    let allow = if is_operator && pair.private { OPERATOR_MAY } else { &[] };
    let new = NewLink {
        name: free_name(&taken, if pair.private && is_operator { "home" } else { &pair.title }),
        chat: pair.chat,
        senders: vec![pair.sender],
        mention: None,
        allow: allow.iter().map(|tool| (*tool).to_owned()).collect(),
    };
    let name = match append_link(file, &new) {
        Ok(Appended::Written) => new.name,
        Ok(Appended::Already { name }) => name,
        Err(error) => {
            tracing::error!(%error, hint = error.hint(), "A link could not be written.");
            return ("I could not write this link down. The log on the machine says why.".to_owned(), None);
        }
    };
    if let Err(faults) = services.reload() {
        tracing::error!(%faults, "The link is written, but the files have faults and the old configuration stays.");
        let told = "The link is written, but the configuration has faults, so it does not hold yet. `midwatch check` \
                    on the machine lists them.";
        return (told.to_owned(), Some(name));
    }
    let may = if allow.is_empty() {
        "I may not use any tool here until the operator grants it.".to_owned()
    } else {
        format!("Here I may use {}.", allow.join(", "))
    };
    (format!("This chat is linked as \"{name}\". {may} /help lists what you can type."), Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_however_it_is_typed() {
        assert_eq!(code_in("/link ABCD-EFGH"), Some("ABCD-EFGH"));
        assert_eq!(code_in("/LINK@watch_bot abcd-efgh "), Some("abcd-efgh"));
        assert_eq!(digest("ABCD-EFGH"), digest("abcdefgh"));
        for text in ["/link", "link ABCD-EFGH", "/link a b", "/linked ABCD", "ABCD-EFGH"] {
            assert_eq!(code_in(text), None, "{text}");
        }
    }

    #[test]
    fn a_code_has_forty_bits_in_signs_that_cannot_be_mistaken() {
        let code = new_code(&crate::domain::OsRng);
        assert_eq!(code.len(), 9);
        assert!(code.bytes().all(|b| b == b'-' || SIGNS.contains(&b)), "{code}");
    }
}
