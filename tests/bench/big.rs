//! A home with a long past: sessions, turns, messages, checkpoints and replies as the daemon itself writes them,
//! multiplied from one real turn.

use crate::people::Stage;
use crate::support::daemon::Daemon;
use crate::support::oracle;

pub(crate) const NAME: &str = "1,000 sessions, 100,000 messages";
const SESSIONS: i64 = 1_000;
const MESSAGES: i64 = 100_000;
/// A plain turn has two messages.
const TURNS: i64 = MESSAGES / 2;

/// Lets the daemon answer once, stops it, and copies what it wrote until the store is big.
pub(crate) async fn fill(stage: &Stage) {
    let mut daemon = Daemon::start(&stage.home).await;
    stage.talk(&stage.chats, 1).await;
    oracle::at_rest(&stage.home).await;
    assert_eq!(daemon.stop().await, Some(0));
    stage.home.set_store(&sql());
    for (what, expected) in [("sessions", SESSIONS + 1), ("messages", MESSAGES + 2), ("turns", TURNS + 1)] {
        assert_eq!(stage.home.count(&format!("select count(*) from {what}")), expected, "{what}");
    }
}

/// Turn 1 and all that belongs to it, for each number `n` from 1 to [`TURNS`]: the `k`th turn of session `s`.
fn sql() -> String {
    let turns_each = TURNS / SESSIONS;
    format!(
        "begin;
         create temp table many (n integer primary key, s integer, k integer, session text);
         insert into many
             with recursive count (n) as (select 1 union all select n + 1 from count where n < {TURNS})
             select n, (n - 1) / {turns_each} + 1, (n - 1) % {turns_each},
                    printf('00000000-0000-5000-8000-%012d', (n - 1) / {turns_each} + 1)
               from count;
         insert into sessions (id, first_key, link, last_seq, turns, created_at_ms, active_at_ms)
             select session, first_key || ':' || s, link, 2 * {turns_each}, {turns_each}, created_at_ms, active_at_ms
               from many, sessions where k = 0 order by n;
         insert into threads (key, session, created_at_ms)
             select key || ':' || s, many.session, created_at_ms from many, threads where k = 0 order by n;
         insert into turns (id, session, cause, mode, state, link, sender, boot, budget, spent, model, end_reason,
                            started_at_ms, ended_at_ms)
             select n + 1, many.session, cause, mode, state, link, sender, boot, budget, spent, model, end_reason,
                    started_at_ms, ended_at_ms
               from many, turns where turns.id = 1 order by n;
         insert into messages (session, seq, turn, role, blocks, created_at_ms)
             select many.session, 2 * k + seq, n + 1, role, blocks, created_at_ms
               from many, messages where turn = 1 and seq <= 2 order by n, seq;
         insert into checkpoints (id, session, parent, turn, round, kind, first_seq, last_seq, state, created_at_ms)
             select 2 * n + id, many.session, case when k = 0 and id = 1 then null else 2 * n + id - 1 end, n + 1, round,
                    kind, 1, 2 * k + last_seq, state, created_at_ms
               from many, checkpoints where id <= 2 order by n, id;
         update sessions set head = (select max(id) from checkpoints where session = sessions.id) where head is null;
         insert into inbox (channel, update_key, chat, message_key, thread_key, session, link, sender, sender_name, text,
                            state, turn, attempts, received_at_ms, ended_at_ms)
             select channel, 'past-' || n, chat, 'past-' || n, thread_key || ':' || s, many.session, link, sender,
                    sender_name, text, state, n + 1, attempts, received_at_ms, ended_at_ms
               from many, inbox where inbox.id = 1 order by n;
         insert into outbox (channel, chat, reply_to, session, turn, part, parts, html, plain, state, boot, platform_id,
                             attempts, created_at_ms, ended_at_ms)
             select channel, chat, reply_to, many.session, n + 1, part, parts, html, plain, state, boot, platform_id,
                    attempts, created_at_ms, ended_at_ms
               from many, outbox where outbox.id = 1 order by n;
         insert into timeline (at_ms, session, turn, kind, detail)
             select at_ms, many.session, n + 1, kind, detail from many, timeline where turn = 1 order by n, timeline.id;
         commit;"
    )
}
