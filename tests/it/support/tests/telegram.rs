//! A bot of a few lines against the fake platform.

use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::support::telegram::people::entities;
use crate::support::telegram::{Fault, TOKEN, Telegram, Update, html};
use crate::support::{PATIENCE, assert_no_secrets};

struct Bot {
    client: Client,
    base: String,
}

impl Bot {
    fn new(telegram: &Telegram) -> Self {
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { client, base: format!("{}/bot{TOKEN}", telegram.url()) }
    }

    async fn post(&self, method: &str, body: Value) -> reqwest::Result<Response> {
        self.client.post(format!("{}/{method}", self.base)).json(&body).send().await
    }

    async fn call(&self, method: &str, body: Value) -> (u16, Value) {
        let response = self.post(method, body).await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    }

    /// The result of a call that goes well.
    async fn ok(&self, method: &str, body: Value) -> Value {
        let (status, answer) = self.call(method, body).await;
        assert_eq!((status, &answer["ok"]), (200, &json!(true)), "{answer}");
        answer["result"].clone()
    }

    /// The words in which a call is refused.
    async fn refused(&self, method: &str, body: Value) -> (u16, String) {
        let (status, answer) = self.call(method, body).await;
        assert_eq!(answer["error_code"], json!(status), "{answer}");
        (status, answer["description"].as_str().unwrap().to_owned())
    }

    async fn poll(&self, offset: i64) -> Vec<Value> {
        let updates = self.ok("getUpdates", json!({ "offset": offset, "timeout": 0 })).await;
        updates.as_array().unwrap().clone()
    }
}

fn ids(updates: &[Value]) -> Vec<i64> {
    updates.iter().map(|update| update["update_id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn a_held_poll_brings_what_is_said_and_an_offset_forgets_it() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let held = bot.post("getUpdates", json!({ "timeout": 25 }));
    let speak = async {
        telegram.wait_for("the poll", |journal| (!journal.calls.is_empty()).then_some(())).await;
        telegram.says(7, 7, "hi")
    };
    let (answer, said) = tokio::join!(held, speak);
    let updates: Value = answer.unwrap().json().await.unwrap();
    let message = &updates["result"][0]["message"];
    assert_eq!(updates["result"][0]["update_id"], json!(said.update_id));
    assert_eq!((&message["text"], &message["message_id"]), (&json!("hi"), &json!(said.message_id)));
    assert_eq!((&message["chat"]["type"], &message["from"]["id"]), (&json!("private"), &json!(7)));

    let second = telegram.says(7, 7, "and again");
    assert_eq!(ids(&bot.poll(0).await), [said.update_id, second.update_id], "unconfirmed, so it comes again");
    assert_eq!(telegram.acknowledged_up_to(), None);
    assert_eq!(ids(&bot.poll(said.update_id + 1).await), [second.update_id]);
    assert_eq!(telegram.acknowledged_up_to(), Some(said.update_id));
    let third = telegram.says(7, 7, "third");
    assert_eq!(ids(&bot.poll(-1).await), [third.update_id], "a negative offset counts from the end");
    telegram.wait_acknowledged(second.update_id).await;
    assert_eq!(bot.poll(third.update_id + 1).await.len(), 0);

    telegram.redeliver(said.update_id);
    assert_eq!(ids(&bot.poll(third.update_id + 1).await), [said.update_id], "once more, whatever the offset");
    assert_eq!(bot.poll(third.update_id + 1).await.len(), 0);
    telegram.restart_ids(1000);
    telegram.says(7, 7, "after a quiet week");
    let far = third.update_id + 1;
    assert_eq!(ids(&bot.poll(far).await), [1000], "an offset from the future is no offset");
    assert_eq!(ids(&bot.poll(far).await), [1000], "and forgets nothing");
    let limited = bot.ok("getUpdates", json!({ "offset": 1000, "limit": 1, "allowed_updates": ["message"] })).await;
    assert_eq!(limited.as_array().unwrap().len(), 1);
    telegram.assert_clean();
}

#[tokio::test]
async fn the_older_of_two_polls_loses_and_a_rival_is_nobodys_fault() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let open = |n: usize| {
        let telegram = &telegram;
        async move { telegram.wait_for("polls", |journal| (journal.calls.len() >= n).then_some(())).await }
    };
    let (lost, ()) = tokio::join!(bot.call("getUpdates", json!({ "timeout": 25 })), async {
        open(1).await;
        telegram.rival_polls();
    });
    assert_eq!(lost.0, 409);
    telegram.assert_clean();

    let (lost, won) = tokio::join!(bot.call("getUpdates", json!({ "timeout": 25 })), async {
        open(2).await;
        bot.call("getUpdates", json!({ "timeout": 0 })).await
    });
    assert_eq!((lost.0, won.0), (409, 200));
    assert!(lost.1["description"].as_str().unwrap().starts_with("Conflict: terminated by other getUpdates"));
    assert_eq!(telegram.violations(), ["two polls at once"]);

    let cut = tokio::time::timeout(Duration::from_millis(200), bot.post("getUpdates", json!({ "timeout": 25 }))).await;
    assert!(cut.is_err(), "the client gave up");
    assert_eq!(bot.call("getUpdates", json!({ "timeout": 0 })).await.0, 200);
    assert_eq!(telegram.violations().len(), 1, "a poll whose client is gone is no second poll");
}

#[tokio::test]
async fn tokens_methods_and_webhooks_are_checked() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let me = bot.ok("GETME", json!({})).await;
    assert_eq!((&me["id"], &me["username"]), (&json!(4242), &json!("midwatch_bot")));
    assert_eq!(me["has_main_web_app"], json!(false));
    let wrong = format!("{}/bot4242:WRONG/getMe", telegram.url());
    assert_eq!(bot.client.get(wrong).send().await.unwrap().status(), 401);
    telegram.assert_clean();
    assert_eq!(bot.refused("getCoffee", json!({})).await, (404, "Not Found".into()));
    assert_eq!(telegram.violations(), ["no such method: getCoffee"]);

    telegram.set_webhook("https://example.org/hook");
    assert_eq!(bot.ok("getWebhookInfo", json!({})).await["url"], json!("https://example.org/hook"));
    let (status, words) = bot.refused("getUpdates", json!({})).await;
    assert_eq!(status, 409);
    assert!(words.contains("can't use getUpdates method while webhook is active"), "{words}");
    bot.ok("deleteWebhook", json!({ "drop_pending_updates": false })).await;
    bot.poll(0).await;

    let (held, ()) = tokio::join!(bot.call("getUpdates", json!({ "timeout": 25 })), async {
        let polls = telegram.polls();
        telegram.wait_for("the poll", |journal| (journal.calls("getUpdates").len() > polls).then_some(())).await;
        telegram.revoke();
    });
    assert_eq!(held.0, 401, "a poll that is held hears of it");
    assert_eq!(bot.refused("getMe", json!({})).await, (401, "Unauthorized".into()));
    telegram.restore_token();
    bot.ok("getMe", json!({})).await;
}

#[tokio::test]
async fn forms_are_read_as_json_is_and_unknown_parameters_are_held_against_the_caller() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    telegram.chats().open(7);
    let form = "chat_id=7&text=a+%26+b&disable_notification=true&link_preview_options=%7B%22is_disabled%22%3Atrue%7D";
    let sent = bot
        .client
        .post(format!("{}/sendMessage", bot.base))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form)
        .send()
        .await
        .unwrap();
    assert_eq!(sent.status(), 200);
    let shown = telegram.next_sent(7).await;
    assert_eq!((shown.text.as_str(), shown.silent), ("a & b", true));
    assert_eq!(shown.link_preview, Some(json!({ "is_disabled": true })));
    telegram.assert_clean();

    bot.ok("sendMessage", json!({ "chat_id": 7, "text": "x", "disable_web_page_preview": true })).await;
    bot.ok("sendMessage", json!({ "chat_id": 7, "text": "y", "disable_notification": "yes" })).await;
    let violations = telegram.violations();
    assert_eq!(violations[0], "sendMessage: unknown parameter disable_web_page_preview");
    assert_eq!(violations[1], "sendMessage: disable_notification is \"yes\", not Bool");
}

#[tokio::test]
async fn a_message_is_refused_in_the_words_of_the_real_server() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    telegram.chats().open(7);
    telegram.chats().open(-100);
    telegram.deliver(Update::group(-100, 7, "in a topic").topic(5));
    telegram.deliver(Update::group(-100, 7, "a reply").loose_thread(3));
    telegram.chats().open(8);
    telegram.block(8);
    telegram.block(-300);
    let long = "😀".repeat(2048) + "x";
    for (name, body, status, words) in [
        ("no text", json!({ "chat_id": 7 }), 400, "Bad Request: message text is empty"),
        ("blank", json!({ "chat_id": 7, "text": " \n" }), 400, "Bad Request: message text is empty"),
        (
            "only tags",
            json!({ "chat_id": 7, "text": "<b> </b>", "parse_mode": "HTML" }),
            400,
            "Bad Request: message text is empty",
        ),
        ("no chat", json!({ "text": "x" }), 400, "Bad Request: chat_id is empty"),
        ("strange chat", json!({ "chat_id": 99, "text": "x" }), 400, "Bad Request: chat not found"),
        ("blocked", json!({ "chat_id": 8, "text": "x" }), 403, "Forbidden: bot was blocked by the user"),
        ("kicked", json!({ "chat_id": -300, "text": "x" }), 403, "Forbidden: bot was kicked from the supergroup chat"),
        (
            "a reply thread",
            json!({ "chat_id": -100, "text": "x", "message_thread_id": 3 }),
            400,
            "Bad Request: message thread not found",
        ),
        (
            "General",
            json!({ "chat_id": -100, "text": "x", "message_thread_id": 1 }),
            400,
            "Bad Request: message thread not found",
        ),
        ("UTF-16 counts", json!({ "chat_id": 7, "text": long }), 400, "Bad Request: message is too long"),
        (
            "reply to nothing",
            json!({ "chat_id": 7, "text": "x", "reply_parameters": { "message_id": 9 } }),
            400,
            "Bad Request: message to be replied not found",
        ),
        (
            "markup",
            json!({ "chat_id": 7, "text": "x", "parse_mode": "XML" }),
            400,
            "Bad Request: unsupported parse_mode",
        ),
        (
            "open tag",
            json!({ "chat_id": 7, "text": "<b>x", "parse_mode": "HTML" }),
            400,
            "Bad Request: can't parse entities: Can't find end tag corresponding to start tag \"b\"",
        ),
    ] {
        assert_eq!(bot.refused("sendMessage", body).await, (status, words.to_owned()), "{name}");
    }
    let in_topic = bot.ok("sendMessage", json!({ "chat_id": -100, "text": "x", "message_thread_id": 5 })).await;
    assert_eq!((&in_topic["message_thread_id"], &in_topic["is_topic_message"]), (&json!(5), &json!(true)));
    telegram.delete_topic(-100, 5, true);
    let fallen = bot.ok("sendMessage", json!({ "chat_id": -100, "text": "y", "message_thread_id": 5 })).await;
    assert!(fallen.get("message_thread_id").is_none(), "it stands in the main chat: {fallen}");
    bot.ok("sendMessage", json!({ "chat_id": 7, "text": "😀".repeat(2048) })).await;
    assert_eq!(telegram.sent(-100).len(), 2);
    bot.ok("sendChatAction", json!({ "chat_id": 7, "action": "typing" })).await;
    bot.refused("sendChatAction", json!({ "chat_id": 7, "action": "thinking" })).await;
    bot.ok("setMyCommands", json!({ "commands": [{ "command": "new", "description": "A fresh start" }] })).await;
    bot.refused("setMyCommands", json!({ "commands": [{ "command": "New!", "description": "x" }] })).await;
    telegram.assert_clean();
}

#[tokio::test]
async fn an_edit_changes_the_message_and_tells_when_there_is_nothing_to_change() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let said = telegram.says(7, 7, "hi");
    let markup = json!({ "inline_keyboard": [[{ "text": "Resend", "callback_data": "resend:1" }]] });
    let sent = bot.ok("sendMessage", json!({ "chat_id": 7, "text": "…", "reply_markup": markup })).await;
    let id = sent["message_id"].as_i64().unwrap();
    let edit = json!({ "chat_id": 7, "message_id": id, "text": "<b>done</b>", "parse_mode": "HTML" });
    bot.ok("editMessageText", edit.clone()).await;
    let (status, words) = bot.refused("editMessageText", edit).await;
    assert!(status == 400 && words.starts_with("Bad Request: message is not modified"), "{words}");
    let other = json!({ "chat_id": 7, "message_id": said.message_id, "text": "x" });
    assert_eq!(bot.refused("editMessageText", other).await.1, "Bad Request: message can't be edited");
    let shown = telegram.next_sent(7).await;
    assert_eq!((shown.text.as_str(), &shown.earlier[..], shown.buttons.len()), ("done", &["…".to_owned()][..], 0));
    telegram.delete_message(7, id);
    let gone = json!({ "chat_id": 7, "message_id": id, "text": "x" });
    assert_eq!(bot.refused("editMessageText", gone).await.1, "Bad Request: message to edit not found");

    let sent = bot.ok("sendMessage", json!({ "chat_id": 7, "text": "again?", "reply_markup": markup })).await;
    telegram.presses(7, 7, sent["message_id"].as_i64().unwrap(), "resend:1");
    let pressed = bot.poll(said.update_id + 1).await;
    let query = pressed[0]["callback_query"]["id"].clone();
    bot.ok("answerCallbackQuery", json!({ "callback_query_id": query })).await;
    bot.refused("answerCallbackQuery", json!({ "callback_query_id": query })).await;
    telegram.assert_clean();
}

#[tokio::test]
async fn every_fault_is_played_as_often_as_asked() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    telegram.chats().open(7);
    let send = |text: &str| json!({ "chat_id": 7, "text": text });
    telegram.fault("sendMessage", Fault::Status(502), 2);
    for _ in 0..2 {
        let broken = bot.post("sendMessage", send("a")).await.unwrap();
        assert_eq!(broken.status(), 502);
        assert!(broken.text().await.unwrap().starts_with("<html>"));
    }
    telegram.fault("sendMessage", Fault::DropBefore, 1);
    assert!(bot.post("sendMessage", send("b")).await.is_err());
    assert_eq!(telegram.sent(7), [], "nothing was done so far");
    telegram.fault_after("sendMessage", 1, Fault::DropAfter, 1);
    bot.ok("sendMessage", send("c1")).await;
    assert!(bot.post("sendMessage", send("c2")).await.is_err());
    let shown = telegram.wait_sent(7, 2).await;
    assert_eq!(shown[1].text, "c2", "done, and the answer lost");
    assert!(telegram.journal().calls[shown[1].call].lost);
    telegram.fault("sendMessage", Fault::Garbage, 1);
    assert_eq!(bot.call("sendMessage", send("d")).await, (200, Value::Null));
    telegram.fault("sendMessage", Fault::BadEntities, 1);
    bot.ok("sendMessage", send("plain text has no entities")).await;
    let formatted = json!({ "chat_id": 7, "text": "<b>x</b>", "parse_mode": "HTML" });
    assert!(bot.refused("sendMessage", formatted).await.1.starts_with("Bad Request: can't parse entities: "));
    for (fault, seen_while_held) in [(Fault::Hang, 3), (Fault::HangAfter, 5)] {
        telegram.fault("sendMessage", fault, 1);
        let calls = telegram.calls("sendMessage").len();
        let (sent, ()) = tokio::join!(bot.call("sendMessage", send("e")), async {
            let more = |now: usize| (now > calls).then_some(());
            telegram.wait_for("the call", |journal| more(journal.calls("sendMessage").len())).await;
            if fault == Fault::HangAfter {
                telegram.wait_sent(7, seen_while_held).await;
            }
            assert_eq!(telegram.sent(7).len(), seen_while_held);
            telegram.release();
        });
        assert_eq!(sent.0, 200);
    }
    telegram.assert_clean();

    telegram.fault("sendMessage", Fault::RetryAfter(1), 1);
    let (status, answer) = bot.call("sendMessage", send("f")).await;
    assert_eq!((status, &answer["parameters"]["retry_after"]), (429, &json!(1)));
    assert_eq!(bot.refused("sendMessage", send("f")).await.0, 429);
    assert!(telegram.violations()[0].contains("before retry_after was over"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bot.ok("sendMessage", send("f")).await;

    telegram.set_offline(true);
    assert!(bot.post("getMe", json!({})).await.is_err());
    telegram.set_offline(false);
    bot.ok("getMe", json!({})).await;
}

#[tokio::test]
async fn going_offline_breaks_the_poll_that_is_held() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let (poll, ()) = tokio::join!(bot.post("getUpdates", json!({ "timeout": 50 })), async {
        telegram.wait_for("the poll", |journal| (journal.calls.len() == 1).then_some(())).await;
        telegram.set_offline(true);
    });
    assert!(poll.is_err());
}

#[test]
fn html_is_parsed_to_the_byte() {
    for (name, text, expected) in [
        ("unsupported", "a <p>b</p>", "Unsupported start tag \"p\" at byte offset 2"),
        ("an address", "Ann <ann@example.org>", "Unsupported start tag \"ann@example.org\" at byte offset 4"),
        ("unclosed start", "ä <b", "Unclosed start tag at byte offset 3"),
        ("unclosed quote", "<a href=\"x>y</a>", "Unclosed start tag \"a\" at byte offset 0"),
        ("crossed", "<b><i>x</b></i>", "Unmatched end tag at byte offset 7, expected \"</i>\", found \"</b>\""),
        ("too many", "x</b>", "Unexpected end tag at byte offset 1"),
        ("end not closed", "<b>x</b", "Unclosed end tag at byte offset 4"),
        ("never closed", "<b><i>x</i>", "Can't find end tag corresponding to start tag \"b\""),
        ("span", "<span>x</span>", "Tag \"span\" must have class \"tg-spoiler\" at byte offset 0"),
        ("less than", "1 < 2", "Unsupported start tag \"\" at byte offset 2"),
    ] {
        assert_eq!(html::parse(text).unwrap_err(), expected, "{name}");
    }
    let parsed = html::parse("😀 <b>x <i>&lt;y&#62;</i></b> <a href='https://e.org/?a=1&amp;b'>l</a>").unwrap();
    assert_eq!(parsed.text, "😀 x <y> l");
    assert_eq!(parsed.entities[0], json!({ "type": "bold", "offset": 3, "length": 5 }));
    assert_eq!(parsed.entities[1], json!({ "type": "italic", "offset": 5, "length": 3 }));
    assert_eq!(parsed.entities[2]["url"], json!("https://e.org/?a=1&b"));
    assert_eq!(parsed.sloppy, Vec::<String>::new());
    let code =
        html::parse("<pre><code class=\"language-rust\">fn</code></pre><blockquote expandable>q</blockquote>").unwrap();
    assert_eq!(code.entities[0], json!({ "type": "pre", "offset": 0, "length": 2, "language": "rust" }));
    assert_eq!((code.entities.len(), &code.entities[1]["type"]), (2, &json!("expandable_blockquote")));
    for (text, sloppy) in [("a & b", "bare & at byte 2"), ("a > b", "bare > at byte 2"), ("&nbsp;", "bare & at byte 0")]
    {
        assert_eq!(html::parse(text).unwrap().sloppy, [sloppy], "{text}");
    }
    assert_eq!(html::parse("<code><b>x</b></code>").unwrap().sloppy, ["<b> within code or pre at byte 6"]);
}

#[tokio::test]
async fn people_write_in_the_shapes_that_telegram_uses() {
    let found = entities("😀 /new@midwatch_bot then @midwatch_bot, not a@b or x/y https://e.org/x end");
    let expected = [("bot_command", 3, 17), ("mention", 26, 13), ("url", 56, 15)];
    let found: Vec<_> = found
        .iter()
        .map(|e| (e["type"].as_str().unwrap(), e["offset"].as_u64().unwrap(), e["length"].as_u64().unwrap()))
        .collect();
    assert_eq!(found, expected);

    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let first = telegram.deliver(Update::group(-100, 7, "in the topic").topic(5).named("Ada"));
    let reply = telegram.deliver(Update::group(-100, 8, "yes").topic(5).reply_to(first.message_id).quote("in"));
    telegram.deliver(Update::private(7, "read this").forwarded_from_hidden("Eve"));
    telegram.deliver(Update::private(7, "two cats").photo().album("a1"));
    telegram.deliver(Update::group(-100, 9, "beep").by_bot("other_bot"));
    telegram.deliver(Update::group(-100, 7, "").service("new_chat_title", "Watch"));
    telegram.deliver(Update::group(-100, 7, "in the topic, really").topic(5).edit_of(first.message_id));
    telegram.deliver(Update::raw(json!({ "my_chat_member": { "odd": true } })));
    let (out, into) = telegram.migrates(-9, -1009, 7);
    let updates = bot.poll(0).await;
    let message = |at: usize| &updates[at]["message"];
    assert_eq!(message(0)["from"]["first_name"], json!("Ada"));
    assert_eq!(message(0)["reply_to_message"]["message_id"], json!(5), "a topic's opening notice");
    assert_eq!(message(1)["reply_to_message"]["text"], json!("in the topic"));
    assert_eq!((&message(1)["quote"]["text"], &message(1)["message_id"]), (&json!("in"), &json!(reply.message_id)));
    assert_eq!(message(2)["forward_origin"]["sender_user_name"], json!("Eve"));
    assert_eq!((&message(3)["caption"], &message(3)["media_group_id"]), (&json!("two cats"), &json!("a1")));
    assert!(message(3).get("text").is_none());
    assert_eq!(message(4)["from"]["is_bot"], json!(true));
    assert!(message(5).get("text").is_none());
    let edited = &updates[6]["edited_message"];
    assert_eq!((&edited["message_id"], &edited["date"]), (&message(0)["message_id"], &message(0)["date"]));
    assert!(edited["edit_date"].is_i64());
    assert_eq!(ids(&updates[8..]), [out.update_id, into.update_id]);
    let (_, answer) = bot.call("sendMessage", json!({ "chat_id": -9, "text": "x" })).await;
    assert_eq!(answer["parameters"]["migrate_to_chat_id"], json!(-1009));
}

#[tokio::test]
async fn a_client_library_reads_everything_that_is_sent() {
    use teloxide::types::{Me, Message, MessageEntityKind, MessageKind, Update as Read, UpdateKind};

    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    let topic = telegram.deliver(Update::group(-100, 7, "/new@midwatch_bot").topic(5));
    telegram.deliver(Update::group(-100, 8, "yes").topic(5).reply_to(topic.message_id).quote("new"));
    telegram.deliver(Update::group(-100, 8, "loose").loose_thread(3));
    telegram.deliver(Update::group(-100, 8, "beep").by_bot("other_bot"));
    telegram.deliver(Update::private(7, "x").forwarded_from(9, "Eve"));
    telegram.deliver(Update::private(7, "x").forwarded_from_hidden("Eve"));
    telegram.deliver(Update::private(7, "cats").photo().album("a1"));
    telegram.deliver(Update::private(7, "notes").document("a.txt"));
    telegram.deliver(Update::private(7, "").voice());
    telegram.deliver(Update::group(-100, 7, "").service("new_chat_title", "Watch"));
    telegram.deliver(Update::group(-100, 7, "/new").topic(5).edit_of(topic.message_id));
    telegram.migrates(-9, -1009, 7);
    let markup = json!({ "inline_keyboard": [[{ "text": "Resend", "callback_data": "r" }]] });
    let sent = bot.ok(
        "sendMessage",
        json!({ "chat_id": -100, "message_thread_id": 5, "text": "<b>a</b>",
                                             "parse_mode": "HTML", "reply_markup": markup,
                                             "reply_parameters": { "message_id": topic.message_id } }),
    );
    let sent = sent.await;
    telegram.presses(-100, 7, sent["message_id"].as_i64().unwrap(), "r");
    let read: Message = serde_json::from_value(sent).unwrap();
    assert!(matches!(read.entities().unwrap()[0].kind, MessageEntityKind::Bold) && read.reply_to_message().is_some());
    serde_json::from_value::<Me>(bot.ok("getMe", json!({})).await).unwrap();
    for update in bot.poll(0).await {
        // From text: out of a `Value` this library reads every update as an error.
        let read: Read = serde_json::from_str(&update.to_string()).unwrap();
        match read.kind {
            UpdateKind::Error(_) => panic!("unreadable: {update}"),
            UpdateKind::Message(message) => {
                assert!(!matches!(message.kind, MessageKind::Empty {}), "read as nothing: {update}");
            }
            _ => {}
        }
    }
    telegram.assert_clean();
}

#[tokio::test]
async fn the_moment_of_a_confirmation_can_be_watched() {
    let telegram = Telegram::start().await;
    let bot = Bot::new(&telegram);
    telegram.on_acknowledge(|update| Some(format!("too early: {}", update["update_id"])));
    let said = telegram.says(7, 7, "hi");
    bot.poll(0).await;
    telegram.assert_clean();
    bot.poll(said.update_id + 1).await;
    assert_eq!(telegram.violations(), [format!("too early: {}", said.update_id)]);
}

#[test]
#[should_panic(expected = "the log holds a secret")]
fn a_secret_is_found_in_any_text() {
    assert_no_secrets("the log", "GET /botTESTTOKEN-SECRET/getMe");
}
