//! What each method does to the platform's state, and the words in which it refuses.

use serde_json::{Map, Value, json};

use super::html::{self, utf16};
use super::people::{bot, entities};
use super::state::{Chat, Sent, State, date, now};

/// A call that was not done.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) description: String,
    pub(crate) parameters: Option<Value>,
}

impl Refusal {
    pub(super) fn new(code: u16, description: impl Into<String>) -> Self {
        Self { code, description: description.into(), parameters: None }
    }

    pub(super) fn flood(secs: u64) -> Self {
        let description = format!("Too Many Requests: retry after {secs}");
        Self { code: 429, description, parameters: Some(json!({ "retry_after": secs })) }
    }

    fn bad(description: &str) -> Self {
        Self::new(400, format!("Bad Request: {description}"))
    }

    pub(super) fn json(&self) -> Value {
        let mut body = json!({ "ok": false, "error_code": self.code, "description": self.description });
        if let Some(parameters) = &self.parameters {
            body["parameters"] = parameters.clone();
        }
        body
    }
}

type Params = Map<String, Value>;
type Answer = Result<Value, Refusal>;

/// Most visible UTF-16 units of a message.
const TEXT_MAX: usize = 4096;
/// Most bytes of a text with its markup; the server looks at no more.
const MARKUP_MAX_BYTES: usize = 32 * 1024;

/// The chat a call is for.
pub(super) fn chat_id(params: &Params) -> Option<i64> {
    params.get("chat_id").and_then(|id| id.as_i64().or_else(|| id.as_str()?.parse().ok()))
}

/// Refuses who comes back before the time that a 429 named.
pub(super) fn too_early(state: &mut State, method: &str, params: &Params) -> Result<(), Refusal> {
    let about = chat_id(params).unwrap_or(0);
    if let Some(until) = state.not_before.get(&(method.to_owned(), about)).copied() {
        let left = until.saturating_duration_since(now());
        // A caller that comes a few milliseconds early has rounded; one that comes earlier was not listening.
        if left.as_millis() > 50 {
            state.violation(format!("{method}: called {} ms before retry_after was over", left.as_millis()));
            return Err(Refusal::flood(left.as_secs() + 1));
        }
        state.not_before.remove(&(method.to_owned(), about));
    }
    Ok(())
}

/// Does what a method does; `seq` is the call's place in the journal.
pub(super) fn call(state: &mut State, seq: usize, method: &str, params: &Params) -> Answer {
    match method {
        "getMe" => Ok(get_me()),
        "sendMessage" => send_message(state, seq, params),
        "editMessageText" => edit_message_text(state, params),
        "deleteMessage" => {
            let id = params.get("message_id").and_then(Value::as_i64).unwrap_or(0);
            let chat = chat_of(state, params)?;
            let gone = chat.messages.remove(&id).ok_or_else(|| Refusal::bad("message to delete not found"))?;
            let chat = gone["chat"]["id"].as_i64().unwrap_or(0);
            state.journal.sent.retain(|sent| sent.chat != chat || sent.message_id != id);
            Ok(json!(true))
        }
        "sendChatAction" => {
            let action = params.get("action").and_then(Value::as_str).unwrap_or_default();
            if !ACTIONS.contains(&action) {
                return Err(Refusal::bad("wrong parameter action in request"));
            }
            let chat = chat_of(state, params)?;
            topic_of(chat, params)?;
            Ok(json!(true))
        }
        "getWebhookInfo" => Ok(json!({ "url": state.webhook, "has_custom_certificate": false,
                                       "pending_update_count": state.waiting() })),
        "deleteWebhook" => {
            state.webhook.clear();
            if params.get("drop_pending_updates") == Some(&json!(true)) {
                state.drop_waiting();
            }
            Ok(json!(true))
        }
        "setMyCommands" => set_my_commands(params),
        "answerCallbackQuery" => {
            let id = params.get("callback_query_id").and_then(Value::as_str).unwrap_or_default();
            let old = "query is too old and response timeout expired or query ID is invalid";
            if state.callbacks.remove(id) { Ok(json!(true)) } else { Err(Refusal::bad(old)) }
        }
        _ => Err(Refusal::new(404, "Not Found")),
    }
}

fn get_me() -> Value {
    let mut me = bot();
    for (name, value) in [
        ("can_join_groups", true),
        ("can_read_all_group_messages", false),
        ("supports_inline_queries", false),
        ("can_connect_to_business", false),
        ("has_main_web_app", false),
        ("has_topics_enabled", false),
        ("allows_users_to_create_topics", false),
    ] {
        me[name] = json!(value);
    }
    me
}

const ACTIONS: &[&str] = &[
    "typing",
    "upload_photo",
    "record_video",
    "upload_video",
    "record_voice",
    "upload_voice",
    "upload_document",
    "choose_sticker",
    "find_location",
    "record_video_note",
    "upload_video_note",
];

fn chat_of<'a>(state: &'a mut State, params: &Params) -> Result<&'a mut Chat, Refusal> {
    if !params.contains_key("chat_id") {
        return Err(Refusal::bad("chat_id is empty"));
    }
    let chat = chat_id(params).and_then(|id| state.chats.get_mut(&id));
    let chat = chat.ok_or_else(|| Refusal::bad("chat not found"))?;
    if let Some(to) = chat.moved_to {
        let mut refusal = Refusal::bad("group chat was upgraded to a supergroup chat");
        refusal.parameters = Some(json!({ "migrate_to_chat_id": to }));
        return Err(refusal);
    }
    if chat.blocked {
        return Err(match chat.about["type"].as_str() {
            Some("private") => Refusal::new(403, "Forbidden: bot was blocked by the user"),
            kind => Refusal::new(403, format!("Forbidden: bot was kicked from the {} chat", kind.unwrap_or("group"))),
        });
    }
    Ok(chat)
}

/// The topic that was asked for, if it is one.
fn topic_of(chat: &Chat, params: &Params) -> Result<Option<i64>, Refusal> {
    match params.get("message_thread_id").and_then(Value::as_i64) {
        Some(topic) if chat.topics.contains(&topic) => Ok(Some(topic)),
        Some(_) if chat.falls_through => Ok(None),
        Some(_) => Err(Refusal::bad("message thread not found")),
        None => Ok(None),
    }
}

struct Words {
    text: String,
    html: Option<String>,
    entities: Vec<Value>,
}

/// The text of a message as a person will see it.
fn words(state: &mut State, method: &str, params: &Params) -> Result<Words, Refusal> {
    let raw = params.get("text").and_then(Value::as_str).unwrap_or_default();
    let too_long = || Refusal::bad("message is too long");
    if raw.len() > MARKUP_MAX_BYTES {
        return Err(too_long());
    }
    let mode = params.get("parse_mode").and_then(Value::as_str).unwrap_or_default();
    let words = match mode.to_ascii_lowercase().as_str() {
        "html" => {
            if params.contains_key("entities") {
                state.violation(format!("{method}: parse_mode and entities together"));
            }
            let parsed = html::parse(raw).map_err(|why| Refusal::bad(&format!("can't parse entities: {why}")))?;
            parsed.sloppy.iter().for_each(|what| state.violation(format!("{method}: {what} in {raw:.200}")));
            Words { text: parsed.text, html: Some(raw.to_owned()), entities: parsed.entities }
        }
        "" => {
            let given = params.get("entities").and_then(Value::as_array);
            Words { text: raw.to_owned(), html: None, entities: given.cloned().unwrap_or_else(|| entities(raw)) }
        }
        "markdown" | "markdownv2" => {
            state.violation(format!("{method}: {mode} is not simulated here"));
            return Err(Refusal::bad("unsupported parse_mode"));
        }
        _ => return Err(Refusal::bad("unsupported parse_mode")),
    };
    if words.text.trim().is_empty() {
        return Err(Refusal::bad("message text is empty"));
    }
    if utf16(&words.text) > TEXT_MAX {
        return Err(too_long());
    }
    Ok(words)
}

/// The data of the buttons in `reply_markup`.
fn buttons(params: &Params) -> Result<Vec<String>, Refusal> {
    let rows = params.get("reply_markup").and_then(|markup| markup["inline_keyboard"].as_array());
    let all = rows.into_iter().flatten().filter_map(Value::as_array).flatten();
    let data = all.filter_map(|button| button["callback_data"].as_str().map(str::to_owned));
    let data: Vec<String> = data.collect();
    if data.iter().any(|data| data.is_empty() || data.len() > 64) {
        return Err(Refusal::bad("BUTTON_DATA_INVALID"));
    }
    Ok(data)
}

fn send_message(state: &mut State, seq: usize, params: &Params) -> Answer {
    let words = words(state, "sendMessage", params)?;
    let buttons = buttons(params)?;
    let chat = chat_of(state, params)?;
    let thread = topic_of(chat, params)?;
    let reply = params.get("reply_parameters");
    let reply_to = reply.and_then(|reply| reply["message_id"].as_i64());
    let answered = reply_to.and_then(|id| chat.messages.get(&id)).cloned();
    let optional = reply.is_some_and(|reply| reply["allow_sending_without_reply"] == json!(true));
    if reply_to.is_some() && answered.is_none() && !optional {
        return Err(Refusal::bad("message to be replied not found"));
    }
    chat.last_message += 1;
    let id = chat.last_message;
    let mut message =
        json!({ "message_id": id, "from": bot(), "chat": chat.about, "date": date(), "text": words.text });
    if let Some(thread) = thread {
        message["message_thread_id"] = json!(thread);
        message["is_topic_message"] = json!(true);
    }
    if let Some(mut answered) = answered.clone() {
        answered.as_object_mut().unwrap().remove("reply_to_message");
        message["reply_to_message"] = answered;
    }
    decorate(&mut message, &words, params);
    chat.messages.insert(id, message.clone());
    let sent = Sent {
        chat: chat_id(params).unwrap_or(0),
        message_id: id,
        thread,
        text: words.text,
        html: words.html,
        entities: words.entities,
        reply_to: answered.and(reply_to),
        silent: params.get("disable_notification") == Some(&json!(true)),
        earlier: Vec::new(),
        link_preview: params.get("link_preview_options").cloned(),
        buttons,
        call: seq,
    };
    state.journal.sent.push(sent);
    Ok(message)
}

fn edit_message_text(state: &mut State, params: &Params) -> Answer {
    let words = words(state, "editMessageText", params)?;
    let buttons = buttons(params)?;
    let id = params.get("message_id").and_then(Value::as_i64).unwrap_or(0);
    let chat_id = chat_id(params).unwrap_or(0);
    let chat = chat_of(state, params)?;
    let old = chat.messages.get(&id).ok_or_else(|| Refusal::bad("message to edit not found"))?;
    if old["from"]["id"] != bot()["id"] {
        return Err(Refusal::bad("message can't be edited"));
    }
    let mut message = old.clone();
    let fields = message.as_object_mut().unwrap();
    fields.remove("entities");
    fields.remove("reply_markup");
    message["text"] = json!(words.text);
    decorate(&mut message, &words, params);
    let same = |name: &str| message.get(name) == old.get(name);
    if same("text") && same("entities") && same("reply_markup") {
        return Err(Refusal::bad(
            "message is not modified: specified new message content and reply markup are exactly the same as a current \
             content and reply markup of the message",
        ));
    }
    message["edit_date"] = json!(date());
    chat.messages.insert(id, message.clone());
    if let Some(sent) = state.journal.sent.iter_mut().find(|sent| sent.chat == chat_id && sent.message_id == id) {
        sent.earlier.push(std::mem::replace(&mut sent.text, words.text));
        (sent.html, sent.entities, sent.buttons) = (words.html, words.entities, buttons);
    }
    Ok(message)
}

fn decorate(message: &mut Value, words: &Words, params: &Params) {
    if !words.entities.is_empty() {
        message["entities"] = Value::Array(words.entities.clone());
    }
    if let Some(markup) = params.get("reply_markup").filter(|markup| markup.get("inline_keyboard").is_some()) {
        message["reply_markup"] = markup.clone();
    }
    if let Some(options) = params.get("link_preview_options") {
        message["link_preview_options"] = options.clone();
    }
}

fn set_my_commands(params: &Params) -> Answer {
    let commands = params.get("commands").and_then(Value::as_array);
    let commands = commands.ok_or_else(|| Refusal::bad("parameter \"commands\" is required"))?;
    let fits = |command: &Value| {
        let name = command["command"].as_str().unwrap_or_default();
        let about = command["description"].as_str().unwrap_or_default();
        (1..=32).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && (1..=256).contains(&about.chars().count())
    };
    if commands.len() > 100 || !commands.iter().all(fits) {
        return Err(Refusal::bad("BOT_COMMAND_INVALID"));
    }
    Ok(json!(true))
}
