//! The promises, asked of what is left behind: the store, what the platform saw, and what the model saw.
//!
//! Each rule is a function from evidence to complaints. They hold at rest, when nothing waits and nothing runs
//! ([`at_rest`]), whatever was killed, cut and repeated before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rusqlite::{Connection, Row};
use serde_json::Value;

use super::eventually;
use super::home::{Home, open_store, rows};
use super::model::Model;
use super::telegram::{Journal, Telegram, html};

/// Waits until nothing waits or runs: no message, no turn, no reply part.
pub(crate) async fn at_rest(home: &Home) {
    let open = "select (select count(*) from inbox where state in ('new', 'running'))
                     + (select count(*) from turns where state in ('running', 'suspended'))
                     + (select count(*) from outbox where state in ('pending', 'reserving', 'reserved', 'sending'))";
    eventually("the store at rest", || (home.count(open) == 0).then_some(())).await;
}

/// Panics with every complaint of every rule, and with what was seen.
pub(crate) fn assert_promises(home: &Home, telegram: &Telegram, model: &Model) {
    let complaints = complaints(home, telegram, model);
    let told = || format!("{}\n{}", telegram.journal(), model.told());
    assert!(complaints.is_empty(), "{}\n\n{}", complaints.join("\n"), told());
}

/// Every complaint of every rule.
pub(crate) fn complaints(home: &Home, telegram: &Telegram, model: &Model) -> Vec<String> {
    let (store, journal) = (home.store(), telegram.journal());
    let mut all = every_message_has_one_end(&store, &journal);
    all.extend(order_is_kept(&store, &journal));
    all.extend(chains_are_whole(&store));
    all.extend(nothing_is_shown_twice(&store, &journal));
    all.extend(requests_are_well_formed(telegram, model));
    all
}

/// Holds the bot to "stored before it is confirmed" from now on: a confirmed message that the store does not hold at
/// that very moment becomes a violation of the platform.
pub(crate) fn watch_acknowledgements(home: &Home, telegram: &Telegram) {
    let path: PathBuf = home.store_path();
    telegram.on_acknowledge(move |update| {
        if !path.exists() {
            return Some(format!("confirmed before there was a store: {update}"));
        }
        let store = open_store(&path);
        (words_of_a_person(update) && !is_stored(&store, update)).then(|| format!("confirmed before stored: {update}"))
    });
}

/// A new message in words, by a person: what must never be lost.
fn words_of_a_person(update: &Value) -> bool {
    let message = &update["message"];
    let words = message["text"].is_string() || message["caption"].is_string();
    words && message["from"]["is_bot"] == false
}

fn is_stored(store: &Connection, update: &Value) -> bool {
    let message = &update["message"];
    let key = |value: &Value| value.as_i64().unwrap_or(0).to_string();
    store
        .prepare("select 1 from inbox where update_key = ?1 or (chat = ?2 and message_key = ?3)")
        .and_then(|mut sql| {
            sql.exists([key(&update["update_id"]), key(&message["chat"]["id"]), key(&message["message_id"])])
        })
        .unwrap_or(false)
}

/// Rule 1. Each accepted message reached exactly one end, and so did each turn.
pub(crate) fn every_message_has_one_end(store: &Connection, journal: &Journal) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut ask = |what: &str, sql: &str| {
        complaints.extend(rows(store, sql).into_iter().map(|row| format!("{what}: {row}")));
    };
    ask(
        "a message without an end (id, state, text)",
        "select id, state, text from inbox where state in ('new', 'running')",
    );
    ask(
        "a message ended without saying when (id, state)",
        "select id, state from inbox where state in ('done', 'dead') and ended_at_ms is null",
    );
    ask(
        "a message joined to none that ended with it (id, joined_to)",
        "select i.id, i.joined_to from inbox i left join inbox head on head.id = i.joined_to
          where i.state = 'joined' and (head.id is null or head.state not in ('done', 'dead')
                                        or head.turn is not i.turn or head.session is not i.session)",
    );
    ask(
        "a message done without a turn or a command (id, text)",
        "select id, text from inbox where state = 'done' and turn is null and command is null",
    );
    ask(
        "a turn with more than one message that is not joined (turn, messages)",
        "select turn, count(*) from inbox where turn is not null and state <> 'joined' group by turn having count(*) > 1",
    );
    ask(
        "a message ended although its turn did not (id, state, turn, turn's state)",
        "select i.id, i.state, t.id, t.state from inbox i join turns t on t.id = i.turn
          where i.state in ('done', 'dead') and t.state not in ('done', 'parked')",
    );
    ask(
        "a turn without an end (id, state, crashes)",
        "select id, state, crashes from turns where state not in ('done', 'parked')",
    );
    ask(
        "a turn's end without its reason or time (id, state, reason)",
        "select id, state, end_reason from turns
          where state in ('done', 'parked') and (end_reason is null or ended_at_ms is null)",
    );
    ask(
        "a turn concluded twice (turn, times)",
        "select turn, count(*) from checkpoints where kind = 'concluded' group by turn having count(*) > 1",
    );
    ask("a session still held (id, turn)", "select id, lease_turn from sessions where lease_turn is not null");
    let confirmed = journal.updates.iter().map(|(_, update)| update).filter(|update| {
        let id = update["update_id"].as_i64().unwrap_or(0);
        words_of_a_person(update) && journal.acknowledged.contains(&id)
    });
    complaints.extend(confirmed.filter(|u| !is_stored(store, u)).map(|u| format!("confirmed and lost: {u}")));
    complaints
}

/// Rule 2. Within a session turns run in the order of the messages, one after the other, and replies appear in the
/// order of the turns. Turns that were parked may be taken up late; so may parts that a person had sent again.
pub(crate) fn order_is_kept(store: &Connection, journal: &Journal) -> Vec<String> {
    let mut complaints = Vec::new();
    // A message that a person put back into the queue begins anew, after those that were not set aside.
    let heads = "select t.session, t.id, min(i.id) from turns t join inbox i on i.turn = t.id
                  where i.urgent = 0 and i.attempts <= 1 group by t.id order by t.session, t.id";
    for (before, after) in neighbours(&numbers(store, heads)) {
        if after.1[1] < before.1[1] {
            complaints.push(format!(
                "turn-{} began with in-{} after turn-{} had begun with in-{}",
                after.1[0], after.1[1], before.1[0], before.1[1]
            ));
        }
    }
    let parked: BTreeSet<i64> = numbers(store, "select '', id from turns where crashes > 1 or state = 'parked'")
        .iter()
        .map(|row| row.1[0])
        .collect();
    let spoken = "select session, turn, seq from messages order by session, seq";
    for (before, after) in neighbours(&numbers(store, spoken)) {
        let (earlier, later) = (before.1[0], after.1[0]);
        if later < earlier && !parked.contains(&later) {
            complaints.push(format!("message {} of turn-{later} stands after one of turn-{earlier}", after.1[1]));
        }
    }
    let replies = "select session, turn, part, id from outbox where turn is not null order by session, id";
    for (before, after) in neighbours(&numbers(store, replies)) {
        let ((turn, part), (next, next_part)) = ((before.1[0], before.1[1]), (after.1[0], after.1[1]));
        if next < turn && !parked.contains(&next) || next == turn && next_part == part {
            complaints.push(format!("reply-{} (turn-{next}) was stored after a reply of turn-{turn}", after.1[2]));
        }
    }
    // What the platform shows: messages of a chat in the order of the rows they came from.
    let place: BTreeMap<(i64, i64), usize> =
        journal.sent.iter().enumerate().map(|(at, sent)| ((sent.chat, sent.message_id), at)).collect();
    let mut shown: BTreeMap<i64, Vec<(usize, i64)>> = BTreeMap::new();
    for part in parts(store).iter().filter(|part| part.state == "sent" && !part.again && !refused(journal, part)) {
        if let Some(at) = part.platform_id.and_then(|id| place.get(&(part.chat, id))) {
            shown.entry(part.chat).or_default().push((*at, part.id));
        }
    }
    for (chat, parts) in shown {
        for pair in parts.windows(2).filter(|pair| pair[1].0 < pair[0].0) {
            complaints.push(format!("chat {chat} shows reply-{} before reply-{}", pair[1].1, pair[0].1));
        }
    }
    complaints
}

/// Rule 3. The checkpoints of a session are one line from its root to its head, its messages are numbered without a
/// hole, each call is answered by what stands right after it, and a thread has one session.
pub(crate) fn chains_are_whole(store: &Connection) -> Vec<String> {
    let mut complaints = Vec::new();
    let all = "select session, id, coalesce(parent, 0), first_seq, last_seq from checkpoints order by session, id";
    let mut by_session: BTreeMap<String, Vec<Vec<i64>>> = BTreeMap::new();
    for (session, row) in numbers(store, all) {
        by_session.entry(session).or_default().push(row);
    }
    let sessions = "select id, coalesce(head, 0), last_seq,
                           (select count(*) from messages m where m.session = s.id),
                           (select coalesce(max(seq), 0) from messages m where m.session = s.id) from sessions s";
    for (session, row) in numbers(store, sessions) {
        let [head, last_seq, count, highest] = row[..] else { unreachable!("four columns were asked for") };
        if count != highest || highest != last_seq {
            complaints.push(format!("{session}: {count} messages, the highest {highest}, the session says {last_seq}"));
        }
        let chain = by_session.remove(&session).unwrap_or_default();
        let mut children: BTreeMap<i64, Vec<&Vec<i64>>> = BTreeMap::new();
        for checkpoint in &chain {
            children.entry(checkpoint[1]).or_default().push(checkpoint);
        }
        let (mut at, mut steps, mut window) = (0, 0, (0, 0));
        while let Some(next) = children.get(&at) {
            if let [_, other, ..] = next[..] {
                complaints.push(format!("{session}: cp-{at} has a second child, cp-{}", other[0]));
                break;
            }
            let (first, last) = (next[0][2], next[0][3]);
            if first < window.0 || last < window.1 || first > last + 1 {
                complaints.push(format!("{session}: cp-{} spans {first} to {last} after {window:?}", next[0][0]));
            }
            (at, steps, window) = (next[0][0], steps + 1, (first, last));
        }
        if steps != chain.len() || at != head || window.1 != last_seq {
            complaints.push(format!(
                "{session}: the chain has {} checkpoints; {steps} lie on the line that ends at cp-{at} with message {}, \
                 and the head is cp-{head} with {last_seq}",
                chain.len(),
                window.1
            ));
        }
    }
    complaints.extend(by_session.into_keys().map(|session| format!("checkpoints of no session: {session}")));
    let split = "select thread_key, count(distinct session) from inbox where session is not null
                  group by thread_key having count(distinct session) > 1";
    complaints.extend(rows(store, split).into_iter().map(|row| format!("a thread with several sessions: {row}")));
    complaints.extend(open_calls(store));
    complaints
}

/// Calls that the next message does not answer; a call at the very end of a session may wait for its turn's retry.
fn open_calls(store: &Connection) -> Vec<String> {
    let mut sql = store.prepare("select session, seq, blocks from messages order by session, seq").unwrap();
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?));
    let all: Vec<_> = sql.query_map([], read).and_then(Iterator::collect).unwrap();
    let ids = |blocks: &str, kind: &str| -> Vec<String> {
        let blocks: Vec<Value> = serde_json::from_str(blocks).unwrap();
        blocks.iter().filter(|block| block["type"] == kind).map(|block| block["call"].to_string()).collect()
    };
    let mut complaints = Vec::new();
    for pair in all.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let (asked, answered) = (ids(&pair[0].2, "tool_call"), ids(&pair[1].2, "tool_result"));
        if asked != answered {
            complaints
                .push(format!("{}: message {} asks {asked:?}, the next answers {answered:?}", pair[0].0, pair[0].1));
        }
    }
    complaints
}

/// Rule 4. No reply part is shown twice unless the second one says so, nothing is shown that was not stored, and what
/// the store calls sent was shown.
pub(crate) fn nothing_is_shown_twice(store: &Connection, journal: &Journal) -> Vec<String> {
    let mut complaints = Vec::new();
    let parts = parts(store);
    let shown: BTreeSet<(i64, i64)> = journal.sent.iter().map(|sent| (sent.chat, sent.message_id)).collect();
    let mut claimed = BTreeSet::new();
    for part in parts.iter().filter(|part| part.state == "sent") {
        match part.platform_id {
            Some(id) if !shown.contains(&(part.chat, id)) => {
                complaints.push(format!("reply-{} is stored as message {id}, which was never shown", part.id));
            }
            Some(id) if !claimed.insert((part.chat, id)) => {
                complaints.push(format!("two reply parts are stored as message {id} of chat {}", part.chat));
            }
            Some(_) => {}
            None => complaints.push(format!("reply-{} is sent, and nobody knows as which message", part.id)),
        }
    }
    // Each row may stand once under its own words; a row sent again stands a second time behind a label.
    let mut left: BTreeMap<usize, (bool, bool)> = (0..parts.len()).map(|at| (at, (true, parts[at].again))).collect();
    for sent in &journal.sent {
        let text = squeezed(&sent.text);
        let here = |at: &&usize| parts[**at].chat == sent.chat;
        let plain = left.keys().filter(here).find(|at| left[*at].0 && parts[**at].words.contains(&text)).copied();
        if let Some(at) = plain {
            left.entry(at).and_modify(|may| may.0 = false);
            continue;
        }
        let behind = |words: &String| text.len() > words.len() && text.ends_with(words.as_str());
        let labelled = left.keys().filter(here).find(|at| left[*at].1 && parts[**at].words.iter().any(behind)).copied();
        if let Some(at) = labelled {
            left.entry(at).and_modify(|may| may.1 = false);
            continue;
        }
        let known = parts.iter().any(|part| part.chat == sent.chat && part.words.contains(&text));
        let what = if known { "was shown once too often" } else { "was shown and never stored" };
        let start: String = sent.text.chars().take(80).collect();
        complaints.push(format!("message {} of chat {} {what}: {start:?}", sent.message_id, sent.chat));
    }
    complaints
}

/// Rule 5. No request that a real model or platform would refuse or the documentation forbids.
pub(crate) fn requests_are_well_formed(telegram: &Telegram, model: &Model) -> Vec<String> {
    let telegram = telegram.violations().into_iter().map(|what| format!("telegram: {what}"));
    telegram.chain(model.violations().into_iter().map(|what| format!("model: {what}"))).collect()
}

/// A reply part to Telegram.
struct Part {
    id: i64,
    chat: i64,
    state: String,
    again: bool,
    platform_id: Option<i64>,
    /// What a reader would see of it: formatted, or plain where the formatting was refused.
    words: Vec<String>,
}

fn parts(store: &Connection) -> Vec<Part> {
    let sql = "select id, chat, state, again, platform_id, html, plain from outbox where channel like 'telegram:%' order by id";
    let mut sql = store.prepare(sql).unwrap();
    let read = |row: &Row<'_>| {
        let formatted: Option<String> = row.get(5)?;
        let formatted = formatted.and_then(|html| html::parse(&html).ok()).map(|parsed| parsed.text);
        let words = formatted.into_iter().chain([row.get::<_, String>(6)?]).map(|text| squeezed(&text)).collect();
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        Ok(Part {
            id: row.get(0)?,
            chat: number(row.get(1)?).unwrap_or(0),
            state: row.get(2)?,
            again: row.get(3)?,
            platform_id: number(row.get(4)?),
            words,
        })
    };
    sql.query_map([], read).and_then(Iterator::collect).unwrap()
}

/// The platform refused this part for good once, so that only a person can have had it sent later.
fn refused(journal: &Journal, part: &Part) -> bool {
    journal.calls("sendMessage").into_iter().any(|call| {
        let text = call.params.get("text").and_then(Value::as_str).unwrap_or_default();
        let seen = html::parse(text).map_or_else(|_| text.to_owned(), |parsed| parsed.text);
        let formatting = call.answer["description"].as_str().is_some_and(|why| why.contains("parse entities"));
        let gone = matches!(call.status, Some(400 | 403)) && !formatting;
        gone && call.chat() == Some(part.chat) && part.words.contains(&squeezed(&seen))
    })
}

/// Space is not what a reader counts.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Rows of one name and some numbers.
fn numbers(store: &Connection, sql: &str) -> Vec<(String, Vec<i64>)> {
    let mut statement = store.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let read = |row: &Row<'_>| {
        let name: Option<String> = row.get(0)?;
        let numbers = (1..columns).map(|column| row.get(column)).collect::<rusqlite::Result<Vec<i64>>>()?;
        Ok((name.unwrap_or_default(), numbers))
    };
    statement.query_map([], read).and_then(Iterator::collect).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

type Numbers = (String, Vec<i64>);

/// Rows that follow one another under the same name.
fn neighbours(rows: &[Numbers]) -> impl Iterator<Item = (&Numbers, &Numbers)> {
    rows.windows(2).map(|pair| (&pair[0], &pair[1])).filter(|(before, after)| before.0 == after.0)
}
