//! A chat is linked by a one-time code: once, by whoever holds it, over any crash.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

use rusqlite::Connection;

use crate::spine::{ANN, BOB, EVE, GROUP, ends_well, store_bytes};
use crate::support::daemon::{Daemon, cli};
use crate::support::eventually;
use crate::support::home::Home;
use crate::support::model::Model;
use crate::support::oracle;
use crate::support::telegram::{Telegram, Update};

/// A code, as the operator reads it.
async fn code(home: &Home) -> String {
    let code = cli(home, &["--json", "link", "telegram"]).await;
    assert_eq!(code.code, Some(0), "{code:?}");
    code.json()["code"].as_str().unwrap().to_owned()
}

fn channel_file(home: &Home) -> String {
    std::fs::read_to_string(home.path().join("config/channels/telegram.toml")).unwrap()
}

/// A deployment whose operator is Ann, with a channel file that she wrote herself.
async fn deployment() -> (Telegram, Model, Home) {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).operator(&[ANN]).telegram(&telegram).channel_line("# mine: do not touch");
    for chat in [ANN, BOB, EVE] {
        telegram.chats().open(chat);
    }
    (telegram, model, home)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_private_chat_is_linked_with_the_read_grants_written_where_they_can_be_seen() {
    let (telegram, model, home) = deployment().await;
    let daemon = Daemon::start(&home).await;
    let before = channel_file(&home);
    let told = cli(&home, &["link", "telegram"]).await;
    let code = told.stdout.lines().find_map(|line| line.strip_prefix("/link ")).unwrap().to_owned();
    assert!(told.stdout.contains("Send this in the chat that is to be linked"), "{told:?}");
    telegram.says(ANN, ANN, &format!("/link {code}"));
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "This chat is linked as \"home\". Here I may use read_file, list_files, search_files. /help lists what you can type."
    );
    let after = channel_file(&home);
    assert!(after.starts_with(&before), "not a byte of what stood there changed: {after}");
    insta::assert_snapshot!(after[before.len()..].trim(), @r#"
    [[link]]
    name = "home"
    chat = 501
    senders = [501]
    allow = ["read_file", "list_files", "search_files"]
    "#);
    telegram.says(ANN, ANN, "hello");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hello");
    let mut tools = model.requests()[0].tools();
    tools.sort();
    assert_eq!(tools, ["list_files", "read_file", "search_files"]);
    assert_eq!(cli(&home, &["check"]).await.code, Some(0));
    let links = cli(&home, &["--json", "links"]).await.json();
    assert_eq!((&links["links"][0]["name"], &links["links"][0]["senders"]), (&"home".into(), &vec![ANN].into()));
    let bytes = store_bytes(&home);
    for form in [&code, &code.replace('-', "")] {
        assert!(!bytes.windows(form.len()).any(|window| window == form.as_bytes()), "the store holds no code");
    }
    assert!(!daemon.all_logs().contains(&code), "nor does a log");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_others_are_linked_with_no_grant() {
    let (telegram, model, home) = deployment().await;
    let daemon = Daemon::start(&home).await;
    for (name, chat, update, link) in [
        ("somebody else's private chat", BOB, Update::private(BOB, ""), "person-502"),
        ("a group, by the operator", GROUP, Update::group(GROUP, ANN, ""), "group-1001000"),
    ] {
        let command = format!("/link@midwatch_bot {}", code(&home).await.to_lowercase().replace('-', ""));
        let typed = update.field("text", command.as_str());
        telegram.deliver(typed);
        let told = telegram.next_sent(chat).await.text;
        assert!(told.contains("I may not use any tool here until the operator grants it."), "{name}: {told}");
        let links = cli(&home, &["--json", "links"]).await.json();
        let linked = links["links"].as_array().unwrap().iter().find(|link| link["chat"] == chat).unwrap().clone();
        assert_eq!((&linked["allow"], &linked["name"]), (&serde_json::json!([]), &link.into()), "{name}");
    }
    telegram.says(BOB, BOB, "hello");
    assert_eq!(telegram.next_sent(BOB).await.text, "echo: hello");
    // In the group only Ann, who sent the code, may speak, and only to the bot.
    telegram.says(GROUP, BOB, "@midwatch_bot hello");
    telegram.says(GROUP, ANN, "hello all");
    telegram.says(GROUP, ANN, "@midwatch_bot hello");
    assert_eq!(telegram.next_sent(GROUP).await.text, "echo: @midwatch_bot hello");
    assert_eq!(model.requests().len(), 2);
    assert!(model.requests().iter().all(|request| request.tools().is_empty()));
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_dies_of_five_wrong_ones_of_age_of_use_and_of_a_newer_one() {
    let (telegram, model, home) = deployment().await;
    let daemon = Daemon::start(&home).await;
    let silent = async |text: &str, name: &str| {
        let said = telegram.says(BOB, BOB, text);
        telegram.wait_acknowledged(said.update_id).await;
        assert_eq!(telegram.sent(BOB).len(), 0, "{name}");
        assert_eq!(
            cli(&home, &["links"]).await.stdout,
            "no chat is linked; `midwatch link telegram` makes a code\n",
            "{name}"
        );
    };
    silent("/link ABCD-EFGH", "no code is open").await;

    let guessed = code(&home).await;
    for n in 1..=5 {
        silent("/link ABCD-EFGH", &format!("guess {n}")).await;
    }
    silent(&format!("/link {guessed}"), "the right one after five wrong ones").await;
    assert_eq!(home.count("select count(*) from timeline where kind = 'link.wrong_code'"), 5);

    let old = code(&home).await;
    let store = Connection::open(home.store_path()).unwrap();
    store.execute("update pins set expires_at_ms = 1 where state = 'open'", []).unwrap();
    drop(store);
    silent(&format!("/link {old}"), "expired").await;

    let (earlier, newer) = (code(&home).await, code(&home).await);
    silent(&format!("/link {earlier}"), "replaced by a newer one").await;
    for n in 2..=4 {
        silent("/link ABCD-EFGH", &format!("wrong {n}")).await;
    }
    for text in [format!("link {newer}"), newer.clone(), format!("/link {newer} please"), format!("/linked {newer}")] {
        silent(&text, "no command").await;
    }
    telegram.says(BOB, BOB, &format!("/link {newer}"));
    assert!(telegram.next_sent(BOB).await.text.starts_with("This chat is linked"), "four wrong ones are survived");
    let again = telegram.says(EVE, EVE, &format!("/link {newer}"));
    telegram.wait_acknowledged(again.update_id).await;
    telegram.says(BOB, BOB, "hello");
    assert_eq!(telegram.next_sent(BOB).await.text, "echo: hello");
    assert_eq!(telegram.sent(EVE).len(), 0, "a used code links nobody else");
    assert_eq!(channel_file(&home).matches("[[link]]").count(), 1);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_and_edited_codes_and_bots_link_nothing() {
    let (telegram, model, home) = deployment().await;
    let daemon = Daemon::start(&home).await;
    let command = format!("/link {}", code(&home).await);
    let before = telegram.says(BOB, BOB, "hello");
    let mut last = 0;
    for update in [
        Update::private(BOB, &command).forwarded_from(ANN, "Ann"),
        Update::private(BOB, &command).edit_of(before.message_id),
        Update::group(GROUP, EVE, &command).by_bot("evil_bot"),
        Update::group(GROUP, EVE, &command)
            .field("sender_chat", serde_json::json!({ "id": GROUP, "type": "supergroup", "title": "G" })),
    ] {
        last = telegram.deliver(update).update_id;
    }
    telegram.wait_acknowledged(last).await;
    telegram.says(ANN, ANN, &command);
    assert!(telegram.next_sent(ANN).await.text.starts_with("This chat is linked as \"home\""));
    assert_eq!(channel_file(&home).matches("[[link]]").count(), 1);
    assert_eq!(telegram.journal().sent.len(), 1);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_point_links_once_and_tells_once() {
    for point in [
        "telegram.polled",
        "store.after_commit",
        "telegram.claimed",
        "telegram.stored",
        "pairing.file_written",
        "outbox.recorded",
    ] {
        let (telegram, model, home) = deployment().await;
        oracle::watch_acknowledgements(&home, &telegram);
        let mut daemon = Daemon::start(&home).await;
        let command = format!("/link {}", code(&home).await);
        daemon.restart_with_env(&[("MIDWATCH_CRASH_AT", point)]).await;
        telegram.says(ANN, ANN, &command);
        assert!(daemon.wait_exit().await.killed(), "{point}");
        daemon.restart().await;
        let told = telegram.next_sent(ANN).await.text;
        assert!(told.starts_with("This chat is linked as \"home\". Here I may use"), "{point}: {told}");
        telegram.says(ANN, ANN, "hello");
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: hello", "{point}");
        daemon.restart().await;
        telegram.says(ANN, ANN, "and again");
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: and again", "{point}");
        assert_eq!(channel_file(&home).matches("[[link]]").count(), 1, "{point}");
        assert_eq!(home.rows("select state from pins"), ["done"], "{point}");
        assert_eq!(telegram.sent(ANN).len(), 3, "{point}");
        ends_well(daemon, &home, &telegram, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_faults_is_told_of_and_the_link_holds_once_they_are_mended() {
    let (telegram, model, home) = deployment().await;
    let daemon = Daemon::start(&home).await;
    let command = format!("/link {}", code(&home).await);
    let main = home.path().join("config/midwatch.toml");
    let good = std::fs::read_to_string(&main).unwrap();
    std::fs::write(&main, good.clone() + "\n[typo]\n").unwrap();
    telegram.says(ANN, ANN, &command);
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "The link is written, but the configuration has faults, so it does not hold yet. `midwatch check` on the machine lists them."
    );
    let unheard = telegram.says(ANN, ANN, "hello");
    telegram.wait_acknowledged(unheard.update_id).await;
    std::fs::write(&main, good).unwrap();
    assert_eq!(cli(&home, &["reload"]).await.code, Some(0));
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and now?");
    assert_eq!(model.requests().len(), 1);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_voids_the_code_and_says_so() {
    let (telegram, model, home) = deployment().await;
    let daemon = Daemon::start(&home).await;
    let command = format!("/link {}", code(&home).await);
    let file = home.path().join("config/channels/telegram.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "this is = no [toml").unwrap();
    telegram.says(ANN, ANN, &command);
    assert_eq!(
        telegram.next_sent(ANN).await.text,
        "I could not write this link down. The log on the machine says why."
    );
    eventually("the log says why", || daemon.all_logs().contains("A link could not be written").then_some(())).await;
    assert_eq!(home.rows("select state from pins"), ["void"]);
    std::fs::write(&file, good).unwrap();
    let again = telegram.says(ANN, ANN, &command);
    telegram.wait_acknowledged(again.update_id).await;
    assert_eq!(telegram.sent(ANN).len(), 1);
    ends_well(daemon, &home, &telegram, &model).await;
}
