//! The one writer: it takes all closures that wait, runs each in a savepoint, commits once, and only then answers.
//!
//! ```text
//! begin ─▶ savepoint ─ closure ─ release      (each; a failed or panicked one is rolled back alone)
//!       ─▶ commit ─▶ answers
//! ```
//!
//! After FULL, IOERR, NOMEM, BUSY, CORRUPT, or when SQLite has left the transaction on its own, the batch is over and
//! all its callers fail, those that had succeeded too: SQLite takes the whole transaction back, and a statement after
//! that would run and commit by itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::StoreError;

/// Most closures in one commit.
pub const BATCH_MAX: usize = 64;
/// The write-ahead file is copied back after so many batches although nobody rests; some 4 MiB.
const BATCHES_BETWEEN: u32 = 256;
/// Above this it is also cut to nothing, readers permitting.
const WAL_TRUNCATE_BYTES: u64 = 64 << 20;

/// A closure with its caller, as the writer sees it.
pub trait Job: Send {
    /// What is asked, for errors.
    fn operation(&self) -> &'static str;
    /// Runs the closure; keeps what came of it for [`Job::settle`].
    ///
    /// # Errors
    /// What the closure said, so that the writer can tell a broken batch from a refused row.
    fn run(&mut self, db: &Connection) -> Result<(), StoreError>;
    /// The closure panicked with these words.
    fn panicked(&mut self, message: String);
    /// Answers the caller: its value if `lost` is none and the closure succeeded.
    fn settle(self: Box<Self>, lost: Option<StoreError>);
}

/// The write connection.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    db: Option<Connection>,
    /// Since the write-ahead file was last copied back.
    batches: u32,
    /// The last cut was in vain because somebody reads; said once.
    held: bool,
}

impl Writer {
    /// Takes over the one connection that writes to `path`.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: path.to_owned(), db: Some(connect(path)?), batches: 0, held: false })
    }

    /// The connection, opened anew when a failed commit closed it.
    fn db(&mut self) -> Result<&Connection, StoreError> {
        let db = match self.db.take() {
            Some(db) => db,
            None => connect(&self.path)?,
        };
        Ok(self.db.insert(db))
    }

    /// Reads outside any batch, for the inline store of a simulation.
    ///
    /// # Errors
    /// What the closure said.
    pub fn read<T>(&mut self, read: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        read(self.db()?)
    }

    /// Copies the write-ahead file back into the database while nobody waits; true when there is more to do later.
    pub fn idle(&mut self) -> bool {
        self.checkpoint(if self.is_long() { "truncate" } else { "passive" });
        self.is_long()
    }

    fn is_long(&self) -> bool {
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        std::fs::metadata(wal).map_or(0, |meta| meta.len()) > WAL_TRUNCATE_BYTES
    }

    /// Copies everything back and leaves an empty write-ahead file.
    pub fn close(mut self) {
        self.checkpoint("truncate");
    }

    /// Never waits for a reader: somebody who reads for long must not slow the writer down.
    fn checkpoint(&mut self, mode: &str) {
        self.batches = 0;
        let Some(db) = &self.db else { return };
        let copied = db
            .execute_batch("pragma busy_timeout = 0")
            .and_then(|()| db.query_row(&format!("pragma wal_checkpoint({mode})"), [], |row| row.get::<_, bool>(0)));
        if let Err(error) = db.execute_batch(BUSY_TIMEOUT) {
            tracing::warn!(%error, "The store's patience could not be set again.");
        }
        match copied {
            Ok(held) => {
                if held && !self.held && mode == "truncate" {
                    tracing::warn!(
                        "Somebody reads the store for long; its write-ahead file cannot be cut until that ends."
                    );
                }
                self.held = held;
            }
            Err(error) => tracing::warn!(%error, mode, "The write-ahead file could not be copied back."),
        }
    }

    fn keep_wal_small(&mut self) {
        self.batches += 1;
        // What a reader prevented is not tried again after every batch.
        let is_due = self.batches >= BATCHES_BETWEEN;
        if self.is_long() && (is_due || !self.held) {
            self.checkpoint("truncate");
        } else if is_due {
            self.checkpoint("passive");
        }
    }
}

/// How long a statement waits for another process that holds the file, in milliseconds.
const BUSY_TIMEOUT: &str = "pragma busy_timeout = 5000";

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags)?;
        db.execute_batch(BUSY_TIMEOUT)?;
        db.execute_batch(
            "pragma journal_mode = wal; pragma synchronous = full;
             pragma foreign_keys = on; pragma wal_autocheckpoint = 0; pragma trusted_schema = off;",
        )?;
        db.set_prepared_statement_cache_capacity(128);
        Ok(db)
    };
    open().map_err(|error: rusqlite::Error| StoreError::Open { path: path.to_owned(), cause: error.to_string() })
}

/// How a batch ended for those whose closures had succeeded.
enum Lost {
    /// Rolled back: nothing stands.
    Back(String),
    /// COMMIT failed: nobody knows.
    Unknown(String),
}

/// Runs `jobs` as one transaction and answers each. A plain function: a thread drives it, or a simulation inline.
pub fn run_batch(writer: &mut Writer, mut jobs: Vec<Box<dyn Job>>) {
    let lost = match writer.db() {
        Err(error) => Some(Lost::Back(error.to_string())),
        Ok(db) => transact(db, &mut jobs),
    };
    if lost.is_some() {
        // Whatever state SQLite is in, a fresh connection starts from what the file says.
        writer.db = None;
    }
    for job in jobs {
        let operation = job.operation();
        job.settle(lost.as_ref().map(|lost| match lost {
            Lost::Back(cause) => StoreError::BatchLost { operation, cause: cause.clone() },
            Lost::Unknown(cause) => StoreError::CommitUnknown { operation, cause: cause.clone() },
        }));
    }
    if lost.is_none() {
        writer.keep_wal_small();
    }
}

fn transact(db: &Connection, jobs: &mut [Box<dyn Job>]) -> Option<Lost> {
    if let Err(error) = db.execute_batch("begin immediate") {
        return Some(Lost::Back(error.to_string()));
    }
    for job in jobs.iter_mut() {
        if let Err(cause) = in_savepoint(db, job.as_mut()) {
            // May fail because SQLite has rolled back already, which is what we want.
            let _ = db.execute_batch("rollback");
            return Some(Lost::Back(cause));
        }
    }
    crash_point!("store.before_commit");
    match db.execute_batch("commit") {
        Ok(()) => {
            crash_point!("store.after_commit");
            None
        }
        Err(error) => {
            let _ = db.execute_batch("rollback");
            Some(Lost::Unknown(error.to_string()))
        }
    }
}

/// Runs one closure; `Err` means that the whole batch is lost.
fn in_savepoint(db: &Connection, job: &mut dyn Job) -> Result<(), String> {
    db.execute_batch("savepoint job").map_err(|error| error.to_string())?;
    let outcome = catch_unwind(AssertUnwindSafe(|| job.run(db)));
    if db.is_autocommit() {
        return Err(match outcome {
            Ok(Err(error)) => error.to_string(),
            _ => "SQLite took the whole transaction back".to_owned(),
        });
    }
    let undo = match outcome {
        Ok(Ok(())) => false,
        Ok(Err(StoreError::Failed { cause, breaks_batch: true, .. })) => return Err(cause),
        Ok(Err(_)) => true,
        Err(panic) => {
            job.panicked(panic_text(panic.as_ref()));
            true
        }
    };
    let end = if undo { "rollback to job; release job" } else { "release job" };
    db.execute_batch(end).map_err(|error| error.to_string())
}

/// The words of a panic, as far as it has any.
#[must_use]
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
