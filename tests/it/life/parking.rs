//! A turn over which the process dies twice is set aside, and nothing else suffers from it.

use serde_json::json;

use crate::spine::{ANN, BOB, ends_well};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{Model, Reply, Request};
use crate::support::telegram::Telegram;

const CRASH: (&str, &str) = ("MIDWATCH_CRASH_AT", "turn.before_tools");

/// A tool call for whoever asks to read, an echo for all others; after a result, words.
fn reads_on_request(request: &Request) -> Reply {
    match request.results().as_slice() {
        [] if request.last_user().starts_with("read") => {
            Reply::calls(vec![("read_file", json!({ "path": "notes.md" }))])
        }
        [] => Reply::text(&format!("echo: {}", request.last_user())),
        [.., result] => Reply::text(&format!("it says: {result}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_over_which_the_process_dies_twice_is_set_aside_and_can_be_retried_or_dropped() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.script(reads_on_request);
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["read_file"]);
    let home = home.link("bobs", BOB, &[BOB]).workspace_file("notes.md", "the boat leaves at nine\n");
    let mut daemon = Daemon::start_with_env(&home, &[CRASH]).await;
    telegram.says(ANN, ANN, "read it");
    assert!(daemon.wait_exit().await.killed());
    telegram.says(BOB, BOB, "hello");
    daemon.restart_with_env(&[CRASH]).await;
    assert!(daemon.wait_exit().await.killed());
    assert_eq!(home.rows("select crashes from turns where id = 1"), ["1"]);
    telegram.says(ANN, ANN, "are you well?");
    daemon.restart().await;
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "I set this message aside: working on it failed twice. The operator can retry it. (turn-1)"
    );
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: are you well?", "a parked turn does not hold up its thread");
    assert_eq!(telegram.next_sent(BOB).await.text, "echo: hello", "nor other chats");
    let status = cli(&home, &["--json", "status"]).await.json();
    assert_eq!((&status["turns_parked"], &status["parked"][0]["id"]), (&1.into(), &"turn-1".into()));
    let listed = cli(&home, &["turns"]).await.stdout;
    assert!(listed.starts_with("turn-1  parked  "), "{listed}");

    let retried = cli(&home, &["turns", "retry", "turn-1"]).await;
    assert_eq!((retried.code, retried.stdout.as_str()), (Some(0), "turn-1: its messages are back in the queue\n"));
    let answer = telegram.next_sent(ANN).await.text;
    assert!(answer.contains("the boat leaves at nine"), "{answer}");
    assert_eq!(cli(&home, &["turns"]).await.stdout, "no turn is open or set aside\n");
    for act in ["retry", "drop"] {
        let again = cli(&home, &["turns", act, "turn-1"]).await;
        assert_eq!(again.code, Some(1), "{again:?}");
        assert_eq!(again.stderr, "error: turn-1 is done; only parked turns can be acted on\n");
        let unknown = cli(&home, &["turns", act, "turn-99"]).await;
        assert_eq!(unknown.stderr, "error: turn-99 is unknown; `midwatch turns` lists what can be acted on\n");
    }

    // Another one is given up.
    daemon.restart_with_env(&[CRASH]).await;
    telegram.says(ANN, ANN, "read it once more");
    assert!(daemon.wait_exit().await.killed());
    daemon.restart_with_env(&[CRASH]).await;
    assert!(daemon.wait_exit().await.killed());
    daemon.restart().await;
    let told = telegram.next_sent(ANN).await.text;
    assert!(told.starts_with("I set this message aside"), "{told}");
    let parked = cli(&home, &["turns"]).await.stdout;
    let id = parked.split_whitespace().next().unwrap().to_owned();
    let dropped = cli(&home, &["turns", "drop", &id]).await;
    assert_eq!((dropped.code, dropped.stdout), (Some(0), format!("{id}: dropped\n")));
    let status = cli(&home, &["--json", "status"]).await.json();
    assert_eq!((&status["turns_parked"], &status["inbox"]["dead"]), (&0.into(), &0.into()));
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and now?");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_crash_is_made_good_without_asking_the_model_again() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.script(reads_on_request);
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["read_file"]);
    let home = home.workspace_file("notes.md", "the boat leaves at nine\n");
    for (n, point) in
        ["turn.before_tools", "turn.after_tools", "turn.checkpoint", "turn.checkpoint:2"].into_iter().enumerate()
    {
        let mut daemon = Daemon::start_with_env(&home, &[("MIDWATCH_CRASH_AT", point)]).await;
        telegram.says(ANN, ANN, "read it");
        assert!(daemon.wait_exit().await.killed(), "{point}");
        daemon.restart().await;
        let answer = telegram.next_sent(ANN).await.text;
        assert!(answer.contains("the boat leaves at nine"), "{point}: {answer}");
        assert_eq!(model.requests().len(), 2 * (n + 1), "{point}: {}", model.told());
        ends_well(daemon, &home, &telegram, &model).await;
    }
}
