//! Anthropic's Messages: what the server asks of a request, the strictest of what it documents, and how an answer is
//! streamed.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Request;
use super::check::{Check, ensure, is_name, only};
use super::reply::{Reply, What, pieces, words};

/// Top-level keys by the public reference.
const KEYS: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "system",
    "stream",
    "tools",
    "tool_choice",
    "temperature",
    "top_k",
    "top_p",
    "stop_sequences",
    "metadata",
    "thinking",
    "service_tier",
];

/// The most marks of a request for the cache.
const MARKS_MAX: usize = 4;

/// The first thing that is wrong with a request body. `sealed` are the answers with reasoning that were given so far,
/// and the model that gave each.
pub(super) fn request(body: &Value, sealed: &[(String, Vec<Value>)]) -> Check {
    let top = body.as_object().ok_or("the body is no object")?;
    if let Some(key) = top.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("{key}: Extra inputs are not permitted"));
    }
    let model = body["model"].as_str().filter(|model| !model.is_empty()).ok_or("model: Field required")?;
    ensure(body["max_tokens"].as_u64().is_some_and(|most| most > 0), || "max_tokens: Field required".into())?;
    ensure(top.get("stream").is_none_or(Value::is_boolean), || "stream: Input should be a valid boolean".into())?;
    let mut marks = 0;
    match top.get("system") {
        None | Some(Value::String(_)) => {}
        Some(Value::Array(blocks)) => {
            for (i, block) in blocks.iter().enumerate() {
                text_block(block, &format!("system.{i}"), &mut marks)?;
            }
        }
        Some(_) => return Err("system: Input should be a string or a list of text blocks".into()),
    }
    let names = tools(top, &mut marks)?;
    let history = body["messages"].as_array().ok_or("messages: Field required")?;
    messages(history, model, sealed, &mut marks)?;
    let has_calls = history.iter().any(|message| !results_of(message).is_empty());
    ensure(!has_calls || !names.is_empty(), || {
        "Requests which include `tool_use` or `tool_result` blocks must define tools".into()
    })?;
    ensure(marks <= MARKS_MAX, || {
        format!("A maximum of {MARKS_MAX} blocks with cache_control may be provided. Found {marks}.")
    })
}

fn tools(top: &Map<String, Value>, marks: &mut usize) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    let tools = match top.get("tools") {
        None => &[][..],
        Some(tools) => tools.as_array().ok_or("tools: Input should be a valid list")?,
    };
    for (i, tool) in tools.iter().enumerate() {
        let at = format!("tools.{i}");
        only(tool, &["name", "description", "input_schema", "cache_control"], &at)?;
        mark(tool, &at, marks)?;
        let name = tool["name"].as_str().unwrap_or_default();
        ensure(is_name(name), || format!("{at}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"))?;
        ensure(names.insert(name.to_owned()), || "tools: Tool names must be unique.".into())?;
        ensure(tool.get("description").is_none_or(Value::is_string), || format!("{at}.description: no string"))?;
        ensure(tool["input_schema"]["type"] == "object", || format!("{at}.input_schema.type: Field required"))?;
    }
    if let Some(choice) = top.get("tool_choice") {
        ensure(!names.is_empty(), || "tool_choice may only be specified while providing tools".into())?;
        let kind = choice["type"].as_str().unwrap_or_default();
        ensure(["auto", "any", "none"].contains(&kind), || format!("tool_choice.type: `{kind}`"))?;
    }
    Ok(names)
}

/// Roles in turns, and every call with exactly its results in the message after it.
fn messages(history: &[Value], model: &str, sealed: &[(String, Vec<Value>)], marks: &mut usize) -> Check {
    ensure(!history.is_empty(), || "messages: at least one message is required".into())?;
    let mut open: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    for (i, message) in history.iter().enumerate() {
        let at = format!("messages.{i}");
        only(message, &["role", "content"], &at)?;
        let role = message["role"].as_str().unwrap_or_default();
        let expected = if i % 2 == 0 { "user" } else { "assistant" };
        ensure(role == expected, || {
            format!("{at}: roles must alternate between \"user\" and \"assistant\", and here speaks \"{role}\"")
        })?;
        let content = blocks_of(message, &at)?;
        if role == "user" {
            user(&content, &at, &open, marks)?;
            open.clear();
        } else {
            open = assistant(&content, &at, &mut known, marks)?;
            unchanged(&content, model, sealed, &at)?;
        }
    }
    let last = history.last().map_or("", |last| last["role"].as_str().unwrap_or_default());
    ensure(last == "user", || "This model does not support assistant message prefill.".into())
}

fn blocks_of(message: &Value, at: &str) -> Result<Vec<Value>, String> {
    match &message["content"] {
        Value::String(text) => Ok(vec![json!({ "type": "text", "text": text })]),
        Value::Array(blocks) if !blocks.is_empty() => Ok(blocks.clone()),
        _ => Err(format!("{at}: all messages must have non-empty content")),
    }
}

/// Results first, one for each call of the message before, then words.
fn user(content: &[Value], at: &str, open: &[String], marks: &mut usize) -> Check {
    let mut missing = open.to_vec();
    let mut words = false;
    for (j, block) in content.iter().enumerate() {
        let at = format!("{at}.content.{j}");
        if block["type"] != "tool_result" {
            text_block(block, &at, marks)?;
            words = true;
            continue;
        }
        only(block, &["type", "tool_use_id", "content", "is_error", "cache_control"], &at)?;
        mark(block, &at, marks)?;
        ensure(!words, || format!("{at}: `tool_result` blocks have to stand before all else"))?;
        let id = block["tool_use_id"].as_str().unwrap_or_default();
        let Some(place) = missing.iter().position(|call| call == id) else {
            return Err(format!("{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}"));
        };
        missing.remove(place);
        ensure(block["content"].is_string(), || format!("{at}.content: no string"))?;
        ensure(block.get("is_error").is_none_or(Value::is_boolean), || format!("{at}.is_error: no boolean"))?;
    }
    ensure(missing.is_empty(), || {
        format!(
            "{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {}",
            missing.join(", ")
        )
    })
}

/// The ids of the calls that now wait for their results.
fn assistant(
    content: &[Value],
    at: &str,
    known: &mut BTreeSet<String>,
    marks: &mut usize,
) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    for (j, block) in content.iter().enumerate() {
        let at = format!("{at}.content.{j}");
        match block["type"].as_str().unwrap_or_default() {
            "text" => text_block(block, &at, marks)?,
            "thinking" => {
                only(block, &["type", "thinking", "signature"], &at)?;
                ensure(block["signature"].is_string(), || format!("{at}.signature: Field required"))?;
            }
            "redacted_thinking" => {
                only(block, &["type", "data"], &at)?;
            }
            "tool_use" => {
                only(block, &["type", "id", "name", "input", "cache_control"], &at)?;
                mark(block, &at, marks)?;
                let id = block["id"]
                    .as_str()
                    .filter(|id| is_name(id))
                    .ok_or_else(|| format!("{at}.id: String should match pattern '^[a-zA-Z0-9_-]+$'"))?;
                ensure(known.insert(id.to_owned()), || "messages: `tool_use` ids must be unique".into())?;
                ensure(is_name(block["name"].as_str().unwrap_or_default()), || format!("{at}.name: no name"))?;
                ensure(block["input"].is_object(), || format!("{at}.input: Input should be a valid dictionary"))?;
                ids.push(id.to_owned());
            }
            kind => return Err(format!("{at}.type: `{kind}`")),
        }
    }
    Ok(ids)
}

/// Reasoning comes back to the model that gave it, all of it, in its order, and beside the same calls.
fn unchanged(content: &[Value], model: &str, sealed: &[(String, Vec<Value>)], at: &str) -> Check {
    if !content.iter().any(is_reasoning) {
        return Ok(());
    }
    let came_so = sealed.iter().any(|(by, blocks)| by == model && *blocks == shape(content));
    ensure(came_so, || {
        format!(
            "{at}: Invalid `signature`, or `thinking` or `redacted_thinking` blocks that were modified: these blocks \
             must remain as they were in the original response."
        )
    })
}

fn is_reasoning(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

/// What may not change of an answer with reasoning: words are free, ids are the client's own.
fn shape(content: &[Value]) -> Vec<Value> {
    let kept = content.iter().map(|block| match block["type"].as_str() {
        Some("text") => json!("words"),
        Some("tool_use") => json!([block["name"], block["input"]]),
        _ => block.clone(),
    });
    kept.collect()
}

fn text_block(block: &Value, at: &str, marks: &mut usize) -> Check {
    only(block, &["type", "text", "cache_control"], at)?;
    mark(block, at, marks)?;
    ensure(block["type"] == "text", || format!("{at}.type: `{}`", block["type"]))?;
    let text = block["text"].as_str().ok_or_else(|| format!("{at}.text: Field required"))?;
    ensure(!text.trim().is_empty(), || format!("{at}: text content blocks must contain non-whitespace text"))
}

fn mark(block: &Value, at: &str, marks: &mut usize) -> Check {
    let Some(control) = block.get("cache_control") else { return Ok(()) };
    *marks += 1;
    only(control, &["type", "ttl"], &format!("{at}.cache_control"))?;
    ensure(control["type"] == "ephemeral", || format!("{at}.cache_control.type: `{}`", control["type"]))
}

/// The results in a message.
pub(super) fn results_of(message: &Value) -> Vec<String> {
    let blocks = message["content"].as_array().into_iter().flatten();
    let results = blocks.filter(|block| block["type"] == "tool_result");
    results.map(|result| result["content"].as_str().unwrap_or_default().to_owned()).collect()
}

impl Reply {
    /// What may not change of it on its way back, where there is reasoning in it.
    pub(super) fn sealed(&self) -> Option<Vec<Value>> {
        match &self.what {
            What::Content(blocks) if blocks.iter().any(is_reasoning) => Some(shape(blocks)),
            _ => None,
        }
    }

    /// The blocks of the message; the input of a call as text, which the script may have cut.
    fn blocks(&self, request: &Request) -> Vec<(Value, String)> {
        match &self.what {
            What::Content(blocks) => blocks.iter().map(|block| (block.clone(), block["input"].to_string())).collect(),
            What::Say { text, .. } => {
                let words = (!text.is_empty()).then(|| (json!({ "type": "text", "text": text }), String::new()));
                let calls = self.numbered(request).into_iter().map(|(id, name, arguments)| {
                    let id = id.replace("call_", "toolu_");
                    (json!({ "type": "tool_use", "id": id, "name": name }), arguments)
                });
                words.into_iter().chain(calls).collect()
            }
            _ => Vec::new(),
        }
    }

    fn stop_reason(&self) -> String {
        let reason = self.reason();
        let word = match reason.as_str() {
            "stop" => "end_turn",
            "tool_calls" => "tool_use",
            "length" => "max_tokens",
            other => other,
        };
        word.to_owned()
    }

    fn message_json(&self, request: &Request) -> Value {
        let (read, _, cached) = self.tokens(request);
        json!({ "id": format!("msg_{}", request.seq), "type": "message", "role": "assistant", "model": request.model(),
                "content": [], "stop_reason": null, "stop_sequence": null,
                "usage": { "input_tokens": read - cached, "cache_creation_input_tokens": 0,
                           "cache_read_input_tokens": cached, "output_tokens": 1 } })
    }

    /// The events of a stream.
    pub(super) fn message_events(&self, request: &Request) -> Vec<Value> {
        if let What::Events(events) = &self.what {
            return events.clone();
        }
        let mut events = vec![json!({ "type": "message_start", "message": self.message_json(request) })];
        for (index, (block, input)) in self.blocks(request).into_iter().enumerate() {
            let of = |key: &str| block[key].as_str().unwrap_or_default();
            let delta = |delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
            let mut head = block.clone();
            let said: Vec<Value> = match of("type") {
                "text" => {
                    head["text"] = json!("");
                    words(of("text"))
                        .into_iter()
                        .map(|word| delta(json!({ "type": "text_delta", "text": word })))
                        .collect()
                }
                "thinking" => {
                    (head["thinking"], head["signature"]) = (json!(""), json!(""));
                    let thoughts = words(of("thinking")).into_iter();
                    let thoughts = thoughts.map(|word| delta(json!({ "type": "thinking_delta", "thinking": word })));
                    let seal = delta(json!({ "type": "signature_delta", "signature": of("signature") }));
                    thoughts.chain([seal]).collect()
                }
                "tool_use" => {
                    head["input"] = json!({});
                    let pieces = [String::new()].into_iter().chain(pieces(&input));
                    pieces.map(|piece| delta(json!({ "type": "input_json_delta", "partial_json": piece }))).collect()
                }
                _ => Vec::new(),
            };
            events.push(json!({ "type": "content_block_start", "index": index, "content_block": head }));
            if index == 0 {
                events.push(json!({ "type": "ping" }));
            }
            events.extend(said);
            events.push(json!({ "type": "content_block_stop", "index": index }));
        }
        events.push(json!({ "type": "message_delta",
                            "delta": { "stop_reason": self.stop_reason(), "stop_sequence": null },
                            "usage": { "output_tokens": self.tokens(request).1 } }));
        events.push(json!({ "type": "message_stop" }));
        events
    }

    /// The body where no stream was asked for.
    pub(super) fn whole_message(&self, request: &Request) -> Value {
        if let What::Events(events) = &self.what {
            return events.first().cloned().unwrap_or_default();
        }
        let content = self.blocks(request).into_iter().map(|(mut block, input)| {
            if block["type"] == "tool_use" {
                block["input"] = serde_json::from_str(&input).unwrap_or(json!(input));
            }
            block
        });
        let mut message = self.message_json(request);
        message["content"] = content.collect();
        message["stop_reason"] = json!(self.stop_reason());
        message["usage"]["output_tokens"] = json!(self.tokens(request).1);
        message
    }
}
