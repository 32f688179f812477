//! One message, end to end: who is answered, where, and what a thread remembers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

mod commands;
mod joined;
mod load;
mod tools;

use serde_json::json;

use crate::support::daemon::Daemon;
use crate::support::home::Home;
use crate::support::model::Model;
use crate::support::oracle;
use crate::support::telegram::{BOT_ID, Said, Telegram, Update};

pub(crate) const ANN: i64 = 501;
pub(crate) const BOB: i64 = 502;
pub(crate) const EVE: i64 = 503;
pub(crate) const GROUP: i64 = -1_001_000;

/// Waits for rest, stops the daemon cleanly, and asks the oracle.
pub(crate) async fn ends_well(mut daemon: Daemon, home: &Home, telegram: &Telegram, model: &Model) {
    oracle::at_rest(home).await;
    assert_eq!(daemon.stop().await, Some(0));
    oracle::assert_promises(home, telegram, model);
}

/// Everything the store's files hold, as the disk has it.
pub(crate) fn store_bytes(home: &Home) -> Vec<u8> {
    let mut bytes = Vec::new();
    for file in std::fs::read_dir(home.path().join("data")).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("midwatch.db") {
            bytes.extend(std::fs::read(path).unwrap());
        }
    }
    assert!(!bytes.is_empty(), "there is a store");
    bytes
}

fn holds(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_and_a_stop_is_clean() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi");
    assert_eq!(daemon.stop().await, Some(0));
    oracle::at_rest(&home).await;
    oracle::assert_promises(&home, &telegram, &model);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_bots_and_notices_get_no_answer_and_no_turn_and_strangers_words_are_not_kept() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new()
        .model(&model)
        .telegram(&telegram)
        .link("home", ANN, &[ANN])
        .link("nobody", BOB, &[])
        .link("club", GROUP, &[ANN])
        .link_line("club", "mention = \"always\"");
    oracle::watch_acknowledgements(&home, &telegram);
    let daemon = Daemon::start(&home).await;
    let group = |user, text| Update::group(GROUP, user, text);
    let silent = [
        ("an unlinked private chat", Update::private(EVE, "marmalade one")),
        ("an unlinked group", Update::group(-1_009_000, ANN, "marmalade two")),
        ("a linked chat without senders", Update::private(BOB, "marmalade three")),
        ("an unlisted member of a linked group", group(EVE, "marmalade four")),
        ("an unlisted member who commands", group(EVE, "/status@midwatch_bot marmalade five")),
        ("a photo of a stranger", Update::private(EVE, "marmalade six").photo()),
        ("a stranger's forward", Update::private(EVE, "marmalade seven").forwarded_from(ANN, "Ann")),
        ("a stranger's reply", group(EVE, "marmalade eight").reply_to(1).quote("marmalade nine")),
        (
            "a channel's post in the group",
            group(ANN, "marmalade ten").field(
                "sender_chat",
                json!({
            "id": -1_007_000, "type": "channel", "title": "News" }),
            ),
        ),
    ];
    let noticed = [
        ("a bot in a linked group", group(ANN, "a bot speaks").by_bot("otherbot")),
        ("a new title", group(ANN, "").service("new_chat_title", "Clubhouse")),
        (
            "a pinned message",
            Update::private(ANN, "").service(
                "pinned_message",
                json!({
            "message_id": 1, "date": 0, "chat": { "id": ANN, "type": "private", "first_name": "Ann" } }),
            ),
        ),
    ];
    let mut last = None;
    let mut strangers = Vec::new();
    for (name, update) in silent.into_iter().chain(noticed) {
        let said = telegram.deliver(update);
        strangers.push((name, said));
        last = Some(said.update_id);
    }
    telegram.wait_acknowledged(last.unwrap()).await;
    telegram.says(ANN, ANN, "and a listed sender?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and a listed sender?");

    assert_eq!(model.requests().len(), 1, "{}", model.told());
    let journal = telegram.journal();
    let elsewhere: Vec<_> = journal.sent.iter().filter(|sent| sent.chat != ANN).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    let typing = journal.calls("sendChatAction").into_iter().any(|call| call.chat() != Some(ANN));
    assert!(!typing, "not even \"typing\" tells a stranger that somebody listens");
    for (name, Said { update_id, .. }) in strangers {
        let row = home.rows(&format!("select state, text from inbox where update_key = '{update_id}'"));
        assert_eq!(row, ["ignored|"], "{name}");
    }
    let bytes = store_bytes(&home);
    assert!(holds(&bytes, "and a listed sender?"), "the search finds what is there");
    assert!(!holds(&bytes, "marmalade"));
    assert!(!daemon.all_logs().contains("marmalade"));
    ends_well(daemon, &home, &telegram, &model).await;
    assert!(!holds(&store_bytes(&home), "marmalade"));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_group_only_those_who_address_the_bot_are_answered() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("club", GROUP, &[ANN, BOB]);
    let daemon = Daemon::start(&home).await;
    let says = |text| Update::group(GROUP, ANN, text);
    let first = telegram.deliver(says("@midwatch_bot are you there?"));
    let answer = telegram.next_sent(GROUP).await;
    assert_eq!(answer.text, "echo: @midwatch_bot are you there?");
    assert_eq!(answer.reply_to, Some(first.message_id), "in a group an answer points at its question");
    let ann_to_bob = telegram.deliver(says("Bob, lunch?"));

    let us = json!({ "id": BOT_ID, "is_bot": true, "first_name": "Midwatch", "username": "midwatch_bot" });
    let entity = |kind: &str, length: u32| json!({ "type": kind, "offset": 0, "length": length });
    let mut text_mention = entity("text_mention", 8);
    text_mention["user"] = us;
    let mut other_person = text_mention.clone();
    other_person["user"] = json!({ "id": BOB, "is_bot": false, "first_name": "Bob" });
    for (name, update, expected) in [
        ("plain talk", says("nice weather"), None),
        ("our name in another case", says("well, @Midwatch_Bot?"), Some("echo: well, @Midwatch_Bot?")),
        ("our name within a word", says("mail me@midwatch_bot.example"), None),
        ("another bot's name", says("@other_bot hello"), None),
        ("a name that begins like ours", says("@midwatch_bot2 hello"), None),
        ("a reply to us", says("and now?").reply_to(answer.message_id), Some("echo: and now?")),
        ("a reply to a person", says("at noon").reply_to(ann_to_bob.message_id), None),
        (
            "a mention without a name",
            says("Midwatch hello").field("entities", json!([text_mention])),
            Some("echo: Midwatch hello"),
        ),
        ("a mention of a person", says("Bobby123 hello").field("entities", json!([other_person])), None),
        ("our caption", says("@midwatch_bot look").photo(), Some("echo: @midwatch_bot look")),
        ("a command for another bot", says("/help@other_bot"), None),
        ("an unknown command for nobody else", says("/weather"), Some("echo: /weather")),
    ] {
        let requests = model.requests().len();
        let said = telegram.deliver(update);
        match expected {
            Some(text) => {
                let sent = telegram.next_sent(GROUP).await;
                assert!(sent.text.starts_with(text), "{name}: {sent:?}");
                assert_eq!(sent.reply_to, Some(said.message_id), "{name}");
            }
            None => {
                telegram.wait_acknowledged(said.update_id).await;
                let state =
                    home.rows(&format!("select state, reason from inbox where update_key = '{}'", said.update_id));
                assert_eq!(state, ["ignored|not addressed"], "{name}");
                assert_eq!(model.requests().len(), requests, "{name}");
            }
        }
    }
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_topic_is_a_thread_of_its_own_and_the_general_topic_is_the_chat() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("club", GROUP, &[ANN, BOB]);
    let home = home.link_line("club", "mention = \"always\"");
    let daemon = Daemon::start(&home).await;
    let says = |text| Update::group(GROUP, ANN, text);
    for (name, update, thread) in [
        ("General", says("apricot"), None),
        ("topic 7", says("blueberry").topic(7), Some(7)),
        ("topic 9", says("cherry").topic(9), Some(9)),
        ("General, as a reply carries it", says("damson").loose_thread(1), None),
        ("topic 7 again", says("elderberry").topic(7), Some(7)),
    ] {
        telegram.deliver(update);
        assert_eq!(telegram.next_sent(GROUP).await.thread, thread, "{name}");
    }
    let requests = model.requests();
    let known = |at: usize| {
        let fruit = ["apricot", "blueberry", "cherry", "damson", "elderberry"];
        fruit.into_iter().filter(|word| requests[at].mentions(word)).collect::<Vec<_>>()
    };
    assert_eq!(known(2), ["cherry"]);
    assert_eq!(known(3), ["apricot", "damson"]);
    assert_eq!(known(4), ["blueberry", "elderberry"]);
    assert_eq!(home.count("select count(*) from sessions"), 3);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_operator_wants_it_all_topics_of_a_chat_are_one_thread() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("club", GROUP, &[ANN]);
    let home = home.link_line("club", "mention = \"always\"").link_line("club", "threads = \"chat\"");
    let daemon = Daemon::start(&home).await;
    telegram.deliver(Update::group(GROUP, ANN, "apricot").topic(7));
    assert_eq!(telegram.next_sent(GROUP).await.thread, Some(7));
    telegram.deliver(Update::group(GROUP, ANN, "blueberry").topic(9));
    assert_eq!(telegram.next_sent(GROUP).await.thread, Some(9), "the answer stands where the question does");
    assert!(model.requests()[1].mentions("apricot"));
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_thread_survives_a_kill() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).link("other", BOB, &[BOB]);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "my cat is called Mitzi");
    telegram.next_sent(ANN).await;
    let session = home.rows("select id from sessions");
    daemon.restart().await;
    telegram.says(ANN, ANN, "what is it called?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: what is it called?");
    let request = model.requests().pop().unwrap();
    assert!(request.mentions("my cat is called Mitzi") && request.mentions("echo: my cat"), "{:?}", request.body);
    assert_eq!(home.rows("select id from sessions"), session);
    telegram.says(BOB, BOB, "and who am I?");
    telegram.next_sent(BOB).await;
    assert!(!model.requests()[2].mentions("Mitzi"), "no other chat hears of it");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_under_work_at_a_kill_is_answered_once_after_it() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.queue(crate::support::model::Reply::hang());
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    oracle::watch_acknowledgements(&home, &telegram);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "one");
    model.wait_requests(1).await;
    telegram.says(ANN, ANN, "two");
    daemon.restart().await;
    let sent = telegram.wait_sent(ANN, 2).await;
    assert_eq!(sent.iter().map(|sent| sent.text.as_str()).collect::<Vec<_>>(), ["echo: one", "echo: two"]);
    model.release();
    ends_well(daemon, &home, &telegram, &model).await;
    assert_eq!(telegram.sent(ANN).len(), 2);
}
