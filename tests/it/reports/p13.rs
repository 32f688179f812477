//! Kind 13: growth without a limit.

use serde_json::json;

use super::{ANN, kept, stage};
use crate::support::daemon::{Daemon, cli};
use crate::support::model::Reply;
use crate::support::telegram::Fault;
use crate::support::{eventually, oracle};

#[tokio::test(flavor = "multi_thread")]
async fn b117_equal_calls_end_the_turn() {
    for (name, path, grant, rounds) in [
        ("the file is not there", "missing.txt", true, 3),
        ("the tool is refused", "notes.txt", false, 3),
        ("it succeeds, and is asked again all the same", "notes.txt", true, 6),
    ] {
        let (telegram, model, home) = stage().await;
        let home = home.workspace_file("notes.txt", "x").link("group", -7, &[ANN]);
        let home = home.link_line("group", "mention = \"always\"");
        let _daemon = Daemon::start(&home).await;
        model.script(move |_| Reply::calls(vec![("read_file", json!({ "path": path }))]));
        let chat = if grant { ANN } else { -7 };
        telegram.says(chat, ANN, "read it");
        let told = telegram.next_sent(chat).await.text;
        kept(&home, &telegram, &model).await;
        assert_eq!(told, "I stopped here: the same step failed again and again.\n\n(turn-1)", "{name}");
        assert_eq!(model.requests().len(), rounds, "{name}");
        assert_eq!(home.rows("select end_reason from turns"), ["no_progress"], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b117_calls_that_differ_end_at_the_round_limit() {
    let (telegram, model, home) = stage().await;
    let home = home.limit("rounds", 5);
    let _daemon = Daemon::start(&home).await;
    model.script(|request| Reply::calls(vec![("read_file", json!({ "path": format!("{}.txt", request.seq) }))]));
    telegram.says(ANN, ANN, "read them all");
    let told = telegram.next_sent(ANN).await.text;
    kept(&home, &telegram, &model).await;
    insta::assert_snapshot!(told, @r#"I stopped here: this needed more steps than one turn may take. Write "go on" to continue."#);
    assert_eq!(model.requests().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn b117_tokens_have_a_limit_per_turn_and_per_day() {
    let (telegram, model, home) = stage().await;
    let home = home.limit("turn_tokens", 50_000).limit("day_tokens", 90_000);
    let _daemon = Daemon::start(&home).await;
    model.script(|request| {
        Reply::calls(vec![("list_files", json!({ "path": format!("{}", request.seq) }))]).usage(20_000, 10, 0)
    });
    telegram.says(ANN, ANN, "look everywhere");
    telegram.says(ANN, ANN, "look again");
    telegram.says(ANN, ANN, "and again");
    for _ in 0..3 {
        assert_eq!(telegram.next_sent(ANN).await.text, "I stopped here: the token limit is reached.");
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(model.requests().len(), 3 + 3, "the third message finds the day used up");
}

#[tokio::test(flavor = "multi_thread")]
async fn b138_an_idle_daemon_uses_next_to_nothing() {
    let (telegram, model, home) = stage().await;
    let mut home = home.channel_line("poll_timeout_secs = 1");
    for chat in 1_000..1_050 {
        home = home.link(&format!("chat-{chat}"), chat, &[chat]);
    }
    let mut daemon = Daemon::start(&home).await;
    (1_000..1_050).for_each(|chat| _ = telegram.says(chat, chat, "hi"));
    for chat in 1_000..1_050 {
        telegram.next_sent(chat).await;
    }
    oracle::at_rest(&home).await;

    // Three polls of a second each measure an idle time without a clock of ours.
    telegram.wait_poll().await;
    let before = cpu_ticks(daemon.pid());
    for _ in 0..3 {
        telegram.wait_poll().await;
    }
    let used = cpu_ticks(daemon.pid()) - before;
    // A tick is 10 ms: 5 of 300 are under 2 % of a core, and a loop that spins has them all.
    assert!(used <= 5, "{used} ticks while 50 sessions were idle");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", daemon.pid())).unwrap_or_default();
    assert_eq!(children, "");
    assert_eq!(cli(&home, &["status", "--json"]).await.json()["turns_running"], 0);
    kept(&home, &telegram, &model).await;
    assert_eq!(daemon.stop().await, Some(0));
}

/// User and system time of a process.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_long_ago_is_cleared_away_and_what_is_in_doubt_stays() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    for text in ["one", "two", "three"] {
        if text == "two" {
            telegram.fault("sendMessage", Fault::DropAfter, 1);
        }
        telegram.says(ANN, ANN, text);
        telegram.next_sent(ANN).await;
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(daemon.stop().await, Some(0));
    home.set_store("update inbox set ended_at_ms = 1; update outbox set ended_at_ms = 1");
    daemon.restart().await;
    let gone = || (home.count("select count(*) from inbox") == 1).then_some(());
    eventually("the old rows are gone", gone).await;
    assert_eq!(home.rows("select state from outbox order by id"), ["uncertain", "sent"]);
    telegram.says(ANN, ANN, "four");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: four");
    assert!(model.requests().last().unwrap().mentions("one"), "what the model sees stays");
}
