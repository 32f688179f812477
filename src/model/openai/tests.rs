//! What comes back over a real connection, and what we make of it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use futures_util::{StreamExt, stream};
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::*;
use crate::model::stand::{
    KEY, Key, STALL, Server, answering, ask_both_ways, broken_owl, every, fold, is_the_same_in_pieces, key, read,
    request, settings, summary,
};
use crate::model::wire::is_loopback;
use crate::model::{ErrorClass, Finish, ProposedCall, Usage};

fn client(server: &Server, key: KeySource) -> OpenAi {
    OpenAi::new(settings(&server.base_url), key).unwrap()
}

fn event(chunk: &Value) -> String {
    format!("data: {chunk}\n\n")
}

fn delta(delta: Value) -> String {
    event(&json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
}

fn end(reason: &str) -> String {
    event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

const DONE: &str = "data: [DONE]\n\n";

/// A good answer with everything in it, and what it says.
fn good() -> (String, Attempt) {
    let call = |index: u32, function: Value| delta(json!({"tool_calls": [{"index": index, "function": function}]}));
    let events = [
        ": welcome\n\n".to_owned(),
        delta(json!({"role": "assistant", "content": null})),
        delta(json!({"content": "Zwölf "})),
        delta(json!({"content": "🦉🦉."})),
        call(0, json!({"name": "read_file", "arguments": ""})),
        call(0, json!({"arguments": "{\"path\":\"nötes"})),
        call(1, json!({"name": "list_files", "arguments": "{}"})),
        call(0, json!({"arguments": ".md\"}"})),
        end("tool_calls"),
        event(&json!({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 7}})),
        DONE.to_owned(),
    ];
    let proposed = |name: &str, arguments: Value| ProposedCall {
        name: name.into(),
        arguments: Ok(arguments.as_object().unwrap().clone()),
    };
    let calls = vec![proposed("read_file", json!({"path": "nötes.md"})), proposed("list_files", json!({}))];
    let usage = Usage { input_tokens: 30, output_tokens: 7, cached_tokens: 0 };
    let attempt = Attempt::new("Zwölf 🦉🦉.".into(), calls, Finish::Calls, usage);
    (events.concat(), attempt)
}

#[tokio::test]
async fn what_comes_back_and_what_we_make_of_it() {
    let hi = delta(json!({"content": "hi"}));
    let whole = |choice: Value| json!({"object": "chat.completion", "choices": [choice]}).to_string();
    let stream = "text/event-stream; charset=utf-8";
    let json = "application/json";
    let cut_call = delta(json!({"tool_calls": [{"index": 0, "function": {"name": "w", "arguments": "{\"p"}}]}));
    for (name, status, kind, body, expected) in [
        ("a good answer", 200, stream, [&hi, &end("stop"), DONE].concat(), "Stop `hi` calls 0"),
        ("[DONE] is left out", 200, stream, [&*hi, &end("stop")].concat(), "Stop `hi` calls 0"),
        ("nothing counts after [DONE]", 200, stream, [&end("stop"), DONE, "data: {\n\n"].concat(), "Stop `` calls 0"),
        (
            "B114: closed half way",
            200,
            stream,
            hi.clone(),
            "network: the answer was cut: it ended without a finish_reason",
        ),
        (
            "B114: [DONE] without a reason",
            200,
            stream,
            [&hi, DONE].concat(),
            "network: the answer was cut: it ended without a finish_reason",
        ),
        ("nothing at all", 200, stream, String::new(), "network: the answer was cut: it ended without a finish_reason"),
        (
            "the reason in an event without its end",
            200,
            stream,
            [&hi, end("stop").trim_end()].concat(),
            "network: the answer was cut: it ended without a finish_reason",
        ),
        ("B115: arguments cut by the limit", 200, stream, [&*cut_call, &end("length")].concat(), "Length `` calls 1"),
        ("B115: and a false reason", 200, stream, [&*cut_call, &end("tool_calls")].concat(), "Calls `` calls 1"),
        (
            "B124: only empty choices",
            200,
            stream,
            [&event(&json!({"choices": []})), DONE].concat(),
            "network: the answer was cut: it ended without a finish_reason",
        ),
        (
            "an error in the stream",
            200,
            stream,
            [&*hi, &event(&json!({"error": {"code": 503, "message": "busy"}}))].concat(),
            "overload: the server reports: busy",
        ),
        ("no JSON", 200, stream, [&hi, "data: oops\n\n"].concat(), "network: the answer holds what is no JSON"),
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
            whole(json!({"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"})),
            "Stop `hi` calls 0",
        ),
        (
            "B124: no message",
            200,
            json,
            whole(json!({"message": null, "finish_reason": "stop"})),
            "network: the completion has no message",
        ),
        ("B124: no choices", 200, json, json!({"choices": []}).to_string(), "network: the completion has no choices"),
        (
            "an error with status 200",
            200,
            json,
            json!({"error": {"code": "insufficient_quota", "message": "pay"}}).to_string(),
            "quota: the server reports: pay (insufficient_quota)",
        ),
        (
            "half a completion",
            200,
            json,
            "{\"choices\":".into(),
            "network: the answer is no JSON, though it claims to be",
        ),
        (
            "B124: a page",
            200,
            "text/html; charset=utf-8",
            "<html>".into(),
            "network: answered 200 with text/html, which is no completion",
        ),
        ("nothing of a kind", 200, "", hi.clone(), "network: answered 200 without a content type"),
        (
            "a wrong key, told back",
            401,
            json,
            json!({"error": {"message": format!("bad key {KEY}")}}).to_string(),
            "auth: HTTP 401: bad key ***",
        ),
        ("B070: a bad request", 400, json, json!({"error": "bad"}).to_string(), "bad_request: HTTP 400: bad"),
        (
            "B118: overloaded",
            529,
            json,
            json!({"error": {"message": "later"}}).to_string(),
            "overload: HTTP 529: later",
        ),
        ("a gateway", 502, "text/html", "<html>".into(), "network: HTTP 502: an HTML page"),
        (
            "a wrong path",
            404,
            "text/plain",
            "404 page not found".into(),
            "bad_request: HTTP 404: 404 page not found (check base_url)",
        ),
        ("elsewhere", 302, "text/html", String::new(), "bad_request: HTTP 302: redirects elsewhere: check base_url"),
        ("a long refusal", 500, "text/plain", "x".repeat(200_000), &format!("network: HTTP 500: {}", "x".repeat(490))),
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
    assert_eq!(path, "/v1/chat/completions");
    assert_eq!(headers[AUTHORIZATION], format!("Bearer {KEY}"));
    assert_eq!((&body["model"], &body["stream"]), (&json!("m"), &json!(true)));
    assert_eq!((&body["stream_options"], &body["max_tokens"]), (&json!({"include_usage": true}), &json!(64)));
    assert_eq!(seen[1].1.get(AUTHORIZATION), None, "no key, no header");
}

#[tokio::test]
async fn a_wait_the_server_asks_for_is_passed_on() {
    let server = Server::start(|| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "slow down")).await;
    let error = client(&server, None).attempt(&request(), &|_| {}).await.unwrap_err();
    assert_eq!((error.class, error.retry_after), (ErrorClass::Overload, Some(Duration::from_secs(7))));
}

#[tokio::test]
async fn a_connection_that_breaks_is_no_end() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    // By hand, because a server library may give up before it has sent the headers.
    let server = async {
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"}") {
            peer.read_buf(&mut asked).await.unwrap();
        }
        let hi = [delta(json!({"content": "hi"})), end("stop")].concat();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        peer.write_all(format!("{head}{:x}\r\n{hi}\r\n", hi.len()).as_bytes()).await.unwrap();
    };
    let client = OpenAi::new(settings(&base_url), None).unwrap();
    let request = request();
    let (outcome, ()) = tokio::join!(client.attempt(&request, &|_| {}), server);
    assert!(summary(&outcome).starts_with("network: the answer was cut: "), "{outcome:?}");
    assert!(!summary(&outcome).contains("http"), "{outcome:?}");
}

#[tokio::test]
async fn nobody_there_is_told_without_the_url() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("http://{}/secret-path", listener.local_addr().unwrap());
    drop(listener);
    let outcome = OpenAi::new(settings(&base_url), None).unwrap().attempt(&request(), &|_| {}).await;
    let told = summary(&outcome);
    assert!(told.starts_with("network: no answer: ") && told.contains("refused"), "{told}");
    assert!(!told.contains("secret-path") && !told.contains("http"), "{told}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_left_at_the_limit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings(&format!("http://{}", listener.local_addr().unwrap()));
    settings.request_timeout = Duration::from_millis(120);
    let outcome = OpenAi::new(settings, None).unwrap().attempt(&request(), &|_| {}).await;
    assert_eq!(summary(&outcome), "network: no complete answer within 120 ms");
}

#[tokio::test]
async fn b126_pings_do_not_hide_a_stall() {
    let server = Server::start(|| {
        let pings = stream::repeat(": ping\n\n".to_owned()).then(|ping| async {
            sleep(Duration::from_millis(5)).await;
            ping
        });
        let hi = stream::iter([delta(json!({"content": "hi"}))]);
        ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(hi.chain(pings).map(Ok::<_, std::io::Error>)))
    })
    .await;
    let mut settings = settings(&server.base_url);
    settings.stall = Duration::from_millis(150);
    let outcome = OpenAi::new(settings, None).unwrap().attempt(&request(), &|_| {}).await;
    assert_eq!(summary(&outcome), "network: stalled: nothing of the answer for 150 ms");
}

#[tokio::test]
async fn a_key_is_asked_for_only_when_it_is_used() {
    for (name, key, expected) in [
        ("none there", Err("credential `openai` is not there"), "auth: credential `openai` is not there"),
        ("empty", Ok(" \n"), "auth: the key is empty"),
        ("two lines", Ok("sk-a\nsk-b"), "auth: the key holds odd characters"),
    ] {
        let client = OpenAi::new(settings("http://127.0.0.1:9"), Some(Arc::new(Key(key)))).unwrap();
        assert_eq!(summary(&client.attempt(&request(), &|_| {}).await), expected, "{name}");
    }
    let client = OpenAi::new(settings("http://127.0.0.1:9"), Some(Arc::new(Key(Ok("sk-a\n"))))).unwrap();
    let header = client.wire.key_value().unwrap().unwrap();
    assert_eq!((header.to_str().unwrap(), &*format!("{header:?}")), ("Bearer sk-a", "Sensitive"));
}

#[test]
fn a_base_url_is_checked_at_once() {
    for (base_url, expected) in [
        ("http://127.0.0.1:11434/v1", Ok("http://127.0.0.1:11434/v1/chat/completions max_tokens")),
        ("https://api.openai.com/v1/", Ok("https://api.openai.com/v1/chat/completions max_completion_tokens")),
        ("https://host?api-version=1", Ok("https://host/chat/completions?api-version=1 max_tokens")),
        ("127.0.0.1:80", Err("bad_request: base_url is no URL: relative URL without a base")),
        ("ftp://host", Err("bad_request: base_url has to begin with http:// or https://")),
        ("http://me:pw@host/v1", Err("bad_request: base_url holds a user or password: a key belongs into api_key")),
    ] {
        let made = OpenAi::new(settings(base_url), None);
        let made = made.map(|made| format!("{} {}", made.wire.url, made.limit_key)).map_err(|err| err.to_string());
        assert_eq!(made.as_deref().map_err(String::as_str), expected, "{base_url}");
    }
    for (url, expected) in [
        ("http://localhost:1", true),
        ("http://127.3.2.1", true),
        ("http://[::1]:8080/v1", true),
        ("http://10.0.0.1", false),
        ("https://api.openai.com", false),
        ("https://localhost.example.org", false),
    ] {
        assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
    }
}

#[tokio::test]
async fn an_answer_is_the_same_in_pieces_of_any_size() {
    let (bytes, attempt) = good();
    is_the_same_in_pieces(Answer::default, &bytes, &attempt).await;
}

#[tokio::test]
async fn a_cut_at_any_byte_is_never_a_complete_answer() {
    let (bytes, attempt) = good();
    let reason = bytes.find("\"finish_reason\":\"tool_calls\"").unwrap();
    let complete_from = reason + bytes[reason..].find("\n\n").unwrap() + 2;
    for cut in 0..=bytes.len() {
        let outcome = fold(Answer::default(), &bytes.as_bytes()[..cut], 7).await;
        match outcome {
            Ok(made) => {
                assert!(cut >= complete_from, "complete at byte {cut} of {}", bytes.len());
                assert_eq!(made.parts, attempt.parts, "cut at {cut}");
            }
            Err(error) => {
                assert!(cut < complete_from, "incomplete at byte {cut}: {error}");
                assert_eq!(error.class, ErrorClass::Network, "cut at {cut}");
            }
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_an_error() {
    let bytes = broken_owl(good().0);
    assert_eq!(
        summary(&fold(Answer::default(), &bytes, 3).await),
        "network: the answer was cut: the answer is not UTF-8"
    );
}

#[tokio::test(start_paused = true)]
async fn b126_twenty_minutes_of_keep_alives_end_at_the_stall() {
    let usage = event(&json!({"choices": [], "usage": {"prompt_tokens": 1}}));
    let bare = delta(json!({"role": "assistant", "content": ""}));
    for (name, piece) in [("comments", ": ping\n\n".to_owned()), ("empty deltas", bare), ("usage", usage)] {
        let hi = stream::iter([Ok(delta(json!({"content": "hi"})))]);
        let reading = read(Answer::default(), hi.chain(every(1, piece)));
        let outcome = timeout(STALL + Duration::from_secs(1), reading).await.unwrap();
        assert_eq!(summary(&outcome), "network: stalled: nothing of the answer for 40 s", "{name}");
    }
    // A slow answer is no stall, and neither is a model that thinks for long.
    let thought = delta(json!({"reasoning_content": "hm"}));
    let slow = every(30, thought).take(20).chain(every(30, delta(json!({"content": "x"}))).take(20));
    let slow = slow.chain(stream::iter([Ok(end("stop"))]));
    let outcome = read(Answer::default(), slow).await;
    assert_eq!(summary(&outcome), format!("Stop `{}` calls 0", "x".repeat(20)));
}
