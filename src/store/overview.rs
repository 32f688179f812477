//! Counts and lists that `status` and `sessions` show.

use rusqlite::{Connection, params};
use serde::Serialize;

use super::StoreError;
use crate::domain::{SessionId, Timestamp};

/// Numbers of a glance.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// Messages that wait for a turn.
    pub inbox_new: i64,
    /// Messages that are worked on.
    pub inbox_running: i64,
    /// Messages that ended without an answer.
    pub inbox_dead: i64,
    /// Reply parts that wait or are on their way.
    pub outbox_pending: i64,
    /// Reply parts nobody knows of whether they arrived.
    pub outbox_uncertain: i64,
    /// Reply parts that cannot be sent and were not dropped by a person.
    pub outbox_dead: i64,
    /// Turns that are worked on.
    pub turns_running: i64,
    /// Turns set aside.
    pub turns_parked: i64,
}

/// Counts everything once.
///
/// # Errors
/// SQLite's.
pub fn counts(db: &Connection) -> Result<Counts, StoreError> {
    let one = |sql: &str| db.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0));
    Ok(Counts {
        inbox_new: one("select count(*) from inbox where state = 'new' and urgent = 0")?,
        inbox_running: one("select count(*) from inbox where state = 'running'")?,
        inbox_dead: one("select count(*) from inbox where state = 'dead'")?,
        outbox_pending: one("select count(*) from outbox where state in ('pending', 'sending')")?,
        outbox_uncertain: one("select count(*) from outbox where state = 'uncertain'")?,
        outbox_dead: one("select count(*) from outbox where state = 'dead' and error is not 'dropped'")?,
        turns_running: one("select count(*) from turns where state = 'running'")?,
        turns_parked: one("select count(*) from turns where state = 'parked'")?,
    })
}

/// A chat that wrote and is not linked.
#[derive(Clone, Debug, Serialize)]
pub struct Stranger {
    /// `kind:account`.
    pub channel: String,
    /// The chat's id.
    pub chat: String,
    /// Its name, or the sender's.
    pub name: String,
    /// The newest sender's id.
    pub sender: String,
    /// Why it was not answered.
    pub reason: String,
    /// How often it wrote.
    pub messages: i64,
    /// When it last wrote, RFC 3339.
    pub last_at: String,
}

/// Chats that wrote since `since` and were not answered for want of a link or a listed sender.
///
/// # Errors
/// SQLite's.
pub fn strangers(db: &Connection, since: Timestamp, limit: i64) -> Result<Vec<Stranger>, StoreError> {
    let mut sql = db.prepare_cached(
        "select channel, chat, max(case when chat_name <> '' then chat_name else sender_name end), max(sender), reason,
                count(*), max(received_at_ms)
           from inbox where state = 'ignored' and received_at_ms >= ?1 and reason in ('not linked', 'sender not listed')
          group by channel, chat, reason order by max(received_at_ms) desc limit ?2",
    )?;
    let rows = sql.query_map(params![since.0, limit], |row| {
        Ok(Stranger {
            channel: row.get(0)?,
            chat: row.get(1)?,
            name: row.get(2)?,
            sender: row.get(3)?,
            reason: row.get(4)?,
            messages: row.get(5)?,
            last_at: Timestamp(row.get(6)?).rfc3339(),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// One session in a list.
#[derive(Clone, Debug, Serialize)]
pub struct SessionLine {
    /// Its id.
    pub id: String,
    /// Its thread's first key.
    pub thread: String,
    /// The link that answers there.
    pub link: Option<String>,
    /// active, paused, completed or failed.
    pub status: String,
    /// Turns so far.
    pub turns: i64,
    /// Messages so far.
    pub messages: i64,
    /// When it was last at work, RFC 3339.
    pub active_at: String,
}

/// Sessions, the most recently active first.
///
/// # Errors
/// SQLite's.
pub fn sessions(db: &Connection, limit: i64) -> Result<Vec<SessionLine>, StoreError> {
    let mut sql = db.prepare_cached(
        "select id, first_key, link, status, turns, last_seq, active_at_ms from sessions
          order by active_at_ms desc, id limit ?1",
    )?;
    let rows = sql.query_map([limit], |row| {
        Ok(SessionLine {
            id: row.get(0)?,
            thread: row.get(1)?,
            link: row.get(2)?,
            status: row.get(3)?,
            turns: row.get(4)?,
            messages: row.get(5)?,
            active_at: Timestamp(row.get(6)?).rfc3339(),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Finds the session a person means: a whole id, its first characters (at least 4), a thread key, or a console
/// session's name.
///
/// # Errors
/// [`StoreError::Refused`] when there is none or more than one; SQLite's.
pub fn find_session(db: &Connection, text: &str) -> Result<SessionId, StoreError> {
    let mut sql = db.prepare_cached(
        "select distinct s.id from sessions s left join threads t on t.session = s.id
          where s.id = ?1 or t.key = ?1 or t.key = 'console:local:' || ?1
             or (length(?1) >= 4 and substr(s.id, 1, length(?1)) = lower(?1)) limit 2",
    )?;
    let found: Vec<String> = sql.query_map([text], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let shown: String = text.chars().take(80).collect();
    match found.as_slice() {
        [one] => one.parse().map_err(|error| StoreError::Refused(format!("{error}"))),
        [] => Err(StoreError::Refused(format!("no session `{shown}`; `midwatch sessions` lists them"))),
        _ => Err(StoreError::Refused(format!("`{shown}` fits more than one session; write more of its id"))),
    }
}
