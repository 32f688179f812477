//! Stops: what runs is finished or put aside, and nothing is lost either way.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use crate::spine::{ANN, BOB, ends_well};
use crate::support::daemon::{Daemon, cli};
use crate::support::eventually;
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::telegram::Telegram;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_a_running_turn_finish_and_takes_no_new_work() {
    for how in ["midwatch stop", "SIGTERM", "SIGINT"] {
        let telegram = Telegram::start().await;
        let model = Model::start().await;
        model.queue(Reply::text("just in time").held());
        let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).link("bobs", BOB, &[BOB]);
        let mut daemon = Daemon::start(&home).await;
        telegram.says(ANN, ANN, "something long");
        model.wait_requests(1).await;
        match how {
            "SIGTERM" => daemon.signal(Signal::TERM),
            "SIGINT" => daemon.signal(Signal::INT),
            _ => {
                let stop = cli(&home, &["stop"]).await;
                assert_eq!((stop.code, stop.stdout.as_str()), (Some(0), "stopping\n"), "{how}");
            }
        }
        daemon.wait_notify("STOPPING=1").await;
        telegram.says(BOB, BOB, "too late");
        telegram.says(ANN, ANN, "too late as well");
        let status = cli(&home, &["--json", "status"]).await.json();
        assert_eq!((&status["stopping"], &status["ready"]), (&true.into(), &false.into()), "{how}");
        let said = cli(&home, &["say", "hello"]).await;
        assert_eq!((said.code, said.stderr.as_str()), (Some(1), "error: the daemon is stopping\n"), "{how}");
        model.release();
        assert_eq!(daemon.wait_exit().await.code, Some(0), "{how}");
        assert_eq!(telegram.next_sent(ANN).await.text, "just in time", "{how}");
        assert_eq!(model.requests().len(), 1, "{how}: nothing new was begun");
        assert!(!home.path().join("run/midwatch.sock").exists(), "{how}");
        daemon.restart().await;
        assert_eq!(telegram.next_sent(BOB).await.text, "echo: too late", "{how}");
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: too late as well", "{how}");
        ends_well(daemon, &home, &telegram, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_does_not_finish_in_time_is_put_aside_and_goes_on_after_the_next_start() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["list_files"]);
    let home = home.set("supervisor", "drain_secs", "1");
    let mut daemon = Daemon::start(&home).await;
    // More often than a crash may happen: a stop is none.
    (1..=3).for_each(|_| model.queue(Reply::hang()));
    for round in 1..=3 {
        if round == 1 {
            telegram.says(ANN, ANN, "something long");
        }
        model.wait_requests(round).await;
        daemon.signal(Signal::TERM);
        let exit = timeout(Duration::from_secs(5), daemon.wait_exit()).await.expect("the drain has an end");
        assert_eq!(exit.code, Some(0));
        assert_eq!(home.rows("select state, crashes from turns"), ["suspended|0"], "stop {round}");
        assert_eq!(home.count("select count(*) from sessions where lease_turn is not null"), 0);
        daemon.restart().await;
    }
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: something long");
    assert_eq!(home.count("select count(*) from turns"), 1);
    model.release();
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_between_two_rounds_takes_hold_at_the_checkpoint() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.queue(Reply::calls(vec![("list_files", serde_json::json!({}))]).held());
    model.queue(Reply::text("there is one file"));
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["list_files"]);
    let home = home.workspace_file("one.md", "x");
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "what is there?");
    model.wait_requests(1).await;
    daemon.signal(Signal::TERM);
    daemon.wait_notify("STOPPING=1").await;
    model.release();
    assert_eq!(daemon.wait_exit().await.code, Some(0));
    assert_eq!(home.rows("select state, crashes from turns"), ["suspended|0"]);
    daemon.restart().await;
    assert_eq!(telegram.next_sent(ANN).await.text, "there is one file");
    assert_eq!(model.requests().len(), 2, "what was answered before the stop is not asked again");
    assert!(model.requests()[1].results()[0].contains("one.md"));
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_and_loses_nothing() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.queue(Reply::hang());
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "something long");
    model.wait_requests(1).await;
    telegram.says(ANN, ANN, "and more");
    eventually("the second stored", || (home.count("select count(*) from inbox") == 2).then_some(())).await;
    daemon.signal(Signal::TERM);
    daemon.wait_notify("STOPPING=1").await;
    daemon.signal(Signal::TERM);
    let exit = timeout(Duration::from_secs(1), daemon.wait_exit()).await.expect("it ends at once");
    assert_eq!(exit.code, Some(130));
    daemon.restart().await;
    let sent = telegram.wait_sent(ANN, 2).await;
    assert_eq!(
        sent.iter().map(|sent| sent.text.as_str()).collect::<Vec<_>>(),
        ["echo: something long", "echo: and more"]
    );
    model.release();
    ends_well(daemon, &home, &telegram, &model).await;
}
