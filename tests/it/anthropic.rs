//! Anthropic's protocol, from the chat to the wire: the fake refuses what the real server refuses, so a request that
//! comes through is well-formed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test is told and does not expect is a failed test"
)]

use std::time::Duration;

use serde_json::{Value, json};

use crate::reports::{ANN, is_asked_again, kept};
use crate::support::daemon::{Daemon, cli, cli_with_input};
use crate::support::home::Home;
use crate::support::model::{End, KEY, Model, NAME, Protocol, Reply, Request};
use crate::support::telegram::Telegram;

async fn stage() -> (Telegram, Model, Home) {
    let (telegram, model, home) = crate::reports::stage().await;
    let home = home.anthropic(&model);
    (telegram, model, home)
}

fn thinking(text: &str) -> Value {
    json!({ "type": "thinking", "thinking": text, "signature": format!("seal of {text}") })
}

fn sealed(data: &str) -> Value {
    json!({ "type": "redacted_thinking", "data": data })
}

fn words(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn reads(path: &str) -> Value {
    json!({ "type": "tool_use", "id": format!("toolu_{path}"), "name": "read_file", "input": { "path": path } })
}

/// "read" becomes thoughts with two calls between them, and then words after another thought; the rest is echoed.
fn thinks(request: &Request) -> Reply {
    match (request.last_user().as_str(), request.results().as_slice()) {
        ("read", []) => Reply::content(vec![
            thinking("two files, I think"),
            words("I look."),
            reads("a.txt"),
            sealed("c2VhbGVk"),
            reads("b.txt"),
        ]),
        ("read", results) => Reply::content(vec![thinking("now I know"), words(&format!("found {}", results.len()))]),
        (said, _) => Reply::text(&format!("echo: {said}")),
    }
}

/// The blocks of the assistant's messages, without ids and marks.
fn said_before(request: &Request) -> Vec<Vec<Value>> {
    let assistants = request.messages().iter().filter(|message| message["role"] == "assistant");
    let blocks = assistants.map(|message| {
        let mut blocks = message["content"].as_array().unwrap().clone();
        blocks.iter_mut().for_each(|block| {
            block.as_object_mut().unwrap().remove("id");
        });
        blocks
    });
    blocks.collect()
}

fn without_id(mut block: Value) -> Value {
    block.as_object_mut().unwrap().remove("id");
    block
}

#[tokio::test(flavor = "multi_thread")]
async fn a_talk_with_tools_over_messages() {
    let (telegram, model, home) = stage().await;
    let home = home.workspace_file("notes.txt", "water the garden").prompt_file("SOUL.md", "Be kind.");
    let home = home.set("model", "price", "{ input = 10.0, output = 100.0, cached = 1.0 }");
    let _daemon = Daemon::start(&home).await;
    model.script(|request| match (request.last_user().as_str(), request.results().as_slice()) {
        ("what is due?", []) => {
            let calls = vec![
                ("read_file", json!({ "path": "notes.txt" })),
                ("list_files", json!({})),
                ("read_file", json!({ "path": "missing.txt" })),
            ];
            Reply::text_and_calls("I look.", calls).usage(1_000, 100, 600)
        }
        ("what is due?", results) => Reply::text(&format!("it says: {}", results[0])).usage(2_000, 10, 1_000),
        (said, _) => Reply::text(&format!("echo: {said}")),
    });
    telegram.says(ANN, ANN, "hello");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hello");
    telegram.says(ANN, ANN, "what is due?");
    let told = telegram.next_sent(ANN).await.text;
    assert!(told.contains("water the garden"), "{told}");
    kept(&home, &telegram, &model).await;

    let requests = model.requests();
    assert!(requests.iter().all(|request| request.protocol == Protocol::Messages && request.streams()));
    let last = requests.last().unwrap();
    let results = last.messages().last().unwrap()["content"].as_array().unwrap().clone();
    let errors: Vec<bool> = results.iter().map(|result| result["is_error"] == json!(true)).collect();
    assert_eq!(errors, [false, false, true], "{results:?}");
    assert!(last.system().contains("Be kind."));
    // What the cache holds of a request begins the next one, byte for byte.
    for pair in requests.windows(2) {
        assert_eq!(
            (&pair[0].body["system"], &pair[0].body["tools"]),
            (&pair[1].body["system"], &pair[1].body["tools"])
        );
        let (before, after) = (unmarked(&pair[0]), unmarked(&pair[1]));
        assert_eq!(before, after[..before.len()]);
    }
    let spent = home.rows(
        "select json_extract(spent, '$.input_tokens'), json_extract(spent, '$.cost_usd') from turns where id = 2",
    );
    let cost = (1_400.0 * 10.0 + 1_600.0 + 110.0 * 100.0) / 1e6;
    assert_eq!(spent, [format!("3000|{cost}")]);
}

/// The messages without the marks for the cache.
fn unmarked(request: &Request) -> Vec<Value> {
    let mut messages = request.messages().to_vec();
    for block in messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten() {
        block.as_object_mut().unwrap().remove("cache_control");
    }
    messages
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_stream_and_a_last_round_without_calls() {
    let (telegram, model, home) = stage().await;
    let home = home.limit("rounds", 2).workspace_file("a.txt", "alpha");
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::calls(vec![("read_file", json!({ "path": "a.txt" }))]));
    let whole = json!({ "type": "message", "role": "assistant", "content": [words("alpha, it says")],
                        "stop_reason": "end_turn", "usage": { "input_tokens": 5, "output_tokens": 3 } });
    model.queue(Reply::status(200, &whole.to_string(), &[]));
    telegram.says(ANN, ANN, "read it");
    assert_eq!(telegram.next_sent(ANN).await.text, "alpha, it says");
    kept(&home, &telegram, &model).await;
    let requests = model.requests();
    assert_eq!(requests[0].body.get("tool_choice"), None);
    assert_eq!(requests[1].body["tool_choice"], json!({ "type": "none" }));
    assert_eq!(requests[0].body["tools"], requests[1].body["tools"], "the tools stay, so that the cache does");
}

#[tokio::test(flavor = "multi_thread")]
async fn b121_reasoning_goes_back_as_it_came_also_after_a_crash() {
    let first = || {
        vec![
            thinking("two files, I think"),
            words("I look."),
            without_id(reads("a.txt")),
            sealed("c2VhbGVk"),
            without_id(reads("b.txt")),
        ]
    };
    let second = || vec![thinking("now I know"), words("found 2")];
    for point in [None, Some("turn.after_tools"), Some("turn.checkpoint:1"), Some("turn.checkpoint:2")] {
        let (telegram, model, home) = stage().await;
        let home = home.workspace_file("a.txt", "alpha").workspace_file("b.txt", "beta");
        model.script(thinks);
        let crash: Vec<_> = point.iter().map(|point| ("MIDWATCH_CRASH_AT", *point)).collect();
        let mut daemon = Daemon::start_with_env(&home, &crash).await;
        telegram.says(ANN, ANN, "read");
        if point.is_some() {
            assert!(daemon.wait_exit().await.killed(), "{point:?}");
            daemon.restart().await;
        }
        assert_eq!(telegram.next_sent(ANN).await.text, "found 2", "{point:?}");
        daemon.restart().await;
        telegram.says(ANN, ANN, "and now?");
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: and now?");
        kept(&home, &telegram, &model).await;
        let last = model.requests().pop().unwrap();
        assert_eq!(said_before(&last), [first(), second()], "{point:?}");
        // No person and no log sees a thought.
        let session = home.rows("select id from sessions").remove(0);
        let plain = cli(&home, &["sessions", "show", &session]).await.stdout;
        let shown =
            [plain, cli(&home, &["--json", "sessions", "show", &session]).await.stdout, daemon.all_logs()].concat();
        assert!(shown.contains("found 2") && !shown.contains("I think") && !shown.contains("c2VhbGVk"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b120_another_model_never_sees_reasoning_and_the_first_one_gets_it_back() {
    let (telegram, model, home) = stage().await;
    let home = home.workspace_file("a.txt", "alpha").workspace_file("b.txt", "beta");
    // A model of another protocol, and one that only has another name.
    let root = model.root();
    let other = format!(
        "[[model.fallback]]\nprovider = \"anthropic\"\nmodel = \"other\"\nbase_url = \"{root}\"\n\
         api_key = {{ env = \"OPENAI_API_KEY\" }}\n"
    );
    let home = home.toml(&other).fallback(&model);
    let _daemon = Daemon::start(&home).await;
    model.script(|request| match (request.model(), request.last_user().as_str()) {
        (NAME, "to the other" | "to the last") => Reply::error(401, "authentication_error", "no"),
        ("other", "to the last") => Reply::error(401, "authentication_error", "no"),
        (NAME, _) => thinks(request),
        (name, said) => Reply::text(&format!("{name}: {said}")),
    });
    for (said, answer) in [
        ("read", "found 2"),
        ("to the other", "other: to the other"),
        ("to the last", "fallback-model: to the last"),
        ("back again", "echo: back again"),
    ] {
        telegram.says(ANN, ANN, said);
        assert_eq!(telegram.next_sent(ANN).await.text, answer);
    }
    kept(&home, &telegram, &model).await;
    let requests = model.requests();
    for request in &requests {
        let has_thoughts = request.body.to_string().contains("thinking");
        let is_first = request.model() == NAME && request.seq > 0;
        assert_eq!(has_thoughts, is_first, "request {} to {}", request.seq, request.model());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_with_calls_is_taken_also_when_the_grants_are_gone() {
    let (telegram, model, home) = stage().await;
    let home = home.workspace_file("a.txt", "alpha").workspace_file("b.txt", "beta");
    model.script(thinks);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "read");
    assert_eq!(telegram.next_sent(ANN).await.text, "found 2");
    let home = home.unlink("home").link("home", ANN, &[ANN]);
    home.write();
    daemon.restart().await;
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and now?");
    kept(&home, &telegram, &model).await;
    assert_eq!(model.requests().pop().unwrap().body["tool_choice"], json!({ "type": "none" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_thoughts_alone_is_no_answer() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::content(vec![thinking("what shall I say")]));
    telegram.says(ANN, ANN, "hi");
    telegram.next_sent(ANN).await;
    kept(&home, &telegram, &model).await;
    let requests = model.requests();
    assert_eq!(requests.len(), 2, "{}", model.told());
    assert!(requests[1].mentions("Your answer was empty"), "{}", requests[1].body);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_whole_answer_is_asked_again_and_never_shown() {
    let (telegram, model, home) = stage().await;
    let home = home.set("model", "stall_secs", "1");
    let _daemon = Daemon::start(&home).await;
    let half = || Reply::text("half of an answer that goes on and on");
    for (name, reply) in [
        ("closed cleanly before the end event", half().end_after(6)),
        ("broken off", half().cut_after(6)),
        ("the reason without the end", Reply::text("half").end_after(6)),
        ("a stall under pings", half().stall_after(6).keepalive()),
        ("a call whose arguments are cut", Reply::calls(vec![("read_file", json!({ "path": "a" }))]).cut_after(5)),
        ("a page", Reply::html200()),
        ("an error in the stream", Reply::events(vec![json!({ "type": "error", "error": { "type": "api_error" } })])),
    ] {
        is_asked_again(&telegram, &model, name, reply).await;
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(home.count("select count(*) from messages where blocks like '%half%' or blocks like '%tool_%'"), 0);
    let stalled = model.requests().into_iter().filter(|request| request.end == End::Abandoned).count();
    assert_eq!(stalled, 1, "{}", model.told());
}

#[tokio::test(flavor = "multi_thread")]
async fn b118_busy_is_waited_out_with_the_wait_that_was_asked_for_or_our_own() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    for (status, kind) in [(529, "overloaded_error"), (429, "rate_limit_error")] {
        let body = json!({ "type": "error", "error": { "type": kind, "message": "later" } }).to_string();
        model.queue(Reply::status(status, &body, &[("retry-after", "1")]));
        model.queue(Reply::status(status, &body, &[]));
        let before = model.requests().len();
        telegram.says(ANN, ANN, kind);
        assert_eq!(telegram.next_sent(ANN).await.text, format!("echo: {kind}"));
        let times: Vec<Duration> = model.requests()[before..].iter().map(|request| request.at).collect();
        assert!(times.len() == 3 && times[1] - times[0] >= Duration::from_secs(1), "{times:?}");
    }
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_is_too_long_is_cut_once_and_the_key_is_never_told() {
    let (telegram, model, home) = stage().await;
    let daemon = Daemon::start(&home).await;
    model.window(2_000);
    telegram.says(ANN, ANN, &"word ".repeat(700));
    telegram.next_sent(ANN).await;
    telegram.says(ANN, ANN, &"more ".repeat(700));
    let told = telegram.next_sent(ANN).await.text;
    assert!(told.starts_with("This conversation") && told.contains("/new"), "{told}");
    let refused = model.requests().into_iter().filter(|request| request.refused.is_some()).count();
    assert_eq!(refused, 2, "as it is, and cut to half: {}", model.told());
    model.window(100_000);
    let body = json!({ "type": "error", "error": { "type": "authentication_error", "message": KEY } }).to_string();
    model.queue(Reply::status(401, &body, &[]));
    telegram.says(ANN, ANN, "/new");
    telegram.next_sent(ANN).await;
    telegram.says(ANN, ANN, "hi");
    let told = telegram.next_sent(ANN).await.text;
    assert!(told.starts_with("The model does not take our requests."), "{told}");
    kept(&home, &telegram, &model).await;
    assert!(home.rows("select detail from turns order by id desc limit 1")[0].contains("***"));
    assert!(!daemon.all_logs().contains(KEY));
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_and_doctor_know_the_protocol() {
    let (telegram, model, home) = (Telegram::start().await, Model::start().await, Home::new().unwritten());
    telegram.chats().open(ANN);
    let (api, root) = (telegram.url(), model.root());
    let flags = [
        "setup",
        "--yes",
        "--provider",
        "anthropic",
        "--model",
        NAME,
        "--base-url",
        &root,
        "--api-key-env",
        "OPENAI_API_KEY",
        "--telegram-token-env",
        "TELEGRAM_BOT_TOKEN",
        "--telegram-api-url",
        &api,
    ];
    let done = cli(&home, &flags).await;
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    assert_eq!(model.requests().len(), 1, "it was tried out: {}", model.told());
    let doctor = cli(&home, &["doctor"]).await.stdout;
    assert!(doctor.contains(&format!("{NAME} answers")) && !doctor.contains("context_window"), "{doctor}");
    model.window(8_000);
    let doctor = cli(&home, &["doctor"]).await.stdout;
    assert!(doctor.contains("the server takes 8000 tokens at once, and context_window says 32768"), "{doctor}");
    model.assert_clean();

    // Without a server of its own choice the vendor's is written down: the line of another provider would stay.
    let own = ["setup", "--yes", "--no-verify", "--provider", "anthropic", "--model", NAME, "--api-key-env", "K"];
    let done = cli(&home, &[&own[..], &["--no-telegram", "--overwrite"]].concat()).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let written = std::fs::read_to_string(home.path().join("config/midwatch.toml")).unwrap();
    assert!(written.contains("base_url = \"https://api.anthropic.com\""), "{written}");
    let keyless = cli(&home, &["setup", "--yes", "--provider", "anthropic", "--model", NAME, "--no-telegram"]).await;
    // Asked, it offers what the server has; a key that is typed lies in a file of its own.
    let talked = cli_with_input(
        &Home::new().unwritten(),
        &["setup", "--no-telegram"],
        &format!("anthropic\n{root}\n{KEY}\n\n\n\n"),
    )
    .await;
    assert!(talked.code == Some(0) && talked.stderr.contains(&format!("it has {NAME}")), "{talked:?}");
    assert!(
        talked.stderr.contains("The server [https://api.anthropic.com]") && !talked.stderr.contains(KEY),
        "{talked:?}"
    );
    assert!(keyless.code == Some(2) && keyless.stderr.contains("--api-key-env"), "{keyless:?}");
}
