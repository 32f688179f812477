//! What is typed with a slash, who may stop what, and turns that run out of time.

use std::time::Duration;

use tokio::time::timeout;

use super::{ANN, BOB, EVE, GROUP, ends_well};
use crate::support::daemon::Daemon;
use crate::support::home::Home;
use crate::support::model::{End, Model, Reply};
use crate::support::telegram::{Telegram, Update};

#[tokio::test(flavor = "multi_thread")]
async fn help_lists_what_can_be_typed_and_asks_no_model() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "/help");
    let help = telegram.next_sent(ANN).await.text;
    telegram.says(ANN, ANN, "/start");
    assert_eq!(telegram.next_sent(ANN).await.text, help, "what clients send when a chat is opened");
    insta::assert_snapshot!(help, @"
    I am midwatch, an agent that keeps watch. Write what you need; I answer here.

    /new – a fresh start: I stop looking at what was said before (nothing is deleted)
    /stop – stop what I am doing for you
    /status – how I am
    /help – what you can type
    ");
    assert_eq!(model.requests().len(), 0);
    let menu = telegram.calls("setMyCommands").pop().expect("the platform's menu is set");
    let menu = menu.params["commands"].as_array().unwrap().clone();
    for entry in menu {
        let word = entry["command"].as_str().unwrap().to_owned();
        assert!(help.contains(&format!("/{word}")), "/{word} is in the menu and not in the help");
    }
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_starts_afresh_in_the_same_session_and_deletes_nothing() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "my cat is called Mitzi");
    telegram.next_sent(ANN).await;
    telegram.says(ANN, ANN, "/new");
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "A fresh start. What was said before is kept, but I no longer look at it."
    );
    telegram.says(ANN, ANN, "and now?");
    telegram.next_sent(ANN).await;
    daemon.restart().await;
    telegram.says(ANN, ANN, "and after a kill?");
    telegram.next_sent(ANN).await;
    let requests = model.requests();
    assert_eq!(requests.len(), 3);
    assert!(!requests[1].mentions("Mitzi"), "{:?}", requests[1].body);
    assert!(!requests[2].mentions("Mitzi") && requests[2].mentions("and now?"), "{:?}", requests[2].body);
    assert_eq!(home.count("select count(*) from sessions"), 1);
    assert_eq!(home.count("select count(*) from messages where blocks like '%Mitzi%'"), 2);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_answers_while_a_turn_runs_and_names_nobody() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.queue(Reply::text("at last").held());
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).link("bobs", BOB, &[BOB]);
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "/status");
    assert_eq!(telegram.next_sent(ANN).await.text, "I am idle here. 0 turns today.");
    telegram.says(ANN, ANN, "something long");
    model.wait_requests(1).await;
    telegram.says(ANN, ANN, "one that waits");
    telegram.says(ANN, ANN, "/status");
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "I am working on something here, and one message waits. 1 turn today."
    );
    model.release();
    assert_eq!(telegram.next_sent(ANN).await.text, "at last");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: one that waits");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_model_is_stopped_within_a_second_and_the_next_message_is_answered() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.queue(Reply::hang());
    model.queue(Reply::stall());
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "/stop");
    assert_eq!(telegram.next_sent(ANN).await.text, "Nothing is running here.");
    for (n, name) in ["no byte of an answer", "an answer that stalls"].into_iter().enumerate() {
        telegram.says(ANN, ANN, "this takes for ever");
        model.wait_requests(n + 1).await;
        telegram.says(ANN, ANN, "/stop");
        let sent = timeout(Duration::from_secs(1), telegram.next_sent(ANN)).await;
        assert_eq!(sent.unwrap_or_else(|_| panic!("{name}: not stopped within a second")).text, "Stopped.");
        let gone = |all: &[crate::support::model::Request]| (all[n].end == End::Abandoned).then_some(());
        model.wait_for("the call to be given up", gone).await;
    }
    telegram.says(ANN, ANN, "still there?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: still there?");
    assert!(model.requests()[2].mentions("this takes for ever"), "what was stopped is not forgotten");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_began_a_turn_and_the_operator_can_stop_it() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new()
        .model(&model)
        .telegram(&telegram)
        .operator(&[EVE])
        .link("club", GROUP, &[ANN, BOB, EVE])
        .link_line("club", "mention = \"always\"");
    let daemon = Daemon::start(&home).await;
    for (name, stopper, ends) in
        [("another member", BOB, false), ("the sender", ANN, true), ("the operator", EVE, true)]
    {
        model.queue(Reply::text("as you wished").held());
        let requests = model.requests().len();
        telegram.deliver(Update::group(GROUP, ANN, "begin"));
        model.wait_requests(requests + 1).await;
        telegram.deliver(Update::group(GROUP, stopper, "/stop@midwatch_bot"));
        if ends {
            assert_eq!(telegram.next_sent(GROUP).await.text, "Stopped.", "{name}");
        } else {
            assert_eq!(telegram.next_sent(GROUP).await.text, "Only the person who began this can stop it.", "{name}");
            model.release();
            assert_eq!(telegram.next_sent(GROUP).await.text, "as you wished", "{name}");
        }
    }
    model.release();
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_links_time_budget_ends_a_turn_on_the_second() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).link("roomy", BOB, &[BOB]);
    let home = home.link_line("home", "time_budget_secs = 2");
    let daemon = Daemon::start(&home).await;
    for (name, reply) in [
        ("no byte of an answer", Reply::hang()),
        ("only comments", Reply::keepalive_only()),
        ("words that drip", Reply::text(&"drip ".repeat(2_000)).slow(Duration::from_millis(50))),
    ] {
        let before = model.requests().len();
        model.script(move |_| reply.clone());
        telegram.says(ANN, ANN, "this takes for ever");
        model.wait_requests(before + 1).await;
        let early = timeout(Duration::from_millis(1_500), telegram.next_sent(ANN)).await;
        assert!(early.is_err(), "{name}: ended early: {early:?}");
        let sent = timeout(Duration::from_millis(1_500), telegram.next_sent(ANN)).await;
        let sent = sent.unwrap_or_else(|_| panic!("{name}: not ended in time"));
        assert_eq!(sent.text, "I ran out of time for this one. Write \"go on\" to continue.", "{name}");
    }
    model.script(|_| Reply::text("quick"));
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "quick");
    ends_well(daemon, &home, &telegram, &model).await;
}
