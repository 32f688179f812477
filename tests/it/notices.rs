//! `[operator] notify`: what needs a person is told in a chat, once.
#![allow(clippy::unwrap_used, reason = "what a test is told and does not expect is a failed test")]

use crate::spine::{ANN, BOB, ends_well};
use crate::support::daemon::{Daemon, cli};
use crate::support::eventually;
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::telegram::Telegram;

async fn stage() -> (Telegram, Model, Home) {
    let (telegram, model) = (Telegram::start().await, Model::start().await);
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).link("bobs", BOB, &[BOB]);
    (telegram, model, home.set("operator", "notify", "\"home\""))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_cannot_arrive_is_told_once_and_forgotten_when_it_is_settled() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    telegram.block(BOB);
    telegram.says(BOB, BOB, "hello");
    insta::assert_snapshot!(telegram.next_sent(ANN).await.text, @r#"
One thing needs you:
- reply-1 to chat 502 is dead: `midwatch replies resend|drop reply-1`
"#);
    daemon.restart().await;
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi", "it is not told again");
    let dropped = cli(&home, &["replies", "drop", "reply-1"]).await;
    assert_eq!(dropped.code, Some(0), "{dropped:?}");
    telegram.says(ANN, ANN, "and now");
    telegram.next_sent(ANN).await;
    eventually("it is forgotten", || (home.count("select count(*) from notices") == 0).then_some(())).await;
    telegram.unblock(BOB);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_is_told_and_a_notice_that_cannot_arrive_tells_of_nothing() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    model.script(|_| Reply::error(401, "invalid_api_key", "no"));
    telegram.says(BOB, BOB, "hello");
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "One thing needs you:\n- The model fake-model takes no requests: look at its key and account."
    );
    daemon.stop().await;
    // Another need, and nobody there to be told of it.
    home.set_store(
        "insert into outbox (channel, chat, part, parts, plain, state, created_at_ms)
                    values ('telegram:4242', '9', 1, 1, 'x', 'dead', 1)",
    );
    model.script(|request| Reply::text(&format!("echo: {}", request.last_user())));
    // Before the start: a daemon that knows its account at once tells at once.
    telegram.block(ANN);
    daemon.restart().await;
    telegram.says(BOB, BOB, "again");
    let dead = || (home.count("select count(*) from outbox where notice = 1 and state = 'dead'") == 1).then_some(());
    eventually("the notice cannot arrive", dead).await;
    telegram.says(BOB, BOB, "and again");
    telegram.wait_sent(BOB, 3).await;
    assert_eq!(home.count("select count(*) from outbox where notice = 1"), 2);
    let status = cli(&home, &["--json", "status"]).await.json();
    assert_eq!(status["outbox"]["dead"], 2, "status shows both: {status}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_not_there_is_a_fault() {
    let (_telegram, _model, home) = stage().await;
    let home = home.set("operator", "notify", "\"nobody\"");
    home.write();
    let checked = cli(&home, &["check"]).await;
    assert_eq!(checked.code, Some(78));
    assert!(checked.stderr.contains("`notify` names no link\nhint: link that chat first"), "{checked:?}");
}
