//! A [`Request`] as the body of a Messages request.
//!
//! Two sides speak in turns: results are the user's, and stand first in their message. Tools, system and history keep
//! their bytes from round to round, and four marks say how far the provider's cache is to reach.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::PROVIDER;
use crate::domain::{Block, Message, Role};
use crate::model::Request;
use crate::model::sendable::{self, NOTHING};

/// The user's messages that carry a mark: the last one, and the one on which the last request ended.
///
/// With tools and system these are the four that the protocol allows. From a mark the provider looks back only twenty
/// blocks, and a batch of calls and its results can be longer than that.
const MARKED_MESSAGES: usize = 2;

/// The body.
pub(super) fn of(request: &Request, model: &str) -> Value {
    let mut body = json!({
        "model": model,
        "max_tokens": request.max_output_tokens,
        "stream": true,
        "messages": messages(&request.messages, model),
    });
    if !request.system.trim().is_empty() {
        let mut system = text(&request.system);
        mark(&mut system);
        body["system"] = json!([system]);
    }
    let offered = request.tools.iter().map(|known| tool(&known.name, &known.description, &known.parameters));
    let mut tools: Vec<Value> = offered.collect();
    let may_call = request.tool_use && !tools.is_empty();
    if tools.is_empty() {
        // A history with calls is refused where no tools are declared, and the grants of its session may be gone.
        let gone = |name| tool(name, "Can no longer be used here.", &json!({"type": "object"}));
        tools = called(&body["messages"]).into_iter().map(gone).collect();
    }
    tools.last_mut().map(mark);
    if !tools.is_empty() {
        body["tools"] = tools.into();
        if !may_call {
            // The tools stay all the same, so that the cache does.
            body["tool_choice"] = json!({"type": "none"});
        }
    }
    body
}

fn tool(name: &str, description: &str, schema: &Value) -> Value {
    json!({"name": name, "description": description, "input_schema": schema})
}

/// The names of the tools that messages call.
fn called(messages: &Value) -> BTreeSet<&str> {
    let blocks = messages.as_array().into_iter().flatten().filter_map(|message| message["content"].as_array());
    blocks.flatten().filter(|block| block["type"] == "tool_use").filter_map(|block| block["name"].as_str()).collect()
}

fn messages(history: &[Message], model: &str) -> Vec<Value> {
    let mut made: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in history {
        let role = if message.role == Role::Assistant { "assistant" } else { "user" };
        let mut blocks: Vec<Value> = message.blocks.iter().filter_map(|block| sent(block, model)).collect();
        if blocks.iter().all(is_reasoning) {
            // A model that said nothing is left out; a person's silence holds its place.
            match message.role {
                Role::Assistant => continue,
                Role::User | Role::Tool => blocks = vec![text(NOTHING)],
            }
        }
        match made.last_mut() {
            Some((last, said)) if *last == role => said.append(&mut blocks),
            _ => made.push((role, blocks)),
        }
    }
    let users = made.iter_mut().rev().filter(|(role, _)| *role == "user");
    users.take(MARKED_MESSAGES).filter_map(|(_, blocks)| blocks.last_mut()).for_each(mark);
    made.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// The block as it is sent to `model`; nothing for what is not for it, and for a text without words, which is refused.
fn sent(block: &Block, model: &str) -> Option<Value> {
    match block {
        Block::Text { text: words, .. } => (!words.trim().is_empty()).then(|| text(words)),
        Block::ToolCall { call, name, arguments } => Some(json!({
            "type": "tool_use", "id": call.to_string(), "name": sendable::name(name),
            "input": sendable::arguments(arguments),
        })),
        Block::ToolResult { call, text, is_error, .. } => {
            let content = if text.trim().is_empty() { NOTHING } else { text };
            let mut result = json!({"type": "tool_result", "tool_use_id": call.to_string(), "content": content});
            if *is_error {
                result["is_error"] = json!(true);
            }
            Some(result)
        }
        Block::Reasoning(reasoning) => reasoning.is_of(PROVIDER, model).then(|| reasoning.raw.clone()),
    }
}

fn text(words: &str) -> Value {
    json!({"type": "text", "text": words})
}

fn is_reasoning(block: &Value) -> bool {
    !["text", "tool_use", "tool_result"].iter().any(|kind| block["type"] == *kind)
}

/// The provider's cache is to hold everything up to the end of this block.
fn mark(block: &mut Value) {
    block["cache_control"] = json!({"type": "ephemeral"});
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Origin, Reasoning};
    use crate::model::ToolSchema;
    use crate::model::stand::{proposal as call, result, text as words};

    fn thought(model: &str, raw: &Value) -> Block {
        Block::Reasoning(Reasoning { provider: PROVIDER.into(), model: model.into(), raw: raw.clone() })
    }

    /// The messages as they are sent, without the marks for the cache.
    fn unmarked(history: Vec<(Role, Vec<Block>)>) -> Value {
        let history: Vec<Message> = history.into_iter().map(|(role, blocks)| Message { role, blocks }).collect();
        let mut messages = messages(&history, "m");
        for block in messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten() {
            block.as_object_mut().unwrap().remove("cache_control");
        }
        messages.into()
    }

    #[test]
    fn two_sides_speak_in_turns_in_a_form_that_servers_take() {
        let raw = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
        let sealed = json!({"type": "redacted_thinking", "data": "xxx"});
        for (name, history, expected) in [
            (
                "results first, then the note after them, in one message",
                vec![
                    (Role::User, vec![words("[midwatch: it is]"), words("hi")]),
                    (Role::Assistant, vec![words("I look."), call(1, "read_file", json!({"path": "x"}))]),
                    (Role::Tool, vec![result(1, "no grant", true)]),
                    (Role::User, vec![words("note")]),
                ],
                json!([
                    {"role": "user", "content": [{"type": "text", "text": "[midwatch: it is]"},
                                                 {"type": "text", "text": "hi"}]},
                    {"role": "assistant", "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "call-4-1", "name": "read_file", "input": {"path": "x"}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "call-4-1", "content": "no grant", "is_error": true},
                        {"type": "text", "text": "note"}]},
                ]),
            ),
            (
                "what has no words is left out, and turns still alternate",
                vec![
                    (Role::User, vec![words(" ")]),
                    (Role::Assistant, vec![words("\n")]),
                    (Role::User, vec![words("hi"), words("")]),
                ],
                json!([{"role": "user", "content": [{"type": "text", "text": "(empty)"},
                                                    {"type": "text", "text": "hi"}]}]),
            ),
            (
                "odd names and arguments",
                vec![(Role::Assistant, vec![call(1, "rm -rf", json!("{\"p")), call(2, "", json!([1]))])],
                json!([{"role": "assistant", "content": [
                    {"type": "tool_use", "id": "call-4-1", "name": "rm_-rf", "input": {"raw": "{\"p"}},
                    {"type": "tool_use", "id": "call-4-2", "name": "unnamed", "input": {"raw": "[1]"}}]}]),
            ),
            (
                "an empty result",
                vec![(Role::Tool, vec![result(1, "", false)])],
                json!([{"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call-4-1", "content": "(empty)"}]}]),
            ),
            (
                "B121: reasoning stands where it stood",
                vec![(
                    Role::Assistant,
                    vec![
                        thought("m", &raw),
                        call(1, "a", json!({})),
                        thought("m", &sealed),
                        call(2, "b", json!({})),
                        words("so"),
                    ],
                )],
                json!([{"role": "assistant", "content": [
                    raw, {"type": "tool_use", "id": "call-4-1", "name": "a", "input": {}},
                    sealed, {"type": "tool_use", "id": "call-4-2", "name": "b", "input": {}},
                    {"type": "text", "text": "so"}]}]),
            ),
            (
                "B120: and is left out for another model",
                vec![(Role::Assistant, vec![thought("other", &raw), words("so")])],
                json!([{"role": "assistant", "content": [{"type": "text", "text": "so"}]}]),
            ),
            ("nothing but reasoning", vec![(Role::Assistant, vec![thought("m", &raw)])], json!([])),
        ] {
            assert_eq!(unmarked(history), expected, "{name}");
        }
    }

    #[test]
    fn the_frame_around_the_messages_and_the_marks_for_the_cache() {
        let say = |role, text: &str| Message::text(role, text, Origin::Cause);
        let does = |name: &str| ToolSchema {
            name: name.into(),
            description: "Does.".into(),
            parameters: json!({"type": "object"}),
        };
        let mut request = Request {
            system: "You are midwatch.".into(),
            messages: vec![
                say(Role::User, "one"),
                say(Role::Assistant, "1"),
                say(Role::User, "two"),
                say(Role::Assistant, "2"),
                say(Role::User, "three"),
            ],
            tools: vec![does("a"), does("b")],
            max_output_tokens: 9,
            tool_use: true,
        };
        let plain = |role: &str, text: &str| json!({"role": role, "content": [{"type": "text", "text": text}]});
        let cached = json!({"type": "ephemeral"});
        let marked =
            |text: &str| json!({"role": "user", "content": [{"type": "text", "text": text, "cache_control": cached}]});
        let expected = json!({
            "model": "m", "max_tokens": 9, "stream": true,
            "system": [{"type": "text", "text": "You are midwatch.", "cache_control": cached}],
            "tools": [
                {"name": "a", "description": "Does.", "input_schema": {"type": "object"}},
                {"name": "b", "description": "Does.", "input_schema": {"type": "object"}, "cache_control": cached},
            ],
            "messages": [
                plain("user", "one"), plain("assistant", "1"), marked("two"), plain("assistant", "2"), marked("three"),
            ],
        });
        assert_eq!(of(&request, "m"), expected);
        request.tool_use = false;
        let body = of(&request, "m");
        assert_eq!((&body["tools"], &body["tool_choice"]), (&expected["tools"], &json!({"type": "none"})));
        request.system.clear();
        request.tools.clear();
        let body = of(&request, "m");
        assert!(body.get("system").is_none() && body.get("tools").is_none() && body.get("tool_choice").is_none());
        // What was called when there were tools.
        request.tool_use = true;
        let asked = vec![call(1, "read_file", json!({})), call(2, "list_files", json!({}))];
        request.messages.push(Message { role: Role::Assistant, blocks: asked });
        request.messages.push(Message { role: Role::Tool, blocks: vec![result(1, "a", false), result(2, "b", false)] });
        let body = of(&request, "m");
        let names: Vec<_> =
            body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!((names, &body["tool_choice"]), (vec!["list_files", "read_file"], &json!({"type": "none"})));
    }
}
