//! Turns and the leases under which they work: one turn at a time per session, held by one start of the daemon.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::StoreError;
use crate::domain::{BootId, Budget, EndReason, SessionId, Spent, Timestamp, TurnId};

/// A turn in whose attempts the process died this often is parked.
pub const CRASHES_MAX: u32 = 2;

/// A turn to be opened.
#[derive(Clone, Debug)]
pub struct NewTurn {
    /// Its session, which has no turn at work.
    pub session: SessionId,
    /// `message` or `command`.
    pub cause: &'static str,
    /// `console` or `daemon`.
    pub mode: &'static str,
    /// The link whose rights it has.
    pub link: Option<String>,
    /// Who began it.
    pub sender: String,
    /// The start of the daemon that works on it.
    pub boot: BootId,
    /// What it may spend.
    pub budget: Budget,
    /// The model it begins with.
    pub model: String,
}

/// A turn as stored.
#[derive(Clone, Debug)]
pub struct TurnRow {
    /// Its id.
    pub id: TurnId,
    /// Its session.
    pub session: SessionId,
    /// `console` or `daemon`.
    pub mode: String,
    /// running, suspended, done or parked.
    pub state: String,
    /// The link whose rights it has.
    pub link: Option<String>,
    /// Who began it.
    pub sender: String,
    /// Times the process died over it.
    pub crashes: u32,
    /// What it may spend.
    pub budget: Budget,
    /// What it has spent.
    pub spent: Spent,
    /// Someone who may asked for its end.
    pub cancel_asked: bool,
    /// How it ended.
    pub end_reason: Option<EndReason>,
    /// When it was opened.
    pub started_at: Timestamp,
}

const COLUMNS: &str =
    "id, session, mode, state, link, sender, crashes, budget, spent, end_reason, started_at_ms, cancel_asked";

fn from_row(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    let bad = |index, error: String| {
        rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, error.into())
    };
    let json = |index| row.get::<_, String>(index);
    Ok(TurnRow {
        id: TurnId::from_row(row.get(0)?),
        session: json(1)?.parse().map_err(|error| bad(1, format!("{error}")))?,
        mode: row.get(2)?,
        state: row.get(3)?,
        link: row.get(4)?,
        sender: row.get(5)?,
        crashes: row.get(6)?,
        budget: serde_json::from_str(&json(7)?).map_err(|error| bad(7, error.to_string()))?,
        spent: serde_json::from_str(&json(8)?).map_err(|error| bad(8, error.to_string()))?,
        end_reason: row.get::<_, Option<String>>(9)?.map(|text| text.parse()).transpose().map_err(|e| bad(9, e))?,
        started_at: Timestamp(row.get(10)?),
        cancel_asked: row.get(11)?,
    })
}

/// Opens a turn and takes the session's lease.
///
/// # Errors
/// [`StoreError::Refused`] when another turn holds the lease; SQLite's.
pub fn open(db: &Connection, new: &NewTurn, now: Timestamp) -> Result<TurnId, StoreError> {
    db.prepare_cached(
        "insert into turns (session, cause, mode, state, link, sender, boot, budget, spent, model, started_at_ms)
         values (?1, ?2, ?3, 'running', ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        new.session.to_string(),
        new.cause,
        new.mode,
        new.link,
        new.sender,
        new.boot.to_string(),
        serde_json::to_string(&new.budget)?,
        serde_json::to_string(&Spent::default())?,
        new.model,
        now.0
    ])?;
    let turn = TurnId::from_row(db.last_insert_rowid());
    lease(db, new.session, turn, new.boot)?;
    db.prepare_cached("update sessions set turns = turns + 1 where id = ?1")?.execute([new.session.to_string()])?;
    Ok(turn)
}

fn lease(db: &Connection, session: SessionId, turn: TurnId, boot: BootId) -> Result<(), StoreError> {
    let taken = db
        .prepare_cached("update sessions set lease_turn = ?2, lease_boot = ?3 where id = ?1 and lease_turn is null")?
        .execute(params![session.to_string(), turn.row(), boot.to_string()])?;
    if taken == 1 { Ok(()) } else { Err(StoreError::Refused(format!("session {session} has a turn at work"))) }
}

/// Takes up a suspended turn under this boot's lease.
///
/// # Errors
/// [`StoreError::Refused`] when it is not suspended or its session is taken; SQLite's.
pub fn resume(db: &Connection, turn: TurnId, boot: BootId) -> Result<TurnRow, StoreError> {
    let row = get(db, turn)?.ok_or_else(|| StoreError::Refused(format!("{turn} is unknown")))?;
    if row.state != "suspended" {
        return Err(StoreError::Refused(format!("{turn} is {}, not suspended", row.state)));
    }
    lease(db, row.session, turn, boot)?;
    db.prepare_cached("update turns set state = 'running', boot = ?2 where id = ?1")?
        .execute(params![turn.row(), boot.to_string()])?;
    Ok(row)
}

/// One turn.
///
/// # Errors
/// SQLite's.
pub fn get(db: &Connection, turn: TurnId) -> Result<Option<TurnRow>, StoreError> {
    let sql = format!("select {COLUMNS} from turns where id = ?1");
    Ok(db.prepare_cached(&sql)?.query_row([turn.row()], from_row).optional()?)
}

/// Suspended turns whose session is free, oldest first.
///
/// # Errors
/// SQLite's.
pub fn suspended(db: &Connection, limit: usize) -> Result<Vec<TurnRow>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from turns where state = 'suspended'
            and (select lease_turn from sessions where id = session) is null
          order by id limit {limit}"
    );
    let mut sql = db.prepare_cached(&sql)?;
    let rows = sql.query_map([], from_row)?.collect::<Result<_, _>>()?;
    Ok(rows)
}

/// Stores what a turn has spent so far.
///
/// # Errors
/// SQLite's.
pub fn spend(db: &Connection, turn: TurnId, spent: &Spent) -> Result<(), StoreError> {
    db.prepare_cached("update turns set spent = ?2 where id = ?1")?
        .execute(params![turn.row(), serde_json::to_string(spent)?])?;
    Ok(())
}

/// Ends a turn and gives its session free.
///
/// # Errors
/// [`StoreError::Refused`] when it had ended before; SQLite's.
pub fn end(
    db: &Connection,
    turn: TurnId,
    reason: EndReason,
    detail: Option<&str>,
    spent: &Spent,
    now: Timestamp,
) -> Result<(), StoreError> {
    let state = if reason == EndReason::Parked { "parked" } else { "done" };
    let changed = db
        .prepare_cached(
            "update turns set state = ?2, end_reason = ?3, detail = ?4, spent = ?5, ended_at_ms = ?6
              where id = ?1 and state in ('running', 'suspended', 'parked')",
        )?
        .execute(params![turn.row(), state, reason.as_str(), detail, serde_json::to_string(spent)?, now.0])?;
    if changed != 1 {
        return Err(StoreError::Refused(format!("{turn} has ended before")));
    }
    release(db, turn)
}

/// Puts a running turn aside, to be resumed from its last checkpoint; its session is free.
///
/// # Errors
/// SQLite's.
pub fn suspend(db: &Connection, turn: TurnId, spent: &Spent) -> Result<(), StoreError> {
    db.prepare_cached(
        "update turns set state = 'suspended', spent = ?2 where id = ?1 and state in ('running', 'parked')",
    )?
    .execute(params![turn.row(), serde_json::to_string(spent)?])?;
    release(db, turn)
}

fn release(db: &Connection, turn: TurnId) -> Result<(), StoreError> {
    db.prepare_cached("update sessions set lease_turn = null, lease_boot = null where lease_turn = ?1")?
        .execute([turn.row()])?;
    Ok(())
}

/// The turn of `session` that is at work or put aside.
///
/// # Errors
/// SQLite's.
pub fn open_of(db: &Connection, session: SessionId) -> Result<Option<TurnRow>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from turns where session = ?1 and state in ('running', 'suspended') order by id limit 1"
    );
    Ok(db.prepare_cached(&sql)?.query_row([session.to_string()], from_row).optional()?)
}

/// Notes that the end of `turn` was asked for, so that a restart does not forget it.
///
/// # Errors
/// SQLite's.
pub fn ask_cancel(db: &Connection, turn: TurnId) -> Result<(), StoreError> {
    db.prepare_cached("update turns set cancel_asked = 1 where id = ?1")?.execute([turn.row()])?;
    Ok(())
}

/// Turns that this boot holds, whether or not anybody works on them.
///
/// # Errors
/// SQLite's.
pub fn held_by(db: &Connection, boot: BootId) -> Result<Vec<TurnId>, StoreError> {
    let mut sql = db.prepare_cached("select id from turns where state = 'running' and boot = ?1 order by id")?;
    let rows = sql.query_map([boot.to_string()], |row| row.get(0).map(TurnId::from_row))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Turns of a session, newest first; all sessions' when none is named.
///
/// # Errors
/// SQLite's.
pub fn list(
    db: &Connection,
    session: Option<SessionId>,
    open_only: bool,
    limit: i64,
) -> Result<Vec<TurnRow>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from turns where (?1 is null or session = ?1) and (?2 = 0 or state <> 'done')
          order by id desc limit ?3"
    );
    let mut sql = db.prepare_cached(&sql)?;
    let rows = sql
        .query_map(params![session.map(|id| id.to_string()), open_only, limit], from_row)?
        .collect::<Result<_, _>>()?;
    Ok(rows)
}

/// Tokens and money of all turns that were opened since `since`.
///
/// # Errors
/// SQLite's.
pub fn spent_since(db: &Connection, since: Timestamp) -> Result<(u64, Spent), StoreError> {
    let mut sql = db.prepare_cached(
        "select spent from turns where id >= coalesce((select min(id) from turns where started_at_ms >= ?1), 9e18)",
    )?;
    let mut all = Spent::default();
    let mut turns = 0;
    let mut rows = sql.query([since.0])?;
    while let Some(row) = rows.next()? {
        let spent: Spent = serde_json::from_str(&row.get::<_, String>(0)?)?;
        turns += 1;
        all.time_ms += spent.time_ms;
        all.rounds += spent.rounds;
        all.input_tokens += spent.input_tokens;
        all.output_tokens += spent.output_tokens;
        all.cost_usd += spent.cost_usd;
    }
    Ok((turns, all))
}
