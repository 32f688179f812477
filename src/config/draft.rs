//! Puts a file in its place in one step that neither a crash nor a power cut can tear apart.
//!
//! ```text
//! Draft::new / like ──▶ a hidden file beside the target, whole and on disk ──put──▶ the target
//!                                                     └─ dropped: gone, the target as it was
//! ```
//! Several drafts can be written before the first is put, so that what fails (a full disk) fails before anything changed.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is written and not yet in its place.
#[derive(Debug)]
pub struct Draft {
    temp: NamedTempFile,
    target: PathBuf,
}

impl Draft {
    /// Writes `bytes` beside `target`, whose folder has to be there, with these permission bits.
    ///
    /// # Errors
    /// The system's. Nothing has changed.
    pub fn new(target: &Path, bytes: &[u8], mode: u32) -> io::Result<Self> {
        Self::write(target, bytes, Permissions::from_mode(mode))
    }

    /// As [`Draft::new`], with the permissions of the file that is there.
    ///
    /// # Errors
    /// The system's. Nothing has changed.
    pub fn like(target: &Path, bytes: &[u8]) -> io::Result<Self> {
        Self::write(target, bytes, std::fs::metadata(target)?.permissions())
    }

    fn write(target: &Path, bytes: &[u8], permissions: Permissions) -> io::Result<Self> {
        // Hidden and without `.toml` at its end, so that a crash here leaves nothing that the next start would read.
        let mut temp = tempfile::Builder::new().prefix(".midwatch-").suffix(".tmp").tempfile_in(folder(target)?)?;
        temp.as_file().set_permissions(permissions)?;
        temp.write_all(bytes)?;
        temp.as_file().sync_all()?;
        Ok(Self { temp, target: target.to_owned() })
    }

    /// Puts it in its place, durable on return.
    ///
    /// # Errors
    /// The system's. The target is as it was, unless only the last flush of its folder failed.
    pub fn put(self) -> io::Result<()> {
        let folder = folder(&self.target)?.to_owned();
        self.temp.persist(&self.target).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    }
}

fn folder(target: &Path) -> io::Result<&Path> {
    target.parent().ok_or_else(|| io::Error::other("the file lies in no folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_is_not_put_leaves_nothing_and_one_that_is_has_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("key");
        drop(Draft::new(&target, b"one", 0o600).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        Draft::new(&target, b"two", 0o640).unwrap().put().unwrap();
        Draft::like(&target, b"three").unwrap().put().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"three");
        assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
