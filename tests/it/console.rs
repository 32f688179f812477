//! The local console: talks that survive their client, locks on the socket, and the shapes that scripts read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::spine::{ANN, BOB, EVE, ends_well};
use crate::support::PATIENCE;
use crate::support::daemon::{Daemon, Output, cli, cli_with_input};
use crate::support::home::Home;
use crate::support::model::{End, Model, Reply, Request};
use crate::support::oracle;
use crate::support::telegram::{Fault, Telegram};

/// The console's socket, spoken to as any other client would.
pub(crate) struct Socket {
    http: reqwest::Client,
    token: String,
}

impl Socket {
    /// With the token that lies in `home`.
    pub(crate) fn of(home: &Home) -> Self {
        let token = std::fs::read_to_string(home.path().join("run/token")).unwrap();
        Self::with_token(home, &token)
    }

    fn with_token(home: &Home, token: &str) -> Self {
        let http = reqwest::Client::builder().unix_socket(home.path().join("run/midwatch.sock")).no_proxy();
        Self { http: http.build().unwrap(), token: token.to_owned() }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let response = request.bearer_auth(&self.token).send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Status and body, as JSON where it is.
    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.send(self.http.get(format!("http://midwatch{path}"))).await
    }

    /// As [`Socket::get`], with a body to send.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send(self.http.post(format!("http://midwatch{path}")).json(body)).await
    }

    /// Says something without waiting for the answer; returns the message's id.
    pub(crate) async fn say(&self, session: &str, text: &str) -> String {
        let said = json!({ "id": format!("{:016x}", fastrand::u64(..)), "session": session, "text": text });
        let (status, body) = self.post("/v1/say", &said).await;
        assert_eq!(status, 200, "{body}");
        body["message"].as_str().unwrap().to_owned()
    }

    /// Waits for a message's end.
    pub(crate) async fn fate(&self, message: &str) -> Value {
        let end = async {
            loop {
                let (status, fate) = self.get(&format!("/v1/messages/{message}")).await;
                assert_eq!(status, 200, "{fate}");
                if fate["state"] == "done" || fate["state"] == "dead" {
                    return fate;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, end).await.unwrap_or_else(|_| panic!("{message} did not end"))
    }
}

/// A client of the command line at work.
struct Talk {
    child: Child,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Talk {
    fn start(home: &Home, args: &[&str]) -> Self {
        let mut command = bare(home.path());
        command.arg("--home").arg(home.path()).args(args).kill_on_drop(true);
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, stderr }
    }

    async fn next_stderr(&mut self) -> String {
        let line = timeout(PATIENCE, self.stderr.next_line()).await.expect("a line on standard error");
        line.unwrap().unwrap_or_default()
    }

    /// Kills the client as a closed terminal does.
    async fn leave(mut self) {
        self.child.kill().await.unwrap();
    }

    async fn end(mut self) -> Output {
        let mut stdout = String::new();
        let mut out = self.child.stdout.take().unwrap();
        let run = async {
            out.read_to_string(&mut stdout).await.unwrap();
            self.child.wait().await.unwrap().code()
        };
        let code = timeout(PATIENCE, run).await.expect("the client ends");
        Output { code, stdout, stderr: String::new() }
    }
}

fn bare(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midwatch"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Model and home without a messenger.
async fn console() -> (Model, Home) {
    let model = Model::start().await;
    let home = Home::new().model(&model);
    (model, home)
}

async fn stops(mut daemon: Daemon, home: &Home, model: &Model) {
    oracle::at_rest(home).await;
    assert_eq!(daemon.stop().await, Some(0));
    oracle::assert_promises(home, &Telegram::start().await, model);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_said_is_a_line_answered() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    let said = cli(&home, &["say", "hello"]).await;
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "echo: hello\n", ""));
    let said = cli(&home, &["--json", "say", "again"]).await.json();
    assert_eq!(said, json!({ "turn": "turn-2", "reason": "natural", "answer": "echo: again" }));
    let help = cli(&home, &["say", "/help"]).await;
    assert!(help.stdout.contains("/new") && help.code == Some(0), "{help:?}");
    let status = cli(&home, &["say", "/status"]).await;
    assert!(status.stdout.contains("turns today") && status.code == Some(0), "{status:?}");
    assert_eq!(model.requests().len(), 2);
    model.queue(Reply::error(400, "invalid_request_error", "no such thing"));
    let failed = cli(&home, &["say", "what fails"]).await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stdout.contains("Something went wrong on my side.") && !failed.stdout.contains("no such thing"));
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piped_chat_answers_line_by_line_and_remembers() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    let talk = cli_with_input(&home, &["chat"], "one\n\n   \ntwo\nthree without an end").await;
    assert_eq!(talk.stdout, "echo: one\necho: two\necho: three without an end\n");
    assert_eq!((talk.code, talk.stderr.as_str()), (Some(0), ""));
    let last = model.requests().pop().unwrap();
    assert!(last.mentions("one") && last.mentions("echo: two"), "{:?}", last.body);
    model.queue(Reply::error(400, "invalid_request_error", "no"));
    let talk = cli_with_input(&home, &["chat"], "breaks\ngoes on\n").await;
    assert_eq!(talk.code, Some(1), "a script hears of the line that failed: {talk:?}");
    assert!(talk.stdout.ends_with("echo: goes on\n"), "{talk:?}");
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_names_and_know_nothing_of_each_other() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    cli(&home, &["say", "my cat is Mitzi"]).await;
    let other = cli(&home, &["say", "--session", "work-2", "what is my cat?"]).await;
    assert_eq!(other.stdout, "echo: what is my cat?\n");
    assert!(!model.requests()[1].mentions("Mitzi"));
    let shown = cli(&home, &["sessions", "show", "work-2"]).await.stdout;
    assert!(shown.contains("them: ") && shown.contains("me: echo: what is my cat?") && !shown.contains("Mitzi"));
    let socket = Socket::of(&home);
    let long = "x".repeat(33);
    for name in ["", "Main", "a b", "../main", "a/b", "é", "a\nb", long.as_str()] {
        let said = cli(&home, &["say", "--session", name, "hello"]).await;
        assert_eq!(said.code, Some(2), "{name:?}: {said:?}");
        assert!(said.stderr.contains("hint: 1 to 32 of a-z 0-9 - _"), "{name:?}: {said:?}");
        let talk = cli_with_input(&home, &["chat", "--session", name], "hello\n").await;
        assert_eq!(talk.code, Some(2), "{name:?}: {talk:?}");
        let (status, body) = socket.post("/v1/say", &json!({ "id": "12345678", "session": name, "text": "x" })).await;
        assert_eq!(status, 400, "{name:?}: {body}");
    }
    assert_eq!(model.requests().len(), 2);
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_of_one_session_each_get_their_own_answer() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    model.script(|request| Reply::text(&format!("echo: {}", request.last_user())).slow(Duration::from_millis(20)));
    let (one, two, three) = tokio::join!(
        cli(&home, &["say", "the first of them"]),
        cli(&home, &["say", "the second of them"]),
        cli(&home, &["say", "--session", "aside", "the third"]),
    );
    assert_eq!(one.stdout, "echo: the first of them\n");
    assert_eq!(two.stdout, "echo: the second of them\n");
    assert_eq!(three.stdout, "echo: the third\n");
    assert_eq!(home.count("select count(*) from sessions"), 2);
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_stops_nothing_and_coming_back_attaches() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    model.queue(Reply::text("worth waiting for").held());
    let say = Talk::start(&home, &["say", "something long"]);
    model.wait_requests(1).await;
    say.leave().await;
    let mut back = Talk::start(&home, &["chat"]);
    assert_eq!(back.next_stderr().await, "(turn-1 is at work here; this is how it goes on)");
    assert!(model.requests()[0].end == End::Open, "the turn goes on with nobody there");
    model.release();
    let back = back.end().await;
    assert_eq!((back.code, back.stdout.as_str()), (Some(0), "worth waiting for\n"));

    model.queue(Reply::text("nobody saw this").held());
    let say = Talk::start(&home, &["say", "something else"]);
    model.wait_requests(2).await;
    say.leave().await;
    model.release();
    oracle::at_rest(&home).await;
    let shown = cli(&home, &["sessions", "show", "main"]).await.stdout;
    assert!(shown.contains("me: nobody saw this"), "{shown}");
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_cancelled_from_another_client() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    let socket = Socket::of(&home);
    let (_, nothing) = socket.post("/v1/cancel", &json!({ "session": "main" })).await;
    assert_eq!(nothing, json!({ "turn": null }));
    for how in ["the socket", "/stop"] {
        model.queue(Reply::hang());
        let before = model.requests().len();
        let say = Talk::start(&home, &["say", "this takes for ever"]);
        model.wait_requests(before + 1).await;
        if how == "/stop" {
            assert_eq!(cli(&home, &["say", "/stop"]).await.code, Some(0));
        } else {
            let (status, body) = socket.post("/v1/cancel", &json!({ "session": "main" })).await;
            assert_eq!((status, body), (200, json!({ "turn": "turn-1" })));
        }
        let said = say.end().await;
        assert_eq!((said.code, said.stdout.as_str()), (Some(1), "Stopped.\n"), "{how}");
        let gone = |all: &[Request]| (all[before].end == End::Abandoned).then_some(());
        model.wait_for("the call to be given up", gone).await;
    }
    assert_eq!(cli(&home, &["say", "still there?"]).await.stdout, "echo: still there?\n");
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_json_with_its_reason() {
    let (_model, home) = console().await;
    let _daemon = Daemon::start(&home).await;
    let socket = Socket::of(&home);
    let long = "x".repeat(2 << 20);
    for (path, body, status) in [
        ("/v1/nothing", json!({}), 404),
        ("/v1/status", json!({}), 405),
        ("/v1/say", json!({ "text": "no session" }), 422),
        ("/v1/say", json!("not even an object"), 422),
        ("/v1/say", json!({ "text": long }), 413),
    ] {
        let (found, answer) = socket.post(path, &body).await;
        assert_eq!(found, status, "{path} {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{path} {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_the_socket_says_and_does_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let (model, home) = console().await;
    let mut daemon = Daemon::start(&home).await;
    for (name, mode) in [("run", 0o700), ("run/midwatch.sock", 0o600), ("run/token", 0o600)] {
        let found = std::fs::metadata(home.path().join(name)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{name}");
    }
    let right = Socket::of(&home).token;
    let shorter = right[1..].to_owned();
    let other = right.replace(|c: char| c.is_ascii_digit(), "f");
    for token in ["", "wrong", &shorter, &other, &format!("{right}0")] {
        let socket = Socket::with_token(&home, token);
        for path in ["/v1/status", "/v1/sessions", "/v1/events?session=main", "/v1/nothing"] {
            assert_eq!(socket.get(path).await.0, 401, "{token} {path}");
        }
        let said = json!({ "id": "12345678", "session": "main", "text": "let me in" });
        for (path, body) in [("/v1/say", &said), ("/v1/stop", &json!({})), ("/v1/reload", &json!({}))] {
            assert_eq!(socket.post(path, body).await.0, 401, "{token} {path}");
        }
    }
    assert_eq!(home.count("select count(*) from inbox"), 0);
    assert!(daemon.try_exit().is_none());

    // Another token after each start: an old one is worth nothing.
    daemon.restart().await;
    assert_ne!(Socket::of(&home).token, right);
    assert_eq!(Socket::with_token(&home, &right).get("/v1/status").await.0, 401);
    std::fs::write(home.path().join("run/token"), "wrong").unwrap();
    let said = cli(&home, &["say", "hello"]).await;
    assert_eq!(said.code, Some(1));
    insta::assert_snapshot!(said.stderr, @"
    error: this client may not use the console
    hint: run midwatch as the user of the daemon, with the same --home
    ");
    assert_eq!(model.requests().len(), 0);
    assert!(!daemon.all_logs().contains(&right), "no token in a log");
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_client_of_ours_sends_is_refused_and_stores_nothing() {
    let (model, home) = console().await;
    let daemon = Daemon::start(&home).await;
    let socket = Socket::of(&home);
    let say = |id: &str, text: &str| json!({ "id": id, "session": "main", "text": text });
    let big = "x".repeat((64 << 10) + 1);
    let huge = "x".repeat(300 << 10);
    let mut extra = say("12345678", "x");
    extra["urgent"] = json!(true);
    for (name, body, expected) in [
        ("blank text", say("12345678", " \n"), 400..=400),
        ("text of 64 KiB and one", say("12345678", &big), 400..=400),
        ("a body of 300 KiB", say("12345678", &huge), 413..=413),
        ("a short id", say("1234567", "x"), 400..=400),
        ("an id with a space", say("1234 5678", "x"), 400..=400),
        ("a long id", say(&"1".repeat(65), "x"), 400..=400),
        ("a key too many", extra, 400..=422),
        ("a key too few", json!({ "id": "12345678" }), 400..=422),
    ] {
        let (status, body) = socket.post("/v1/say", &body).await;
        assert!(expected.contains(&status), "{name}: {status} {body}");
    }
    for path in ["/v1/messages/in-999", "/v1/sessions/nothing", "/v1/timeline/turn-0x", "/v1/nothing"] {
        let (status, body) = socket.get(path).await;
        assert!((400..500).contains(&status), "{path}: {status} {body}");
    }
    for path in ["/v1/turns/turn-999/retry", "/v1/turns/turn-1/burn", "/v1/replies/reply-9/resend", "/v1/turns/x/drop"]
    {
        let (status, body) = socket.post(path, &json!({})).await;
        assert!((400..500).contains(&status), "{path}: {status} {body}");
    }
    assert_eq!(home.count("select count(*) from inbox"), 0);
    let most = "y".repeat(64 << 10);
    let (status, body) = socket.post("/v1/say", &say("12345678", &most)).await;
    assert_eq!(status, 200, "{body}");
    socket.fate(body["message"].as_str().unwrap()).await;
    let said = cli(&home, &["say", &big]).await;
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), "error: a message has 1 to 65536 bytes\n"));
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_said_twice_is_one_turn_over_a_kill_too() {
    let (model, home) = console().await;
    let mut daemon = Daemon::start(&home).await;
    let said = json!({ "id": "0123456789abcdef", "session": "main", "text": "only once" });
    let socket = Socket::of(&home);
    let (one, two) = tokio::join!(socket.post("/v1/say", &said), socket.post("/v1/say", &said));
    assert_eq!(one, two);
    let message = one.1["message"].as_str().unwrap().to_owned();
    assert_eq!(socket.fate(&message).await["answer"], "echo: only once");
    daemon.restart().await;
    let socket = Socket::of(&home);
    assert_eq!(socket.post("/v1/say", &said).await, one);
    assert_eq!(socket.fate(&message).await["answer"], "echo: only once");
    assert_eq!((model.requests().len(), home.count("select count(*) from turns")), (1, 1));

    // A crash between store and answer: the client that says it again gets the answer to the first.
    daemon.restart_with_env(&[("MIDWATCH_CRASH_AT", "console.stored")]).await;
    let socket = Socket::of(&home);
    let again = json!({ "id": "fedcba9876543210", "session": "main", "text": "over a crash" });
    let lost = socket.http.post("http://midwatch/v1/say").bearer_auth(&socket.token).json(&again).send().await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(daemon.wait_exit().await.killed());
    daemon.restart().await;
    let socket = Socket::of(&home);
    let (_, body) = socket.post("/v1/say", &again).await;
    assert_eq!(socket.fate(body["message"].as_str().unwrap()).await["answer"], "echo: over a crash");
    assert_eq!(model.requests().len(), 2);
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_out_a_restart_and_gets_its_answer() {
    let (model, home) = console().await;
    let mut daemon = Daemon::start(&home).await;
    model.queue(Reply::hang());
    let mut say = Talk::start(&home, &["say", "are you coming back?"]);
    model.wait_requests(1).await;
    daemon.kill9().await;
    assert_eq!(say.next_stderr().await, "(the daemon went away; waiting for it to come back)");
    daemon.restart().await;
    let said = say.end().await;
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "echo: are you coming back?\n"));
    model.release();
    stops(daemon, &home, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_told_of_its_window_too() {
    let (model, home) = console().await;
    let home = home.window(4_000).set("model", "max_output_tokens", "500");
    let daemon = Daemon::start(&home).await;
    model.script(|_| Reply::text(&"and so it goes on and on ".repeat(60)));
    let socket = Socket::of(&home);
    let mut told = 0;
    for n in 0..30 {
        let message = socket.say("main", &format!("question {n}")).await;
        told += socket.fate(&message).await["answer"].as_str().unwrap().matches("outgrown").count();
    }
    assert!(home.count("select count(*) from checkpoints where kind = 'compacted'") > 0);
    assert_eq!(told, 1);
    stops(daemon, &home, &model).await;
}

/// Keys and types of a JSON value, so that a snapshot holds a contract and no values. Of a list its first element.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if number.is_f64() => "float".to_owned(),
        Value::Number(_) => "int".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Array(list) => format!("[{}]", list.first().map(shape).unwrap_or_default()),
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().map(|(key, value)| format!("{key}: {}", shape(value))).collect();
            keys.sort();
            format!("{{{}}}", keys.join(", "))
        }
    }
}

/// Ann's answer is uncertain, Bob's turn is parked, Eve is not linked; a turn of the console runs and a link stands.
async fn troubled() -> (Telegram, Model, Home, Daemon) {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("ann", ANN, &[ANN]).link("bob", BOB, &[BOB]);
    let home = home.grant("ann", &["read_file"]).grant("bob", &["list_files"]);
    model.queue(Reply::calls(vec![("list_files", json!({}))]));
    let mut daemon = Daemon::start_with_env(&home, &[("MIDWATCH_CRASH_AT", "turn.before_tools")]).await;
    telegram.says(BOB, BOB, "list them");
    assert!(daemon.wait_exit().await.killed());
    daemon.restart_with_env(&[("MIDWATCH_CRASH_AT", "turn.before_tools")]).await;
    assert!(daemon.wait_exit().await.killed());
    daemon.restart().await;
    telegram.next_sent(BOB).await;
    telegram.fault("sendMessage", Fault::DropAfter, 1);
    telegram.says(ANN, ANN, "hello");
    let uncertain = || (home.count("select count(*) from outbox where state = 'uncertain'") == 1).then_some(());
    crate::support::eventually("an uncertain reply", uncertain).await;
    let eve = telegram.says(EVE, EVE, "let me in");
    telegram.wait_acknowledged(eve.update_id).await;
    (telegram, model, home, daemon)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shapes_that_scripts_read() {
    let (telegram, model, home, daemon) = troubled().await;
    cli(&home, &["say", "hello"]).await;
    let noted = || daemon.stderr().contains("A turn ended. turn=turn-3").then_some(());
    crate::support::eventually("the console's turn noted as handled", noted).await;
    let mut shapes = String::new();
    for args in [
        &["status"][..],
        &["turns"],
        &["replies"],
        &["links"],
        &["sessions"],
        &["sessions", "show", "main"],
        &["timeline", "main"],
        &["timeline", "turn-1"],
        &["link", "telegram"],
        &["check"],
        &["reload"],
        &["turns", "drop", "turn-1"],
        &["turns", "drop", "turn-1"],
        &["replies", "resend", "reply-2"],
        &["sessions", "show", "nothing"],
        &["stop"],
    ] {
        let output = cli(&home, &[&["--json"], args].concat()).await;
        let shape = shape(&output.json());
        shapes += &format!("{} ({}) {shape}\n", args.join(" "), output.code.unwrap());
    }
    insta::assert_snapshot!(shapes, @"
    status (0) {approvals_waiting: int, channels: [{error: null, kind: text, last_accepted_at: text, last_handled_at: text, last_poll_at: null, name: text, state: text, unparsed: int}], computer_use: {enabled: bool, until: null}, effects_uncertain: int, home: text, inbox: {dead: int, new: int, running: int}, jobs: [], late: [], models: [{error: null, last_answered_at: text, name: text, needs_operator: bool}], outbox: {dead: int, pending: int, uncertain: int}, parked: [{crashes: int, id: text, session: text, started_at: text}], pid: int, ready: bool, replies: [{channel: text, chat: text, created_at: text, error: text, id: text, state: text}], started_at: text, stopping: bool, store_ok: bool, turns_parked: int, turns_running: int, unlinked: [{channel: text, chat: text, last_at: text, messages: int, name: text, reason: text, sender: text}], usage_today: {cost_usd: float, input_tokens: int, output_tokens: int, turns: int}, version: text, workspace_ok: bool}
    turns (0) {turns: [{crashes: int, id: text, link: text, session: text, started_at: text, state: text}]}
    replies (0) {replies: [{channel: text, chat: text, created_at: text, error: text, id: text, state: text}]}
    links (0) {links: [{allow: [text], channel: text, chat: int, mention: text, name: text, senders: [int], trouble: []}]}
    sessions (0) {sessions: [{active_at: text, id: text, link: null, messages: int, status: text, thread: text, turns: int}]}
    sessions show main (0) {messages: [{blocks: [{origin: text, text: text, type: text}], role: text, seq: int, turn: text}], session: text}
    timeline main (0) {timeline: [{at: text, detail: {link: null, messages: [text], model: text}, kind: text, turn: text}]}
    timeline turn-1 (0) {timeline: [{at: text, detail: {link: text, messages: [text], model: text}, kind: text, turn: text}]}
    link telegram (0) {channel: text, code: text, valid_until: text}
    check (0) {files: [text], ok: bool, warnings: []}
    reload (0) {at_next_start: []}
    turns drop turn-1 (0) {turn: text}
    turns drop turn-1 (1) {error: text, faults: null, hint: null}
    replies resend reply-2 (0) {reply: text}
    sessions show nothing (1) {error: text, faults: null, hint: null}
    stop (0) {stopping: bool}
    ");
    let mut daemon = daemon;
    assert_eq!(daemon.wait_exit().await.code, Some(0));
    oracle::assert_promises(&home, &telegram, &model);
}

/// `text` without what differs from run to run.
fn masked(text: &str, home: &Home) -> String {
    let text = text.replace(home.path().to_str().unwrap(), "HOME");
    let replace = |text: String, what: &str, by: &str| Regex::new(what).unwrap().replace_all(&text, by).into_owned();
    let text = replace(text, r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME");
    let text = replace(text, r"pid \d+", "pid PID");
    replace(text, r"[\d]+ tokens in, \d+ out", "N tokens in, N out")
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_people_what_needs_them() {
    let (telegram, model, home, daemon) = troubled().await;
    let status = cli(&home, &["status"]).await;
    assert_eq!((status.code, status.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(masked(&status.stdout, &home), @r#"
midwatch 0.1.0 is ready (pid PID, since TIME)
console: up; last accepted never, last handled never
telegram: up; last poll TIME, last accepted TIME, last handled TIME
model fake-model: last answered TIME
turns: 0 running; inbox: 0 new, 1 dead; replies: 0 pending
today: 2 turns, N tokens in, N out, 0.00 USD

Set aside (1): midwatch turns retry|drop ID
  turn-1 of TIME, the process died 2 times over it

Replies in doubt (1): midwatch replies resend|drop ID
  reply-2 to telegram:4242 501: uncertain, no answer: error sending request: client error (SendRequest): connection closed before message completed

Not answered in the last day: `midwatch link telegram` links a chat, or add the sender to its link
  chat 503 (Person 503), sender 503: not linked, 1 messages, last TIME
"#);
    cli(&home, &["turns", "drop", "turn-1"]).await;
    cli(&home, &["replies", "drop", "reply-2"]).await;
    let status = cli(&home, &["status"]).await.stdout;
    assert!(!status.contains("turn-1") && !status.contains("reply-2"), "what was settled needs nobody: {status}");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn try_answers_typed_lines_with_no_key_and_leaves_nothing_behind() {
    use tokio::io::AsyncWriteExt;
    let (home, temp) = (tempfile::tempdir().unwrap(), tempfile::Builder::new().prefix("mw").tempdir().unwrap());
    let mut child = bare(home.path()).arg("try").env("TMPDIR", temp.path()).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hello\nread notes/today.md\nwrite hi to x.md\n").await.unwrap();
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
    assert!(stdout.contains("no language model"), "it says what it is: {stdout}");
    assert!(stdout.contains("water the plants"), "a real tool read a real file: {stdout}");
    assert!(stdout.to_lowercase().contains("refused"), "and the gate is the real one: {stdout}");
    let left = |path: &Path| std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    assert!(left(home.path()).is_empty(), "{:?}", left(home.path()));
    assert!(left(temp.path()).is_empty(), "{:?}", left(temp.path()));
}
