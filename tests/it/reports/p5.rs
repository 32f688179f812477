//! Kind 5: a reply is lost, cut, refused or doubled.

use serde_json::json;

use super::{ANN, BOB, kept, stage, texts};
use crate::support::daemon::{Daemon, cli};
use crate::support::eventually;
use crate::support::home::Home;
use crate::support::model::Reply;
use crate::support::oracle;
use crate::support::telegram::{Fault, Sent, Telegram};

/// All that is seen of an answer, without the space at which it may be cut.
fn seen(sent: &[Sent]) -> String {
    sent.iter().flat_map(|sent| sent.text.split_whitespace()).collect()
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn b001_quoted_mail_headers_are_shown_as_they_are() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    for words in ["From: Ann <ann@example.org> & <b>bold", "&lt; &amp; </code> <", "a < b && c > d"] {
        model.queue(Reply::text(words));
        telegram.says(ANN, ANN, "quote it");
        let shown = telegram.next_sent(ANN).await;
        let plain = words.replace("&lt;", "<").replace("&amp;", "&");
        assert_eq!(shown.text, plain, "{words}");
        assert!(shown.entities.iter().all(|entity| entity["type"] != "bold"), "{shown:?}");
    }
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b001_refused_formatting_is_sent_once_more_as_plain_text() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::text("some **bold** words"));
    telegram.fault("sendMessage", Fault::BadEntities, 1_000);
    telegram.says(ANN, ANN, "speak");
    let shown = telegram.next_sent(ANN).await;
    kept(&home, &telegram, &model).await;
    assert_eq!(shown.html, None);
    assert!(shown.text.contains("bold") && !shown.text.contains('<'), "readable: {shown:?}");
    let tries = telegram.calls("sendMessage");
    let modes: Vec<_> = tries.iter().map(|call| call.params.get("parse_mode").cloned()).collect();
    assert_eq!(modes, [Some(json!("HTML")), None]);
    assert_eq!(home.rows("select state from outbox"), ["sent"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b002_a_long_code_block_arrives_whole_in_valid_parts() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let code: String = (0..250).map(|n| format!("if a{n} < b && c > 0 {{ \"🦉{n}\" }} // €\n")).collect();
    assert!(code.len() > 9_000);
    model.queue(Reply::text(&format!("Here:\n\n```rust\n{code}```\n\nThat is all.")));
    telegram.says(ANN, ANN, "code please");
    rest_after(&telegram, &home, 3).await;
    kept(&home, &telegram, &model).await;
    let parts = telegram.sent(ANN);
    assert_eq!(seen(&parts), without_space(&format!("Here: {code} That is all.")));
    assert!(parts.iter().all(|part| part.entities.iter().any(|entity| entity["type"] == "pre")), "code in each part");
    assert!(telegram.calls("sendMessage").iter().all(|call| call.status == Some(200)), "none is refused");
}

/// Waits for at least so many parts, and then for the rest.
async fn rest_after(telegram: &Telegram, home: &Home, parts: usize) {
    telegram.wait_sent(ANN, parts).await;
    oracle::at_rest(home).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b003_many_short_quotes_with_markup_fit_in_every_measure() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let lines = (0..450).map(|n| format!("> **b{n}** [l](https://example.org/{n})\n\n"));
    model.queue(Reply::text(&lines.collect::<String>()));
    telegram.says(ANN, ANN, "quotes please");
    rest_after(&telegram, &home, 3).await;
    kept(&home, &telegram, &model).await;
    let expected: String = (0..450).map(|n| format!("b{n}l")).collect();
    assert_eq!(seen(&telegram.sent(ANN)), expected);
    assert!(telegram.calls("sendMessage").iter().all(|call| call.status == Some(200)), "none is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn b008_an_answer_that_was_stored_is_sent_after_a_crash() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start_with_env(&home, &[("MIDWATCH_CRASH_AT", "turn.concluded")]).await;
    let said = telegram.says(ANN, ANN, "hi");
    assert!(daemon.wait_exit().await.killed());
    assert_eq!(texts(&telegram, ANN), [""; 0]);
    daemon.restart().await;
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi");
    telegram.wait_acknowledged(said.update_id).await;
    kept(&home, &telegram, &model).await;
    assert_eq!(telegram.sent(ANN).len(), 1);
    assert_eq!(model.requests().len(), 1, "the model is not asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn b019_a_send_whose_answer_was_lost_is_not_repeated_but_shown() {
    for (name, fault) in [
        ("accepted, then the connection breaks", Fault::DropAfter),
        ("a gateway's error page", Fault::Status(502)),
        ("200 with a page that is no answer", Fault::Garbage),
    ] {
        let (telegram, model, home) = stage().await;
        let mut daemon = Daemon::start(&home).await;
        telegram.fault("sendMessage", fault, 1);
        telegram.says(ANN, ANN, "hi");
        let doubtful = || (home.rows("select state from outbox") == ["uncertain"]).then_some(());
        eventually("the reply in doubt", doubtful).await;
        daemon.restart().await;
        telegram.says(ANN, ANN, "and on");
        let went_on = || (home.rows("select state from outbox order by id") == ["uncertain", "sent"]).then_some(());
        eventually("the next reply", went_on).await;
        kept(&home, &telegram, &model).await;
        assert_eq!(telegram.calls("sendMessage").len(), 2, "{name}: one try each");
        let status = cli(&home, &["status"]).await.stdout;
        assert!(status.contains("Replies in doubt (1): midwatch replies resend|drop ID"), "{name}: {status}");

        // A person decides, and a reader who may have it already is told so.
        let resent = cli(&home, &["replies", "resend", "reply-1"]).await;
        assert_eq!(resent.code, Some(0), "{name}: {resent:?}");
        let done = || (home.rows("select state from outbox") == ["sent", "sent"]).then_some(());
        eventually("the reply sent again", done).await;
        assert_eq!(texts(&telegram, ANN).last().unwrap(), "(sent again) echo: hi", "{name}");
        kept(&home, &telegram, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b020_one_part_in_doubt_does_not_hold_back_the_others() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let answer: Vec<String> = (0..3_000).map(|n| format!("w{n}")).collect();
    model.queue(Reply::text(&answer.join(" ")));
    telegram.fault_after("sendMessage", 1, Fault::DropBefore, 1);
    telegram.says(ANN, ANN, "a long one");
    rest_after(&telegram, &home, 3).await;
    kept(&home, &telegram, &model).await;
    let states = home.rows("select state from outbox order by part");
    assert!(states.len() >= 4, "{states:?}");
    assert_eq!(states.iter().filter(|state| *state == "sent").count(), states.len() - 1, "{states:?}");
    assert_eq!(states[1], "uncertain");
    assert_eq!(telegram.calls("sendMessage").len(), states.len(), "each part is tried once");
}

#[tokio::test(flavor = "multi_thread")]
async fn b020_a_pause_the_platform_asks_for_is_kept_and_costs_nothing() {
    let (telegram, model, home) = stage().await;
    let home = home.link("bob", BOB, &[BOB]);
    let _daemon = Daemon::start(&home).await;
    // Coming back too early is a violation of the fake.
    telegram.fault("sendMessage", Fault::RetryAfter(1), 2);
    telegram.says(ANN, ANN, "one");
    telegram.says(ANN, ANN, "two");
    telegram.says(BOB, BOB, "three");
    telegram.wait_sent(ANN, 2).await;
    telegram.wait_sent(BOB, 1).await;
    kept(&home, &telegram, &model).await;
    assert_eq!(texts(&telegram, ANN), ["echo: one", "echo: two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b064_a_turn_that_went_well_and_a_reply_that_cannot_arrive_are_two_states() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::text("here you are").held());
    telegram.says(ANN, ANN, "speak");
    model.wait_requests(1).await;
    telegram.block(ANN);
    model.release();
    let dead = || (home.rows("select state from outbox") == ["dead"]).then_some(());
    eventually("a dead reply", dead).await;
    kept(&home, &telegram, &model).await;
    assert_eq!(home.rows("select state, end_reason from turns"), ["done|natural"]);
    let status = cli(&home, &["status", "--json"]).await.json();
    assert_eq!(status["outbox"]["dead"], 1);
    let told = cli(&home, &["status"]).await.stdout;
    assert!(told.contains("dead, 403: Forbidden: bot was blocked by the user"), "{told}");
    assert_eq!(telegram.calls("sendMessage").len(), 1, "it is not tried for ever");

    telegram.unblock(ANN);
    assert_eq!(cli(&home, &["replies", "resend", "reply-1"]).await.code, Some(0));
    assert_eq!(telegram.next_sent(ANN).await.text, "here you are", "nobody has seen it: no label");
    kept(&home, &telegram, &model).await;
}
