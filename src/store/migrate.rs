//! Brings a file to this version's schema: on a copy, with the old file kept as a backup.
//!
//! ```text
//! old file ─copy─▶ *.migrating ─steps, check, fsync─▶ ready
//! link old file as *.vN.backup, rename the copy over it       (one rename decides; a crash before it changes nothing)
//! ```

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::StoreError;

/// Every change to the schema, oldest first. A released step never changes; the next goes below.
pub const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_spine.sql"),
    include_str!("migrations/0002_retention.sql"),
    include_str!("migrations/0003_notices.sql"),
];

/// Marks the file as ours (`midw`), so that another program's database is not taken for one.
const APPLICATION_ID: i64 = 0x6d69_6477;

/// Creates `path` with the newest schema, or migrates it there; does nothing when it is there already.
///
/// # Errors
/// [`StoreError::FromTheFuture`] for a newer file, [`StoreError::Damaged`] for one SQLite cannot read,
/// [`StoreError::Migrate`] for a failed step. The file is unchanged in each case.
pub fn bring_up_to_date(path: &Path, steps: &[&str]) -> Result<(), StoreError> {
    let known = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    let exists = std::fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    let found = if exists { version_of(path)? } else { 0 };
    if found > known {
        return Err(StoreError::FromTheFuture { path: path.to_owned(), found, known });
    }
    if found == known {
        return Ok(());
    }
    let migrating = beside(path, ".migrating");
    // Left by a crash in an earlier try; the original still stands, so it is worth nothing.
    remove_with_wal(&migrating);
    let copied = if exists { copy(path, &migrating) } else { Ok(()) };
    let done = copied.and_then(|()| apply(&migrating, steps, found));
    if let Err(error) = done {
        remove_with_wal(&migrating);
        return Err(error);
    }
    let io = |error: std::io::Error| StoreError::Migrate { version: known, cause: error.to_string() };
    std::fs::File::open(&migrating).and_then(|file| file.sync_all()).map_err(io)?;
    crash_point!("migrate.copy_ready");
    if exists {
        let backup = beside(path, &format!(".v{found}.backup"));
        let _ = std::fs::remove_file(&backup);
        std::fs::hard_link(path, &backup).map_err(io)?;
        crash_point!("migrate.backup_kept");
    }
    std::fs::rename(&migrating, path).map_err(io)?;
    crash_point!("migrate.renamed");
    if let Some(folder) = path.parent() {
        std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
    }
    if exists {
        tracing::info!(from = found, to = known, "The store was migrated; a backup stands beside it.");
    }
    Ok(())
}

/// Reads the schema's number, refusing what is damaged or not ours.
fn version_of(path: &Path) -> Result<i64, StoreError> {
    let read = || {
        let db = Connection::open(path)?;
        db.execute_batch("pragma busy_timeout = 5000;")?;
        let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let owner: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let tables: i64 = db.query_row("select count(*) from sqlite_schema", [], |row| row.get(0))?;
        Ok((version, owner, tables))
    };
    let (version, owner, tables) = read()
        .map_err(|error: rusqlite::Error| StoreError::Damaged { path: path.to_owned(), cause: error.to_string() })?;
    if owner != APPLICATION_ID && tables > 0 {
        return Err(StoreError::Open { path: path.to_owned(), cause: "this is another program's database".to_owned() });
    }
    Ok(version)
}

/// A consistent copy without a write-ahead file, and the original with all of its own copied back.
fn copy(path: &Path, to: &Path) -> Result<(), StoreError> {
    let copy = || {
        let db = Connection::open(path)?;
        db.execute_batch("pragma busy_timeout = 5000;")?;
        db.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))?;
        db.execute("vacuum into ?1", [to.to_string_lossy()])?;
        Ok(())
    };
    copy().map_err(|error: rusqlite::Error| StoreError::Damaged { path: path.to_owned(), cause: error.to_string() })
}

fn apply(path: &Path, steps: &[&str], found: i64) -> Result<(), StoreError> {
    let opened = Connection::open(path);
    let mut db = opened.map_err(|error| StoreError::Open { path: path.to_owned(), cause: error.to_string() })?;
    let failed = |version| move |error: rusqlite::Error| StoreError::Migrate { version, cause: error.to_string() };
    let tx = db.transaction().map_err(failed(found))?;
    let missing = usize::try_from(found).ok().and_then(|found| steps.get(found..)).unwrap_or_default();
    for (version, sql) in (found + 1..).zip(missing) {
        tx.execute_batch(sql)
            .and_then(|()| tx.pragma_update(None, "user_version", version))
            .map_err(failed(version))?;
    }
    let version = found + i64::try_from(missing.len()).unwrap_or_default();
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed(version))?;
    tx.commit().map_err(failed(version))?;
    let check: String = db.query_row("pragma quick_check(1)", [], |row| row.get(0)).map_err(failed(version))?;
    let orphans = db.prepare("pragma foreign_key_check").and_then(|mut sql| sql.exists([])).map_err(failed(version))?;
    if check != "ok" || orphans {
        return Err(StoreError::Migrate { version, cause: format!("the copy does not pass its check: {check}") });
    }
    db.close().map_err(|(_, error)| failed(version)(error))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(ending);
    name.into()
}

fn remove_with_wal(path: &Path) {
    for ending in ["", "-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(beside(path, ending));
    }
}
