//! Pairing codes: single use, a few tries, an end.
//!
//! ```text
//! open ──right code──▶ claimed ──link written──▶ done        open ──tries used up or too old──▶ void
//! ```
//! A claimed code is bound to the chat that sent it, so that a crash before the file is written can be made good.

use rusqlite::{Connection, OptionalExtension, params};

use super::StoreError;
use crate::domain::Timestamp;

/// Wrong codes that an open code survives.
pub const TRIES: i64 = 5;

/// What became of a code that somebody sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Right; this is its row.
    Claimed(i64),
    /// No code is open.
    NoneOpen,
    /// Wrong; open codes have this many tries left.
    Wrong(i64),
}

/// Opens a code; an earlier open one of the same channel is void.
///
/// # Errors
/// SQLite's.
pub fn open(
    db: &Connection,
    channel: &str,
    digest: &str,
    expires_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    db.execute("update pins set state = 'void' where kind = 'pairing' and channel = ?1 and state = 'open'", [channel])?;
    db.execute(
        "insert into pins (kind, channel, digest, state, tries_left, expires_at_ms, created_at_ms)
         values ('pairing', ?1, ?2, 'open', ?3, ?4, ?5)",
        params![channel, digest, TRIES, expires_at.0, now.0],
    )?;
    Ok(())
}

/// Tries a code for `channel`; the right one is claimed with `claim` as what it is turned into.
///
/// # Errors
/// SQLite's.
pub fn claim(
    db: &Connection,
    channel: &str,
    digest: &str,
    claim: &serde_json::Value,
    now: Timestamp,
) -> Result<Claim, StoreError> {
    db.execute("update pins set state = 'void' where state = 'open' and expires_at_ms <= ?1", [now.0])?;
    let open: Option<(i64, String, i64)> = db
        .query_row(
            "select id, digest, tries_left from pins where kind = 'pairing' and channel = ?1 and state = 'open'",
            [channel],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let Some((id, wanted, tries)) = open else { return Ok(Claim::NoneOpen) };
    if wanted == digest {
        db.execute("update pins set state = 'claimed', claim = ?2 where id = ?1", params![id, claim.to_string()])?;
        return Ok(Claim::Claimed(id));
    }
    let left = tries - 1;
    db.execute(
        "update pins set tries_left = ?2, state = case when ?2 <= 0 then 'void' else 'open' end where id = ?1",
        params![id, left],
    )?;
    Ok(Claim::Wrong(left))
}

/// Codes that were claimed but not yet turned into a link.
///
/// # Errors
/// SQLite's.
pub fn claimed(db: &Connection) -> Result<Vec<(i64, serde_json::Value)>, StoreError> {
    let mut sql = db.prepare_cached("select id, claim from pins where state = 'claimed' order by id")?;
    let rows: Vec<(i64, String)> =
        sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    rows.into_iter().map(|(id, claim)| Ok((id, serde_json::from_str(&claim)?))).collect()
}

/// A claimed code has become a link, or could not.
///
/// # Errors
/// SQLite's.
pub fn finish(db: &Connection, id: i64, done: bool) -> Result<bool, StoreError> {
    let state = if done { "done" } else { "void" };
    Ok(db.execute("update pins set state = ?2 where id = ?1 and state = 'claimed'", params![id, state])? == 1)
}
