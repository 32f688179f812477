//! A client of a few lines against the fake model.

use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::support::PATIENCE;
use crate::support::model::{End, KEY, Model, Reply};

async fn post(model: &Model, body: &Value) -> reqwest::Result<Response> {
    let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    client.post(format!("{}/chat/completions", model.url())).bearer_auth(KEY).json(body).send().await
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn asking(messages: Value) -> Value {
    json!({ "model": "fake-model", "messages": messages })
}

/// The message of a whole answer.
async fn whole(model: &Model, body: &Value) -> Value {
    let answer: Value = post(model, body).await.unwrap().json().await.unwrap();
    answer["choices"][0].clone()
}

fn streaming(text: &str) -> Value {
    json!({ "model": "fake-model", "messages": [user(text)], "stream": true, "stream_options": { "include_usage": true } })
}

/// The raw stream, and whether it ended as a whole.
async fn stream(model: &Model, body: &Value) -> (String, bool) {
    let mut response = post(model, body).await.unwrap();
    let mut text = String::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) => text.push_str(std::str::from_utf8(&piece).unwrap()),
            Ok(None) => return (text, true),
            Err(_) => return (text, false),
        }
    }
}

fn said(stream: &str) -> String {
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let events = events.map(|data| serde_json::from_str::<Value>(data).unwrap());
    events.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn it_echoes_the_words_of_the_user_and_not_ours() {
    let model = Model::start().await;
    let body = asking(json!([{ "role": "system", "content": "s" }, user("[midwatch: 120 s left]\nhello there")]));
    let choice = whole(&model, &body).await;
    assert_eq!(choice["message"]["content"], json!("echo: hello there"));
    assert_eq!(choice["finish_reason"], json!("stop"));
    let (text, complete) = stream(&model, &streaming("hello  you")).await;
    assert!(complete && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(said(&text), "echo: hello  you");
    assert!(text.contains("\"prompt_tokens\""));
    let requests = model.requests();
    assert_eq!((requests[0].system().as_str(), requests[0].end), ("s", End::Answered));
    model.assert_clean();
}

#[tokio::test]
async fn the_queue_comes_before_the_script_and_calls_stream_in_pieces() {
    let model = Model::start().await;
    model.script(|request| Reply::text(&format!("{} messages", request.messages().len())));
    let calls = vec![("read_file", json!({ "path": "notes/today.md" })), ("list_files", json!({}))];
    model.queue(Reply::text_and_calls("Let me look.", calls.clone()));
    let (text, _) = stream(&model, &streaming("x")).await;
    let mut arguments = [String::new(), String::new()];
    for data in text.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let event: Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        for call in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let at = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            arguments[at].push_str(call["function"]["arguments"].as_str().unwrap());
        }
    }
    assert_eq!(arguments, [calls[0].1.to_string(), calls[1].1.to_string()]);
    assert_eq!(said(&text), "Let me look.");
    assert_eq!(whole(&model, &asking(json!([user("x")]))).await["message"]["content"], json!("1 messages"));
    model.queue(Reply::calls(vec![("read_file", json!({ "path": "a" }))]).cut_arguments("length"));
    let cut = whole(&model, &asking(json!([user("x")]))).await;
    assert_eq!(cut["finish_reason"], json!("length"));
    assert_eq!(cut["message"]["tool_calls"][0]["function"]["arguments"], json!("{\"path"));
}

#[tokio::test]
async fn a_stream_breaks_in_every_way_there_is() {
    let model = Model::start().await;
    let text = Reply::text("one two three");
    model.queue(text.clone().cut_after(3));
    let (seen, complete) = stream(&model, &streaming("x")).await;
    assert_eq!((said(&seen).as_str(), complete), ("one two", false));
    model.queue(text.clone().end_after(3));
    let (seen, complete) = stream(&model, &streaming("x")).await;
    assert_eq!((said(&seen).as_str(), complete, seen.contains("[DONE]")), ("one two", true, false));
    model.queue(text.clone().no_done());
    let (seen, complete) = stream(&model, &streaming("x")).await;
    assert!(complete && seen.contains("\"stop\"") && !seen.contains("[DONE]"), "{seen}");
    model.queue(Reply::empty_choices());
    assert!(stream(&model, &streaming("x")).await.0.contains("\"choices\":[]"));
    model.queue(Reply::html200());
    let page = post(&model, &streaming("x")).await.unwrap();
    assert_eq!(
        (page.status().as_u16(), page.headers()["content-type"].to_str().unwrap()),
        (200, "text/html; charset=utf-8")
    );
    model.queue(Reply::status(529, "{\"error\":{\"message\":\"overloaded\"}}", &[("retry-after", "2")]));
    let busy = post(&model, &streaming("x")).await.unwrap();
    assert_eq!((busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()), (529, "2"));
    model.queue(Reply::hangup());
    assert!(post(&model, &streaming("x")).await.is_err());
    model.set_offline(true);
    assert!(post(&model, &streaming("x")).await.is_err());
    model.set_offline(false);

    for (reply, word) in
        [(text.clone().stall_after(2), "one"), (Reply::keepalive_only(), ": ping"), (Reply::stall(), "")]
    {
        model.queue(reply);
        let mut response = post(&model, &streaming("x")).await.unwrap();
        let mut seen = String::new();
        while !seen.contains(word) {
            seen.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
        }
        assert_eq!(model.at_work(), 1);
        drop(response);
        model.wait_for("the end of it", |all| all.last().filter(|r| r.end == End::Abandoned).map(|_| ())).await;
    }
    model.queue(text.slow(Duration::from_millis(5)));
    assert_eq!(said(&stream(&model, &streaming("x")).await.0), "one two three");
    model.assert_clean();
}

#[tokio::test]
async fn held_answers_wait_and_the_most_at_work_is_counted() {
    let model = Model::start().await;
    model.script(|request| Reply::text(&request.last_user()).held());
    let (first, second) = (streamless("a"), streamless("b"));
    let (a, b, ()) = tokio::join!(whole(&model, &first), whole(&model, &second), async {
        model.wait_requests(2).await;
        model.release();
    });
    assert_eq!((&a["message"]["content"], &b["message"]["content"]), (&json!("a"), &json!("b")));
    assert_eq!(model.most_at_work(), 2);
}

fn streamless(text: &str) -> Value {
    asking(json!([user(text)]))
}

fn call(id: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "read_file", "arguments": "{\"path\":\"a\"}" } })
}

fn asks(ids: &[&str]) -> Value {
    json!({ "role": "assistant", "content": null, "tool_calls": ids.iter().map(|id| call(id)).collect::<Vec<_>>() })
}

fn result(id: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": "ok" })
}

#[tokio::test]
async fn every_malformed_history_is_refused() {
    let model = Model::start().await;
    let assistant = |content: Value| json!({ "role": "assistant", "content": content });
    let system = json!({ "role": "system", "content": "s" });
    let bad_call = |function: Value| json!({ "role": "assistant", "tool_calls": [{ "id": "c", "type": "function", "function": function }] });
    let u = || user("x");
    for (name, messages) in [
        ("nothing", json!([])),
        ("system alone", json!([system])),
        ("system later", json!([u(), assistant(json!("a")), system])),
        ("user twice", json!([u(), u()])),
        ("assistant first", json!([assistant(json!("a")), u()])),
        ("assistant twice", json!([u(), assistant(json!("a")), assistant(json!("b")), u()])),
        ("assistant last", json!([u(), assistant(json!("a"))])),
        ("empty user", json!([user(" ")])),
        ("empty assistant", json!([u(), assistant(json!("")), u()])),
        ("assistant of nothing", json!([u(), assistant(Value::Null), u()])),
        ("no calls in the list", json!([u(), { "role": "assistant", "content": "a", "tool_calls": [] }, u()])),
        ("a result missing", json!([u(), asks(&["a", "b"]), result("a"), u()])),
        ("a result missing at the end", json!([u(), asks(&["a", "b"]), result("a")])),
        ("no results at the end", json!([u(), asks(&["a"])])),
        ("a result doubled", json!([u(), asks(&["a"]), result("a"), result("a")])),
        ("a result of nothing", json!([u(), asks(&["a"]), result("b")])),
        ("a result without calls", json!([u(), result("a")])),
        ("a result too late", json!([u(), asks(&["a"]), u(), result("a")])),
        ("ids doubled", json!([u(), asks(&["a", "a"]), result("a"), result("a")])),
        ("ids used again", json!([u(), asks(&["a"]), result("a"), asks(&["a"]), result("a")])),
        ("no id", json!([u(), asks(&[""]), result("")])),
        ("arguments no string", json!([u(), bad_call(json!({ "name": "f", "arguments": {} })), result("c")])),
        ("arguments no JSON", json!([u(), bad_call(json!({ "name": "f", "arguments": "{\"a" })), result("c")])),
        ("a name that is none", json!([u(), bad_call(json!({ "name": "no name", "arguments": "{}" })), result("c")])),
        ("an unknown role", json!([{ "role": "operator", "content": "x" }])),
        ("an unknown key", json!([{ "role": "user", "content": "x", "origin": "cause" }])),
        ("content of the wrong type", json!([{ "role": "user", "content": 7 }])),
        ("a part of the wrong type", json!([{ "role": "user", "content": [{ "type": "tool_result", "text": "x" }] }])),
    ] {
        let before = model.violations().len();
        let response = post(&model, &asking(messages)).await.unwrap();
        assert_eq!(response.status(), 400, "{name}");
        assert_eq!(model.violations().len(), before + 1, "{name}");
    }
    assert!(
        model
            .violations()
            .iter()
            .any(|v| v.contains("must be followed by tool messages responding to each 'tool_call_id'"))
    );
}

#[tokio::test]
async fn every_malformed_request_is_refused_and_a_good_one_is_not() {
    let model = Model::start().await;
    let tool = |name: &str, parameters: Value| json!([{ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } }]);
    let object = json!({ "type": "object", "properties": {} });
    for (name, key, value) in [
        ("an unknown key", "max_output_tokens", json!(5)),
        ("stream options without a stream", "stream_options", json!({ "include_usage": true })),
        ("no tools in the list", "tools", json!([])),
        ("a tool's name", "tools", tool("no name", object.clone())),
        ("a tool's schema", "tools", tool("f", json!({ "type": "string" }))),
        ("a choice without tools", "tool_choice", json!("none")),
        ("a limit of 0", "max_tokens", json!(0)),
        ("too hot", "temperature", json!(3)),
        ("no model", "model", json!("")),
    ] {
        let mut body = streamless("x");
        body[key] = value;
        assert_eq!(post(&model, &body).await.unwrap().status(), 400, "{name}");
    }
    assert_eq!(model.violations().len(), 9);

    let model = Model::start().await;
    let mut good = asking(json!([
        { "role": "system", "content": "s" }, user("x"), asks(&["a", "b"]), result("b"), result("a"),
        { "role": "assistant", "content": "done" }, { "role": "user", "content": [{ "type": "text", "text": "y" }] },
    ]));
    good["tools"] = tool("read_file", object);
    good["tool_choice"] = json!("auto");
    good["max_tokens"] = json!(100);
    assert_eq!(whole(&model, &good).await["message"]["content"], json!("echo: y"));
    model.window(10);
    let long: Value = post(&model, &good).await.unwrap().json().await.unwrap();
    assert_eq!(long["error"]["code"], json!("context_length_exceeded"));
    let client = Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/chat/completions", model.url());
    assert_eq!(client.post(url).bearer_auth("wrong").json(&good).send().await.unwrap().status(), 401);
    model.assert_clean();
}
