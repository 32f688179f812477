//! Kind 12: the wrong chat, thread or session.

use super::{ANN, BOB, GROUP, kept, stage, texts};
use crate::support::daemon::{Daemon, cli};
use crate::support::eventually;
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::telegram::{Journal, Telegram, Update};

/// A stage with a forum in which everybody is heard.
async fn forum() -> (Telegram, Model, Home) {
    let (telegram, model, home) = stage().await;
    let home = home.link("forum", GROUP, &[ANN, BOB]).link_line("forum", "mention = \"always\"");
    (telegram, model, home)
}

#[tokio::test(flavor = "multi_thread")]
async fn b012_a_thread_id_that_is_no_topic_is_not_used() {
    let (telegram, model, home) = forum().await;
    let _daemon = Daemon::start(&home).await;
    let first = telegram.says(GROUP, ANN, "in general");
    telegram.wait_sent(GROUP, 1).await;
    // A reply in the General topic carries the id of the message that began the thread, and the platform refuses it.
    telegram.deliver(Update::group(GROUP, ANN, "a reply").loose_thread(first.message_id).reply_to(first.message_id));
    telegram.deliver(Update::group(GROUP, ANN, "in a topic").topic(77));
    let sent = telegram.wait_sent(GROUP, 3).await;
    kept(&home, &telegram, &model).await;
    let places: Vec<_> = sent.iter().map(|sent| (sent.text.as_str(), sent.thread)).collect();
    let find = |words: &str| places.iter().find(|(text, _)| text.contains(words)).map(|(_, thread)| *thread);
    assert_eq!([find("in general"), find("a reply"), find("in a topic")], [Some(None), Some(None), Some(Some(77))]);
    let sessions = home.rows("select thread_key, count(*) from inbox group by thread_key order by thread_key");
    assert_eq!(sessions, [format!("telegram:4242:{GROUP}|2"), format!("telegram:4242:{GROUP}:77|1")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b013_a_deleted_topic_is_told_of_once() {
    for falls_through in [false, true] {
        let (telegram, model, home) = forum().await;
        let mut daemon = Daemon::start(&home).await;
        model.queue(Reply::text("too late").held());
        telegram.deliver(Update::group(GROUP, ANN, "in a topic").topic(77));
        model.wait_requests(1).await;
        telegram.delete_topic(GROUP, 77, falls_through);
        model.release();
        let dead = || (home.rows("select state from outbox") == ["dead"]).then_some(());
        eventually("a dead reply", dead).await;
        daemon.restart().await;
        telegram.says(GROUP, ANN, "and in general");
        let general = |journal: &Journal| {
            journal.sent(GROUP).iter().any(|sent| sent.text.contains("and in general")).then_some(())
        };
        telegram.wait_for("the answer in general", general).await;
        kept(&home, &telegram, &model).await;
        let about_topic: Vec<_> = telegram.calls("sendMessage");
        let tries = about_topic.iter().filter(|call| call.params.get("message_thread_id").is_some()).count();
        assert_eq!(tries, 1, "falls through: {falls_through}");
        let told = cli(&home, &["status"]).await.stdout;
        assert!(told.contains("Replies in doubt (1)") && told.contains("dead"), "{told}");
        assert_eq!(home.rows("select end_reason from turns where id = 1"), ["natural"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b039_each_answer_goes_where_its_message_came_from() {
    let (telegram, model, home) = forum().await;
    let home = home.link("bob", BOB, &[BOB]);
    let mut daemon = Daemon::start(&home).await;
    let ask = |round: u32| {
        telegram.deliver(Update::group(GROUP, ANN, &format!("general {round}")));
        telegram.deliver(Update::group(GROUP, BOB, &format!("topic-a {round}")).topic(41));
        telegram.says(BOB, BOB, &format!("private-b {round}"));
        telegram.deliver(Update::group(GROUP, ANN, &format!("topic-b {round}")).topic(42));
        telegram.says(ANN, ANN, &format!("private-a {round}"));
    };
    let places = |words: &str| -> (i64, Option<i64>) {
        match words {
            "general" => (GROUP, None),
            "topic-a" => (GROUP, Some(41)),
            "topic-b" => (GROUP, Some(42)),
            "private-a" => (ANN, None),
            "private-b" => (BOB, None),
            other => panic!("nobody said {other}"),
        }
    };
    ask(1);
    let all = |n: usize| {
        let home = &home;
        async move {
            let sent = format!("select count(*) from outbox where state = 'sent' having count(*) >= {n}");
            eventually("all answers", || (!home.rows(&sent).is_empty()).then_some(())).await;
        }
    };
    all(5).await;
    daemon.restart().await;
    ask(2);
    all(10).await;
    kept(&home, &telegram, &model).await;
    for sent in [GROUP, ANN, BOB].into_iter().flat_map(|chat| telegram.sent(chat)) {
        let words = sent.text.trim_start_matches("echo: ").split(' ').next().unwrap().to_owned();
        assert_eq!((sent.chat, sent.thread), places(&words), "{}", sent.text);
    }
    assert_eq!(home.count("select count(*) from sessions"), 5, "a thread is one session, over a restart too");
    for request in model.requests() {
        let own = request.last_user().split(' ').next().unwrap().to_owned();
        for other in ["general", "topic-a", "topic-b", "private-a", "private-b"] {
            assert_eq!(request.mentions(other), other == own, "{}", request.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b084_what_is_said_in_private_stays_there() {
    let (telegram, model, home) = forum().await;
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "my secret is swordfish");
    telegram.next_sent(ANN).await;
    telegram.says(GROUP, ANN, "what did I tell you?");
    telegram.next_sent(GROUP).await;
    daemon.restart().await;
    telegram.says(ANN, ANN, "again in private");
    telegram.next_sent(ANN).await;
    telegram.says(GROUP, BOB, "and what did Ann tell you?");
    telegram.next_sent(GROUP).await;
    assert_eq!(cli(&home, &["say", "and on the console?"]).await.code, Some(0));
    kept(&home, &telegram, &model).await;

    for request in model.requests() {
        let private = request.last_user().contains("private") || request.last_user().contains("swordfish");
        assert_eq!(request.mentions("swordfish"), private, "{}", request.body);
    }
    assert!(texts(&telegram, GROUP).iter().all(|text| !text.contains("swordfish")));
    assert_eq!(home.count("select count(distinct session) from inbox"), 3);
}
