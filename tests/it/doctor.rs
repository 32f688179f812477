//! `doctor`: every finding with its fix, with the daemon up or down, and nothing changed by looking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::Router;
use axum::http::header;
use axum::routing::{get, post};
use regex::Regex;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::spine::{ANN, GROUP};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{self, Model, Reply};
use crate::support::net::Server;
use crate::support::telegram::{Fault, Telegram};
use crate::support::{PATIENCE, assert_no_secrets};

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A deployment that nothing is wrong with.
async fn well() -> (Telegram, Model, Home) {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).operator(&[ANN]);
    let home = home.link("home", ANN, &[ANN]).grant("home", &["read_file"]);
    closed(&home);
    (telegram, model, home)
}

/// Writes the configuration, and closes all folders to others whatever the umask is.
fn closed(home: &Home) {
    home.write();
    for folder in ["config", "config/channels", "data"] {
        mode(&home.path().join(folder), 0o700);
    }
    for file in ["config/midwatch.toml", "config/channels/telegram.toml"] {
        let file = home.path().join(file);
        if file.exists() {
            mode(&file, 0o600);
        }
    }
}

fn masked(text: &str, home: &Home) -> String {
    let mut text = text.replace(&home.path().display().to_string(), "HOME");
    for (pattern, mask) in [
        (r"\d+ [GM]iB", "SIZE"),
        (r"pid \d+", "pid PID"),
        (r"(?m)schema \d+$", "schema N"),
        (r"127\.0\.0\.1:\d+", "SERVER"),
        (r"version \S+ runs", "version V runs"),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, mask).into_owned();
    }
    text
}

/// Every file beneath the home with its bytes.
fn everything(home: &Home) -> BTreeMap<String, Vec<u8>> {
    fn walk(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let bytes = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            found.insert(format!("{} {:o}", path.display(), meta.permissions().mode()), bytes);
            if meta.is_dir() {
                walk(&path, found);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(home.path(), &mut found);
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_is_well_is_told_so_line_by_line() {
    let (_telegram, _model, home) = well().await;
    let mut daemon = Daemon::start(&home).await;
    let told = cli(&home, &["doctor"]).await;
    insta::assert_snapshot!(masked(&told.stdout, &home), @"
ok     configuration  2 files in HOME/config
ok     secrets        2 secrets can be read
ok     folders        they are this user's, and closed to others
ok     disk           SIZE free for HOME/data
ok     store          HOME/data/midwatch.db, SIZE, schema N
ok     model          fake-model answers
ok     window         32768 tokens; the server does not say how many it takes
ok     telegram       the token is that of @midwatch_bot, and no webhook takes its messages
ok     clock          within 60 s of the server's
ok     links          1 link
ok     daemon         version V runs (pid PID)
ok     service        no unit is installed; the head of systemd/midwatch.service says how

All is well.
");
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let json = cli(&home, &["--json", "doctor"]).await.json();
    assert_eq!((&json["ok"], &json["faults"], &json["warnings"]), (&json!(true), &json!(0), &json!(0)));
    let first = &json["findings"][0];
    assert_eq!(
        (&first["level"], &first["topic"], &first["fix"]),
        (&json!("ok"), &json!("configuration"), &Value::Null)
    );
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_changes_nothing_with_the_daemon_down() {
    let (_telegram, _model, home) = well().await;
    let mut daemon = Daemon::start(&home).await;
    assert_eq!(cli(&home, &["say", "hi"]).await.code, Some(0));
    assert_eq!(daemon.stop().await, Some(0));
    let before = everything(&home);
    let told = cli(&home, &["doctor"]).await;
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stdout.contains("warn   daemon         it does not run"), "{told:?}");
    assert!(told.stdout.contains("schema "), "the store was read: {told:?}");
    let after = everything(&home);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(before == after, "not a byte changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_deployment_is_told_where_to_begin() {
    let home = Home::new().unwritten();
    closed_folders(&home);
    let told = cli(&home, &["doctor"]).await;
    insta::assert_snapshot!(masked(&told.stdout, &home), @"
fault  configuration  there is no HOME/config/midwatch.toml
                      fix: `midwatch setup` writes it
ok     folders        they are this user's, and closed to others
ok     disk           SIZE free for HOME/data
ok     store          it is not there yet; the first start makes it
warn   daemon         it does not run
                      fix: `midwatch serve`, or systemctl --user start midwatch
ok     service        no unit is installed; the head of systemd/midwatch.service says how

1 fault, 1 warning.
");
    assert_eq!(told.code, Some(1));
}

fn closed_folders(home: &Home) {
    for folder in ["config", "data"] {
        mode(&home.path().join(folder), 0o700);
    }
}

/// The lines of the level and topic, with their fixes.
async fn findings(home: &Home, level: &str, topic: &str) -> (Option<i32>, Vec<(String, String)>) {
    let told = cli(home, &["--json", "doctor"]).await;
    assert_no_secrets("what doctor says", &(told.stdout.clone() + &told.stderr));
    let all = told.json();
    let of = |finding: &&Value| finding["level"] == level && finding["topic"] == topic;
    let found = all["findings"].as_array().unwrap().iter().filter(of).map(|finding| {
        let text = |key: &str| masked(finding[key].as_str().unwrap_or_default(), home);
        (text("what"), text("fix"))
    });
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty(), "{level} {topic}: {all:#}");
    (told.code, found)
}

/// Spoils a deployment that is well, and returns what is found of it.
type Spoil = Box<dyn Fn(&Telegram, &Model, Home) -> Home>;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_found_with_its_fix() {
    let spoil = |how: fn(&Telegram, &Model, Home) -> Home| Box::new(how) as Spoil;
    let cases: Vec<(&str, Spoil, &str, &str, &str, &str)> = vec![
        (
            "a typo in a file",
            spoil(|_, _, home| home.toml("[limits]\nruonds = 3\n")),
            "fault",
            "configuration",
            "midwatch.toml:",
            "did you mean `rounds`?",
        ),
        (
            "a variable that is not set",
            spoil(|_, _, home| home.set("model", "api_key", "{ env = \"NOT_SET\" }")),
            "fault",
            "secrets",
            "the key of fake-model: the environment variable `NOT_SET` is not set",
            "set it where the daemon starts",
        ),
        (
            "a secret that others can read",
            spoil(|_, _, home| {
                let file = home.path().join("config/key");
                std::fs::write(&file, model::KEY).unwrap();
                mode(&file, 0o644);
                home.set("model", "api_key", "{ file = \"key\" }")
            }),
            "warn",
            "secrets",
            "the key of fake-model: the secret's file HOME/config/key is open to others",
            "chmod 600 HOME/config/key",
        ),
        (
            "a configuration that everybody can change",
            spoil(|_, _, home| {
                mode(&home.path().join("config/midwatch.toml"), 0o666);
                home
            }),
            "fault",
            "folders",
            "everybody can change HOME/config/midwatch.toml, and with it what the agent may do",
            "chmod go-w HOME",
        ),
        (
            "channels that a group can change",
            spoil(|_, _, home| {
                mode(&home.path().join("config"), 0o775);
                home
            }),
            "warn",
            "folders",
            "its group can change HOME/config, and with it what lies in it",
            "chmod g-w HOME/config",
        ),
        (
            "data that others can read",
            spoil(|_, _, home| {
                mode(&home.path().join("data"), 0o755);
                home
            }),
            "warn",
            "folders",
            "others can look into HOME/data",
            "chmod 700 HOME/data",
        ),
        (
            "a token that is void",
            spoil(|telegram, _, home| {
                telegram.revoke();
                home
            }),
            "fault",
            "telegram",
            "the server does not take the token: Unauthorized",
            "copy the token again from @BotFather",
        ),
        (
            "a webhook",
            spoil(|telegram, _, home| {
                telegram.set_webhook("https://hooks.example/secret");
                home
            }),
            "fault",
            "telegram",
            "a webhook (https://hooks.example) takes the messages of @midwatch_bot",
            "delete the webhook",
        ),
        (
            "a group that the bot hears little of",
            spoil(|_, _, home| home.link("club", GROUP, &[ANN]).link_line("club", "mention = \"always\"")),
            "warn",
            "telegram",
            "mention = \"always\" in club, but @midwatch_bot gets only",
            "/setprivacy",
        ),
        (
            "a link in which nobody may speak",
            spoil(|_, _, home| home.link("mute", GROUP, &[])),
            "warn",
            "links",
            "nobody may speak in `mute` (channels/telegram.toml:",
            "senders = [",
        ),
        (
            "a link without rights",
            spoil(|_, _, home| home.link("plain", GROUP, &[ANN])),
            "ok",
            "links",
            "2 links; no tool may be used in plain",
            "",
        ),
        (
            "no links",
            spoil(|_, _, home| home.unlink("home")),
            "warn",
            "links",
            "no chat is linked",
            "`midwatch link telegram`",
        ),
        (
            "no operator",
            spoil(|_, _, home| home.operator(&[])),
            "warn",
            "operator",
            "nobody is the operator on Telegram",
            "midwatch setup --yes --operator ID --overwrite",
        ),
        (
            "a model that is away",
            spoil(|_, model, home| {
                model.set_offline(true);
                home
            }),
            "fault",
            "model",
            "the model did not answer: network: ",
            "does the server run",
        ),
        (
            "a model that would not stand in",
            spoil(|_, _, home| {
                home.toml(
                    "[[model.fallback]]\nprovider = \"openai\"\nmodel = \"other\"\nbase_url = \"http://127.0.0.1:9/v1\"\n",
                )
            }),
            "warn",
            "fallback",
            "other: the model did not answer: network: ",
            "is http://SERVER/v1 its address",
        ),
        (
            "a key that is refused",
            spoil(|_, _, home| home.set("model", "api_key", "{ env = \"TELEGRAM_BOT_TOKEN\" }")),
            "fault",
            "model",
            "the model did not answer: auth: ",
            "look at the key",
        ),
        (
            "an account that is used up",
            spoil(|_, model, home| {
                model.queue(Reply::error(429, "insufficient_quota", "You exceeded your current quota"));
                home
            }),
            "fault",
            "model",
            "the model did not answer: quota: ",
            "the account is used up",
        ),
        (
            "an answer with no room for a question",
            spoil(|_, _, home| home.window(6_000).set("model", "max_output_tokens", "4000")),
            "warn",
            "window",
            "max_output_tokens (4000) leaves less than half of context_window (6000)",
            "lower max_output_tokens",
        ),
        (
            "no language model at all",
            spoil(|_, _, home| home.set("model", "provider", "\"rehearsal\"")),
            "warn",
            "model",
            "the rehearsal model answers",
            "`midwatch setup` puts a real one in its place",
        ),
        (
            "a store that is none",
            spoil(|_, _, home| {
                std::fs::write(home.store_path(), "no database at all, but long enough to be looked at".repeat(20))
                    .unwrap();
                home
            }),
            "fault",
            "store",
            "HOME/data/midwatch.db cannot be used: file is not a database",
            "restore the newest *.backup",
        ),
        (
            "a store of a newer midwatch",
            spoil(|_, _, home| {
                Connection::open(home.store_path()).unwrap().pragma_update(None, "user_version", 999).unwrap();
                home
            }),
            "fault",
            "store",
            "schema 999, and this version knows up to",
            "start the newer midwatch",
        ),
        (
            "a folder in the store's place",
            spoil(|_, _, home| {
                std::fs::create_dir(home.store_path()).unwrap();
                home
            }),
            "fault",
            "store",
            "should be the store's file, and is a folder",
            "move it away",
        ),
    ];
    for (name, spoil, level, topic, what, fix) in cases {
        let (telegram, model, home) = well().await;
        let home = spoil(&telegram, &model, home);
        let (code, found) = findings(&home, level, topic).await;
        assert!(found.iter().any(|(w, f)| w.contains(what) && f.contains(fix)), "{name}: {found:#?}");
        assert_eq!(code, Some(i32::from(level == "fault")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_does_not_hold_the_others_up() {
    let (telegram, model, home) = well().await;
    model.queue(Reply::hang());
    telegram.fault("getMe", Fault::Hang, 1);
    // Both looks run into their deadline, side by side: the harness gives a command thirty seconds.
    let (code, found) = findings(&home, "fault", "model").await;
    assert_eq!(code, Some(1));
    assert_eq!(found[0].0, "the model did not begin to answer within 10 s");
}

/// A model server that says how much it takes, and what time it is.
fn server(list: Value, loaded: Value, date: Option<&'static str>) -> Server {
    let answer = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"ready\"}}]}\n\n\
                  data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let router = Router::new()
        .route(
            "/v1/chat/completions",
            post(move || async move { ([(header::CONTENT_TYPE, "text/event-stream")], answer) }),
        )
        .route("/v1/models", get(move || async move { axum::Json(list) }))
        .route("/api/ps", get(move || async move { axum::Json(loaded) }))
        .route("/v1", get(move || async move { ([(header::DATE, date.unwrap_or("no date"))], "") }));
    Server::start("model", router)
}

fn talks_to(server: &Server) -> Home {
    let home = Home::new().set("model", "provider", "\"openai\"").set("model", "model", "\"qwen3:8b\"").set(
        "model",
        "base_url",
        &format!("\"http://{}/v1\"", server.addr()),
    );
    closed(&home);
    home
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_the_server_does_not_have_is_found() {
    let list = |owner: &str, more: Value| {
        let mut entry = json!({ "id": "qwen3:8b", "object": "model", "owned_by": owner });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "object": "list", "data": [entry] })
    };
    let loaded = json!({ "models": [{ "model": "qwen3:8b", "context_length": 4096 }] });
    for (name, list, level, what) in [
        (
            "a server that says it in its list",
            list("vllm", json!({ "max_model_len": 8192 })),
            "fault",
            "the server takes 8192 tokens at once, and context_window says 32768",
        ),
        (
            "Ollama, which says it of what is loaded",
            list("library", json!({})),
            "fault",
            "the server takes 4096 tokens at once",
        ),
        (
            "enough",
            list("x", json!({ "context_length": 131_072 })),
            "ok",
            "32768 tokens, of 131072 that the server takes",
        ),
        ("a server that does not say", list("x", json!({})), "ok", "the server does not say"),
    ] {
        let server = server(list, loaded.clone(), None);
        let (code, found) = findings(&talks_to(&server), level, "window").await;
        assert!(found[0].0.contains(what), "{name}: {found:?}");
        assert_eq!(code, Some(i32::from(level == "fault")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_off_is_found() {
    let server = server(json!({}), json!({}), Some("Tue, 01 Jan 2030 00:00:00 GMT"));
    let (code, found) = findings(&talks_to(&server), "fault", "clock").await;
    assert!(found[0].0.contains(" s behind the server at http://SERVER/v1"), "{found:?}");
    assert_eq!((found[0].1.as_str(), code), ("timedatectl set-ntp true", Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_does_not_fit_is_found() {
    let (_telegram, _model, home) = well().await;
    let unit = home.path().join(".config/systemd/user/midwatch.service");
    std::fs::create_dir_all(unit.parent().unwrap()).unwrap();
    let text = |stop: &str, home_dir: &str| {
        format!(
            "[Service]\nExecStart=%h/bin/midwatch --home {home_dir} serve\nTimeoutStopSec={stop}\n\
             Environment=OPENAI_API_KEY=x\n"
        )
    };
    let ours = home.path().display().to_string();
    std::fs::write(&unit, text("25", &ours)).unwrap();
    let (code, found) = findings(&home, "fault", "service").await;
    assert_eq!(code, Some(1));
    assert_eq!(found[0].0, "HOME/.config/systemd/user/midwatch.service starts HOME/bin/midwatch, which is not there");
    assert!(found[1].0.contains("TimeoutStopSec (25 s) is less than drain_secs (20) and 10 s to close"), "{found:?}");
    assert!(found[1].1.starts_with("TimeoutStopSec=45 "), "{found:?}");
    assert_eq!(found[2].0, "the unit passes no TELEGRAM_BOT_TOKEN on, where a secret is looked for");
    assert_eq!(found.len(), 3, "the other variable is passed on: {found:?}");

    std::fs::create_dir_all(home.path().join("bin")).unwrap();
    std::fs::write(home.path().join("bin/midwatch"), "").unwrap();
    let more = home.path().join(".config/systemd/user/midwatch.service.d/more.conf");
    std::fs::create_dir_all(more.parent().unwrap()).unwrap();
    std::fs::write(more, "[Service]\nTimeoutStopSec=1min\nEnvironmentFile=%h/environment\n").unwrap();
    assert!(
        findings(&home, "ok", "service").await.1[0].0.contains("is installed"),
        "what was added to the unit counts"
    );
    std::fs::write(&unit, text("5", "/srv/other")).unwrap();
    assert!(findings(&home, "ok", "service").await.1[0].0.contains("starts another deployment"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_running_daemon_is_asked_how_it_is() {
    let (telegram, _model, home) = well().await;
    telegram.revoke();
    let mut daemon = Daemon::start(&home).await;
    let stopped = async {
        let is_stopped = |status: &Value| {
            let channels = status["channels"].as_array().unwrap();
            channels.iter().any(|channel| channel["state"] == "stopped")
        };
        while !is_stopped(&cli(&home, &["--json", "status"]).await.json()) {}
    };
    tokio::time::timeout(PATIENCE, stopped).await.expect("the channel stops");
    let (_, found) = findings(&home, "fault", "daemon").await;
    assert!(found[0].0.starts_with("telegram is stopped: "), "{found:?}");
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_another_version_is_found() {
    let (_telegram, _model, home) = well().await;
    let run = home.path().join("run");
    std::fs::create_dir_all(&run).unwrap();
    mode(&run, 0o700);
    std::fs::write(run.join("token"), "token").unwrap();
    let status =
        json!({ "version": "0.0.1", "pid": 1, "store_ok": true, "channels": [], "parked": [{}], "replies": [] });
    let router = Router::new().route("/v1/status", get(move || async move { axum::Json(status) }));
    let socket = tokio::net::UnixListener::bind(run.join("midwatch.sock")).unwrap();
    let serving = tokio::spawn(async move { axum::serve(socket, router).await });
    let (code, found) = findings(&home, "warn", "daemon").await;
    assert!(found[0].0.starts_with("version V runs, and this is version "), "{found:?}");
    assert!(found[0].1.starts_with("restart it: "), "{found:?}");
    assert_eq!(found[1].0, "1 thing waits for a person");
    assert_eq!(code, Some(0), "it works, and somebody should know");
    serving.abort();
}
