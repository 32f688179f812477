//! What comes back over a real connection, and what we make of it.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use proptest::prelude::*;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::domain::{Block, CallId, Message, Origin, Reasoning, Role, TurnId};
use crate::model::stand::{
    KEY, STALL, Server, answering, ask_both_ways, broken_owl, every, fold, is_the_same_in_pieces, key, read, request,
    settings, summary,
};
use crate::model::{ErrorClass, Finish, Part, ProposedCall, Usage};

fn client(server: &Server, key: KeySource) -> Anthropic {
    Anthropic::new(settings(&server.base_url), key).unwrap()
}

fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
}

fn start() -> String {
    let usage = json!({"input_tokens": 20, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3,
                       "output_tokens": 1});
    event(&json!({"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": usage}}))
}

fn begin(index: u64, block: &Value) -> String {
    event(&json!({"type": "content_block_start", "index": index, "content_block": block}))
}

fn delta(index: u64, delta: Value) -> String {
    event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
}

fn words(index: u64, text: &str) -> String {
    delta(index, json!({"type": "text_delta", "text": text}))
}

fn arguments(index: u64, piece: &str) -> String {
    delta(index, json!({"type": "input_json_delta", "partial_json": piece}))
}

fn stop(index: u64) -> String {
    event(&json!({"type": "content_block_stop", "index": index}))
}

fn reason(reason: &str) -> String {
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    event(&json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}))
}

fn end() -> String {
    event(&json!({"type": "message_stop"}))
}

fn text_head() -> Value {
    json!({"type": "text", "text": ""})
}

fn tool_head(name: &str) -> Value {
    json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}})
}

/// `hi` as far as its last word.
fn hi() -> String {
    [start(), begin(0, &text_head()), words(0, "hi")].concat()
}

/// A good answer with everything in it, and what it says.
fn good() -> (String, Attempt) {
    let events = [
        ": welcome\n\n".to_owned(),
        start(),
        event(&json!({"type": "ping"})),
        begin(0, &json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Zwölf "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "🦉?"})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        stop(0),
        begin(1, &text_head()),
        words(1, "Zwölf "),
        words(1, "🦉🦉."),
        stop(1),
        begin(2, &tool_head("read_file")),
        arguments(2, ""),
        arguments(2, "{\"path\":\"nötes"),
        arguments(2, ".md\"}"),
        stop(2),
        begin(3, &json!({"type": "redacted_thinking", "data": "xyz"})),
        stop(3),
        begin(4, &tool_head("list_files")),
        stop(4),
        event(&json!({"type": "some_day", "index": 9})),
        reason("tool_use"),
        end(),
    ];
    let call = |name: &str, arguments: Value| {
        Part::Call(ProposedCall { name: name.into(), arguments: Ok(arguments.as_object().unwrap().clone()) })
    };
    let attempt = Attempt {
        parts: vec![
            thought(json!({"type": "thinking", "thinking": "Zwölf 🦉?", "signature": "c2ln"})),
            Part::Text("Zwölf 🦉🦉.".into()),
            call("read_file", json!({"path": "nötes.md"})),
            thought(json!({"type": "redacted_thinking", "data": "xyz"})),
            call("list_files", json!({})),
        ],
        finish: Finish::Calls,
        usage: Usage { input_tokens: 30, output_tokens: 9, cached_tokens: 7 },
    };
    (events.concat(), attempt)
}

fn thought(raw: Value) -> Part {
    Part::Reasoning(Reasoning { provider: "anthropic".into(), model: "m".into(), raw })
}

#[tokio::test]
async fn what_comes_back_and_what_we_make_of_it() {
    let stream = "text/event-stream; charset=utf-8";
    let json = "application/json";
    let call = [start(), begin(0, &tool_head("w"))].concat();
    let cut_call = [&*call, &arguments(0, "{\"p")].concat();
    let error =
        |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}}).to_string();
    let reported = |kind: &str| [hi(), format!("event: error\ndata: {}\n\n", error(kind, "told"))].concat();
    let whole = |content: Value, reason: Value| {
        json!({"type": "message", "content": content, "stop_reason": reason, "usage": {"input_tokens": 1}}).to_string()
    };
    let cut = "network: the answer was cut: it ended without a message_stop";
    for (name, status, kind, body, expected) in [
        ("a good answer", 200, stream, [hi(), stop(0), reason("end_turn"), end()].concat(), "Stop `hi` calls 0"),
        ("a stop sequence", 200, stream, [hi(), reason("stop_sequence"), end()].concat(), "Stop `hi` calls 0"),
        (
            "nothing counts after the end",
            200,
            stream,
            [hi(), reason("end_turn"), end(), "data: {\n\n".into()].concat(),
            "Stop `hi` calls 0",
        ),
        ("nothing said", 200, stream, [start(), reason("end_turn"), end()].concat(), "Stop `` calls 0"),
        ("B114: closed half way", 200, stream, hi(), cut),
        ("B114: a reason without the end", 200, stream, [hi(), stop(0), reason("end_turn")].concat(), cut),
        ("B114: the end without a reason", 200, stream, [hi(), stop(0), end()].concat(), cut),
        ("nothing at all", 200, stream, String::new(), cut),
        (
            "the end in an event without its own",
            200,
            stream,
            [&*hi(), &reason("end_turn"), end().trim_end()].concat(),
            cut,
        ),
        ("the longest answer", 200, stream, [hi(), reason("max_tokens"), end()].concat(), "Length `hi` calls 0"),
        (
            "B115: arguments cut by the limit",
            200,
            stream,
            [&*cut_call, &reason("max_tokens"), &end()].concat(),
            "Length `` calls 1",
        ),
        (
            "B115: and a false reason",
            200,
            stream,
            [&*cut_call, &reason("tool_use"), &end()].concat(),
            "Calls `` calls 1",
        ),
        (
            "a refusal, and no call beside it",
            200,
            stream,
            [&*hi(), &begin(1, &tool_head("w")), &reason("refusal"), &end()].concat(),
            "Refused `hi` calls 0",
        ),
        (
            "the window is full",
            200,
            stream,
            [hi(), reason("model_context_window_exceeded"), end()].concat(),
            "context_too_long: the answer ended at the end of the context window",
        ),
        (
            "a pause for a tool that was not offered",
            200,
            stream,
            [hi(), reason("pause_turn"), end()].concat(),
            "network: the answer pauses for a tool of the server's, and none was offered",
        ),
        (
            "an unknown end",
            200,
            stream,
            [hi(), reason("gone"), end()].concat(),
            "network: the answer ends for the reason `gone`",
        ),
        (
            "busy, in the stream",
            200,
            stream,
            reported("overloaded_error"),
            "overload: the server reports: told (overloaded_error)",
        ),
        (
            "a limit, in the stream",
            200,
            stream,
            reported("rate_limit_error"),
            "overload: the server reports: told (rate_limit_error)",
        ),
        ("broken, in the stream", 200, stream, reported("api_error"), "network: the server reports: told (api_error)"),
        (
            "wrong, in the stream",
            200,
            stream,
            reported("invalid_request_error"),
            "bad_request: the server reports: told (invalid_request_error)",
        ),
        (
            "a key, in the stream",
            200,
            stream,
            reported("authentication_error"),
            "auth: the server reports: told (authentication_error)",
        ),
        (
            "a right, in the stream",
            200,
            stream,
            reported("permission_error"),
            "auth: the server reports: told (permission_error)",
        ),
        (
            "money, in the stream",
            200,
            stream,
            reported("billing_error"),
            "quota: the server reports: told (billing_error)",
        ),
        ("no JSON", 200, stream, [&*hi(), "data: oops\n\n"].concat(), "network: the answer holds what is no JSON"),
        (
            "another protocol",
            200,
            stream,
            event(&json!({"choices": []})),
            "network: the answer holds JSON that is no event of a message",
        ),
        (
            "a block that never began",
            200,
            stream,
            [start(), words(3, "hi")].concat(),
            "network: block 3 of the answer never began",
        ),
        (
            "a block that begins twice",
            200,
            stream,
            [&*hi(), &begin(0, &text_head())].concat(),
            "network: block 0 of the answer begins twice",
        ),
        (
            "words in a call",
            200,
            stream,
            [&*call, &words(0, "hi")].concat(),
            "network: block 0 of the answer goes on with a text_delta",
        ),
        (
            "blocks without end",
            200,
            stream,
            (0..=256).map(|index| begin(index, &text_head())).collect(),
            "network: the answer has more than 256 blocks",
        ),
        (
            "an endless event",
            200,
            stream,
            format!("data: {}", "x".repeat(2 << 20)),
            "network: the answer was cut: the answer is longer than 1048576 bytes",
        ),
        (
            "a server that does not stream",
            200,
            json,
            whole(
                json!([{"type": "text", "text": "hi"}, {"type": "tool_use", "name": "w", "input": {}}]),
                json!("tool_use"),
            ),
            "Calls `hi` calls 1",
        ),
        (
            "it has not ended",
            200,
            json,
            whole(json!([{"type": "text", "text": "hi"}]), Value::Null),
            "network: the answer was cut: it came without a message_stop",
        ),
        ("no content", 200, json, whole(Value::Null, json!("end_turn")), "network: the message has no content"),
        (
            "an error with status 200",
            200,
            json,
            error("overloaded_error", "Overloaded"),
            "overload: the server reports: Overloaded (overloaded_error)",
        ),
        ("half a message", 200, json, "{\"content\":".into(), "network: the answer is no JSON, though it claims to be"),
        ("a page", 200, "text/html", "<html>".into(), "network: answered 200 with text/html, which is no completion"),
        (
            "a wrong key, told back",
            401,
            json,
            error("authentication_error", &format!("invalid x-api-key {KEY}")),
            "auth: HTTP 401: invalid x-api-key *** (authentication_error)",
        ),
        (
            "no such model",
            404,
            json,
            error("not_found_error", "model: m"),
            "bad_request: HTTP 404: model: m (not_found_error)",
        ),
        (
            "too large",
            413,
            json,
            error("request_too_large", "Request exceeds the maximum size"),
            "context_too_long: HTTP 413: Request exceeds the maximum size (request_too_large)",
        ),
        (
            "B118: overloaded",
            529,
            json,
            error("overloaded_error", "Overloaded"),
            "overload: HTTP 529: Overloaded (overloaded_error)",
        ),
        (
            "an error of theirs",
            500,
            json,
            error("api_error", "Internal server error"),
            "network: HTTP 500: Internal server error (api_error)",
        ),
    ] {
        let server = Server::start(move || answering(status, kind, body.clone())).await;
        let outcome = client(&server, key()).attempt(&request(), &|_| {}).await;
        assert_eq!(summary(&outcome), expected, "{name}");
        assert_eq!(server.seen.lock().unwrap().len(), 1, "{name}: one attempt, one request");
    }
}

#[tokio::test]
async fn a_request_goes_out_as_it_should() {
    let server = Server::start(|| ([(CONTENT_TYPE, "text/event-stream")], good().0)).await;
    let asking = client(&server, key());
    ask_both_ways(&asking, &client(&server, None), &good().1).await;

    let seen = server.seen.lock().unwrap();
    let (path, headers, body) = &seen[0];
    assert_eq!(path, "/v1/messages");
    assert_eq!(
        (&headers["x-api-key"], &headers["anthropic-version"]),
        (&KEY.parse().unwrap(), &"2023-06-01".parse().unwrap())
    );
    assert_eq!(headers.get(AUTHORIZATION), None);
    assert_eq!((&body["model"], &body["stream"], &body["max_tokens"]), (&json!("m"), &json!(true), &json!(64)));
    assert_eq!(seen[1].1.get("x-api-key"), None, "no key, no header");
    let header = asking.wire.key_value().unwrap().unwrap();
    assert_eq!(format!("{header:?}"), "Sensitive");
}

#[test]
fn a_server_is_named_with_its_version_or_without() {
    for (base_url, expected) in [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
        ("http://127.0.0.1:8080/proxy", "http://127.0.0.1:8080/proxy/v1/messages"),
    ] {
        let made = Anthropic::new(settings(base_url), None).map(|made| made.wire.url.to_string());
        assert_eq!(made.as_deref(), Ok(expected), "{base_url}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_stream_says_the_same() {
    let content = json!([
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "thinking", "thinking": "nobody sealed this", "signature": ""},
        {"type": "text", "text": "hi"},
        {"type": "server_tool_use", "name": "web_search", "input": {}},
        {"type": "tool_use", "id": "a", "name": "w", "input": {"p": 1}},
        {"type": "tool_use", "id": "b", "name": "w", "input": [1]},
    ]);
    let usage = json!({"input_tokens": 20, "cache_read_input_tokens": 7, "cache_creation_input_tokens": null,
                       "output_tokens": 9});
    let whole = json!({"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage});
    let server = Server::start(move || axum::Json(whole.clone())).await;
    let attempt = client(&server, None).attempt(&request(), &|_| {}).await.unwrap();
    let call = |arguments| Part::Call(ProposedCall { name: "w".into(), arguments });
    let parts = [
        thought(json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"})),
        Part::Text("hi".into()),
        call(Ok(json!({"p": 1}).as_object().unwrap().clone())),
        call(Err("[1]".into())),
    ];
    assert_eq!(attempt.parts, parts);
    assert_eq!(attempt.usage, Usage { input_tokens: 27, output_tokens: 9, cached_tokens: 7 });
}

fn making() -> Answer {
    Answer::of("m")
}

#[tokio::test]
async fn an_answer_is_the_same_in_pieces_of_any_size() {
    let (bytes, attempt) = good();
    is_the_same_in_pieces(making, &bytes, &attempt).await;
}

#[tokio::test]
async fn a_cut_at_any_byte_is_never_a_complete_answer() {
    let (bytes, attempt) = good();
    for cut in 0..=bytes.len() {
        match fold(making(), &bytes.as_bytes()[..cut], 7).await {
            Ok(made) => {
                assert_eq!((made, cut), (attempt.clone(), bytes.len()));
            }
            Err(error) => {
                assert!(cut < bytes.len(), "incomplete at byte {cut}: {error}");
                assert_eq!(error.class, ErrorClass::Network, "cut at {cut}");
            }
        }
    }
    // B115: cut at the limit, nothing is not the same as no arguments.
    let bare = [start(), begin(0, &tool_head("w")), reason("max_tokens"), end()].concat();
    let parts = fold(making(), bare.as_bytes(), 9).await.unwrap().parts;
    assert_eq!(parts, [Part::Call(ProposedCall { name: "w".into(), arguments: Err(String::new()) })]);
}

#[tokio::test]
async fn bytes_that_are_no_text_are_an_error() {
    let bytes = broken_owl(good().0);
    assert_eq!(summary(&fold(making(), &bytes, 3).await), "network: the answer was cut: the answer is not UTF-8");
}

#[tokio::test(start_paused = true)]
async fn b126_twenty_minutes_of_keep_alives_end_at_the_stall() {
    let usage = event(&json!({"type": "message_delta", "delta": {"stop_reason": null}, "usage": {"output_tokens": 2}}));
    for (name, piece) in [
        ("comments", ": ping\n\n".to_owned()),
        ("pings", event(&json!({"type": "ping"}))),
        ("empty words", words(0, "")),
        ("usage", usage),
        ("ends of blocks", stop(0)),
    ] {
        let reading = read(making(), stream::iter([Ok(hi())]).chain(every(1, piece)));
        let outcome = timeout(STALL + Duration::from_secs(1), reading).await.unwrap();
        assert_eq!(summary(&outcome), "network: stalled: nothing of the answer for 40 s", "{name}");
    }
    // A slow answer is no stall, and neither is a model that thinks for long.
    let head = [start(), begin(0, &json!({"type": "thinking", "thinking": ""})), begin(1, &text_head())].concat();
    let thinks = every(30, delta(0, json!({"type": "thinking_delta", "thinking": "hm"}))).take(20);
    let slow = stream::iter([Ok(head)]).chain(thinks).chain(every(30, words(1, "x")).take(20));
    let slow = slow.chain(stream::iter([Ok([reason("end_turn"), end()].concat())]));
    let outcome = read(making(), slow).await;
    assert_eq!(summary(&outcome), format!("Stop `{}` calls 0", "x".repeat(20)));
}

/// A block of an answer as the vendor writes it.
fn block() -> impl Strategy<Value = Value> {
    let text = "[a-zé🦉 \"\\\\]{1,9}x";
    prop_oneof![
        text.prop_map(|text| json!({"type": "text", "text": text})),
        (text, "[a-zA-Z0-9+/]{4,20}")
            .prop_map(|(text, seal)| json!({"type": "thinking", "thinking": text, "signature": seal})),
        "[a-zA-Z0-9+/]{4,20}".prop_map(|data| json!({"type": "redacted_thinking", "data": data})),
        text.prop_map(|path| json!({"type": "tool_use", "id": "", "name": "read_file", "input": {"path": path}})),
    ]
}

/// The events that bring a block, cut into small pieces.
fn events_of(index: u64, block: &Value) -> String {
    let pieces = |text: &str, piece: &dyn Fn(&str) -> Value| -> String {
        let letters: Vec<char> = text.chars().collect();
        letters.chunks(3).map(|letters| delta(index, piece(&letters.iter().collect::<String>()))).collect()
    };
    let of = |key: &str| block[key].as_str().unwrap_or_default();
    let (head, said) = match of("type") {
        "text" => (text_head(), pieces(of("text"), &|text| json!({"type": "text_delta", "text": text}))),
        "thinking" => {
            let thoughts = pieces(of("thinking"), &|text| json!({"type": "thinking_delta", "thinking": text}));
            let seal = delta(index, json!({"type": "signature_delta", "signature": of("signature")}));
            (json!({"type": "thinking", "thinking": "", "signature": ""}), thoughts + &seal)
        }
        "tool_use" => {
            let input = block["input"].to_string();
            let said = pieces(&input, &|text| json!({"type": "input_json_delta", "partial_json": text}));
            (tool_head(of("name")), said)
        }
        _ => (block.clone(), String::new()),
    };
    [begin(index, &head), said, stop(index)].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn b121_an_answer_goes_back_in_the_order_and_the_words_it_came_in(blocks in prop::collection::vec(block(), 1..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let body: String = (0..).zip(&blocks).map(|(index, block)| events_of(index, block)).collect();
        let bytes = [start(), body, reason("tool_use"), end()].concat();
        let attempt = runtime.block_on(fold(making(), bytes.as_bytes(), 5)).unwrap();
        // As the turn stores it.
        let mut number = 0;
        let stored = attempt.parts.into_iter().map(|part| match part {
            Part::Text(text) => Block::Text { text, origin: Origin::Agent },
            Part::Reasoning(reasoning) => Block::Reasoning(reasoning),
            Part::Call(call) => {
                number += 1;
                let arguments = Value::Object(call.arguments.unwrap());
                Block::ToolCall { call: CallId::new(TurnId::from_row(1), number), name: call.name, arguments }
            }
        });
        let stored = serde_json::to_string(&stored.collect::<Vec<_>>()).unwrap();
        let message = Message { role: Role::Assistant, blocks: serde_json::from_str(&stored).unwrap() };
        let back = body::of(&crate::model::Request { messages: vec![message], ..request() }, "m");
        let mut expected = blocks;
        let mut number = 0;
        for block in expected.iter_mut().filter(|block| block["type"] == "tool_use") {
            number += 1;
            block["id"] = json!(format!("call-1-{number}")); // ours; the provider's own is forgotten
        }
        if expected.iter().all(|block| block["type"].as_str().unwrap().ends_with("thinking")) {
            prop_assert_eq!(&back["messages"], &json!([]));
        } else {
            prop_assert_eq!(&back["messages"][0]["content"], &json!(expected));
        }
    }
}
