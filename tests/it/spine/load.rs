//! Long threads, long answers, many chats.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{ANN, ends_well};
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::oracle;
use crate::support::telegram::{Telegram, html};

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_turns_and_five_kills_fit_a_window_of_4000_tokens() {
    const TURNS: usize = 200;
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.window(4_000);
    model.script(|request| {
        let words = request.last_user();
        let number = words.split(' ').nth(1).unwrap_or_default().to_owned();
        Reply::text(&format!("answer {number} {}", "and so it goes on and on ".repeat(20)))
    });
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let home = home.window(4_000).set("model", "max_output_tokens", "500").limit("day_tokens", 100_000_000);
    oracle::watch_acknowledgements(&home, &telegram);
    let mut daemon = Daemon::start(&home).await;
    for n in 0..TURNS {
        telegram.says(ANN, ANN, &format!("question {n} {}", "with some words around it ".repeat(12)));
    }
    for kill in 1..=5 {
        model.wait_requests(kill * TURNS / 6).await;
        daemon.restart().await;
    }
    let done = || (home.count("select count(*) from inbox where state = 'done'") == TURNS as i64).then_some(());
    eventually("all turns done", done).await;

    let reasons = home.rows("select end_reason, count(*) from turns group by end_reason");
    assert_eq!(reasons, [format!("natural|{TURNS}")]);
    assert_eq!(model.violations(), Vec::<String>::new());
    let refused: Vec<_> = model.requests().into_iter().filter_map(|request| request.refused).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let longest = model.requests().iter().map(|request| request.tokens).max().unwrap();
    assert!(longest > 2_000, "the window is used, not thrown away: {longest}");
    let told = home.count("select count(*) from outbox where plain like '%outgrown what the model takes%'");
    assert_eq!(told, 1, "the thread is told once");
    assert!(home.count("select count(*) from checkpoints where kind = 'compacted'") > 5);
    assert_eq!(home.count("select count(*) from messages"), 2 * TURNS as i64, "nothing is deleted");
    // Telegram takes one message a second in a chat: what still waits to be sent waits in the store.
    daemon.kill9().await;
    oracle::assert_promises(&home, &telegram, &model);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_100_000_characters_arrives_complete_in_order_in_valid_parts() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let mut answer = String::new();
    let (mut words, mut urls, mut code) = (0, Vec::new(), String::new());
    let mut word = || {
        words += 1;
        format!("w{words}")
    };
    for n in 0.. {
        let _ = match n % 6 {
            0 => writeln!(answer, "# {} heading {n}\n", word()),
            1 => writeln!(
                answer,
                "{}\n",
                (0..120).map(|_| word() + " <&> 😀 👩‍👩‍👧 **bold** _it_").collect::<Vec<_>>().join(" ")
            ),
            2 => writeln!(
                answer,
                "- {} one\n- {} `<b>&amp;` two\n  - {} three\n\n1. {} first\n2. {} second\n",
                word(),
                word(),
                word(),
                word(),
                word()
            ),
            3 => {
                urls.push(format!("https://example.org/{n}?a=1&b=%3C2%3E"));
                writeln!(answer, "see [{} the *link* {n}]({}) there\n", word(), urls.last().unwrap())
            }
            4 => {
                let lines: String =
                    (0..60).map(|_| format!("    if {} < a && b > c {{ \"</pre>\" }}\n", word())).collect();
                code.push_str(&lines);
                writeln!(answer, "```rust\n{lines}```\n")
            }
            _ => writeln!(answer, "> {} quoted & {}\n\n{}\n", word(), word(), word() + &"y".repeat(700)),
        };
        if answer.chars().count() >= 100_000 {
            break;
        }
    }
    model.queue(Reply::text(&answer));
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "tell me everything");
    eventually("the answer in the store", || (home.count("select count(*) from outbox") > 0).then_some(())).await;
    let parts = usize::try_from(home.count("select count(*) from outbox")).unwrap();
    assert!((25..60).contains(&parts), "{parts} parts for 100,000 characters");
    for n in (5..parts).step_by(5).chain([parts]) {
        telegram.wait_sent(ANN, n).await;
    }
    let sent = telegram.sent(ANN);
    assert!(sent.iter().all(|part| part.html.is_some()), "no part had to go out plain");
    assert!(sent.iter().all(|part| html::utf16(&part.text) <= 4_096));
    let all = sent.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n");
    let seen: Vec<usize> = all
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter_map(|token| token.strip_prefix('w')?.trim_end_matches('y').parse().ok())
        .collect();
    assert_eq!(seen, (1..=words).collect::<Vec<_>>());
    for sign in ["<&>", "😀", "👩‍👩‍👧", "</pre>", "`"] {
        let expected = if sign == "`" { 0 } else { answer.matches(sign).count() };
        assert_eq!(all.matches(sign).count(), expected, "{sign}");
    }
    let of_kind = |kind: &'static str| {
        sent.iter()
            .flat_map(move |part| part.entities.iter().map(move |e| (part, e)))
            .filter(move |(_, e)| e["type"] == kind)
    };
    let linked: Vec<_> = of_kind("text_link").filter_map(|(_, link)| link["url"].as_str()).collect();
    let mut linked = linked;
    linked.dedup();
    assert_eq!(linked, urls);
    let blocks: Vec<String> = of_kind("pre")
        .map(|(part, entity)| {
            let units: Vec<u16> = part.text.encode_utf16().collect();
            let at = |key: &str| usize::try_from(entity[key].as_u64().unwrap()).unwrap();
            String::from_utf16(&units[at("offset")..at("offset") + at("length")]).unwrap()
        })
        .collect();
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeezed(&blocks.join("\n")), squeezed(&code), "code stays code over every cut");
    ends_well(daemon, &home, &telegram, &model).await;
    assert_eq!(telegram.sent(ANN).len(), parts);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_chats_of_twenty_messages_at_once_are_all_answered_in_order_and_none_twice() {
    const CHATS: i64 = 50;
    const EACH: usize = 20;
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let mut home = Home::new().model(&model).telegram(&telegram).limit("concurrent_turns", 50);
    for chat in 1..=CHATS {
        home = home.link(&format!("chat{chat}"), 7_000 + chat, &[7_000 + chat]);
    }
    oracle::watch_acknowledgements(&home, &telegram);
    let daemon = Daemon::start(&home).await;
    for n in 0..EACH {
        for chat in 1..=CHATS {
            telegram.says(7_000 + chat, 7_000 + chat, &format!("message {n} of chat {chat}"));
        }
    }
    let all = usize::try_from(CHATS).unwrap() * EACH;
    for n in (100..=all).step_by(100) {
        telegram.wait_for(&format!("{n} answers"), |journal| (journal.sent.len() >= n).then_some(())).await;
    }
    oracle::at_rest(&home).await;
    let mut by_chat: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for sent in telegram.journal().sent {
        by_chat.entry(sent.chat - 7_000).or_default().push(sent.text);
    }
    for chat in 1..=CHATS {
        let expected: Vec<String> = (0..EACH).map(|n| format!("echo: message {n} of chat {chat}")).collect();
        assert_eq!(by_chat.get(&chat), Some(&expected));
    }
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_are_answered_side_by_side_up_to_the_limit_and_no_chat_waits_for_another() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let mut home = Home::new().model(&model).telegram(&telegram).limit("concurrent_turns", 3);
    for chat in 7_001..=7_005 {
        home = home.link(&format!("chat{chat}"), chat, &[chat]);
    }
    let daemon = Daemon::start(&home).await;
    (0..3).for_each(|_| model.queue(Reply::text("held").held()));
    for chat in 7_001..=7_005 {
        telegram.says(chat, chat, "hello");
    }
    let last = telegram.says(7_001, 7_001, "and again");
    telegram.wait_acknowledged(last.update_id).await;
    model.wait_requests(3).await;
    assert_eq!(home.count("select count(*) from turns"), 3);
    assert_eq!(home.count("select count(*) from inbox where state = 'new'"), 3);
    model.release();
    for chat in 7_001..=7_005 {
        telegram.wait_sent(chat, 1).await;
    }
    assert_eq!(telegram.wait_sent(7_001, 2).await[1].text, "echo: and again");
    ends_well(daemon, &home, &telegram, &model).await;
    assert_eq!(model.most_at_work(), 3);
}
