//! Counts the store's commits where SQLite writes them down: in the frames of the write-ahead file.
//!
//! A commit that changes nothing writes no frame and costs no fsync; it is not counted.

use std::path::PathBuf;

use rusqlite::Connection;

use super::home::Home;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// Counts from a moment on. While it lives, the write-ahead file cannot begin anew: a reader holds it.
#[derive(Debug)]
pub(crate) struct Commits {
    path: PathBuf,
    salts: Option<[u8; 8]>,
    before: usize,
    _reader: Connection,
}

impl Commits {
    /// Counts commits of the daemon in `home` from now on; it is at rest.
    pub(crate) fn from_now(home: &Home) -> Self {
        let reader = home.store();
        reader.execute_batch("begin").unwrap();
        let _: i64 = reader.query_row("select count(*) from sqlite_schema", [], |row| row.get(0)).unwrap();
        let mut path = home.store_path().into_os_string();
        path.push("-wal");
        let path = PathBuf::from(path);
        let (salts, before) = count(&std::fs::read(&path).unwrap());
        Self { path, salts, before, _reader: reader }
    }

    /// Commits since.
    pub(crate) fn so_far(&self) -> usize {
        let (salts, now) = count(&std::fs::read(&self.path).unwrap());
        // A file that had been copied back as a whole begins anew with the first commit, and never again under us.
        if salts == self.salts { now - self.before } else { now }
    }
}

/// The salts of a write-ahead file and the commits in it, by SQLite's file format: a frame that ends a transaction
/// tells the size of the database, and a frame with other salts is left over from before the file began anew.
fn count(wal: &[u8]) -> (Option<[u8; 8]>, usize) {
    let Some(header) = wal.get(..HEADER_BYTES) else { return (None, 0) };
    let number = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let page_bytes = number(header, 8) as usize;
    let salts: [u8; 8] = header[16..24].try_into().unwrap();
    let frames = wal[HEADER_BYTES..].chunks_exact(FRAME_HEADER_BYTES + page_bytes);
    let commits = frames.take_while(|frame| frame[8..16] == salts).filter(|frame| number(frame, 4) != 0).count();
    (Some(salts), commits)
}
