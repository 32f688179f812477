//! The oracle against a store that was written by hand: silent when all is well, and loud about each thing broken.

use rusqlite::Connection;
use serde_json::json;

use crate::support::oracle::{chains_are_whole, every_message_has_one_end, nothing_is_shown_twice, order_is_kept};
use crate::support::telegram::{Journal, Sent};

const SCHEMA: &str = include_str!("../../../../src/store/migrations/0001_spine.sql");

/// Two messages, two turns, two replies, one session: all as it should be.
const GOOD: &str = "
    insert into sessions (id, first_key, last_seq, turns, created_at_ms, active_at_ms)
        values ('s', 'telegram:4242:7', 6, 2, 1, 1);
    insert into turns (id, session, cause, mode, state, sender, boot, budget, spent, end_reason, started_at_ms, ended_at_ms)
        values (1, 's', 'message', 'daemon', 'done', '7', 'b', '{}', '{}', 'natural', 1, 2),
               (2, 's', 'message', 'daemon', 'done', '7', 'b', '{}', '{}', 'natural', 3, 4);
    insert into inbox (id, channel, update_key, chat, message_key, thread_key, session, sender, text, state, joined_to,
                       turn, received_at_ms, ended_at_ms)
        values (1, 'telegram:4242', '11', '7', '701', 'telegram:4242:7', 's', '7', 'a', 'done', null, 1, 1, 2),
               (2, 'telegram:4242', '12', '7', '702', 'telegram:4242:7', 's', '7', 'b', 'done', null, 2, 1, 4),
               (3, 'telegram:4242', '13', '7', '703', 'telegram:4242:7', 's', '7', 'c', 'joined', 2, 2, 1, null);
    insert into messages (session, seq, turn, role, blocks, created_at_ms)
        values ('s', 1, 1, 'user', '[]', 1),
               ('s', 2, 1, 'assistant', '[{\"type\":\"tool_call\",\"call\":\"call-1-1\",\"name\":\"f\",\"arguments\":{}}]', 1),
               ('s', 3, 1, 'tool', '[{\"type\":\"tool_result\",\"call\":\"call-1-1\",\"text\":\"ok\",\"is_error\":false}]', 1),
               ('s', 4, 1, 'assistant', '[]', 1), ('s', 5, 2, 'user', '[]', 1), ('s', 6, 2, 'assistant', '[]', 1);
    insert into checkpoints (id, session, parent, turn, round, kind, first_seq, last_seq, state, created_at_ms)
        values (1, 's', null, 1, 0, 'opened', 1, 1, '{}', 1), (2, 's', 1, 1, 1, 'proposed', 1, 2, '{}', 1),
               (3, 's', 2, 1, 1, 'completed', 1, 3, '{}', 1), (4, 's', 3, 1, 2, 'concluded', 1, 4, '{}', 1),
               (5, 's', 4, 2, 0, 'opened', 1, 5, '{}', 1), (6, 's', 5, 2, 1, 'concluded', 3, 6, '{}', 1);
    update sessions set head = 6 where id = 's';
    insert into outbox (id, channel, chat, session, turn, part, parts, html, plain, state, platform_id, attempts, created_at_ms)
        values (1, 'telegram:4242', '7', 's', 1, 1, 1, '<b>A</b>', 'A', 'sent', '704', 1, 1),
               (2, 'telegram:4242', '7', 's', 2, 1, 1, null, 'B', 'sent', '705', 1, 1);
";

fn sent(message_id: i64, text: &str) -> Sent {
    Sent {
        chat: 7,
        message_id,
        thread: None,
        text: text.into(),
        html: None,
        entities: Vec::new(),
        reply_to: None,
        silent: false,
        earlier: Vec::new(),
        link_preview: None,
        buttons: Vec::new(),
        call: 0,
    }
}

fn seen(sent: Vec<Sent>) -> Journal {
    let update = |id: i64| {
        let message =
            json!({ "message_id": id + 690, "chat": { "id": 7 }, "from": { "id": 7, "is_bot": false }, "text": "x" });
        (0, json!({ "update_id": id, "message": message }))
    };
    Journal { sent, updates: (11..=13).map(update).collect(), acknowledged: (11..=13).collect(), ..Journal::default() }
}

fn complaints(break_it: &str, sent: Vec<Sent>) -> Vec<String> {
    let store = Connection::open_in_memory().unwrap();
    store.execute_batch(SCHEMA).unwrap();
    store.execute_batch("pragma foreign_keys = off").unwrap();
    store.execute_batch(GOOD).unwrap();
    store.execute_batch("drop trigger messages_are_append_only").unwrap();
    store.execute_batch(break_it).unwrap_or_else(|error| panic!("{break_it}: {error}"));
    let journal = seen(sent);
    let mut all = every_message_has_one_end(&store, &journal);
    all.extend(order_is_kept(&store, &journal));
    all.extend(chains_are_whole(&store));
    all.extend(nothing_is_shown_twice(&store, &journal));
    all
}

#[test]
fn a_store_that_is_well_gives_no_complaint() {
    let nothing: Vec<String> = Vec::new();
    assert_eq!(complaints("", vec![sent(704, "A"), sent(705, "B")]), nothing);
    let again = "update outbox set again = 1, platform_id = '706', attempts = 2 where id = 1";
    let labelled = "You may have seen this already:\n\nA";
    assert_eq!(complaints(again, vec![sent(704, "A"), sent(705, "B"), sent(706, labelled)]), nothing);
    let unsure = "update outbox set state = 'uncertain', platform_id = null where id = 1";
    assert_eq!(complaints(unsure, vec![sent(704, "A"), sent(705, "B")]), nothing, "seen once, though nobody knows");
    assert_eq!(complaints(unsure, vec![sent(705, "B")]), nothing, "or never");
}

#[test]
fn each_broken_promise_is_named() {
    for (name, break_it, expected) in [
        ("waits", "update inbox set state = 'new' where id = 1", "without an end"),
        ("open turn", "update turns set state = 'running', end_reason = null where id = 1", "a turn without an end"),
        ("half a group", "update inbox set state = 'new' where id = 2", "joined to none"),
        ("lost", "delete from inbox where id = 2", "confirmed and lost"),
        ("two causes", "update inbox set turn = 1 where id = 2", "more than one message"),
        ("two ends", "update checkpoints set kind = 'concluded' where id = 3", "concluded twice"),
        ("held", "update sessions set lease_turn = 2", "still held"),
        ("order", "update inbox set turn = 3 - turn where state = 'done'", "began with in-1 after turn-1"),
        ("a hole", "delete from messages where seq = 3", "5 messages, the highest 6"),
        ("a fork", "drop index checkpoints_roots; update checkpoints set parent = null where id = 3", "second child"),
        ("a loose end", "update sessions set head = 5", "the head is cp-5"),
        (
            "backwards",
            "update checkpoints set first_seq = 4 where id = 5; update checkpoints set first_seq = 2 where id = 6",
            "cp-6 spans 2 to 6",
        ),
        ("unanswered", "update messages set blocks = '[]' where seq = 3", "the next answers []"),
        ("mixed", "update messages set turn = 2 where seq = 2", "stands after one of turn-2"),
        (
            "two sessions",
            "insert into sessions (id, first_key, created_at_ms, active_at_ms) values ('t', 'k', 1, 1); \
                          update inbox set session = 't' where id = 1",
            "a thread with several sessions",
        ),
        ("not stored", "delete from outbox where id = 2", "was shown and never stored"),
        ("never shown", "update outbox set platform_id = '709' where id = 2", "which was never shown"),
        ("claimed twice", "update outbox set platform_id = '704' where id = 2", "two reply parts"),
    ] {
        let found = complaints(break_it, vec![sent(704, "A"), sent(705, "B")]);
        assert!(found.iter().any(|complaint| complaint.contains(expected)), "{name}: {found:#?}");
    }
    let twice = complaints("", vec![sent(704, "A"), sent(705, "B"), sent(706, "A")]);
    assert!(twice[0].contains("shown once too often"), "{twice:?}");
    let unlabelled = "update outbox set again = 1, platform_id = '706', attempts = 2 where id = 1";
    let twice = complaints(unlabelled, vec![sent(704, "A"), sent(705, "B"), sent(706, "A")]);
    assert!(twice.iter().any(|complaint| complaint.contains("shown once too often")), "{twice:?}");
    let turned = complaints("", vec![sent(705, "B"), sent(704, "A")]);
    assert!(turned.iter().any(|complaint| complaint.contains("shows reply-2 before reply-1")), "{turned:?}");
}
