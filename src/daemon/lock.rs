//! One daemon per data folder: a lock of the operating system, which ends with its owner whatever ends it.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The lock, held for as long as this lives. The file stays; only the lock in it counts.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

/// The lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon has it.
    #[error("another midwatch (pid {pid}) holds {path}")]
    Taken {
        /// What it wrote into the file.
        pid: String,
        /// The file.
        path: String,
    },
    /// The file cannot be opened.
    #[error("cannot lock {path}: {cause}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl Held {
    /// Takes the lock at `path` without waiting.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let shown = path.display().to_string();
        let io = |cause| LockError::Io { path: shown.clone(), cause };
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = file.take(20).read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
                return Err(LockError::Taken { pid, path: shown });
            }
            Err(error) => return Err(io(error.into())),
        }
        // For the message of the next one who comes; decides nothing.
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self { _file: file })
    }
}
