//! The promises, asked of what is left when everything is at rest: the store, what the chats show, and what was heard
//! on the way. Each rule is a function from evidence to complaints.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, Row};

use crate::messenger::Shown;
use crate::people::CHATS;
use crate::story::Evidence;

/// A deadline is met to the tick of the timer.
const TICK: Duration = Duration::from_millis(5);
/// `status` lists so many of each kind; beyond that it counts.
const STATUS_LISTS: usize = 20;

/// A rule with its name.
type Rule = (&'static str, fn(&Evidence) -> Vec<String>);

/// All of them.
pub(crate) const RULES: &[Rule] = &[
    ("nothing forbidden was seen on the way", |evidence| evidence.complaints.clone()),
    ("each message has exactly one end", each_message_has_one_end),
    ("order is kept", order_is_kept),
    ("chains are whole", chains_are_whole),
    ("nothing is shown twice", nothing_is_shown_twice),
    ("no turn outruns its budget", no_turn_outruns_its_budget),
    ("a turn is tried twice", a_turn_is_tried_twice),
    ("status knows every doubt", status_knows_every_doubt),
    ("fair weather leaves no doubt", fair_weather_leaves_no_doubt),
];

/// Every complaint, behind the name of its rule.
pub(crate) fn complaints(evidence: &Evidence) -> Vec<String> {
    let of = |(name, rule): &Rule| rule(evidence).into_iter().map(move |what| format!("{name}: {what}")).collect();
    RULES.iter().flat_map(|rule| -> Vec<String> { of(rule) }).collect()
}

/// Rows that there should not be, each with what it means.
fn found(store: &Connection, questions: &[(&str, &str)]) -> Vec<String> {
    let of = |(what, sql): &(&str, &str)| -> Vec<String> {
        let rows = table(store, sql);
        rows.into_iter().map(|row| format!("{what}: {}", row.join(", "))).collect()
    };
    questions.iter().flat_map(of).collect()
}

fn each_message_has_one_end(evidence: &Evidence) -> Vec<String> {
    let store = &evidence.store;
    let mut complaints = found(store, &[
        ("a message without an end", "select id, state from inbox where state in ('new', 'running')"),
        ("an end without its time", "select id, state from inbox where state in ('done', 'dead') and ended_at_ms is null"),
        (
            "a message joined to none that ended with it",
            "select i.id, i.joined_to from inbox i left join inbox head on head.id = i.joined_to
              where i.state = 'joined' and (head.id is null or head.state not in ('done', 'dead')
                    or head.turn is not i.turn or head.session is not i.session or head.sender <> i.sender)",
        ),
        (
            "a message done without a turn or a command",
            "select id, text from inbox where state = 'done' and turn is null and command is null",
        ),
        (
            "a turn of several messages that are not joined",
            "select turn, count(*) from inbox where turn is not null and state <> 'joined'
              group by turn having count(*) > 1",
        ),
        (
            "a message that ended although its turn did not",
            "select i.id, i.state, t.state from inbox i join turns t on t.id = i.turn
              where i.state in ('done', 'dead') and t.state not in ('done', 'parked')",
        ),
        ("a turn without an end", "select id, state from turns where state not in ('done', 'parked')"),
        (
            "a turn's end without its reason or time",
            "select id, state from turns where end_reason is null or ended_at_ms is null",
        ),
        (
            "a turn without exactly one conclusion",
            "select t.id, count(c.id) from turns t left join checkpoints c on c.turn = t.id and c.kind = 'concluded'
              group by t.id having count(c.id) <> 1",
        ),
        ("a session still held", "select id, lease_turn from sessions where lease_turn is not null"),
        (
            "a turn whose chat was told nothing",
            "select id, end_reason from turns where id not in (select turn from outbox where turn is not null)",
        ),
        ("a reply still under way", "select id, state from outbox where state not in ('sent', 'uncertain', 'dead')"),
        (
            "words kept of somebody who is not answered",
            "select id, text from inbox where state = 'ignored' and text is not null",
        ),
    ]);
    let mut stored: BTreeMap<(String, String), usize> = BTreeMap::new();
    for row in table(store, "select chat, message_key from inbox") {
        *stored.entry((row[0].clone(), row[1].clone())).or_default() += 1;
    }
    for said in evidence.said.iter().filter(|said| !said.is_edit) {
        let rows = stored.remove(&(said.chat.to_string(), said.message.to_string())).unwrap_or(0);
        if rows != 1 {
            complaints.push(format!("message {} of chat {} stands {rows} times in the inbox", said.message, said.chat));
        }
    }
    complaints
        .extend(stored.into_keys().map(|(chat, message)| format!("nobody said message {message} of chat {chat}")));
    complaints
}

fn order_is_kept(evidence: &Evidence) -> Vec<String> {
    let store = &evidence.store;
    let mut complaints = Vec::new();
    let retried = |turn: &i64| evidence.retried.contains(turn);
    // A message that was tried again has lost its place to those after it.
    let late: BTreeSet<i64> = numbers(store, "select id from inbox where turn is not null and attempts > 1")
        .into_iter()
        .map(|(id, _)| id.parse().unwrap())
        .collect();
    let heads = "select t.session, t.id, min(i.id) from turns t join inbox i on i.turn = t.id
                  where i.urgent = 0 group by t.id order by t.session, t.id";
    let heads: Vec<_> = numbers(store, heads).into_iter().filter(|row| !late.contains(&row.1[1])).collect();
    for (before, after) in neighbours(&heads) {
        if after.1[1] < before.1[1] {
            complaints.push(format!(
                "turn-{} began with in-{} after turn-{} had begun with in-{}",
                after.1[0], after.1[1], before.1[0], before.1[1]
            ));
        }
    }
    for (what, sql) in [
        ("message", "select session, turn, seq from messages order by session, seq"),
        ("cp", "select session, turn, id from checkpoints order by session, id"),
        ("reply", "select session, turn, id from outbox where turn is not null order by session, id"),
    ] {
        for (before, after) in neighbours(&numbers(store, sql)) {
            if after.1[0] < before.1[0] && !retried(&after.1[0]) {
                complaints.push(format!(
                    "{what}-{} of turn-{} comes after one of turn-{}",
                    after.1[1], after.1[0], before.1[0]
                ));
            }
        }
    }
    let mut newest: BTreeMap<i64, i64> = BTreeMap::new();
    for shown in evidence.shown.iter().filter(|shown| !evidence.resent.contains_key(&shown.row)) {
        let newest = newest.entry(shown.chat).or_default();
        if shown.row < *newest {
            complaints.push(format!("chat {} shows reply-{} after reply-{newest}", shown.chat, shown.row));
        }
        *newest = shown.row.max(*newest);
    }
    complaints
}

fn chains_are_whole(evidence: &Evidence) -> Vec<String> {
    let store = &evidence.store;
    let mut complaints = found(
        store,
        &[
            (
                "a thread with several sessions",
                "select thread_key, count(distinct session) from inbox where session is not null
              group by thread_key having count(distinct session) > 1",
            ),
            (
                "a checkpoint with several children",
                "select parent, count(*) from checkpoints where parent is not null group by parent having count(*) > 1",
            ),
            (
                "a chain with several roots",
                "select session, count(*) from checkpoints where parent is null group by session having count(*) > 1",
            ),
            (
                "a checkpoint whose parent is another session's, or younger",
                "select c.id, c.parent from checkpoints c left join checkpoints p on p.id = c.parent
              where c.parent is not null and (p.id is null or p.session <> c.session or p.id >= c.id)",
            ),
            (
                "a window that goes back",
                "select c.id, c.first_seq, c.last_seq from checkpoints c join checkpoints p on p.id = c.parent
              where c.first_seq < p.first_seq or c.last_seq < p.last_seq or c.first_seq > c.last_seq + 1",
            ),
            (
                "a head that is not the end of its chain",
                "select s.id, s.head from sessions s where s.head is not (
                 select max(c.id) from checkpoints c where c.session = s.id)",
            ),
            (
                "messages with a hole",
                "select s.id, s.last_seq, count(m.seq), coalesce(max(m.seq), 0) from sessions s
               left join messages m on m.session = s.id group by s.id
             having s.last_seq <> count(m.seq) or s.last_seq <> coalesce(max(m.seq), 0)",
            ),
            (
                "a head that does not know the last message",
                "select s.id, s.last_seq, c.last_seq from sessions s join checkpoints c on c.id = s.head
              where c.last_seq <> s.last_seq",
            ),
        ],
    );
    let all = table(store, "select session, seq, blocks from messages order by session, seq");
    let ids = |blocks: &str, kind: &str| -> Vec<String> {
        let blocks: Vec<serde_json::Value> = serde_json::from_str(blocks).unwrap();
        blocks.iter().filter(|block| block["type"] == kind).map(|block| block["call"].to_string()).collect()
    };
    for (at, message) in all.iter().enumerate() {
        let asked = ids(&message[2], "tool_call");
        let next = all.get(at + 1).filter(|next| next[0] == message[0]);
        let answered = next.map_or(Vec::new(), |next| ids(&next[2], "tool_result"));
        if asked != answered {
            complaints.push(format!("message {} asks {asked:?}, the next one answers {answered:?}", message[1]));
        }
    }
    complaints
}

fn nothing_is_shown_twice(evidence: &Evidence) -> Vec<String> {
    let mut complaints = Vec::new();
    let rows = table(
        &evidence.store,
        "select id, state, again, coalesce(platform_id, ''), plain, chat, coalesce(error, '') from outbox order by id",
    );
    let mut shown: BTreeMap<i64, Vec<&Shown>> = BTreeMap::new();
    for message in &evidence.shown {
        shown.entry(message.row).or_default().push(message);
    }
    for row in rows {
        let id: i64 = row[0].parse().unwrap();
        let [state, again, platform_id, plain, chat] = [&row[1], &row[2], &row[3], &row[4], &row[5]];
        let here = shown.remove(&id).unwrap_or_default();
        let bare: Vec<_> = here.iter().filter(|shown| !shown.labelled).collect();
        let labelled = here.len() - bare.len();
        let resent = evidence.resent.get(&id).copied().unwrap_or(0);
        if bare.len() > 1 {
            complaints.push(format!("reply-{id} was shown {} times without a label", bare.len()));
        }
        if labelled > resent || labelled > 0 && again != "1" {
            complaints
                .push(format!("reply-{id} was shown {labelled} times as sent again, and asked for {resent} times"));
        }
        if here.iter().any(|shown| !shown.text.ends_with(plain.as_str()) || shown.chat.to_string() != *chat) {
            complaints.push(format!("reply-{id} was shown with other words, or elsewhere"));
        }
        if state == "sent" && here.last().is_none_or(|last| last.message.to_string() != *platform_id) {
            complaints.push(format!("reply-{id} is stored as message {platform_id:?}, which is not where it stands"));
        }
        if state == "dead" && !here.is_empty() && resent == 0 && row[6] != "dropped" {
            complaints.push(format!("reply-{id} is dead and was shown"));
        }
    }
    complaints.extend(shown.into_keys().map(|row| format!("reply-{row} was shown and never stored")));
    complaints
}

fn no_turn_outruns_its_budget(evidence: &Evidence) -> Vec<String> {
    let mut complaints = Vec::new();
    for run in &evidence.runs {
        let took = run.ended.map(|ended| ended.saturating_sub(run.began));
        if took.is_none_or(|took| took > run.allowed + TICK) {
            complaints
                .push(format!("{} in life {} had {:?} and was at work for {took:?}", run.turn, run.life, run.allowed));
        }
    }
    for (before, after) in evidence.runs.iter().enumerate().flat_map(|(at, before)| {
        evidence.runs[at + 1..]
            .iter()
            .filter(|after| after.turn == before.turn)
            .take(1)
            .map(move |after| (before, after))
    }) {
        if before.life == after.life {
            complaints.push(format!("{} was at work twice in life {}", before.turn, before.life));
        }
    }
    complaints.extend(found(
        &evidence.store,
        &[(
            "a turn of more rounds than it may make",
            "select id, spent from turns where json_extract(spent, '$.rounds') > json_extract(budget, '$.rounds')",
        )],
    ));
    complaints
}

/// A turn over which the process died twice is set aside, and no other is.
fn a_turn_is_tried_twice(evidence: &Evidence) -> Vec<String> {
    let mut deaths: BTreeMap<i64, i64> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.died) {
        *deaths.entry(run.turn.row()).or_default() += 1;
    }
    let mut complaints = Vec::new();
    for row in table(&evidence.store, "select id, crashes, coalesce(end_reason, '') from turns") {
        let (turn, counted): (i64, i64) = (row[0].parse().unwrap(), row[1].parse().unwrap());
        let seen = deaths.get(&turn).copied().unwrap_or(0);
        // A process may die over a turn before anybody has seen it at work.
        if counted < seen || counted > 2 || (counted == 2) != (row[2] == "parked") {
            complaints.push(format!(
                "the process died {seen} times over turn-{turn}, which counts {counted} and ended {}",
                row[2]
            ));
        }
    }
    complaints
}

fn status_knows_every_doubt(evidence: &Evidence) -> Vec<String> {
    let Some(status) = &evidence.status else { return vec!["there is no status".to_owned()] };
    let mut complaints = Vec::new();
    let doubts =
        "select 'reply-' || id from outbox where state = 'uncertain' or state = 'dead' and error is not 'dropped'";
    let parked = "select 'turn-' || id from turns where state = 'parked'";
    let replies = status.replies.iter().map(|reply| reply.id.clone());
    let turns = status.parked.iter().map(|turn| turn.id.clone());
    for (what, sql, counted, listed) in [
        ("replies in doubt", doubts, status.outbox.uncertain + status.outbox.dead, replies.collect::<BTreeSet<_>>()),
        ("parked turns", parked, status.turns_parked, turns.collect()),
    ] {
        let there: BTreeSet<String> = table(&evidence.store, sql).into_iter().flatten().collect();
        let all_listed = if there.len() <= STATUS_LISTS { listed == there } else { listed.is_subset(&there) };
        if !all_listed || i64::try_from(there.len()) != Ok(counted) {
            complaints.push(format!("of the {what} {there:?} status counts {counted} and lists {listed:?}"));
        }
    }
    let open = [status.turns_running, status.inbox.new, status.inbox.running, status.outbox.pending];
    if open != [0; 4] || !status.store_ok || !status.late.is_empty() {
        complaints.push(format!(
            "at rest status speaks of {open:?} open, store_ok {}, late {:?}",
            status.store_ok, status.late
        ));
    }
    complaints
}

/// Where nothing fails, nothing needs a person, and everybody is answered once and in full.
fn fair_weather_leaves_no_doubt(evidence: &Evidence) -> Vec<String> {
    if evidence.storm {
        return Vec::new();
    }
    let mut complaints = found(
        &evidence.store,
        &[
            ("a reply that was not sent", "select id, state, error from outbox where state <> 'sent'"),
            (
                "a turn that broke",
                "select id, end_reason, detail from turns where end_reason in ('failed', 'parked', 'context_exhausted')",
            ),
            (
                "a listed sender who was ignored",
                "select id, chat, sender, reason from inbox where state = 'ignored' and sender <> '99'",
            ),
        ],
    );
    let senders = CHATS.iter().flat_map(|chat| chat.senders.iter().map(|sender| (chat.chat, *sender)));
    let listed: BTreeSet<(i64, u64)> = senders.collect();
    let strangers = evidence.said.iter().filter(|said| !listed.contains(&(said.chat, said.sender)) && !said.is_edit);
    let ignored = table(&evidence.store, "select id from inbox where state = 'ignored'").len();
    if strangers.count() != ignored {
        complaints.push(format!("{ignored} messages were ignored, which is not what strangers said"));
    }
    complaints
}

/// Rows as text.
fn table(store: &Connection, sql: &str) -> Vec<Vec<String>> {
    let mut statement = store.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let read = |row: &Row<'_>| (0..columns).map(|at| row.get::<_, Value>(at).map(shown)).collect();
    statement.query_map([], read).and_then(Iterator::collect).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn shown(value: Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text,
        Value::Blob(bytes) => format!("{bytes:?}"),
    }
}

type Numbers = (String, Vec<i64>);

/// Rows of one name and some numbers.
fn numbers(store: &Connection, sql: &str) -> Vec<Numbers> {
    let named = |row: Vec<String>| {
        let mut row = row.into_iter();
        (row.next().unwrap(), row.map(|number| number.parse().unwrap()).collect())
    };
    table(store, sql).into_iter().map(named).collect()
}

/// Rows that follow one another under the same name.
fn neighbours(rows: &[Numbers]) -> impl Iterator<Item = (&Numbers, &Numbers)> {
    rows.windows(2).map(|pair| (&pair[0], &pair[1])).filter(|(before, after)| before.0 == after.0)
}
