//! From an update to an arrival: who wrote where, in our own words.

use serde_json::Value;
use std::time::Duration;

use teloxide::types::{Message, MessageEntityKind, MessageKind, MessageOrigin, Update, UpdateKind};

use crate::config::{Telegram, Threads};
use crate::domain::{Block, ChannelKind, Origin, ThreadKey, Timestamp};
use crate::session::intake::{self, Speaker};
use crate::store::inbox::Arrival;

/// A text this long may have been cut by the sender's client, which cuts at 4,096 UTF-16 units.
const NEAR_LIMIT_UNITS: usize = 4_000;
/// How long what belongs together may take to come together.
pub(super) const QUIET_WINDOW: Duration = Duration::from_millis(1_000);
/// Most characters of another's words that come along.
const OUTSIDE_MAX_CHARS: usize = 4_096;
/// Longest raw delivery that is kept.
const RAW_MAX_BYTES: usize = 64 << 10;

/// Things a message can carry besides words, by their name in the API.
const ATTACHMENTS: &[(&str, &str)] = &[
    ("photo", "a photo"),
    ("voice", "a voice message"),
    ("audio", "an audio file"),
    ("video", "a video"),
    ("video_note", "a video message"),
    ("animation", "an animation"),
    ("document", "a file"),
    ("sticker", "a sticker"),
    ("location", "a location"),
    ("venue", "a place"),
    ("contact", "a contact"),
    ("poll", "a poll"),
    ("paid_media", "paid media"),
    ("story", "a story"),
];

/// Our side of a chat.
pub(super) struct Ear<'a> {
    /// `telegram:ID`.
    pub channel: &'a str,
    /// The bot's id.
    pub account: &'a str,
    /// The bot's user name, as mentions have it.
    pub username: &'a str,
    /// The account's links.
    pub config: &'a Telegram,
    /// The present.
    pub now: Timestamp,
}

/// What was heard.
pub(super) struct Heard {
    /// For the inbox.
    pub arrival: Arrival,
    /// The chat's id, whether it is private, and who wrote: for pairing.
    pub chat: i64,
    /// See `chat`.
    pub private: bool,
    /// See `chat`.
    pub sender: Option<u64>,
    /// A bot wrote it: bots begin nothing.
    pub is_bot: bool,
    /// No type of ours fits it.
    pub unparsed: bool,
}

impl Ear<'_> {
    /// Reads one update; none for kinds that are no message.
    pub(super) fn hear(&self, raw: &Value) -> Option<Heard> {
        // teloxide reads updates from text only: from a `Value` every one comes out as an error.
        let update = serde_json::from_str::<Update>(&raw.to_string()).ok();
        match update.map(|update| update.kind) {
            Some(UpdateKind::Message(message)) => Some(self.message(raw, &message, false)),
            Some(UpdateKind::EditedMessage(message)) => Some(self.message(raw, &message, true)),
            Some(UpdateKind::Error(_)) | None => self.unparsed(raw),
            Some(_) => None,
        }
    }

    fn message(&self, raw: &Value, message: &Message, is_edit: bool) -> Heard {
        let body = &raw[if is_edit { "edited_message" } else { "message" }];
        let chat = message.chat.id.0;
        let sender = message.from.as_ref().filter(|_| message.sender_chat.is_none());
        let words = message.text().or_else(|| message.caption()).unwrap_or_default().to_owned();
        let carries = ATTACHMENTS.iter().find(|(key, _)| body.get(key).is_some()).map(|(_, name)| *name);
        let is_service = !matches!(message.kind, MessageKind::Common(_)) || (words.is_empty() && carries.is_none());
        // The id of a message's thread is a topic only when the message says so; in the General topic it is not.
        let topic = message.thread_id.filter(|_| message.is_topic_message).map(|id| id.0.0.to_string());
        let speaker = Speaker {
            chat,
            sender: sender.map(|user| user.id.0),
            is_bot: sender.is_some_and(|user| user.is_bot) || message.via_bot.as_ref().is_some_and(|bot| bot.is_bot),
            addressed: self.is_addressed(message, &words),
        };
        let link = intake::admit(self.config, &speaker);
        let taken = match link {
            Ok(_) if is_service => Err("service notice"),
            Ok(link) => Ok(Some(link.name.clone())),
            Err(why) => Err(why),
        };
        let keyed = link.is_ok_and(|link| link.threads == Threads::Topic);
        let command = intake::command(&words, Some(self.username));
        let forwarded = message.forward_origin();
        let mut outside = Vec::new();
        let mut text = words;
        if let Some(origin) = forwarded {
            let from = format!("message forwarded from {}", origin_name(origin));
            outside.push(foreign(&from, &std::mem::take(&mut text)));
        }
        if let Some(quoted) =
            message.reply_to_message().filter(|_| message.thread_id.is_none() || !is_topic_root(message))
        {
            let ours = quoted.from.as_ref().is_some_and(|user| user.id.0.to_string() == self.account);
            let words = message.quote().map(|quote| quote.text.as_str());
            let words = words.or_else(|| quoted.text()).or_else(|| quoted.caption()).unwrap_or_default();
            // Our own words stand in the history already, unless the sender points at a part of them.
            if !words.is_empty() && (!ours || message.quote().is_some()) {
                let from = if ours { "your earlier message, quoted".to_owned() } else { "quoted message".to_owned() };
                outside.push(foreign(&from, words));
            }
        }
        if let Some(thing) = carries {
            let with = if text.is_empty() && outside.is_empty() { "came without words" } else { "came with this" };
            let note = format!("[midwatch: {thing} {with}; this version reads words only]");
            outside.push(Block::Text { text: note, origin: Origin::Operator });
        }
        let album = message.media_group_id().map(|id| id.0.clone());
        let near_limit = text.encode_utf16().count() >= NEAR_LIMIT_UNITS;
        let waits = (near_limit && command.is_none()) || album.is_some();
        let private = message.chat.is_private();
        let name = |user: &teloxide::types::User| user.full_name();
        let arrival = Arrival {
            channel: self.channel.to_owned(),
            update_key: raw["update_id"].to_string(),
            message_key: message.id.0.to_string(),
            thread: ThreadKey {
                kind: ChannelKind::Telegram,
                account: self.account.to_owned(),
                chat: chat.to_string(),
                thread: topic.clone().filter(|_| keyed),
            },
            sender: sender.map(|user| user.id.0.to_string()).unwrap_or_default(),
            sender_name: sender.map(name).unwrap_or_default(),
            chat_name: message.chat.title().unwrap_or_default().to_owned(),
            // A forwarded command is somebody else's.
            command: command.filter(|_| forwarded.is_none()).map(|command| command.word.to_owned()),
            urgent: command.is_some_and(|command| command.urgent) && forwarded.is_none(),
            text,
            outside,
            topic,
            raw: None,
            album,
            near_limit,
            reply_to: (!private).then(|| message.id.0.to_string()),
            not_before: if waits { self.now.after(QUIET_WINDOW) } else { self.now },
            is_edit,
            taken,
        };
        Heard { arrival, chat, private, sender: speaker.sender, is_bot: speaker.is_bot, unparsed: false }
    }

    /// Named, answered or commanded.
    fn is_addressed(&self, message: &Message, words: &str) -> bool {
        let entities = message.parse_entities().or_else(|| message.parse_caption_entities()).unwrap_or_default();
        let named = entities.iter().any(|entity| match entity.kind() {
            MessageEntityKind::Mention => entity.text().strip_prefix('@').is_some_and(|name| self.is_us(name)),
            MessageEntityKind::TextMention { user } => user.id.0.to_string() == self.account,
            MessageEntityKind::BotCommand => {
                entity.text().split_once('@').is_none_or(|(_, name)| self.is_us(name)) && entity.start() == 0
            }
            _ => false,
        });
        let answered = message
            .reply_to_message()
            .is_some_and(|to| to.from.as_ref().is_some_and(|user| user.id.0.to_string() == self.account));
        named || (answered && !is_topic_root(message)) || intake::command(words, Some(self.username)).is_some()
    }

    fn is_us(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(self.username)
    }

    /// An update that no type fits: handled as far as it holds a chat, a sender and words; kept raw where it is from a
    /// linked chat.
    fn unparsed(&self, raw: &Value) -> Option<Heard> {
        let key = ["message", "edited_message"].into_iter().find(|key| raw.get(key).is_some())?;
        let message = &raw[key];
        let chat = message["chat"]["id"].as_i64()?;
        let sender = message["from"]["id"].as_u64();
        let text = message["text"].as_str().unwrap_or_default().to_owned();
        let private = message["chat"]["type"].as_str() == Some("private");
        let speaker = Speaker {
            chat,
            sender,
            is_bot: message["from"]["is_bot"].as_bool() == Some(true),
            addressed: private || intake::command(&text, Some(self.username)).is_some(),
        };
        let admitted = intake::admit(self.config, &speaker).map(|link| Some(link.name.clone()));
        let command = intake::command(&text, Some(self.username));
        let topic =
            message["message_thread_id"].as_i64().filter(|_| message["is_topic_message"].as_bool() == Some(true));
        let topic = topic.map(|id| id.to_string());
        let message_key =
            message["message_id"].as_i64().map_or_else(|| format!("update {}", raw["update_id"]), |id| id.to_string());
        let arrival = Arrival {
            channel: self.channel.to_owned(),
            update_key: raw["update_id"].to_string(),
            thread: ThreadKey {
                kind: ChannelKind::Telegram,
                account: self.account.to_owned(),
                chat: chat.to_string(),
                thread: topic.clone(),
            },
            sender: sender.map(|id| id.to_string()).unwrap_or_default(),
            sender_name: message["from"]["first_name"].as_str().unwrap_or_default().to_owned(),
            chat_name: message["chat"]["title"].as_str().unwrap_or_default().to_owned(),
            outside: Vec::new(),
            command: command.map(|command| command.word.to_owned()),
            urgent: command.is_some_and(|command| command.urgent),
            topic,
            raw: admitted.is_ok().then(|| raw.to_string().chars().take(RAW_MAX_BYTES).collect()),
            album: None,
            near_limit: false,
            reply_to: (!private && message["message_id"].is_i64()).then(|| message_key.clone()),
            message_key,
            not_before: self.now,
            is_edit: key == "edited_message",
            taken: match admitted {
                Ok(_) if text.is_empty() => Err("unparsed"),
                admitted => admitted,
            },
            text,
        };
        Some(Heard { arrival, chat, private, sender, is_bot: speaker.is_bot, unparsed: true })
    }
}

/// In a topic every message "replies" to the service message that made the topic.
fn is_topic_root(message: &Message) -> bool {
    let root = message.thread_id.map(|id| id.0);
    message.reply_to_message().is_some_and(|to| Some(to.id) == root)
}

/// Words of others, marked as such line by line, so that no line of theirs can pass for one of ours, and cut to a
/// length.
fn foreign(from: &str, words: &str) -> Block {
    let mut text: String = words.chars().take(OUTSIDE_MAX_CHARS).collect();
    if words.chars().count() > OUTSIDE_MAX_CHARS {
        text.push('…');
    }
    let quoted: Vec<_> = text.lines().map(|line| format!("> {line}")).collect();
    Block::Text { text: format!("[{from}]\n{}", quoted.join("\n")), origin: Origin::Outside { from: from.to_owned() } }
}

fn origin_name(origin: &MessageOrigin) -> String {
    let name = match origin {
        MessageOrigin::User { sender_user, .. } => sender_user.full_name(),
        MessageOrigin::HiddenUser { sender_user_name, .. } => sender_user_name.clone(),
        MessageOrigin::Chat { sender_chat: chat, .. } | MessageOrigin::Channel { chat, .. } => {
            chat.title().unwrap_or("a chat").to_owned()
        }
    };
    // A name is a stranger's choice: it must not be able to close the bracket.
    name.chars().filter(|c| !c.is_control() && !"[]".contains(*c)).take(64).collect()
}
