//! An oracle that cannot complain proves nothing: here the evidence is spoiled, one promise at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use midwatch::domain::{Block, CallId, Message, Origin, Role, TurnId};
use midwatch::model::Request;
use midwatch::reply::courier;
use midwatch::turn::validate::validate;

use crate::messenger::Shown;
use crate::story::{Evidence, live};
use crate::{model, oracle};

/// What is spoiled, the rule that has to see it, and how it is done.
type Case = (&'static str, &'static str, fn(&mut Evidence));

const ONE_END: &str = "each message has exactly one end";
const ORDER: &str = "order is kept";
const CHAINS: &str = "chains are whole";
const TWICE: &str = "nothing is shown twice";
const BUDGET: &str = "no turn outruns its budget";
const TRIES: &str = "a turn is tried twice";
const STATUS: &str = "status knows every doubt";

const CASES: &[Case] = &[
    ("a violation on the way", "nothing forbidden was seen on the way", |evidence| {
        evidence.complaints.push("a request that no provider takes".to_owned());
    }),
    ("a message that is still at work", ONE_END, |evidence| {
        change(
            evidence,
            "update inbox set state = 'running' where id = (select min(id) from inbox where state = 'done')",
        );
    }),
    ("a lost message", ONE_END, |evidence| {
        change(evidence, "delete from inbox where id = (select max(id) from inbox where state = 'done')");
    }),
    ("a message stored twice", ONE_END, |evidence| {
        change(
            evidence,
            "create table twice as select * from inbox; drop table inbox; alter table twice rename to inbox;
             insert into inbox select * from inbox where id = (select min(id) from inbox where state = 'ignored' or state = 'done')",
        );
    }),
    ("a turn that told its chat nothing", ONE_END, |evidence| {
        change(evidence, "delete from outbox where turn = (select max(turn) from outbox)");
    }),
    ("a turn that never ended", ONE_END, |evidence| {
        change(
            evidence,
            "update turns set state = 'running', end_reason = null where id = (select min(id) from turns)",
        );
    }),
    ("a lease that nobody gave back", ONE_END, |evidence| {
        change(evidence, "update sessions set lease_turn = 1 where id = (select min(id) from sessions)");
    }),
    ("two messages taken up in the wrong order", ORDER, |evidence| {
        change(
            evidence,
            "create table pair as select min(i.turn) a, max(i.turn) b from inbox i
               where i.state = 'done' and i.urgent = 0 and i.attempts = 1 group by i.session having count(distinct i.turn) > 1;
             update inbox set turn = case turn when (select min(a) from pair) then (select b from pair order by a limit 1)
                                               else (select min(a) from pair) end
              where turn in ((select min(a) from pair), (select b from pair order by a limit 1))",
        );
    }),
    ("two replies shown in the wrong order", ORDER, |evidence| {
        let place = |shown: &Shown| (!evidence.resent.contains_key(&shown.row)).then_some(shown.chat);
        let first = evidence.shown.iter().position(|shown| place(shown).is_some()).unwrap();
        let other =
            |shown: &Shown| place(shown) == place(&evidence.shown[first]) && shown.row != evidence.shown[first].row;
        let second = evidence.shown.iter().position(other).unwrap();
        evidence.shown.swap(first, second);
    }),
    ("a forked chain", CHAINS, |evidence| {
        change(
            evidence,
            "create table fork as select * from checkpoints; drop table checkpoints; alter table fork rename to checkpoints;
             insert into checkpoints select 1000000, session, parent, turn, round, kind, first_seq, last_seq, state, created_at_ms
               from checkpoints where parent is not null limit 1",
        );
    }),
    ("a hole in the history", CHAINS, |evidence| {
        change(evidence, "delete from messages where seq = 1 and session = (select min(session) from messages)");
    }),
    ("a call that nothing answers", CHAINS, |evidence| {
        change(
            evidence,
            "drop trigger messages_are_append_only;
             update messages set blocks = replace(blocks, 'tool_result', 'lost_result') where role = 'tool'",
        );
    }),
    ("a window that goes back", CHAINS, |evidence| {
        change(evidence, "update checkpoints set first_seq = 0 where id = (select max(id) from checkpoints)");
    }),
    ("a head that is not the newest", CHAINS, |evidence| {
        change(evidence, "update sessions set head = (select min(id) from checkpoints where session = sessions.id)");
    }),
    ("a reply sent twice", TWICE, |evidence| {
        let again = evidence.shown.iter().find(|shown| !shown.labelled).unwrap().clone();
        evidence.shown.push(again);
    }),
    ("a reply sent again though nobody asked", TWICE, |evidence| {
        let once = evidence.shown.iter().find(|shown| !evidence.resent.contains_key(&shown.row)).unwrap().clone();
        let again = Shown { text: format!("{}{}", courier::AGAIN, once.text), labelled: true, ..once };
        evidence.shown.push(again);
    }),
    ("a reply that is stored as sent and stands nowhere", TWICE, |evidence| {
        let sent = "select id from outbox where state = 'sent' limit 1";
        let sent: i64 = evidence.store.query_row(sent, [], |row| row.get(0)).unwrap();
        evidence.shown.retain(|shown| shown.row != sent);
    }),
    ("a reply in another's chat", TWICE, |evidence| evidence.shown[0].chat += 1),
    ("words that were never stored", TWICE, |evidence| {
        change(evidence, "delete from outbox where id = (select min(id) from outbox where state = 'sent')");
    }),
    ("a turn an hour late", BUDGET, |evidence| {
        evidence.runs[0].ended = Some(evidence.runs[0].began + evidence.runs[0].allowed + Duration::from_secs(3_600));
    }),
    ("a turn that nobody saw end", BUDGET, |evidence| evidence.runs[0].ended = None),
    ("a turn tried for the third time", TRIES, |evidence| {
        change(
            evidence,
            "update turns set crashes = 2 where id = (select max(id) from turns where end_reason <> 'parked')",
        );
    }),
    ("a death that was not counted", TRIES, |evidence| {
        change(evidence, "update turns set crashes = 0, end_reason = 'natural'");
        evidence.runs[0].died = true;
    }),
    ("a doubt that status does not list", STATUS, |evidence| {
        evidence.status.as_mut().unwrap().replies.pop().unwrap();
    }),
    ("a doubt that status does not count", STATUS, |evidence| evidence.status.as_mut().unwrap().outbox.uncertain -= 1),
    ("a status that sees work at rest", STATUS, |evidence| evidence.status.as_mut().unwrap().inbox.new += 1),
    ("a doubt in fair weather", "fair weather leaves no doubt", |evidence| {
        evidence.storm = false;
        change(evidence, "update outbox set state = 'dead', error = 'broken' where id = (select max(id) from outbox)");
    }),
];

/// Runs `sql` on the evidence, free of the schema's own guard; it has to change something.
fn change(evidence: &mut Evidence, sql: &str) {
    let before = evidence.store.total_changes();
    evidence.store.execute_batch("pragma foreign_keys = off; pragma ignore_check_constraints = on").unwrap();
    evidence.store.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert!(evidence.store.total_changes() > before, "nothing was changed by: {sql}");
}

/// Holds something of everything that is spoiled here.
fn is_rich(evidence: &Evidence) -> bool {
    let count = |sql: &str| evidence.store.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let doubts = evidence.status.as_ref().is_some_and(|status| !status.replies.is_empty());
    doubts
        && evidence.storm
        && count("select count(*) from messages where role = 'tool'") > 0
        && count("select count(*) from turns where cause = 'message'") > 8
}

#[test]
fn the_oracle_sees_whatever_is_spoiled() {
    let seed = (0..200).find(|seed| is_rich(&live(*seed))).expect("one of the first seeds holds a doubt and a call");
    let whole = live(seed);
    assert_eq!(oracle::complaints(&whole), Vec::<String>::new(), "seed {seed} before anything is spoiled");
    for (what, rule, spoil) in CASES {
        let mut evidence = live(seed);
        spoil(&mut evidence);
        let complaints = oracle::complaints(&evidence);
        assert!(
            complaints.iter().any(|complaint| complaint.starts_with(rule)),
            "{what}: `{rule}` said nothing in seed {seed}; {complaints:?}"
        );
    }
    let spoiled: BTreeSet<_> = CASES.iter().map(|(_, rule, _)| *rule).collect();
    let rules: BTreeSet<_> = oracle::RULES.iter().map(|(name, _)| *name).collect();
    assert_eq!(spoiled, rules, "each rule is spoiled at least once, and no other");
}

#[test]
fn the_provider_and_the_turns_own_check_refuse_the_same_histories() {
    use Role::{Assistant, Tool, User};
    let words = |role| Message::text(role, "words", Origin::Cause);
    let call = |number| CallId::new(TurnId::from_row(1), number);
    let calls = |numbers: &[u32]| Message {
        role: Assistant,
        blocks: numbers
            .iter()
            .map(|n| Block::ToolCall { call: call(*n), name: "read_file".to_owned(), arguments: serde_json::json!({}) })
            .collect(),
    };
    let result = |n| Block::ToolResult { call: call(n), text: "x".into(), is_error: false, origin: Origin::Workspace };
    let results = |numbers: &[u32]| Message { role: Tool, blocks: numbers.iter().map(|n| result(*n)).collect() };
    for (name, messages, fine) in [
        ("one question", vec![words(User)], true),
        ("calls and results", vec![words(User), calls(&[1, 2]), results(&[1, 2])], true),
        ("a question after results", vec![words(User), calls(&[1]), results(&[1]), words(User)], true),
        ("the model first", vec![words(Assistant), words(User)], false),
        ("the model last", vec![words(User), words(Assistant)], false),
        ("one side twice", vec![words(User), words(User)], false),
        ("calls without results", vec![words(User), calls(&[1]), words(User)], false),
        ("results without calls", vec![words(User), results(&[1])], false),
        ("a result too few", vec![words(User), calls(&[1, 2]), results(&[1])], false),
        ("results in another order", vec![words(User), calls(&[1, 2]), results(&[2, 1])], false),
        (
            "a call's id twice",
            vec![words(User), calls(&[1]), results(&[1]), words(User), calls(&[1]), results(&[1])],
            false,
        ),
        ("an empty message", vec![words(User), Message { role: Assistant, blocks: vec![] }, words(User)], false),
    ] {
        assert_eq!(model::refusal(&messages).is_none(), fine, "the provider: {name}");
        let request = Request { system: "s".into(), messages, tools: vec![], max_output_tokens: 1, tool_use: true };
        assert_eq!(validate(&request).is_ok(), fine, "validate: {name}");
    }
}
