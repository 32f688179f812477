//! What happened, in order: append-only, for people, never replayed as state.

use rusqlite::{Connection, params};
use serde_json::Value;

use super::StoreError;
use crate::domain::{CallId, SessionId, Timestamp, TurnId};

/// A line of the timeline to be written.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Whose.
    pub session: Option<SessionId>,
    /// In which turn.
    pub turn: Option<TurnId>,
    /// About which call.
    pub call: Option<CallId>,
    /// `turn.opened`, `call.refused`, …: a word that scripts can match.
    pub kind: &'static str,
    /// Facts, never words of people and never a secret.
    pub detail: Value,
}

/// A stored line.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Line {
    /// When, RFC 3339.
    pub at: String,
    /// In which turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// About which call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The word.
    pub kind: String,
    /// The facts.
    pub detail: Value,
}

/// Appends a line.
///
/// # Errors
/// SQLite's.
pub fn append(db: &Connection, entry: &Entry, now: Timestamp) -> Result<(), StoreError> {
    db.prepare_cached(
        "insert into timeline (at_ms, session, turn, call, kind, detail) values (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        now.0,
        entry.session.map(|id| id.to_string()),
        entry.turn.map(TurnId::row),
        entry.call.map(|id| id.to_string()),
        entry.kind,
        entry.detail.to_string()
    ])?;
    Ok(())
}

/// The newest `limit` lines of a session or of one turn, oldest first.
///
/// # Errors
/// SQLite's.
pub fn read(
    db: &Connection,
    session: Option<SessionId>,
    turn: Option<TurnId>,
    limit: i64,
) -> Result<Vec<Line>, StoreError> {
    let mut sql = db.prepare_cached(
        "select at_ms, turn, call, kind, detail from (
             select * from timeline where (?1 is null or session = ?1) and (?2 is null or turn = ?2)
              order by id desc limit ?3) order by id",
    )?;
    let rows = sql.query_map(params![session.map(|id| id.to_string()), turn.map(TurnId::row), limit], |row| {
        Ok(Line {
            at: Timestamp(row.get(0)?).rfc3339(),
            turn: row.get::<_, Option<i64>>(1)?.map(TurnId::from_row),
            call: row.get(2)?,
            kind: row.get(3)?,
            detail: serde_json::from_str(&row.get::<_, String>(4)?).unwrap_or(Value::Null),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
