//! A [`Request`] as the body of a chat completion.
//!
//! The history comes validated, but its words are free: what a server would refuse (an empty text, a tool name out of
//! its alphabet, arguments that are no object) is sent in a form it takes. One odd message must not make every later
//! request of the session a 400.

use serde_json::{Value, json};

use crate::domain::{Block, Message, Role};
use crate::model::Request;
use crate::model::sendable::{self, NOTHING};

/// The body; `limit_key` is the name under which this server knows the output limit.
pub(super) fn of(request: &Request, model: &str, limit_key: &str) -> Value {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        messages.push(json!({"role": "system", "content": request.system}));
    }
    for message in &request.messages {
        push(&mut messages, message);
    }
    let mut body = json!({
        "model": model,
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
        limit_key: request.max_output_tokens,
    });
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
            json!({"type": "function", "function": function})
        });
        body["tools"] = tools.collect();
        if !request.tool_use {
            // Sent all the same: servers refuse a history with calls where no tools are declared, and caches hold.
            body["tool_choice"] = json!("none");
        }
    }
    body
}

fn push(messages: &mut Vec<Value>, message: &Message) {
    let text = message.plain_text();
    if message.role == Role::Assistant {
        let calls: Vec<Value> = message.blocks.iter().filter_map(call).collect();
        match (text.is_empty(), calls.is_empty()) {
            (true, true) => {} // says nothing, and is refused everywhere
            (false, true) => messages.push(json!({"role": "assistant", "content": text})),
            // Null, not absent and not "": what OpenAI's own clients send, and templates of local servers expect.
            (true, false) => messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls})),
            (false, false) => messages.push(json!({"role": "assistant", "content": text, "tool_calls": calls})),
        }
        return;
    }
    let before = messages.len();
    for block in &message.blocks {
        if let Block::ToolResult { call, text, .. } = block {
            let content = if text.is_empty() { NOTHING } else { text };
            messages.push(json!({"role": "tool", "tool_call_id": call.to_string(), "content": content}));
        }
    }
    if !text.is_empty() {
        messages.push(json!({"role": "user", "content": text}));
    } else if messages.len() == before {
        messages.push(json!({"role": "user", "content": NOTHING}));
    }
}

fn call(block: &Block) -> Option<Value> {
    let Block::ToolCall { call, name, arguments } = block else { return None };
    let function = json!({"name": sendable::name(name), "arguments": sendable::arguments(arguments).to_string()});
    Some(json!({"id": call.to_string(), "type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Origin;
    use crate::model::ToolSchema;
    use crate::model::stand::{proposal, result, text};

    fn sent(role: Role, blocks: Vec<Block>) -> Value {
        let mut messages = Vec::new();
        push(&mut messages, &Message { role, blocks });
        messages.into()
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn a_message_is_sent_in_a_form_that_servers_take() {
        let read = || proposal(1, "read_file", json!({"path": "x"}));
        let read_sent = || call("call-4-1", "read_file", r#"{"path":"x"}"#);
        let long = "n".repeat(90);
        for (name, role, blocks, expected) in [
            (
                "blocks are joined",
                Role::User,
                vec![text("[midwatch: it is]"), text("hi")],
                json!([{"role": "user", "content": "[midwatch: it is]\n\nhi"}]),
            ),
            ("an empty message", Role::User, vec![text("")], json!([{"role": "user", "content": "(empty)"}])),
            ("words", Role::Assistant, vec![text("hi")], json!([{"role": "assistant", "content": "hi"}])),
            ("nothing said", Role::Assistant, vec![text("")], json!([])),
            (
                "a call alone has no content",
                Role::Assistant,
                vec![read()],
                json!([{"role": "assistant", "content": null, "tool_calls": [read_sent()]}]),
            ),
            (
                "words and a call",
                Role::Assistant,
                vec![text("hm"), read()],
                json!([{"role": "assistant", "content": "hm", "tool_calls": [read_sent()]}]),
            ),
            (
                "arguments that never parsed are an object again",
                Role::Assistant,
                vec![proposal(2, "write_file", json!("{\"path\": \"x")), proposal(3, "a", json!([1]))],
                json!([{"role": "assistant", "content": null, "tool_calls": [
                    call("call-4-2", "write_file", r#"{"raw":"{\"path\": \"x"}"#),
                    call("call-4-3", "a", r#"{"raw":"[1]"}"#),
                ]}]),
            ),
            (
                "made-up names",
                Role::Assistant,
                vec![proposal(1, "rm -rf", json!({})), proposal(2, "", json!({})), proposal(3, &long, json!({}))],
                json!([{"role": "assistant", "content": null, "tool_calls": [
                    call("call-4-1", "rm_-rf", "{}"),
                    call("call-4-2", "unnamed", "{}"),
                    call("call-4-3", &long[..64], "{}"),
                ]}]),
            ),
            (
                "one message a result, a note after them",
                Role::Tool,
                vec![result(1, "a", false), text("note"), result(2, "no grant", true), result(3, "", false)],
                json!([
                    {"role": "tool", "tool_call_id": "call-4-1", "content": "a"},
                    {"role": "tool", "tool_call_id": "call-4-2", "content": "no grant"},
                    {"role": "tool", "tool_call_id": "call-4-3", "content": "(empty)"},
                    {"role": "user", "content": "note"},
                ]),
            ),
        ] {
            assert_eq!(sent(role, blocks), expected, "{name}");
        }
    }

    #[test]
    fn the_frame_around_the_messages() {
        let mut request = Request {
            system: "You are midwatch.".into(),
            messages: vec![Message::text(Role::User, "hi", Origin::Cause)],
            tools: vec![],
            max_output_tokens: 9,
            tool_use: true,
        };
        assert_eq!(
            of(&request, "m", "max_tokens"),
            json!({
                "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 9,
                "messages": [
                    {"role": "system", "content": "You are midwatch."},
                    {"role": "user", "content": "hi"},
                ],
            })
        );
        request.system.clear();
        request.tools = vec![ToolSchema {
            name: "read_file".into(),
            description: "Reads.".into(),
            parameters: json!({"type": "object"}),
        }];
        let body = of(&request, "m", "max_completion_tokens");
        assert_eq!(body["max_completion_tokens"], 9);
        assert_eq!(body["messages"], json!([{"role": "user", "content": "hi"}]));
        let function = json!({"name": "read_file", "description": "Reads.", "parameters": {"type": "object"}});
        assert_eq!(body["tools"], json!([{"type": "function", "function": function}]));
        assert_eq!(body.get("tool_choice"), None);
        request.tool_use = false;
        let body = of(&request, "m", "max_tokens");
        assert_eq!((&body["tools"][0]["type"], &body["tool_choice"]), (&json!("function"), &json!("none")));
    }
}
