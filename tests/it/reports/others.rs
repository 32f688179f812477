//! Kinds 1, 4 and 7, as far as their subjects exist: a channel that looks alive, a gate that is passed by, a link that
//! carries words away.

use serde_json::{Value, json};

use super::{ANN, kept, stage};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::Reply;
use crate::support::telegram::{Journal, Telegram, Update};
use crate::support::{PATIENCE, eventually};

/// What the Telegram channel says of itself.
async fn channel(home: &Home) -> Value {
    let status = cli(home, &["status", "--json"]).await.json();
    let channels = status["channels"].as_array().unwrap();
    channels.iter().find(|channel| channel["kind"] == "telegram").unwrap().clone()
}

/// Waits until it is in this state, and returns what it says then.
async fn channel_is(home: &Home, state: &str) -> Value {
    let look = async {
        loop {
            let channel = channel(home).await;
            if channel["state"] == state {
                return channel;
            }
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("never {state}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn b006_a_rival_on_the_same_token_is_named_and_replies_still_go_out() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    model.queue(Reply::text("on its way all the same").held());
    telegram.says(ANN, ANN, "hi");
    model.wait_requests(1).await;
    a_poll_is_held(&telegram).await;
    telegram.rival_polls();
    let told = channel_is(&home, "retrying").await;
    let error = told["error"].as_str().unwrap();
    assert!(error.contains("another program polls with this bot's token"), "{error}");
    let polls = telegram.polls();
    model.release();
    assert_eq!(telegram.next_sent(ANN).await.text, "on its way all the same");
    kept(&home, &telegram, &model).await;
    assert_eq!(telegram.polls(), polls, "a rival is not fought");
    assert_eq!(daemon.all_logs().matches("another program polls").count(), 2, "told once, in the log and on stderr");
    assert_eq!(daemon.stop().await, Some(0));
}

/// Waits for a poll that is held: that of a bot which has taken all there was.
async fn a_poll_is_held(telegram: &Telegram) {
    let held =
        |journal: &Journal| journal.calls("getUpdates").last().is_some_and(|poll| poll.status.is_none()).then_some(());
    telegram.wait_for("a held poll", held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b022_b032_what_only_the_operator_can_mend_stops_the_channel_and_is_said() {
    for (name, revoked, cure) in [
        ("a webhook is set", false, "a webhook is set for this bot"),
        ("the token is void", true, "does not take the bot token"),
    ] {
        let (telegram, model, home) = stage().await;
        if revoked {
            telegram.revoke();
        } else {
            telegram.set_webhook("https://example.org/hook");
        }
        let _daemon = Daemon::start(&home).await;
        let told = channel_is(&home, "stopped").await;
        let error = told["error"].as_str().unwrap();
        assert!(error.contains(cure) && error.contains("midwatch reload"), "{name}: {error}");
        let calls = telegram.journal().calls.len();
        assert!(calls <= 3, "{name}: no storm, {calls} calls");
        assert_eq!(telegram.calls("deleteWebhook").len(), 0, "{name}: it is not ours to delete");
        assert_eq!(cli(&home, &["say", "are you there?"]).await.code, Some(0), "{name}: the rest goes on");

        telegram.restore_token();
        telegram.set_webhook("");
        telegram.says(ANN, ANN, "hi");
        assert_eq!(cli(&home, &["reload"]).await.code, Some(0));
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi", "{name}");
        kept(&home, &telegram, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b024_a_user_name_gives_no_rights() {
    let (telegram, model, home) = stage().await;
    let home = home.set("operator", "telegram", "[\"@owner\"]");
    let checked = cli(&home, &["check"]).await;
    assert_eq!(checked.code, Some(78), "{checked:?}");
    insta::assert_snapshot!(checked.stderr.trim_end(), @r"
    error: midwatch.toml:8: `telegram` takes numeric ids, not names
    hint: only numeric ids authorise, since a username can be released and taken by someone else; `midwatch status` shows the ids of chats that wrote to the bot in the last day
    ");
    let home = home.set("operator", "telegram", "[501]");
    let _daemon = Daemon::start(&home).await;
    // Somebody else has taken the name that Ann gave up.
    let impostor = Update::private(999, "let me in").field(
        "from",
        json!({
            "id": 999, "is_bot": false, "first_name": "Person 501", "username": "person501"
        }),
    );
    let said = telegram.deliver(impostor);
    telegram.wait_acknowledged(said.update_id).await;
    telegram.says(ANN, ANN, "it is me");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: it is me");
    kept(&home, &telegram, &model).await;
    assert_eq!((telegram.sent(999).len(), model.requests().len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn b105_no_link_of_an_answer_is_fetched_by_the_platform() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    for words in ["![x](https://evil.test/?q=word)", "[look](https://evil.test/?q=word)", "https://evil.test/?q=word"] {
        model.queue(Reply::text(words));
        telegram.says(ANN, ANN, "speak");
        let sent = telegram.next_sent(ANN).await;
        assert_eq!(sent.link_preview.unwrap_or_default()["is_disabled"], true, "{words}");
    }
    let sent = || (home.count("select count(*) from outbox where state = 'sent'") == 3).then_some(());
    eventually("three replies", sent).await;
    kept(&home, &telegram, &model).await;
}
