//! What a chat-completions server asks of a request: the rules of the real ones, the strictest of each, because a
//! history that one of them refuses is a session that is dead there for ever.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Top-level keys by the public reference.
const KEYS: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "user",
    "seed",
    "response_format",
    "reasoning_effort",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "verbosity",
];

pub(super) type Check = Result<(), String>;

/// The first thing that is wrong with a request body.
pub(crate) fn request(body: &Value) -> Check {
    let body = body.as_object().ok_or("the body is no object")?;
    if let Some(key) = body.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("Unrecognized request argument supplied: {key}"));
    }
    if body.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err("you must provide a model parameter".into());
    }
    let streams = match body.get("stream") {
        None => false,
        Some(stream) => stream.as_bool().ok_or("'stream' is no boolean")?,
    };
    if let Some(options) = body.get("stream_options") {
        if !streams {
            return Err("The 'stream_options' parameter is only allowed when 'stream' is enabled.".into());
        }
        only(options, &["include_usage", "include_obfuscation"], "stream_options")?;
    }
    for key in ["max_tokens", "max_completion_tokens", "seed", "n"] {
        let fits = body.get(key).is_none_or(|value| value.as_u64().is_some_and(|value| value > 0) || key == "seed");
        ensure(fits, || format!("Invalid '{key}': integer below minimum value"))?;
    }
    let both = body.contains_key("max_tokens") && body.contains_key("max_completion_tokens");
    ensure(!both, || "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.".into())?;
    for (key, most) in [("temperature", 2.0), ("top_p", 1.0)] {
        let fits = body.get(key).is_none_or(|value| value.as_f64().is_some_and(|v| (0.0..=most).contains(&v)));
        ensure(fits, || format!("Invalid '{key}': not within 0 and {most}"))?;
    }
    tools(body)?;
    messages(body.get("messages").and_then(Value::as_array).ok_or("'messages' is no array")?)
}

pub(super) fn ensure(fits: bool, why: impl FnOnce() -> String) -> Check {
    if fits { Ok(()) } else { Err(why()) }
}

pub(super) fn only<'a>(value: &'a Value, keys: &[&str], what: &str) -> Result<&'a Map<String, Value>, String> {
    let map = value.as_object().ok_or_else(|| format!("{what} is no object"))?;
    match map.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => Err(format!("Unknown parameter: '{what}.{key}'")),
        None => Ok(map),
    }
}

pub(super) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

fn tools(body: &Map<String, Value>) -> Check {
    let Some(tools) = body.get("tools") else {
        for key in ["tool_choice", "parallel_tool_calls"] {
            let why = || format!("Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified.");
            ensure(!body.contains_key(key), why)?;
        }
        return Ok(());
    };
    let tools = tools.as_array().ok_or("'tools' is no array")?;
    ensure(!tools.is_empty(), || "Invalid 'tools': empty array.".into())?;
    let mut names = BTreeSet::new();
    for (i, tool) in tools.iter().enumerate() {
        let at = format!("tools[{i}]");
        let tool = only(tool, &["type", "function"], &at)?;
        ensure(tool.get("type").is_some_and(|kind| kind == "function"), || format!("Invalid value: '{at}.type'"))?;
        let function = tool.get("function").unwrap_or(&Value::Null);
        let function = only(function, &["name", "description", "parameters", "strict"], &format!("{at}.function"))?;
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let pattern = || format!("Invalid '{at}.function.name': does not match '^[a-zA-Z0-9_-]+$'");
        ensure(is_name(name), pattern)?;
        ensure(names.insert(name), || format!("the tool {name} is given twice"))?;
        let text = function.get("description").is_none_or(Value::is_string);
        ensure(text, || format!("'{at}.function.description' is no string"))?;
        if let Some(parameters) = function.get("parameters") {
            let why = || format!("Invalid schema for function '{name}': schema must be of type \"object\"");
            ensure(parameters.get("type").is_some_and(|kind| kind == "object"), why)?;
            ensure(parameters.get("properties").is_some_and(Value::is_object), || {
                format!("Invalid schema for function '{name}': object schema missing properties")
            })?;
        }
    }
    match body.get("tool_choice") {
        None => Ok(()),
        Some(Value::String(word)) if ["auto", "none", "required"].contains(&word.as_str()) => Ok(()),
        Some(choice) => {
            let name = choice["function"]["name"].as_str().unwrap_or_default();
            ensure(names.contains(name), || format!("Invalid 'tool_choice': {choice}"))
        }
    }
}

/// Roles in their order, and every call with exactly its results.
fn messages(messages: &[Value]) -> Check {
    ensure(!messages.is_empty(), || "Invalid 'messages': empty array.".into())?;
    let mut before = "";
    let mut open: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for (i, message) in messages.iter().enumerate() {
        let at = format!("messages[{i}]");
        let role = message["role"].as_str().ok_or_else(|| format!("'{at}.role' is missing"))?;
        if role != "tool" && !open.is_empty() {
            return Err(format!(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
                 'tool_call_id'. The following tool_call_ids did not have response messages: {} ({at})",
                open.join(", ")
            ));
        }
        match role {
            "system" | "developer" => {
                only(message, &["role", "content", "name"], &at)?;
                ensure(i == 0, || format!("{at}: a system message that is not the first"))?;
                content(&message["content"], &["text"], &at)?;
            }
            "user" => {
                only(message, &["role", "content", "name"], &at)?;
                ensure(before != "user", || format!("{at}: roles must alternate, and a user speaks twice"))?;
                content(&message["content"], &["text", "image_url"], &at)?;
            }
            "assistant" => {
                let why = || format!("{at}: roles must alternate, and the assistant speaks after '{before}'");
                ensure(["user", "tool"].contains(&before), why)?;
                open = assistant(message, &at, &mut known)?;
            }
            "tool" => {
                only(message, &["role", "content", "tool_call_id", "name"], &at)?;
                let id = message["tool_call_id"].as_str().ok_or_else(|| format!("'{at}.tool_call_id' is missing"))?;
                let Some(place) = open.iter().position(|call| *call == id) else {
                    return Err(format!(
                        "messages with role 'tool' must be a response to a preceding message with 'tool_calls': {id} \
                         ({at})"
                    ));
                };
                open.remove(place);
                // A result may be empty: the command printed nothing.
                if message["content"] != "" {
                    content(&message["content"], &["text"], &at)?;
                }
            }
            _ => return Err(format!("Invalid value: '{role}' ({at}.role)")),
        }
        before = role;
    }
    if !open.is_empty() {
        return Err(format!("the history ends before the results of {}", open.join(", ")));
    }
    ensure(["user", "tool"].contains(&before), || format!("the history ends with '{before}'"))
}

/// The ids of the calls that now wait for their results.
fn assistant<'a>(message: &'a Value, at: &str, known: &mut BTreeSet<&'a str>) -> Result<Vec<&'a str>, String> {
    only(message, &["role", "content", "refusal", "name", "tool_calls"], at)?;
    let calls = match message.get("tool_calls") {
        None => &[][..],
        Some(calls) => {
            let calls = calls.as_array().ok_or_else(|| format!("'{at}.tool_calls' is no array"))?;
            ensure(!calls.is_empty(), || format!("Invalid '{at}.tool_calls': empty array."))?;
            calls.as_slice()
        }
    };
    let said = message.get("content").is_some_and(|content| !content.is_null());
    if said {
        content(&message["content"], &["text", "refusal"], at)?;
    }
    ensure(said || !calls.is_empty(), || format!("{at}: an assistant message without content and calls"))?;
    let mut ids = Vec::new();
    for (j, call) in calls.iter().enumerate() {
        let at = format!("{at}.tool_calls[{j}]");
        only(call, &["id", "type", "function"], &at)?;
        ensure(call["type"] == "function", || format!("Invalid value: '{at}.type'"))?;
        let id = call["id"].as_str().filter(|id| !id.is_empty() && id.len() <= 40);
        let id = id.ok_or_else(|| format!("Invalid '{at}.id': 1 to 40 characters"))?;
        ensure(known.insert(id), || format!("{at}: the id {id} was used before"))?;
        only(&call["function"], &["name", "arguments"], &format!("{at}.function"))?;
        let name = call["function"]["name"].as_str().unwrap_or_default();
        ensure(is_name(name), || format!("Invalid '{at}.function.name': does not match '^[a-zA-Z0-9_-]+$'"))?;
        let arguments = call["function"]["arguments"].as_str();
        let arguments = arguments.ok_or_else(|| format!("'{at}.function.arguments' is no string"))?;
        let object = serde_json::from_str::<Map<String, Value>>(arguments);
        ensure(object.is_ok(), || format!("'{at}.function.arguments' is no JSON object: {arguments}"))?;
        ids.push(id);
    }
    Ok(ids)
}

/// A string with something in it, or parts of the allowed types.
fn content(content: &Value, parts: &[&str], at: &str) -> Check {
    match content {
        Value::String(text) => ensure(!text.trim().is_empty(), || format!("{at}: empty content")),
        Value::Array(list) => {
            ensure(!list.is_empty(), || format!("{at}: empty content"))?;
            for part in list {
                let kind = part["type"].as_str().unwrap_or_default();
                ensure(parts.contains(&kind), || format!("Invalid value: '{kind}' ({at}.content[].type)"))?;
                only(part, &["type", kind], &format!("{at}.content[]"))?;
                let body = &part[kind];
                let fits = match kind {
                    "image_url" => {
                        let url = body["url"].as_str().unwrap_or_default();
                        url.starts_with("data:image/") || url.starts_with("https://")
                    }
                    _ => body.as_str().is_some_and(|text| !text.trim().is_empty()),
                };
                ensure(fits, || format!("{at}: an empty or malformed {kind} part"))?;
            }
            Ok(())
        }
        _ => Err(format!("Invalid type for '{at}.content': expected a string or an array of parts")),
    }
}
