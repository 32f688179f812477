//! Kind 3: an inbound message is lost, or handled twice.

use serde_json::json;

use super::{ANN, BOB, GROUP, kept, stage, texts};
use crate::support::daemon::{Daemon, cli};
use crate::support::model::Reply;
use crate::support::oracle;
use crate::support::telegram::{Fault, Update};

#[tokio::test(flavor = "multi_thread")]
async fn b007_what_was_done_and_not_acknowledged_is_recognised_after_a_crash() {
    for (words, answer) in [
        ("/help", "I am midwatch"),
        ("/new", "A fresh start."),
        ("/status", "I am idle here"),
        ("/stop", "Nothing is running here."),
        ("a question", "echo: a question"),
    ] {
        let (telegram, model, home) = stage().await;
        // The first poll brings the message; none after it gets through, so nothing is acknowledged.
        telegram.fault_after("getUpdates", 1, Fault::DropBefore, 1_000);
        let said = telegram.says(ANN, ANN, words);
        let mut daemon = Daemon::start(&home).await;
        assert!(telegram.next_sent(ANN).await.text.starts_with(answer), "{words}");
        oracle::at_rest(&home).await;
        assert_eq!(telegram.acknowledged_up_to(), None, "{words}");
        daemon.kill9().await;

        telegram.no_more_faults();
        daemon.restart().await;
        telegram.wait_acknowledged(said.update_id).await;
        kept(&home, &telegram, &model).await;
        assert_eq!(telegram.sent(ANN).len(), 1, "{words} is answered once");
        assert_eq!(home.count("select count(*) from turns where cause = 'message'"), i64::from(words == "a question"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b007_numbers_that_start_anew_lose_nothing_and_repeat_nothing() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    let first = telegram.says(ANN, ANN, "before the quiet week");
    telegram.wait_sent(ANN, 1).await;
    telegram.wait_acknowledged(first.update_id).await;
    telegram.restart_ids(5);
    let second = telegram.says(ANN, ANN, "after the quiet week");
    telegram.wait_sent(ANN, 2).await;
    telegram.redeliver(second.update_id);
    let third = telegram.says(ANN, ANN, "and on");
    telegram.wait_acknowledged(third.update_id).await;
    daemon.restart().await;
    kept(&home, &telegram, &model).await;
    let expected = ["echo: before the quiet week", "echo: after the quiet week", "echo: and on"];
    assert_eq!(texts(&telegram, ANN), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn b035_what_was_written_while_the_daemon_was_down_is_answered_in_order() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "before");
    telegram.next_sent(ANN).await;
    oracle::at_rest(&home).await;
    assert_eq!(daemon.stop().await, Some(0));
    for words in ["one", "two", "three"] {
        telegram.says(ANN, ANN, words);
    }
    daemon.restart().await;
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(telegram.next_sent(ANN).await.text);
    }
    assert_eq!(heard, ["echo: one", "echo: two", "echo: three"]);
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b043_bots_and_notices_never_start_a_turn() {
    const OTHER_BOT: i64 = 777;
    let (telegram, model, home) = stage().await;
    // Listed as a sender by mistake: a bot stays a bot.
    let home = home.link("group", GROUP, &[ANN, OTHER_BOT]).link_line("group", "mention = \"always\"");
    let _daemon = Daemon::start(&home).await;
    let bot = |words: &str| Update::group(GROUP, OTHER_BOT, words).by_bot("other_bot");
    telegram.deliver(bot("@midwatch_bot Something went wrong on my side."));
    telegram.deliver(bot("/help@midwatch_bot"));
    telegram.deliver(Update::group(GROUP, ANN, "").service("new_chat_title", "renamed"));
    telegram.deliver(Update::group(GROUP, ANN, "").service(
        "left_chat_member",
        json!({
            "id": OTHER_BOT, "is_bot": true, "first_name": "Other"
        }),
    ));
    let last = telegram.says(GROUP, ANN, "a person speaks");
    assert_eq!(telegram.next_sent(GROUP).await.text, "echo: a person speaks");
    telegram.wait_acknowledged(last.update_id).await;
    kept(&home, &telegram, &model).await;
    assert_eq!(telegram.sent(GROUP).len(), 1, "nobody else is answered");
    assert_eq!(model.requests().len(), 1, "{}", model.told());
    let why = home.rows("select reason, text from inbox where state = 'ignored' order by id");
    assert_eq!(why, ["from a bot|", "from a bot|", "service notice|", "service notice|"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b132_a_turn_that_kills_the_process_is_parked_and_others_go_on() {
    let (telegram, model, home) = stage().await;
    let home = home.link("bob", BOB, &[BOB]).workspace_file("notes.txt", "x");
    model.script(|request| match request.last_user().as_str() {
        "deadly" if request.results().is_empty() => deadly(),
        "deadly" => Reply::text("survived"),
        words => Reply::text(&format!("echo: {words}")),
    });
    let deadly_point = [("MIDWATCH_CRASH_AT", "turn.before_tools")];
    let mut daemon = Daemon::start_with_env(&home, &deadly_point).await;
    telegram.says(ANN, ANN, "deadly");
    assert!(daemon.wait_exit().await.killed());
    daemon.restart_with_env(&deadly_point).await;
    assert!(daemon.wait_exit().await.killed(), "the turn was taken up and killed it again");
    telegram.says(BOB, BOB, "hello");
    telegram.says(ANN, ANN, "what now?");
    daemon.restart().await;
    assert_eq!(telegram.next_sent(BOB).await.text, "echo: hello");
    insta::assert_snapshot!(telegram.next_sent(ANN).await.text, @"I set this message aside: working on it failed twice. The operator can retry it. (turn-1)");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: what now?", "a parked turn does not hold its chat up");
    kept(&home, &telegram, &model).await;
    let status = cli(&home, &["status"]).await.stdout;
    assert!(status.contains("Set aside (1): midwatch turns retry|drop ID"), "{status}");
    let retried = cli(&home, &["turns", "retry", "turn-1"]).await;
    assert_eq!(retried.code, Some(0), "{retried:?}");
    assert_eq!(telegram.next_sent(ANN).await.text, "survived");
    kept(&home, &telegram, &model).await;
}

fn deadly() -> Reply {
    Reply::calls(vec![("read_file", json!({ "path": "notes.txt" }))])
}
