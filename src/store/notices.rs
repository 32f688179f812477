//! What the operator was told of: each need once, for as long as it lasts.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};

use super::StoreError;
use super::outbox::{self, NewPart, Target};
use crate::domain::Timestamp;

/// Which of `needs` the operator was not told of yet.
///
/// # Errors
/// SQLite's.
pub fn untold(db: &Connection, needs: &[String]) -> Result<Vec<String>, StoreError> {
    let mut sql = db.prepare_cached("select 1 from notices where need = ?1")?;
    let mut untold = Vec::new();
    for need in needs {
        if !sql.exists([need])? {
            untold.push(need.clone());
        }
    }
    Ok(untold)
}

/// Notes that `needs` are told of by `part`, which goes to `target`.
///
/// # Errors
/// SQLite's.
pub fn tell(
    db: &Connection,
    needs: &[String],
    target: &Target,
    part: &NewPart,
    now: Timestamp,
) -> Result<(), StoreError> {
    for need in needs {
        db.prepare_cached("insert or ignore into notices (need, told_at_ms) values (?1, ?2)")?
            .execute(params![need, now.0])?;
    }
    outbox::insert(db, target, (None, None), std::slice::from_ref(part), now)?;
    db.execute("update outbox set notice = 1 where id = last_insert_rowid()", [])?;
    Ok(())
}

/// How many needs the operator was told of.
///
/// # Errors
/// SQLite's.
pub fn count(db: &Connection) -> Result<usize, StoreError> {
    let count: i64 = db.prepare_cached("select count(*) from notices")?.query_row([], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// Forgets what no longer needs anybody, so that it is told again when it comes back. Returns how many.
///
/// # Errors
/// SQLite's.
pub fn forget_others(db: &Connection, needs: &[String]) -> Result<usize, StoreError> {
    let still: BTreeSet<&str> = needs.iter().map(String::as_str).collect();
    let mut sql = db.prepare_cached("select need from notices")?;
    let told = sql.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    let mut gone = 0;
    for need in told.iter().filter(|need| !still.contains(need.as_str())) {
        gone += db.prepare_cached("delete from notices where need = ?1")?.execute([need])?;
    }
    Ok(gone)
}
