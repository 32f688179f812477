//! The methods this fake serves and what each takes, by the Bot API's documentation. What is not listed is refused
//! (a method) or held against the caller (a parameter): the real server ignores both in its own way, in silence.

use serde_json::{Map, Value};

/// What a parameter has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Int,
    Bool,
    Text,
    /// A number, or `@name`.
    Chat,
    Object,
    Array,
}
use Kind::{Array, Bool, Chat, Int, Object, Text};

type Table = &'static [(&'static str, Kind)];

/// Name as documented, and parameters.
const METHODS: &[(&str, Table)] = &[
    ("getUpdates", &[("offset", Int), ("limit", Int), ("timeout", Int), ("allowed_updates", Array)]),
    ("getMe", &[]),
    (
        "sendMessage",
        &[
            ("business_connection_id", Text),
            ("chat_id", Chat),
            ("message_thread_id", Int),
            ("direct_messages_topic_id", Int),
            ("text", Text),
            ("parse_mode", Text),
            ("entities", Array),
            ("link_preview_options", Object),
            ("disable_notification", Bool),
            ("protect_content", Bool),
            ("allow_paid_broadcast", Bool),
            ("message_effect_id", Text),
            ("suggested_post_parameters", Object),
            ("reply_parameters", Object),
            ("reply_markup", Object),
        ],
    ),
    (
        "editMessageText",
        &[
            ("business_connection_id", Text),
            ("chat_id", Chat),
            ("message_id", Int),
            ("inline_message_id", Text),
            ("text", Text),
            ("parse_mode", Text),
            ("entities", Array),
            ("link_preview_options", Object),
            ("reply_markup", Object),
        ],
    ),
    ("deleteMessage", &[("chat_id", Chat), ("message_id", Int)]),
    (
        "sendChatAction",
        &[("business_connection_id", Text), ("chat_id", Chat), ("message_thread_id", Int), ("action", Text)],
    ),
    ("getWebhookInfo", &[]),
    ("deleteWebhook", &[("drop_pending_updates", Bool)]),
    ("setMyCommands", &[("commands", Array), ("scope", Object), ("language_code", Text)]),
    (
        "answerCallbackQuery",
        &[("callback_query_id", Text), ("text", Text), ("show_alert", Bool), ("url", Text), ("cache_time", Int)],
    ),
];

/// The documented spelling of a method, written in any case.
pub(crate) fn method(name: &str) -> Option<&'static str> {
    METHODS.iter().map(|(method, _)| *method).find(|method| method.eq_ignore_ascii_case(name))
}

/// Brings parameters to their documented types. `texts` says that they came as a form or query, where all are strings.
/// The second value lists what the documentation does not allow.
pub(crate) fn normalise(method: &str, given: Map<String, Value>, texts: bool) -> (Map<String, Value>, Vec<String>) {
    let table = METHODS.iter().find(|(name, _)| *name == method).map_or(&[][..], |(_, table)| *table);
    let mut clean = Map::new();
    let mut wrong = Vec::new();
    for (name, value) in given {
        let Some((_, kind)) = table.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("{method}: unknown parameter {name}"));
            continue;
        };
        let value = if texts { from_text(*kind, value) } else { value };
        let fits = match kind {
            Int => value.is_i64(),
            Bool => value.is_boolean(),
            Text => value.is_string(),
            Chat => value.is_i64() || value.as_str().is_some_and(|name| name.starts_with('@')),
            Object => value.is_object(),
            Array => value.is_array(),
        };
        if !fits {
            wrong.push(format!("{method}: {name} is {value}, not {kind:?}"));
        }
        clean.insert(name, value);
    }
    (clean, wrong)
}

fn from_text(kind: Kind, value: Value) -> Value {
    let Some(text) = value.as_str() else { return value };
    match kind {
        Text => value,
        Chat if text.starts_with('@') => value,
        Int | Chat | Bool | Object | Array => serde_json::from_str(text).unwrap_or(value),
    }
}
