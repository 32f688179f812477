//! What can go wrong in the store, and what the caller may conclude from it.

use std::path::PathBuf;

use rusqlite::ErrorCode;

use crate::domain::SessionId;

/// A failed operation of the store. `Clone`, because one failure can end a whole batch of callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened.
    #[error("cannot open the store {path}: {cause}")]
    Open {
        /// The database.
        path: PathBuf,
        /// What SQLite or the system said.
        cause: String,
    },
    /// A newer midwatch wrote this file.
    #[error(
        "{path} has schema {found}, this version knows up to {known}: start the newer midwatch, or restore the backup that its migration kept beside the file"
    )]
    FromTheFuture {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The file is damaged; nothing was changed.
    #[error("{path} is damaged ({cause}): stop the daemon, keep a copy, and restore the newest *.backup beside it")]
    Damaged {
        /// The database.
        path: PathBuf,
        /// SQLite's finding.
        cause: String,
    },
    /// A migration failed on the copy; the original stands as it was.
    #[error("migration to schema {version} failed, the store is unchanged: {cause}")]
    Migrate {
        /// The step.
        version: i64,
        /// What SQLite said.
        cause: String,
    },
    /// One closure failed; only its own changes were taken back.
    #[error("{operation}: {cause}")]
    Failed {
        /// What was asked.
        operation: &'static str,
        /// What SQLite said.
        cause: String,
        /// SQLite may have taken the whole transaction back, so nothing in it can be trusted.
        breaks_batch: bool,
    },
    /// The closure panicked; only its own changes were taken back.
    #[error("{operation} panicked: {message}")]
    Panicked {
        /// What was asked.
        operation: &'static str,
        /// The panic's words.
        message: String,
    },
    /// The whole transaction was taken back, so nothing of this operation stands. Trying again can help.
    #[error("{operation} was taken back with its whole batch: {cause}")]
    BatchLost {
        /// What was asked.
        operation: &'static str,
        /// What SQLite said to the closure that broke the batch.
        cause: String,
    },
    /// COMMIT failed, so the outcome is unknown: read the row by its key before deciding anything.
    #[error("{operation}: the commit failed and its outcome is unknown: {cause}")]
    CommitUnknown {
        /// What was asked.
        operation: &'static str,
        /// What SQLite said.
        cause: String,
    },
    /// The commit named a parent that is not the head of the chain: somebody else was faster.
    #[error("session {session}: the chain has moved on")]
    NotHead {
        /// The session.
        session: SessionId,
    },
    /// The row is not there, or not in a state that allows this.
    #[error("{0}")]
    Refused(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the disk or the file is to blame: the daemon stops taking work until the store goes on.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::BatchLost { .. } | Self::CommitUnknown { .. } | Self::Closed)
    }

    /// Whether the operation may have happened all the same.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::CommitUnknown { .. })
    }
}

impl From<rusqlite::Error> for StoreError {
    /// For `?` inside a closure; the writer puts the operation's name in.
    fn from(error: rusqlite::Error) -> Self {
        let breaks_batch = matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::OutOfMemory
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::DatabaseCorrupt
                    | ErrorCode::NotADatabase
                    | ErrorCode::ReadOnly
                    | ErrorCode::CannotOpen
            )
        );
        Self::Failed { operation: "", cause: error.to_string(), breaks_batch }
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        let cause = format!("a stored document does not read back: {error}");
        Self::Failed { operation: "", cause, breaks_batch: false }
    }
}
