//! The people's side: what is written in chats, in the shapes in which Telegram hands it to a bot.

use serde_json::{Map, Value, json};

use super::html::utf16;
use super::{BOT_ID, BOT_NAME};

/// Something that happens in a chat; [`super::Telegram::deliver`] turns it into an update.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(super) kind: &'static str,
    pub(super) chat: i64,
    pub(super) from: Value,
    pub(super) text: Option<String>,
    pub(super) topic: Option<i64>,
    pub(super) reply_to: Option<i64>,
    pub(super) edit_of: Option<i64>,
    pub(super) chat_kind: &'static str,
    pub(super) fields: Map<String, Value>,
    pub(super) raw: Option<Value>,
}

/// A person as Telegram describes them.
pub(crate) fn person(id: i64) -> Value {
    json!({ "id": id, "is_bot": false, "first_name": format!("Person {id}"), "username": format!("person{id}"),
            "language_code": "en" })
}

impl Update {
    /// `user` writes in the private chat with the bot.
    pub(crate) fn private(user: i64, text: &str) -> Self {
        Self::message("private", user, user, text)
    }

    /// `user` writes in a supergroup (`chat` is negative).
    pub(crate) fn group(chat: i64, user: i64, text: &str) -> Self {
        Self::message("supergroup", chat, user, text)
    }

    /// `user` writes in a basic group, which can become a supergroup.
    pub(crate) fn basic_group(chat: i64, user: i64, text: &str) -> Self {
        Self::message("group", chat, user, text)
    }

    /// An update as it is; without `update_id` it gets the next one.
    pub(crate) fn raw(update: Value) -> Self {
        Self { raw: Some(update), ..Self::private(1, "") }
    }

    fn message(chat_kind: &'static str, chat: i64, user: i64, text: &str) -> Self {
        Self {
            kind: "message",
            chat,
            from: person(user),
            text: Some(text.to_owned()),
            topic: None,
            reply_to: None,
            edit_of: None,
            chat_kind,
            fields: Map::new(),
            raw: None,
        }
    }

    /// The sender's first name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.from["first_name"] = json!(name);
        self
    }

    /// Written by another bot.
    pub(crate) fn by_bot(mut self, username: &str) -> Self {
        self.from["is_bot"] = json!(true);
        self.from["username"] = json!(username);
        if let Some(from) = self.from.as_object_mut() {
            from.remove("language_code");
        }
        self
    }

    /// In a forum topic; the topic exists from now on.
    pub(crate) fn topic(mut self, thread: i64) -> Self {
        self.topic = Some(thread);
        self.field("message_thread_id", thread).field("is_topic_message", true)
    }

    /// Carries a thread id that is no topic, as replies in groups and in a forum's General topic do.
    pub(crate) fn loose_thread(self, thread: i64) -> Self {
        self.field("message_thread_id", thread)
    }

    /// Answers a message of the same chat.
    pub(crate) fn reply_to(mut self, message_id: i64) -> Self {
        self.reply_to = Some(message_id);
        self
    }

    /// Quotes a part of the message it answers.
    pub(crate) fn quote(self, text: &str) -> Self {
        self.field("quote", json!({ "text": text, "position": 0, "is_manual": true }))
    }

    /// Forwarded from someone whose account is visible.
    pub(crate) fn forwarded_from(self, user: i64, name: &str) -> Self {
        let mut sender = person(user);
        sender["first_name"] = json!(name);
        self.field("forward_origin", json!({ "type": "user", "date": 1_796_000_000, "sender_user": sender }))
    }

    /// Forwarded from someone who hides their account.
    pub(crate) fn forwarded_from_hidden(self, name: &str) -> Self {
        let origin = json!({ "type": "hidden_user", "date": 1_796_000_000, "sender_user_name": name });
        self.field("forward_origin", origin)
    }

    /// Changes the text of a message that was written before.
    pub(crate) fn edit_of(mut self, message_id: i64) -> Self {
        self.kind = "edited_message";
        self.edit_of = Some(message_id);
        self
    }

    /// A photo; the text becomes its caption.
    pub(crate) fn photo(self) -> Self {
        let size = |side: u32| {
            json!({ "file_id": format!("AgACAgIAAx{side}"), "file_unique_id": format!("AQAD{side}"), "width": side,
                    "height": side, "file_size": side * 20 })
        };
        self.field("photo", json!([size(90), size(320)]))
    }

    /// A file; the text becomes its caption.
    pub(crate) fn document(self, name: &str) -> Self {
        let file = json!({ "file_id": "BQACAgIAAx1", "file_unique_id": "AgAD1", "file_name": name,
                           "mime_type": "text/plain", "file_size": 42 });
        self.field("document", file)
    }

    /// A voice message; the text becomes its caption.
    pub(crate) fn voice(self) -> Self {
        let voice = json!({ "file_id": "AwACAgIAAx1", "file_unique_id": "AgAD2", "duration": 3, "mime_type": "audio/ogg",
                            "file_size": 4200 });
        self.field("voice", voice)
    }

    /// One of several pictures or files sent together.
    pub(crate) fn album(self, id: &str) -> Self {
        self.field("media_group_id", id)
    }

    /// A service message such as `("new_chat_title", "x")`: it has no text.
    pub(crate) fn service(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.text = None;
        self.field(name, value)
    }

    /// Any field of the message, as it is.
    pub(crate) fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// The message itself, without what only the chat knows (id, date, what it answers).
    pub(super) fn body(&self, chat: Value) -> Map<String, Value> {
        let mut message = Map::new();
        message.insert("from".into(), self.from.clone());
        message.insert("chat".into(), chat);
        message.extend(self.fields.clone());
        let media = ["photo", "document", "voice"].iter().any(|name| self.fields.contains_key(*name));
        let names = if media { ("caption", "caption_entities") } else { ("text", "entities") };
        if let Some(text) = self.text.as_deref().filter(|text| !text.is_empty()) {
            message.insert(names.0.into(), json!(text));
            let found = entities(text);
            if !found.is_empty() {
                message.entry(names.1).or_insert_with(|| Value::Array(found));
            }
        }
        message
    }
}

/// What Telegram's own clients recognise in plain text: commands, mentions and links, in UTF-16 units.
pub(crate) fn entities(text: &str) -> Vec<Value> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let run = |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let free = text[..at].chars().next_back().is_none_or(|before| !word(before) && before != '/' && before != '@');
        let rest = &text[at..];
        let length = match c {
            '/' if free => {
                let name = run(&rest[1..]);
                let bot =
                    rest[1 + name..].strip_prefix('@').map_or(0, |bot| if run(bot) > 0 { 1 + run(bot) } else { 0 });
                ((1..=32).contains(&name)).then_some(("bot_command", 1 + name + bot))
            }
            '@' if free => {
                let name = run(&rest[1..]);
                ((4..=32).contains(&name)).then_some(("mention", 1 + name))
            }
            'h' if free && (rest.starts_with("http://") || rest.starts_with("https://")) => {
                Some(("url", rest.find(char::is_whitespace).unwrap_or(rest.len())))
            }
            _ => None,
        };
        match length {
            Some((kind, bytes)) => {
                let (offset, length) = (utf16(&text[..at]), utf16(&rest[..bytes]));
                found.push(json!({ "type": kind, "offset": offset, "length": length }));
                at += bytes;
            }
            None => at += c.len_utf8(),
        }
    }
    found
}

/// The bot as it appears as the sender of a message.
pub(super) fn bot() -> Value {
    json!({ "id": BOT_ID, "is_bot": true, "first_name": "Midwatch", "username": BOT_NAME })
}
