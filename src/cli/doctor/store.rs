//! The store, looked at through a connection that cannot write.

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rusqlite::{Connection, OpenFlags};

use super::local::size;
use super::{Finding, LOOK_MAX};
use crate::config::Home;
use crate::store::migrate::MIGRATIONS;

const TOPIC: &str = "store";
/// A write-ahead file this large means that something keeps it from being copied back.
const WAL_MAX_BYTES: u64 = 256 << 20;

/// Opens it, and reads it through for as long as a look may take.
pub(super) async fn look(home: &Home) -> Vec<Finding> {
    if let Err(error) = home.check_store() {
        let fix = error.hint().unwrap_or_default();
        return vec![Finding::fault(TOPIC, error.to_string(), fix)];
    }
    let path = home.db_path();
    let bytes = match std::fs::metadata(&path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return vec![Finding::ok(TOPIC, "it is not there yet; the first start makes it")];
        }
        Err(error) => {
            let what = format!("cannot look at {}: {error}", path.display());
            return vec![Finding::fault(TOPIC, what, "look at the folder's owner")];
        }
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let file = path.clone();
    // A thread of its own: it may be busy with a large file for as long as a look lasts.
    let thread = std::thread::Builder::new().name("store-look".into());
    let started = thread.spawn(move || {
        let _ = sender.send(read_through(&file));
    });
    if let Err(error) = started {
        return vec![Finding::warn(TOPIC, format!("it cannot be looked at: {error}"), "try again")];
    }
    let mut findings = vec![match receiver.await {
        Ok(Ok(Read { version, is_whole })) => found(&path, bytes, version, is_whole),
        Ok(Err(cause)) => damaged(&path, &cause),
        Err(_) => Finding::warn(TOPIC, "it could not be looked at", "try again"),
    }];
    let wal = std::fs::metadata(wal_of(&path)).map_or(0, |meta| meta.len());
    if wal > WAL_MAX_BYTES {
        let what = format!("its write-ahead file has grown to {}", size(wal));
        findings.push(Finding::warn(TOPIC, what, "another program may hold the store open; a restart copies it back"));
    }
    findings
}

fn found(path: &Path, bytes: u64, version: i64, is_whole: Option<String>) -> Finding {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let shown = format!("{}, {}, schema {version}", path.display(), size(bytes));
    if version > known {
        let what = format!("{shown}, and this version knows up to {known}");
        return Finding::fault(TOPIC, what, "start the newer midwatch, or restore the backup that its migration kept");
    }
    match is_whole {
        Some(said) if said != "ok" => damaged(path, &said),
        Some(_) if version < known => Finding::ok(TOPIC, format!("{shown}; the next start brings it to {known}")),
        Some(_) => Finding::ok(TOPIC, shown),
        None => Finding::ok(TOPIC, format!("{shown}; too large to be read through in {} s", LOOK_MAX.as_secs())),
    }
}

fn damaged(path: &Path, cause: &str) -> Finding {
    let cause: String = cause.lines().next().unwrap_or_default().chars().take(200).collect();
    let what = format!("{} cannot be used: {cause}", path.display());
    Finding::fault(TOPIC, what, "stop the daemon, keep a copy, and restore the newest *.backup beside it")
}

struct Read {
    version: i64,
    /// SQLite's word on it; none when there was not enough time.
    is_whole: Option<String>,
}

fn read_through(path: &Path) -> Result<Read, String> {
    let db = open(path).map_err(|error| error.to_string())?;
    let version = db.query_row("pragma user_version", [], |row| row.get(0)).map_err(|error| error.to_string())?;
    let interrupt = db.get_interrupt_handle();
    let (done, waiting) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if waiting.recv_timeout(LOOK_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            interrupt.interrupt();
        }
    });
    let said = db.query_row("pragma quick_check(1)", [], |row| row.get::<_, String>(0));
    drop(done);
    let _ = watch.join();
    match said {
        Ok(said) => Ok(Read { version, is_whole: Some(said) }),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) => {
            Ok(Read { version, is_whole: None })
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A store at rest is opened as one that nobody changes, or SQLite would put files of its own beside it.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if wal_of(path).exists() {
        let db = Connection::open_with_flags(path, flags)?;
        db.execute_batch("pragma busy_timeout = 2000; pragma query_only = on; pragma trusted_schema = off;")?;
        return Ok(db);
    }
    flags |= OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{}?immutable=1", escaped(path)), flags)
}

/// The path as it stands in a URI.
fn escaped(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte);
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_the_way_through_a_uri() {
        for (path, expected) in
            [("/srv/a-b_c.db", "/srv/a-b_c.db"), ("/srv/100% sure?#.db", "/srv/100%25%20sure%3F%23.db")]
        {
            assert_eq!(escaped(Path::new(path)), expected);
        }
    }
}
