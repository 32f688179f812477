//! The fake of Messages refuses what the real server refuses.

use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::support::PATIENCE;
use crate::support::model::{KEY, Model, Reply};

async fn post(model: &Model, headers: &[(&str, &str)], body: &Value) -> Response {
    let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let post = client.post(format!("{}/v1/messages", model.root())).json(body);
    headers.iter().fold(post, |post, (name, value)| post.header(*name, *value)).send().await.unwrap()
}

const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");
const GOOD: [(&str, &str); 2] = [("x-api-key", KEY), VERSION];

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(content: Value) -> Value {
    json!({ "role": "assistant", "content": content })
}

fn call(id: &str) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "read_file", "input": { "path": "a" } })
}

fn results(ids: &[&str]) -> Value {
    let results = ids.iter().map(|id| json!({ "type": "tool_result", "tool_use_id": id, "content": "ok" }));
    json!({ "role": "user", "content": results.collect::<Vec<_>>() })
}

fn asking(messages: Value) -> Value {
    let tools = json!([{ "name": "read_file", "description": "Reads.", "input_schema": { "type": "object" } }]);
    json!({ "model": "m", "max_tokens": 9, "messages": messages, "tools": tools })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

#[tokio::test]
async fn every_malformed_history_is_refused() {
    let model = Model::start().await;
    let note =
        json!({ "role": "user", "content": [text("x"), { "type": "tool_result", "tool_use_id": "a", "content": "" }] });
    let bad_call = |key: &str, value: Value| {
        let mut call = call("a");
        call[key] = value;
        assistant(json!([call]))
    };
    for (name, messages) in [
        ("nothing", json!([])),
        ("user twice", json!([user("x"), user("y")])),
        ("assistant first", json!([assistant(json!("a")), user("x")])),
        ("assistant twice", json!([user("x"), assistant(json!("a")), assistant(json!("b")), user("x")])),
        ("assistant last", json!([user("x"), assistant(json!("a"))])),
        ("a role of the other protocol", json!([{ "role": "system", "content": "s" }, user("x")])),
        ("an empty user", json!([user("")])),
        ("words of blanks", json!([{ "role": "user", "content": [text("x"), text(" ")] }])),
        ("no blocks", json!([{ "role": "user", "content": [] }])),
        ("a result missing", json!([user("x"), assistant(json!([call("a"), call("b")])), results(&["a"])])),
        ("no result", json!([user("x"), assistant(json!([call("a")])), user("y")])),
        ("a result of nothing", json!([user("x"), assistant(json!([call("a")])), results(&["a", "b"])])),
        ("a result without calls", json!([user("x"), assistant(json!("a")), results(&["a"])])),
        ("a result after words", json!([user("x"), assistant(json!([call("a")])), note])),
        ("ids doubled", json!([user("x"), assistant(json!([call("a"), call("a")])), results(&["a", "a"])])),
        ("an id of other letters", json!([user("x"), bad_call("id", json!("a b")), results(&["a b"])])),
        ("input that is no object", json!([user("x"), bad_call("input", json!("{}")), results(&["a"])])),
        ("an unknown key", json!([{ "role": "user", "content": "x", "origin": "cause" }])),
        ("an unknown block", json!([{ "role": "user", "content": [{ "type": "reasoning" }] }])),
        (
            "a seal that nobody gave",
            json!([
                user("x"),
                assistant(json!([{ "type": "thinking", "thinking": "t", "signature": "s" }, text("a")])),
                user("y")
            ]),
        ),
    ] {
        let before = model.violations().len();
        let refused = post(&model, &GOOD, &asking(messages)).await;
        assert_eq!(refused.status(), 400, "{name}");
        let body: Value = refused.json().await.unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert_eq!(model.violations().len(), before + 1, "{name}");
    }
}

#[tokio::test]
async fn every_malformed_request_is_refused_and_a_good_one_is_not() {
    let model = Model::start().await;
    let marked = |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    let five: Vec<Value> = (0..5).map(|_| marked("x")).collect();
    for (name, key, value) in [
        ("an unknown key", "stream_options", json!({})),
        ("a key of the other protocol", "max_completion_tokens", json!(5)),
        ("no limit", "max_tokens", Value::Null),
        ("a limit of 0", "max_tokens", json!(0)),
        ("no model", "model", json!("")),
        ("a system that is none", "system", json!({ "text": "s" })),
        ("an empty system", "system", json!([text("")])),
        ("too many marks", "system", json!(five)),
        ("a tool's name", "tools", json!([{ "name": "no name", "input_schema": { "type": "object" } }])),
        ("a tool's schema", "tools", json!([{ "name": "f", "input_schema": {} }])),
        ("a tool of the other protocol", "tools", json!([{ "type": "function", "function": { "name": "f" } }])),
        ("a choice that is a word", "tool_choice", json!("none")),
    ] {
        let mut body = asking(json!([user("x")]));
        body[key] = value;
        assert_eq!(post(&model, &GOOD, &body).await.status(), 400, "{name}");
    }
    let calls = json!([user("x"), assistant(json!([call("a")])), results(&["a"])]);
    let mut toolless = asking(calls.clone());
    toolless.as_object_mut().unwrap().remove("tools");
    assert_eq!(post(&model, &GOOD, &toolless).await.status(), 400, "calls without tools");
    assert_eq!(post(&model, &GOOD[..1], &asking(json!([user("x")]))).await.status(), 400, "no version");
    assert_eq!(model.violations().len(), 14);

    let model = Model::start().await;
    assert_eq!(post(&model, &[("x-api-key", "wrong"), VERSION], &asking(json!([user("x")]))).await.status(), 401);
    let thought = json!({ "type": "thinking", "thinking": "t", "signature": "s" });
    model.queue(Reply::content(vec![thought.clone(), call("a")]));
    let said: Value = post(&model, &GOOD, &asking(json!([user("x")]))).await.json().await.unwrap();
    assert_eq!((&said["stop_reason"], &said["content"][0]), (&json!("tool_use"), &thought));
    let back = |content: Value| asking(json!([user("x"), assistant(content), results(&["a"])]));
    assert_eq!(post(&model, &GOOD, &back(said["content"].clone())).await.status(), 200);
    model.assert_clean();
    for (name, content) in [
        ("another order", json!([call("a"), thought])),
        ("another thought", json!([{ "type": "thinking", "thinking": "u", "signature": "s" }, call("a")])),
        ("another call", json!([thought, { "type": "tool_use", "id": "a", "name": "read_file", "input": {} }])),
    ] {
        assert_eq!(post(&model, &GOOD, &back(content)).await.status(), 400, "{name}");
    }
    let mut other = back(said["content"].clone());
    other["model"] = json!("another");
    assert_eq!(post(&model, &GOOD, &other).await.status(), 400, "another model");
    model.window(10);
    let long: Value = post(&model, &GOOD, &asking(calls)).await.json().await.unwrap();
    assert!(long["error"]["message"].as_str().unwrap().starts_with("prompt is too long"), "{long}");
}
