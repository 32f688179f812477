//! Reply parts on their way out.
//!
//! ```text
//! pending ──▶ sending ──▶ sent
//!    ▲           ├──▶ pending    asked to wait, or surely not received
//!    │           ├──▶ uncertain  the answer was lost, or the process died: never sent again by itself
//!    └─ resend ──┴──▶ dead       cannot be sent
//! ```

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::StoreError;
use crate::domain::{BootId, OutboxId, SessionId, Timestamp, TurnId};

/// Where a reply goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// `kind:account`.
    pub channel: String,
    /// The chat.
    pub chat: String,
    /// The topic within it.
    pub thread: Option<String>,
    /// The message it answers, where the chat has many speakers.
    pub reply_to: Option<String>,
}

/// One part to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPart {
    /// With the platform's formatting; none for plain text.
    pub html: Option<String>,
    /// Without.
    pub plain: String,
}

/// One stored part.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its id.
    pub id: OutboxId,
    /// Where it goes.
    pub target: Target,
    /// With formatting.
    pub html: Option<String>,
    /// Without.
    pub plain: String,
    /// The reader may have seen it already, and is told so.
    pub again: bool,
    /// Sends begun so far.
    pub attempts: u32,
    /// The turn it belongs to.
    pub turn: Option<TurnId>,
    /// Its session.
    pub session: Option<SessionId>,
    /// pending, sending, sent, uncertain or dead.
    pub state: String,
    /// Why it is not sent.
    pub error: Option<String>,
    /// Waits until then.
    pub not_before: Timestamp,
    /// When it was stored.
    pub created_at: Timestamp,
    /// It tells the operator of what needs a person.
    pub notice: bool,
}

const COLUMNS: &str = "id, channel, chat, thread, reply_to, html, plain, again, attempts, turn, session, state, error,
                       not_before_ms, created_at_ms, notice";

fn from_row(row: &Row<'_>) -> rusqlite::Result<Part> {
    let session: Option<String> = row.get(10)?;
    Ok(Part {
        id: OutboxId::from_row(row.get(0)?),
        target: Target { channel: row.get(1)?, chat: row.get(2)?, thread: row.get(3)?, reply_to: row.get(4)? },
        html: row.get(5)?,
        plain: row.get(6)?,
        again: row.get(7)?,
        attempts: row.get(8)?,
        turn: row.get::<_, Option<i64>>(9)?.map(TurnId::from_row),
        session: session.and_then(|id| id.parse().ok()),
        state: row.get(11)?,
        error: row.get(12)?,
        not_before: Timestamp(row.get(13)?),
        created_at: Timestamp(row.get(14)?),
        notice: row.get(15)?,
    })
}

/// Stores a reply; its parts are sent in this order.
///
/// # Errors
/// SQLite's.
pub fn insert(
    db: &Connection,
    target: &Target,
    of: (Option<SessionId>, Option<TurnId>),
    parts: &[NewPart],
    now: Timestamp,
) -> Result<(), StoreError> {
    for (at, part) in (1_i64..).zip(parts) {
        db.prepare_cached(
            "insert into outbox (channel, chat, thread, reply_to, session, turn, part, parts, html, plain, state,
                                 created_at_ms)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'pending', ?11)",
        )?
        .execute(params![
            target.channel,
            target.chat,
            target.thread,
            // Only the first part points at what it answers; a reader needs no more.
            target.reply_to.as_ref().filter(|_| at == 1),
            of.0.map(|id| id.to_string()),
            of.1.map(TurnId::row),
            at,
            i64::try_from(parts.len()).unwrap_or(i64::MAX),
            part.html,
            part.plain,
            now.0
        ])?;
    }
    Ok(())
}

/// The next part of each chat of `channel` that has none on its way: order within a chat is kept.
///
/// # Errors
/// SQLite's.
pub fn heads(db: &Connection, channel: &str, limit: usize) -> Result<Vec<Part>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from outbox where id in (
             select min(id) from outbox where channel = ?1 and state in ('pending', 'sending') group by chat)
            and state = 'pending' order by id limit ?2"
    );
    let mut sql = db.prepare_cached(&sql)?;
    let rows = sql.query_map(params![channel, i64::try_from(limit).unwrap_or(i64::MAX)], from_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Marks a part as on its way; from here on a crash leaves it uncertain.
///
/// # Errors
/// [`StoreError::Refused`] when it is not pending any more; SQLite's.
pub fn begin(db: &Connection, id: OutboxId, boot: BootId) -> Result<(), StoreError> {
    let changed = db
        .prepare_cached(
            "update outbox set state = 'sending', attempts = attempts + 1, boot = ?2, error = null
              where id = ?1 and state = 'pending'",
        )?
        .execute(params![id.row(), boot.to_string()])?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Refused(format!("{id} is no longer pending"))) }
}

/// How a send ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It stands in the chat under the platform's id.
    Sent(String),
    /// It surely does not; again after this instant.
    Later(Timestamp, String),
    /// The formatting was refused; once more as plain text.
    Plain(String),
    /// The answer was lost.
    Uncertain(String),
    /// It cannot be sent.
    Dead(String),
}

/// Stores how a send ended.
///
/// # Errors
/// SQLite's.
pub fn finish(db: &Connection, id: OutboxId, outcome: &Outcome, now: Timestamp) -> Result<(), StoreError> {
    let (state, platform_id, not_before, error) = match outcome {
        Outcome::Sent(platform_id) => ("sent", Some(platform_id), None, None),
        Outcome::Later(at, why) => ("pending", None, Some(at.0), Some(why)),
        Outcome::Plain(why) => ("pending", None, None, Some(why)),
        Outcome::Uncertain(why) => ("uncertain", None, None, Some(why)),
        Outcome::Dead(why) => ("dead", None, None, Some(why)),
    };
    let ended = matches!(outcome, Outcome::Sent(_) | Outcome::Uncertain(_) | Outcome::Dead(_));
    db.prepare_cached(
        "update outbox set state = ?2, platform_id = coalesce(?3, platform_id), not_before_ms = coalesce(?4, not_before_ms),
                           error = ?5, ended_at_ms = ?6, html = case when ?7 then null else html end
          where id = ?1 and state = 'sending'",
    )?
    .execute(params![
        id.row(),
        state,
        platform_id,
        not_before,
        error,
        ended.then_some(now.0),
        matches!(outcome, Outcome::Plain(_))
    ])?;
    Ok(())
}

/// Marks what `boot` had on its way on `channel` as uncertain: the task that sent it is gone.
///
/// # Errors
/// SQLite's.
pub fn doubt(db: &Connection, channel: &str, boot: BootId, now: Timestamp) -> Result<usize, StoreError> {
    Ok(db.execute(
        "update outbox set state = 'uncertain', error = 'the courier broke while this was on its way', ended_at_ms = ?3
          where channel = ?1 and state = 'sending' and boot = ?2",
        params![channel, boot.to_string(), now.0],
    )?)
}

/// One part.
///
/// # Errors
/// SQLite's.
pub fn get(db: &Connection, id: OutboxId) -> Result<Option<Part>, StoreError> {
    let sql = format!("select {COLUMNS} from outbox where id = ?1");
    Ok(db.prepare_cached(&sql)?.query_row([id.row()], from_row).optional()?)
}

/// Parts that need a person: uncertain and dead ones, newest first.
///
/// # Errors
/// SQLite's.
pub fn in_doubt(db: &Connection, limit: i64) -> Result<Vec<Part>, StoreError> {
    let sql = format!("select {COLUMNS} from outbox where state in ('uncertain', 'dead') order by id desc limit ?1");
    let mut sql = db.prepare_cached(&sql)?;
    let rows = sql.query_map([limit], from_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Sends an uncertain or dead part again because a person asked; an uncertain one says that it may be known.
///
/// # Errors
/// [`StoreError::Refused`] for any other state; SQLite's.
pub fn resend(db: &Connection, id: OutboxId) -> Result<(), StoreError> {
    let changed = db.execute(
        "update outbox set again = (state = 'uncertain' or again = 1), state = 'pending', not_before_ms = 0, ended_at_ms = null
          where id = ?1 and state in ('uncertain', 'dead')",
        [id.row()],
    )?;
    if changed == 1 { Ok(()) } else { Err(not_in_doubt(db, id)?) }
}

/// Gives an uncertain or dead part up; it stays as `dead` with the reason `dropped`, and needs nobody any more.
///
/// # Errors
/// [`StoreError::Refused`] for any other state; SQLite's.
pub fn drop_part(db: &Connection, id: OutboxId, now: Timestamp) -> Result<(), StoreError> {
    let changed = db.execute(
        "update outbox set state = 'dead', error = 'dropped', ended_at_ms = ?2
          where id = ?1 and state in ('uncertain', 'dead')",
        params![id.row(), now.0],
    )?;
    if changed == 1 { Ok(()) } else { Err(not_in_doubt(db, id)?) }
}

fn not_in_doubt(db: &Connection, id: OutboxId) -> Result<StoreError, StoreError> {
    Ok(StoreError::Refused(match get(db, id)? {
        Some(part) => format!("{id} is {}; only uncertain and dead replies can be acted on", part.state),
        None => format!("{id} is unknown; `midwatch replies` lists what can be acted on"),
    }))
}
