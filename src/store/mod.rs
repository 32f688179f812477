//! What survives `kill -9`: one SQLite file with one writer.
//!
//! ```text
//! write(closure) ─▶ queue ─▶ writer: savepoint each, one commit ─▶ answers      (nobody is answered before COMMIT)
//! read(closure)  ─▶ one of a few read-only connections
//! ```
//!
//! Queries are plain functions on a connection, one module a table or theme; only [`Store`] knows about threads.

pub mod chain;
pub mod error;
pub mod inbox;
pub mod migrate;
pub mod notices;
pub mod outbox;
pub mod overview;
pub mod pins;
pub mod recover;
pub mod retention;
pub mod timeline;
pub mod turns;
pub mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub use error::StoreError;
use writer::{BATCH_MAX, Job, Writer, run_batch};

/// Most closures waiting for the writer; more callers wait for a place.
const QUEUE_MAX: usize = 512;
/// Read-only connections, and so reads at one time.
const READERS: usize = 4;
/// The writer copies the write-ahead file back when nobody came for this long.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// A handle on the store; cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    path: PathBuf,
    driver: Driver,
    /// The last write failed for the disk's sake.
    outage: AtomicBool,
}

enum Driver {
    /// A thread owns the writer.
    Thread { queue: Mutex<Option<mpsc::Sender<Queued>>>, places: Arc<Semaphore>, readers: Readers },
    /// Simulation: everything happens on the caller's thread, in the order asked.
    Inline(Mutex<Option<Writer>>),
}

struct Queued {
    job: Box<dyn Job>,
    _place: OwnedSemaphorePermit,
}

struct Readers {
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

/// Ends the writer thread and waits for it.
#[derive(Debug)]
pub struct Closing(std::thread::JoinHandle<()>);

impl Closing {
    /// Waits until the writer has answered everybody and emptied the write-ahead file.
    pub fn join(self) {
        let _ = self.0.join();
    }
}

impl Store {
    /// Opens `path`, migrates it if it is older, and starts the writer thread.
    ///
    /// The returned [`Closing`] is joined after [`Store::close`].
    ///
    /// # Errors
    /// [`StoreError::Open`], [`StoreError::FromTheFuture`], [`StoreError::Damaged`] or [`StoreError::Migrate`]; the
    /// file is unchanged in each case.
    pub fn open(path: &Path) -> Result<(Self, Closing), StoreError> {
        migrate::bring_up_to_date(path, migrate::MIGRATIONS)?;
        let writer = Writer::open(path)?;
        let (queue, waiting) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("store-writer".into()).spawn(move || write_loop(writer, &waiting));
        let thread = thread.map_err(|error| StoreError::Open { path: path.to_owned(), cause: error.to_string() })?;
        let driver = Driver::Thread {
            queue: Mutex::new(Some(queue)),
            places: Arc::new(Semaphore::new(QUEUE_MAX)),
            readers: Readers { idle: Mutex::new(Vec::new()), permits: Semaphore::new(READERS) },
        };
        let store = Self(Arc::new(Inner { path: path.to_owned(), driver, outage: AtomicBool::new(false) }));
        Ok((store, Closing(thread)))
    }

    /// Opens `path` without any thread: each call runs at once on the caller's. For simulation.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_inline(path: &Path) -> Result<Self, StoreError> {
        migrate::bring_up_to_date(path, migrate::MIGRATIONS)?;
        let driver = Driver::Inline(Mutex::new(Some(Writer::open(path)?)));
        Ok(Self(Arc::new(Inner { path: path.to_owned(), driver, outage: AtomicBool::new(false) })))
    }

    /// Runs `change` in the next commit and returns its value once that commit is safe on disk.
    ///
    /// # Errors
    /// [`StoreError::BatchLost`]: nothing of it stands. [`StoreError::CommitUnknown`]: read the row by its key first.
    /// Everything else is about this closure alone, and its changes were taken back.
    pub async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Change { operation, change: Some(change), outcome: None, reply });
        match &self.0.driver {
            Driver::Inline(writer) => match writer.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                Some(writer) => run_batch(writer, vec![job]),
                None => return Err(StoreError::Closed),
            },
            Driver::Thread { queue, places, .. } => {
                let place = places.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
                let queue = queue.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(StoreError::Closed)?;
                queue.send(Queued { job, _place: place }).map_err(|_| StoreError::Closed)?;
            }
        }
        let outcome = answer.await.unwrap_or(Err(StoreError::Closed));
        self.note_outage(outcome.as_ref().err());
        outcome
    }

    fn note_outage(&self, error: Option<&StoreError>) {
        let now = match error {
            Some(StoreError::Closed) => return,
            Some(error) => error.is_outage(),
            None => false,
        };
        if self.0.outage.swap(now, Ordering::Relaxed) != now {
            match error {
                Some(error) => tracing::error!(%error, "The store does not take writes; no new work is taken."),
                None => tracing::info!("The store takes writes again."),
            }
        }
    }

    /// Whether the last write failed for the disk's or the file's sake.
    #[must_use]
    pub fn has_outage(&self) -> bool {
        self.0.outage.load(Ordering::Relaxed)
    }

    /// Runs `question` on a read-only connection, off the async threads.
    ///
    /// # Errors
    /// What the closure said.
    pub async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let answer = match &self.0.driver {
            Driver::Inline(writer) => match writer.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                Some(writer) => writer.read(question),
                None => Err(StoreError::Closed),
            },
            Driver::Thread { readers, .. } => {
                let _permit = readers.permits.acquire().await.map_err(|_| StoreError::Closed)?;
                let idle = readers.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let path = self.0.path.clone();
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the store's readers are a shell that owns blocking work"
                )]
                let (db, answer) = tokio::task::spawn_blocking(move || {
                    let db = match idle.map_or_else(|| connect_reader(&path), Ok) {
                        Ok(db) => db,
                        Err(error) => return (None, Err(error)),
                    };
                    let answer = question(&db);
                    (Some(db), answer)
                })
                .await
                .map_err(|panic| StoreError::Panicked { operation, message: panic.to_string() })?;
                readers.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(db);
                answer
            }
        };
        answer.map_err(|error| named(error, operation))
    }

    /// Takes no more work; what waits is still written. The thread's [`Closing`] tells when that is done.
    pub fn close(&self) {
        match &self.0.driver {
            Driver::Thread { queue, readers, .. } => {
                queue.lock().unwrap_or_else(PoisonError::into_inner).take();
                readers.permits.close();
                readers.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            Driver::Inline(writer) => {
                if let Some(writer) = writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    writer.close();
                }
            }
        }
    }
}

/// Runs `part` of a change in a savepoint of its own: none when it failed, and then nothing of it stands.
///
/// # Errors
/// What breaks the whole batch: nothing of it can be kept then.
pub fn savepoint<T>(
    db: &Connection,
    name: &'static str,
    part: impl FnOnce() -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    db.execute_batch(&format!("savepoint {name}"))?;
    match part() {
        Ok(done) => {
            db.execute_batch(&format!("release {name}"))?;
            Ok(Some(done))
        }
        Err(error) if error.is_outage() || db.is_autocommit() => Err(error),
        Err(error) => {
            tracing::error!(part = name, %error, "A part of a change could not be made.");
            db.execute_batch(&format!("rollback to {name}; release {name}"))?;
            Ok(None)
        }
    }
}

fn connect_reader(path: &Path) -> Result<Connection, StoreError> {
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags)?;
        db.execute_batch("pragma busy_timeout = 5000; pragma query_only = on; pragma trusted_schema = off;")?;
        Ok(db)
    };
    open().map_err(|error: rusqlite::Error| StoreError::Open { path: path.to_owned(), cause: error.to_string() })
}

fn write_loop(mut writer: Writer, waiting: &mpsc::Receiver<Queued>) {
    let mut copied_back = false;
    loop {
        let first = match waiting.recv_timeout(if copied_back { Duration::from_secs(3600) } else { IDLE_AFTER }) {
            Ok(first) => first,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if !copied_back {
                    copied_back = !writer.idle();
                }
                continue;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        };
        let mut jobs = vec![first.job];
        while jobs.len() < BATCH_MAX {
            match waiting.try_recv() {
                Ok(next) => jobs.push(next.job),
                Err(_) => break,
            }
        }
        run_batch(&mut writer, jobs);
        copied_back = false;
    }
    writer.close();
}

struct Change<T, F> {
    operation: &'static str,
    change: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnOnce(&Connection) -> Result<T, StoreError> + Send> Job for Change<T, F> {
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn run(&mut self, db: &Connection) -> Result<(), StoreError> {
        let Some(change) = self.change.take() else { return Ok(()) };
        let outcome = change(db).map_err(|error| named(error, self.operation));
        let told = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        self.outcome = Some(outcome);
        told
    }

    fn panicked(&mut self, message: String) {
        self.outcome = Some(Err(StoreError::Panicked { operation: self.operation, message }));
    }

    fn settle(self: Box<Self>, lost: Option<StoreError>) {
        let answer = match lost {
            Some(lost) => Err(lost),
            None => self.outcome.unwrap_or(Err(StoreError::Closed)),
        };
        // A caller that went away meanwhile finds the row by its key.
        let _ = self.reply.send(answer);
    }
}

fn named(error: StoreError, operation: &'static str) -> StoreError {
    match error {
        StoreError::Failed { operation: "", cause, breaks_batch } => {
            StoreError::Failed { operation, cause, breaks_batch }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
