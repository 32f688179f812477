//! The checkpoint chain of a session and the messages it speaks of. A commit names its parent and fails unless that
//! is the head: two writers cannot fork a chain.

use rusqlite::{Connection, OptionalExtension, params};

use super::StoreError;
use crate::domain::{CheckpointId, Message, SessionId, Timestamp, TurnId};

/// Why a checkpoint was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A turn began.
    Opened,
    /// The model proposed calls; none has run.
    Proposed,
    /// The calls have their results.
    Completed,
    /// A batch that a crash left open was closed.
    Repaired,
    /// The window moved past the oldest exchanges.
    Compacted,
    /// The turn ended.
    Concluded,
}

impl Kind {
    /// The word in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Proposed => "proposed",
            Self::Completed => "completed",
            Self::Repaired => "repaired",
            Self::Compacted => "compacted",
            Self::Concluded => "concluded",
        }
    }
}

/// A checkpoint to be written.
#[derive(Clone, Debug)]
pub struct NewCheckpoint {
    /// Whose chain.
    pub session: SessionId,
    /// The head it builds on; none for the first.
    pub parent: Option<CheckpointId>,
    /// The turn at work.
    pub turn: TurnId,
    /// Model calls so far in this turn.
    pub round: u32,
    /// Why.
    pub kind: Kind,
    /// First message in the window.
    pub first_seq: i64,
    /// Messages that come with it.
    pub messages: Vec<Message>,
    /// What a resumed turn needs besides the messages.
    pub state: serde_json::Value,
}

/// A checkpoint that stands.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its id.
    pub id: CheckpointId,
    /// The turn that wrote it.
    pub turn: TurnId,
    /// Its kind, as stored.
    pub kind: String,
    /// Model calls so far in that turn.
    pub round: u32,
    /// First message in the window.
    pub first_seq: i64,
    /// Last message.
    pub last_seq: i64,
    /// What a resumed turn needs.
    pub state: serde_json::Value,
}

/// A message with its number in the session.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbered {
    /// Counted from 1.
    pub seq: i64,
    /// The turn it belongs to.
    pub turn: TurnId,
    /// The message.
    pub message: Message,
}

/// Appends the messages and the checkpoint, and moves the head.
///
/// # Errors
/// [`StoreError::NotHead`] when `parent` is not the head; SQLite's.
pub fn commit(db: &Connection, new: &NewCheckpoint, now: Timestamp) -> Result<(CheckpointId, i64), StoreError> {
    let session = new.session.to_string();
    let (head, mut last_seq): (Option<i64>, i64) = db
        .prepare_cached("select head, last_seq from sessions where id = ?1")?
        .query_row([&session], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if head != new.parent.map(CheckpointId::row) {
        return Err(StoreError::NotHead { session: new.session });
    }
    for message in &new.messages {
        last_seq += 1;
        db.prepare_cached(
            "insert into messages (session, seq, turn, role, blocks, created_at_ms) values (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            session,
            last_seq,
            new.turn.row(),
            message.role.as_str(),
            serde_json::to_string(&message.blocks)?,
            now.0
        ])?;
    }
    db.prepare_cached(
        "insert into checkpoints (session, parent, turn, round, kind, first_seq, last_seq, state, created_at_ms)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        session,
        new.parent.map(CheckpointId::row),
        new.turn.row(),
        new.round,
        new.kind.as_str(),
        new.first_seq,
        last_seq,
        new.state.to_string(),
        now.0
    ])?;
    let id = CheckpointId::from_row(db.last_insert_rowid());
    db.prepare_cached("update sessions set head = ?2, last_seq = ?3, active_at_ms = ?4 where id = ?1")?
        .execute(params![session, id.row(), last_seq, now.0])?;
    Ok((id, last_seq))
}

/// The newest checkpoint of `session`.
///
/// # Errors
/// SQLite's; a state that is no JSON.
pub fn head(db: &Connection, session: SessionId) -> Result<Option<Checkpoint>, StoreError> {
    let found = db
        .prepare_cached(
            "select c.id, c.turn, c.kind, c.round, c.first_seq, c.last_seq, c.state
               from sessions s join checkpoints c on c.id = s.head where s.id = ?1",
        )?
        .query_row([session.to_string()], |row| {
            Ok((
                Checkpoint {
                    id: CheckpointId::from_row(row.get(0)?),
                    turn: TurnId::from_row(row.get(1)?),
                    kind: row.get(2)?,
                    round: row.get(3)?,
                    first_seq: row.get(4)?,
                    last_seq: row.get(5)?,
                    state: serde_json::Value::Null,
                },
                row.get::<_, String>(6)?,
            ))
        })
        .optional()?;
    found.map(|(checkpoint, state)| Ok(Checkpoint { state: serde_json::from_str(&state)?, ..checkpoint })).transpose()
}

/// The messages of `session` from number `from` on, in order; the newest `limit` of them.
///
/// # Errors
/// SQLite's; blocks that do not read back.
pub fn messages(db: &Connection, session: SessionId, from: i64, limit: i64) -> Result<Vec<Numbered>, StoreError> {
    let mut sql = db.prepare_cached(
        "select seq, turn, role, blocks from (
             select seq, turn, role, blocks from messages where session = ?1 and seq >= ?2 order by seq desc limit ?3)
          order by seq",
    )?;
    let rows: Vec<(i64, i64, String, String)> = sql
        .query_map(params![session.to_string(), from, limit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<Result<_, _>>()?;
    rows.into_iter()
        .map(|(seq, turn, role, blocks)| {
            let role = serde_json::from_value(serde_json::Value::String(role))?;
            let message = Message { role, blocks: serde_json::from_str(&blocks)? };
            Ok(Numbered { seq, turn: TurnId::from_row(turn), message })
        })
        .collect()
}
