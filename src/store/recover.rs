//! What a start finds: leases of an earlier boot are void, turns it died over are counted, sends it died over are
//! uncertain.

use rusqlite::{Connection, params};

use super::StoreError;
use super::turns::CRASHES_MAX;
use crate::domain::{BootId, Timestamp, TurnId};

/// What the start found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Turns to be resumed.
    pub resumed: Vec<TurnId>,
    /// Turns over which the process died too often: the caller parks them.
    pub to_park: Vec<TurnId>,
    /// Reply parts that were on their way.
    pub uncertain: usize,
}

/// Takes over from earlier boots.
///
/// # Errors
/// SQLite's.
pub fn take_over(db: &Connection, boot: BootId, now: Timestamp) -> Result<Found, StoreError> {
    let boot = boot.to_string();
    let mut found = Found::default();
    let mut sql = db.prepare("select id, crashes from turns where state = 'running' and boot <> ?1 order by id")?;
    let died: Vec<(i64, u32)> =
        sql.query_map([&boot], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    for (turn, crashes) in died {
        let crashes = crashes + 1;
        db.execute("update turns set crashes = ?2, state = 'suspended' where id = ?1", params![turn, crashes])?;
        let turn = TurnId::from_row(turn);
        if crashes >= CRASHES_MAX { found.to_park.push(turn) } else { found.resumed.push(turn) }
    }
    db.execute(
        "update sessions set lease_turn = null, lease_boot = null where lease_boot is not null and lease_boot <> ?1",
        [&boot],
    )?;
    found.uncertain = db.execute(
        "update outbox set state = 'uncertain', error = 'the daemon stopped while this was on its way', ended_at_ms = ?2
          where state = 'sending' and boot <> ?1",
        params![boot, now.0],
    )?;
    Ok(found)
}
