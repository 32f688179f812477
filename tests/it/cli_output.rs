//! What commands print, and how they end when nobody reads it, when it cannot be written, and when they failed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

use std::fs::File;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::spine::{ANN, BOB, GROUP};
use crate::support::PATIENCE;
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{KEY, Model, Protocol, Reply};
use crate::support::telegram::Telegram;

/// Commands of every kind, each with what it reads.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["--help"], ""),
    (&["--version"], ""),
    (&["config", "example"], ""),
    (&["config", "example", "telegram"], ""),
    (&["check"], ""),
    (&["--json", "check"], ""),
    (&["status"], ""),
    (&["--json", "status"], ""),
    (&["turns"], ""),
    (&["replies"], ""),
    (&["link", "telegram"], ""),
    (&["links"], ""),
    (&["sessions"], ""),
    (&["sessions", "show", "main"], ""),
    (&["timeline", "main"], ""),
    (&["say", "hi"], ""),
    (&["--json", "say", "hi"], ""),
    (&["chat"], "hi\n"),
    (&["doctor"], ""),
    (&["--json", "doctor"], ""),
    (&["reload"], ""),
];

/// A command of ours with nothing of the machine's environment.
fn midwatch(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midwatch"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home.path());
    command.arg("--home").arg(home.path()).args(args).stdin(Stdio::piped()).kill_on_drop(true);
    command
}

/// A pipe that nobody reads from.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Runs it to its end: the exit code, and standard error where it was piped.
async fn run(mut command: Command, input: &str) -> (Option<i32>, String) {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that reads nothing may close its input before it is written: no failure.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let done = timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

async fn deployment() -> (Telegram, Model, Home, Daemon) {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram);
    let daemon = Daemon::start(&home).await;
    assert_eq!(cli(&home, &["say", "hi"]).await.stdout, "echo: hi\n");
    (telegram, model, home, daemon)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_reader_is_gone_ends_as_if_it_were_done() {
    let (_telegram, _model, home, mut daemon) = deployment().await;
    for (args, input) in COMMANDS {
        let mut half = midwatch(&home, args);
        half.stdout(unread()).stderr(Stdio::piped());
        assert_eq!(run(half, input).await, (Some(0), String::new()), "{args:?}");
        let mut both = midwatch(&home, args);
        both.stdout(unread()).stderr(unread());
        assert_eq!(run(both, input).await.0, Some(0), "{args:?} 2>&1");
    }
    let mut wrong = midwatch(&home, &["timeline", "turn-999"]);
    wrong.stdout(unread()).stderr(unread());
    assert_eq!(run(wrong, "").await.0, Some(1), "what failed has failed, read or not");
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_output_has_no_room_fails_and_says_so() {
    let (_telegram, _model, home, mut daemon) = deployment().await;
    for (args, input) in COMMANDS {
        let mut full = midwatch(&home, args);
        full.stdout(File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
        let (code, stderr) = run(full, input).await;
        let told = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((code, stderr.as_str()), (Some(1), told), "{args:?}");
    }
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_went_wrong_is_said_and_has_its_exit_code() {
    let (_telegram, model, home, mut daemon) = deployment().await;
    for (name, args, code, told) in [
        ("nothing to say", &["say", " "][..], 2, "error: there is nothing to say\nhint: midwatch say \"hello\"\n"),
        (
            "a turn that never was",
            &["timeline", "turn-999"],
            1,
            "error: turn-999 is unknown\nhint: `midwatch timeline SESSION` shows the turns of a session, \
             `midwatch sessions` the sessions\n",
        ),
        ("a path instead of an id", &["timeline", "../status"], 2, "error: `../status` is no id\n"),
    ] {
        let output = cli(&home, args).await;
        assert_eq!((output.code, output.stderr.as_str(), output.stdout.as_str()), (Some(code), told, ""), "{name}");
        let args = [&["--json"], args].concat();
        let output = cli(&home, &args).await;
        assert!(told.starts_with(&format!("error: {}\n", output.json()["error"].as_str().unwrap())), "{name}");
    }
    model.queue(Reply::error(401, "invalid_api_key", "no such key"));
    let failed = cli(&home, &["say", "hello"]).await;
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.starts_with("turn-2 failed: auth: "), "beside the chat's sentence, the cause: {failed:?}");
    assert!(failed.stderr.contains("401"), "{failed:?}");
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn links_say_who_may_what_and_what_keeps_them_from_being_of_use() {
    let (telegram, model) = (Telegram::start().await, Model::start().await);
    let home = Home::new().model(&model).telegram(&telegram);
    let home = home.link("home", ANN, &[ANN]).grant("home", &["read_file(notes/**)", "list_files"]);
    let home =
        home.link("club", GROUP, &[ANN, BOB]).link("mute", GROUP - 1, &[]).link_line("mute", "mention = \"always\"");
    let mut daemon = Daemon::start(&home).await;
    insta::assert_snapshot!(cli(&home, &["links"]).await.stdout, @r#"
home: private chat 501 on telegram, hears every message of 501, may read_file(notes/**), list_files
club: group -1001000 on telegram, hears what is meant for the bot of 501, 502, may only talk
  no tool may be used here: allow = ["read_file"] grants one, then `midwatch reload`
mute: group -1001001 on telegram, hears every message of nobody, may only talk
  nobody may speak here: add numeric ids to its senders, then `midwatch reload`
  no tool may be used here: allow = ["read_file"] grants one, then `midwatch reload`
"#);
    let links = cli(&home, &["--json", "links"]).await.json();
    let troubles: Vec<_> =
        links["links"].as_array().unwrap().iter().map(|l| l["trouble"].as_array().unwrap().len()).collect();
    assert_eq!(troubles, [0, 1, 2]);
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn try_says_why_a_model_did_not_answer() {
    let home = Home::new();
    let mut command = midwatch(&home, &["try"]);
    // Nothing listens on the discard port of the loopback.
    command.env("MIDWATCH_MODEL", "some-model").env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let (code, stderr) = run(command, "hello\n").await;
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("turn-1 failed: network: no answer: "), "{stderr}");
    assert!(stderr.contains("Connection refused"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn try_takes_a_model_of_either_protocol_from_the_environment() {
    let model = Model::start().await;
    for (key, base_url) in [("OPENAI", model.url()), ("ANTHROPIC", model.root())] {
        let home = Home::new();
        let mut command = midwatch(&home, &["try"]);
        command.env_remove("OPENAI_API_KEY").env("MIDWATCH_MODEL", "some-model");
        command.env(format!("{key}_API_KEY"), KEY).env(format!("{key}_BASE_URL"), base_url);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (code, _) = run(command, "hello\n").await;
        assert_eq!(code, Some(0), "{key}");
    }
    let protocols: Vec<Protocol> = model.requests().iter().map(|request| request.protocol).collect();
    assert_eq!(protocols, [Protocol::Chat, Protocol::Messages]);
    model.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_the_stores_place_is_called_a_folder() {
    let model = Model::start().await;
    let home = Home::new().model(&model);
    std::fs::create_dir(home.store_path()).unwrap();
    let output = cli(&home, &["serve"]).await;
    assert_eq!(output.code, Some(78), "no restart mends it: {output:?}");
    let path = home.store_path().display().to_string();
    insta::assert_snapshot!(output.stderr.replace(&path, "DB"), @"
error: DB should be the store's file, and is a folder
hint: move it away, or name another deployment with `--home DIR`
");
}
