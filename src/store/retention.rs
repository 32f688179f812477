//! What has ended does not stay for ever: rows are cleared away once they are old enough, a bounded number at a time.
//!
//! Never touched: a session with an open or parked turn, what a model still sees, a chain's head, a message that waits
//! or is dead, a reply that is in doubt. The newest row of each table stays too, so that no id is given twice.

use rusqlite::{Connection, OptionalExtension, params};

use super::StoreError;
use crate::domain::Timestamp;

/// Most rows of one table that one sweep clears.
pub const ROWS_MAX: usize = 500;
/// Sessions that one sweep looks at.
const SESSIONS_MAX: usize = 20;

/// What is older than these goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// For words that no model sees any more.
    pub history: Timestamp,
    /// For lines of the timeline.
    pub timeline: Timestamp,
    /// For messages, turns, checkpoints and replies that have ended.
    pub ended: Timestamp,
}

/// Where the next sweep goes on; the start of the tables is where the first one does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    session: String,
    turn: i64,
}

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows that are gone.
    pub rows: usize,
    /// A limit was reached, or the tables were not seen to their end: there may be more to do.
    pub has_more: bool,
    /// For the next sweep.
    pub next: Position,
}

/// Clears away some of what is old.
///
/// # Errors
/// SQLite's.
pub fn sweep(db: &Connection, cutoffs: &Cutoffs, from: &Position) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    let mut count = |rows: usize| {
        swept.rows += rows;
        swept.has_more |= rows >= ROWS_MAX;
    };
    // Ids grow with time, so the oldest rows are looked at and nothing else.
    count(delete(
        db,
        "delete from timeline where id in (
             select id from (select id, at_ms from timeline order by id limit ?2) where at_ms < ?1)",
        cutoffs.timeline,
    )?);
    count(delete(
        db,
        "delete from outbox where id < (select max(id) from outbox) and id in (
             select id from (select id, ended_at_ms from outbox
                              where state = 'sent' or (state = 'dead' and error = 'dropped') order by id limit ?2)
              where ended_at_ms < ?1)",
        cutoffs.ended,
    )?);
    // With those that were joined to them, in one statement: they point at one another.
    count(delete(
        db,
        "delete from inbox where id < (select max(id) from inbox) and id in (
             with old as (
                 select id from (select id, ended_at_ms from inbox where state = 'done' order by id limit ?2)
                  where ended_at_ms < ?1)
             select id from old union all select id from inbox where joined_to in (select id from old))
            and coalesce(joined_to, id) not in (select joined_to from inbox where id = (select max(id) from inbox)
                                                   and joined_to is not null)",
        cutoffs.ended,
    )?);
    let sessions = db
        .prepare_cached("select id from sessions where id > ?1 order by id limit ?2")?
        .query_map(params![from.session, SESSIONS_MAX as i64], |row| row.get::<_, String>(0))?
        .collect::<Result<Vec<_>, _>>()?;
    for session in &sessions {
        count(of_session(db, session, cutoffs)?);
    }
    let (turns, last) = turns(db, cutoffs.ended, from.turn)?;
    count(turns);
    let more_sessions = sessions.len() >= SESSIONS_MAX;
    swept.has_more |= more_sessions || last.is_some();
    swept.next = Position {
        session: sessions.last().filter(|_| more_sessions).cloned().unwrap_or_default(),
        turn: last.unwrap_or_default(),
    };
    Ok(swept)
}

fn delete(db: &Connection, sql: &str, before: Timestamp) -> Result<usize, StoreError> {
    Ok(db.prepare_cached(sql)?.execute(params![before.0, ROWS_MAX as i64])?)
}

/// A session's oldest checkpoints and words.
fn of_session(db: &Connection, session: &str, cutoffs: &Cutoffs) -> Result<usize, StoreError> {
    let head: Option<(i64, i64)> = db
        .prepare_cached(
            "select c.id, c.first_seq from sessions s join checkpoints c on c.id = s.head
              where s.id = ?1 and s.lease_turn is null
                and not exists (select 1 from turns t where t.session = s.id and t.state <> 'done')",
        )?
        .query_row([session], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((head, first_seq)) = head else { return Ok(0) };
    let words = db
        .prepare_cached(
            "delete from messages where session = ?1 and seq in (
                 select seq from (select seq, created_at_ms from messages where session = ?1 and seq < ?2
                                   order by seq limit ?4)
                  where created_at_ms < ?3)",
        )?
        .execute(params![session, first_seq, cutoffs.history.0, ROWS_MAX as i64])?;
    // The chain loses its oldest links only: the first that stays becomes its root.
    let root: Option<i64> = db
        .prepare_cached(
            "select min(id) from (
                 select id from (select id, created_at_ms from checkpoints where session = ?1 order by id limit ?4)
                  where id = ?2 or created_at_ms >= ?3
                 union all
                 select id from (select id from checkpoints where session = ?1 order by id limit 1 offset ?4)
                 union all select ?2)",
        )?
        .query_row(params![session, head, cutoffs.ended.0, ROWS_MAX as i64], |row| row.get(0))?;
    let Some(root) = root else { return Ok(words) };
    // The new root still names its parent while that goes; the reference is taken back in the same transaction.
    db.execute_batch("pragma defer_foreign_keys = on")?;
    let links =
        db.prepare_cached("delete from checkpoints where session = ?1 and id < ?2")?.execute(params![session, root])?;
    if links > 0 {
        db.prepare_cached("update checkpoints set parent = null where id = ?1")?.execute([root])?;
    }
    db.execute_batch("pragma defer_foreign_keys = off")?;
    Ok(words + links)
}

/// Turns that nothing refers to any more; returns where the next look begins, or none at the end.
fn turns(db: &Connection, ended: Timestamp, from: i64) -> Result<(usize, Option<i64>), StoreError> {
    let looked_at = db
        .prepare_cached("select id from turns where id > ?1 order by id limit ?2")?
        .query_map(params![from, ROWS_MAX as i64], |row| row.get::<_, i64>(0))?
        .collect::<Result<Vec<_>, _>>()?;
    let Some(last) = looked_at.last().copied() else { return Ok((0, None)) };
    let gone = db
        .prepare_cached(
            "delete from turns as t where id > ?1 and id <= ?2 and id < (select max(id) from turns)
                and state = 'done' and ended_at_ms < ?3
                and not exists (select 1 from inbox where turn = t.id)
                and not exists (select 1 from outbox where turn = t.id)
                and not exists (select 1 from checkpoints where turn = t.id)
                and coalesce((select turn from messages where session = t.session order by seq limit 1) > t.id, 0)",
        )?
        .execute(params![from, last, ended.0])?;
    Ok((gone, (looked_at.len() >= ROWS_MAX).then_some(last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{BootId, Budget, EndReason, Message, Origin, OsRng, Role, SessionId, Spent, TurnId};
    use crate::store::chain::{self, Kind, NewCheckpoint};
    use crate::store::outbox::{self, NewPart, Outcome, Target};
    use crate::store::timeline::{self, Entry};
    use crate::store::turns::{self, NewTurn};
    use crate::store::{inbox, migrate};

    const DAY: i64 = 86_400_000;
    /// The day of the sweeps, counted from 1970.
    const TODAY: i64 = 20_000;

    fn day(day: i64) -> Timestamp {
        Timestamp(day * DAY)
    }

    fn cutoffs() -> Cutoffs {
        Cutoffs { history: day(TODAY - 365), timeline: day(TODAY - 90), ended: day(TODAY - 30) }
    }

    struct Shop {
        db: Connection,
        boot: BootId,
        messages: u32,
        _folder: tempfile::TempDir,
    }

    impl Shop {
        fn open() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("midwatch.db");
            migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap();
            let db = Connection::open(&path).unwrap();
            db.execute_batch("pragma foreign_keys = on").unwrap();
            Self { db, boot: BootId::new(&OsRng), messages: 0, _folder: folder }
        }

        fn arrives(&mut self, chat: &str, at: Timestamp) -> SessionId {
            self.messages += 1;
            let key = format!("telegram:1:{chat}");
            let session = inbox::ensure_session(&self.db, &key, Some("home"), at).unwrap();
            self.db
                .execute(
                    "insert into inbox (channel, update_key, chat, message_key, thread_key, session, sender, text, state,
                                        received_at_ms)
                     values ('telegram:1', ?1, ?2, ?1, ?3, ?4, '5', 'hi', 'new', ?5)",
                    params![self.messages, chat, key, session.to_string(), at.0],
                )
                .unwrap();
            session
        }

        /// A whole turn with a reply; `fresh` as after `/new`.
        fn turn(&mut self, chat: &str, at: Timestamp, end: Option<EndReason>, sent: &Outcome, fresh: bool) -> TurnId {
            let session = self.arrives(chat, at);
            let group = inbox::next_group(&self.db, session).unwrap();
            let budget = Budget { time_ms: 1, rounds: 1, tokens: 1, cost_usd: 0.0 };
            let new = NewTurn {
                session,
                cause: "message",
                mode: "daemon",
                link: None,
                sender: "5".into(),
                boot: self.boot,
                budget,
                model: "m".into(),
            };
            let turn = turns::open(&self.db, &new, at).unwrap();
            inbox::begin(&self.db, &group, turn).unwrap();
            let head = chain::head(&self.db, session).unwrap();
            let next = head.as_ref().map_or(1, |head| head.last_seq + 1);
            for (kind, role) in [(Kind::Opened, Role::User), (Kind::Concluded, Role::Assistant)] {
                let head = chain::head(&self.db, session).unwrap();
                let checkpoint = NewCheckpoint {
                    session,
                    parent: head.as_ref().map(|head| head.id),
                    turn,
                    round: 0,
                    kind,
                    first_seq: head.map_or(1, |head| if fresh { next } else { head.first_seq }),
                    messages: vec![Message::text(role, "words", Origin::Cause)],
                    state: serde_json::json!({}),
                };
                chain::commit(&self.db, &checkpoint, at).unwrap();
                if end.is_none() {
                    return turn;
                }
            }
            turns::end(&self.db, turn, end.unwrap(), None, &Spent::default(), at).unwrap();
            inbox::end_of_turn(&self.db, turn, None, at).unwrap();
            let target = Target { channel: "telegram:1".into(), chat: chat.into(), thread: None, reply_to: None };
            let part = NewPart { html: None, plain: "words".into() };
            outbox::insert(&self.db, &target, (Some(session), Some(turn)), &[part], at).unwrap();
            let reply = crate::domain::OutboxId::from_row(self.db.last_insert_rowid());
            outbox::begin(&self.db, reply, self.boot).unwrap();
            outbox::finish(&self.db, reply, sent, at).unwrap();
            timeline::append(&self.db, &Entry { turn: Some(turn), kind: "turn.ended", ..Entry::default() }, at)
                .unwrap();
            turn
        }

        /// Sweeps until there is no more; the number that ends it is part of the test.
        fn sweep(&self) -> usize {
            let (mut from, mut rows) = (Position::default(), 0);
            for _ in 0..50 {
                let transaction = self.db.unchecked_transaction().unwrap();
                let swept = sweep(&transaction, &cutoffs(), &from).unwrap();
                transaction.commit().unwrap();
                rows += swept.rows;
                if !swept.has_more {
                    return rows;
                }
                from = swept.next;
            }
            panic!("sweeping never ended");
        }

        fn count(&self, sql: &str) -> i64 {
            self.db.query_row(sql, [], |row| row.get(0)).unwrap()
        }

        fn counts(&self) -> [i64; 6] {
            ["inbox", "outbox", "turns", "checkpoints", "messages", "timeline"]
                .map(|table| self.count(&format!("select count(*) from {table}")))
        }
    }

    fn sent() -> Outcome {
        Outcome::Sent("9".into())
    }

    #[test]
    fn what_ended_long_ago_goes_and_the_chain_goes_on() {
        let mut shop = Shop::open();
        for at in 0..400 {
            shop.turn("a", day(TODAY - 740 + at), Some(EndReason::Natural), &sent(), true);
        }
        shop.turn("a", day(TODAY - 20), Some(EndReason::Natural), &sent(), true);
        assert_eq!(shop.counts(), [401, 401, 401, 802, 802, 401]);
        assert!(shop.sweep() > 0);
        // What was said stays for a year, and with it its turns: 25 of the 400 days, and the newest.
        assert_eq!(shop.counts(), [1, 1, 26, 2, 52, 1]);
        assert_eq!(shop.sweep(), 0, "a second sweep finds nothing");
        assert_eq!(shop.count("select count(*) from checkpoints where parent is null"), 1);
        assert_eq!(shop.count("select count(*) from pragma_foreign_key_check"), 0);
        let next = shop.turn("a", day(TODAY), Some(EndReason::Natural), &sent(), false);
        assert_eq!(next.row(), 402, "ids go on");
        assert_eq!(shop.sweep(), 0);
    }

    #[test]
    fn what_is_open_in_doubt_or_in_the_window_stays_however_old() {
        let mut shop = Shop::open();
        let old = day(TODAY - 3_000);
        shop.turn("in the window", old, Some(EndReason::Natural), &sent(), false);
        shop.turn("in doubt", old, Some(EndReason::Natural), &Outcome::Uncertain("lost".into()), true);
        shop.turn("dead", old, Some(EndReason::Natural), &Outcome::Dead("blocked".into()), true);
        shop.turn("parked", old, Some(EndReason::Natural), &sent(), false);
        let parked = shop.turn("parked", old, None, &sent(), true);
        turns::end(&shop.db, parked, EndReason::Parked, None, &Spent::default(), old).unwrap();
        inbox::end_of_turn(&shop.db, parked, Some("parked"), old).unwrap();
        shop.turn("open", old, None, &sent(), true);
        shop.arrives("waiting", old);
        shop.sweep();
        let kept = |sql: &str| shop.count(sql);
        assert_eq!(kept("select count(*) from outbox where state in ('uncertain', 'dead')"), 2);
        assert_eq!(kept("select count(*) from inbox where state in ('new', 'running', 'dead')"), 3);
        assert_eq!(kept("select count(*) from turns where state in ('running', 'parked')"), 2);
        // In the window, in doubt and dead: two each; parked: two and one; open: one.
        assert_eq!(kept("select count(*) from messages"), 10);
        // Of the idle sessions the head; of the others the whole chain.
        assert_eq!(kept("select count(*) from checkpoints"), 3 + 3 + 1);
        assert_eq!(kept("select count(*) from pragma_foreign_key_check"), 0);
    }

    #[test]
    fn messages_that_were_joined_go_together() {
        let mut shop = Shop::open();
        let old = day(TODAY - 100);
        let turn = shop.turn("a", old, Some(EndReason::Natural), &sent(), true);
        let head = shop.count("select max(id) from inbox");
        let session = shop.arrives("a", old);
        shop.db
            .execute(
                "update inbox set state = 'joined', joined_to = ?1, turn = ?2 where state = 'new' and session = ?3",
                params![head, turn.row(), session.to_string()],
            )
            .unwrap();
        shop.sweep();
        assert_eq!(shop.count("select count(*) from inbox"), 2, "the newest row stays, and so what it points at");
        shop.turn("a", day(TODAY), Some(EndReason::Natural), &sent(), true);
        shop.sweep();
        assert_eq!(shop.count("select count(*) from inbox"), 1);
    }
}
