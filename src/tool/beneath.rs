//! Opens what lies beneath the workspace, and nothing else, however the tree is rearranged meanwhile.
//!
//! ```text
//! "notes/a.md" ──resolve──▶ RelPath ──pin──▶ handle ──fstat──▶ regular file, one name ──reopen──▶ File
//!                words only,         no link,         │                                the same inode,
//!                promises nothing    no other mount   ├──▶ directory ──▶ Dir          or refused
//!                                                     └──▶ anything else: refused
//! ```
//!
//! The check and the open are one step of the kernel: `openat2` refuses links and mounts while it walks, and what is
//! judged is the handle it gave, never the name. Where there is no `openat2` (old kernels, some sandboxes), the same
//! walk is done here, a component at a time from handle to handle.
//!
//! Knows nothing of grants: policy judges [`RelPath::as_str`] before anything is opened.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;

/// Longest path a tool takes, in bytes.
pub const PATH_MAX_BYTES: usize = 1_024;
/// Most components of a path.
pub const COMPONENTS_MAX: usize = 64;
/// Most directory entries one call looks at.
pub const VISITED_MAX: usize = 20_000;
/// Longest text a read tool gives back: more would push the talk itself out of the model's window.
pub const OUTPUT_MAX_BYTES: usize = 64 * 1024;

/// The kernel asks for another try when a rename crossed its walk; a tree that never rests gets an error instead.
const TRIES: usize = 16;
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// How a file is opened for reading: a FIFO or a terminal that slipped in must neither block nor become ours.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Answers `true` once the call should stop: its deadline passed or someone asked. Polled in every loop.
pub type Cancel<'a> = dyn Fn() -> bool + Sync + 'a;

/// The workspace could not be opened. For the operator, so it names the real path.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the workspace {path}")]
pub struct RootError {
    path: PathBuf,
    source: std::io::Error,
}

/// Why a read tool gave nothing. The text is for the model: what failed and what to do, never a path of the host.
#[derive(Debug, thiserror::Error)]
pub enum ToolFailure {
    /// Nothing has this name.
    #[error("{} is not in the workspace; list_files shows what is", quoted(path))]
    NotFound {
        /// As it was asked for.
        path: String,
    },
    /// It may be there, but it is not opened.
    #[error("{} is refused: {why}", quoted(path))]
    Refused {
        /// As it was asked for.
        path: String,
        /// The rule that spoke.
        why: Why,
    },
    /// A file beyond what is read.
    #[error("{} has {}, and only files up to {} are read; work with a smaller file", quoted(path), size(*bytes), size(*limit))]
    TooLarge {
        /// As it was asked for.
        path: String,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// A file that holds no UTF-8 text.
    #[error("{} is no UTF-8 text ({}), so it cannot be read here; choose another file", quoted(path), size(*bytes))]
    NotText {
        /// As it was asked for.
        path: String,
        /// How large it is.
        bytes: u64,
    },
    /// The call itself is wrong.
    #[error("{0}")]
    BadArgument(String),
    /// The disk or the system failed.
    #[error("{} cannot be read: {source}; trying again may help", quoted(path))]
    Io {
        /// As it was asked for.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The workspace's own directory is not there.
    #[error("the workspace itself cannot be opened ({0}); only the operator can mend that")]
    Gone(std::io::Error),
    /// The deadline passed, or someone asked for a stop.
    #[error("stopped before it was done; nothing was read")]
    Cancelled,
}

impl ToolFailure {
    fn of(path: &str, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound { path },
            Errno::LOOP => Self::Refused { path, why: Why::Link },
            Errno::XDEV => Self::Refused { path, why: Why::OtherMount },
            Errno::ACCESS | Errno::PERM => Self::Refused { path, why: Why::NoPermission },
            Errno::NAMETOOLONG => Self::BadArgument(format!("{} has a name that is too long", quoted(&path))),
            errno => Self::Io { path, source: errno.into() },
        }
    }
}

/// Why something in the workspace is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The words of the path lead out: absolute, `~`, or a `..`.
    Outside,
    /// A symbolic link, at the end or on the way.
    Link,
    /// A regular file with more than one name: the other one may lie outside.
    SecondName,
    /// A FIFO, which would block.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character or block device.
    Device,
    /// Another file system, or a bind mount.
    OtherMount,
    /// A directory where a file is wanted.
    Directory,
    /// A file where a directory is wanted.
    NotDirectory,
    /// The daemon's user may not read it.
    NoPermission,
    /// A name that no path argument can carry: not UTF-8, control characters, too long, too deep.
    Unspeakable,
    /// The file was replaced between looking and opening.
    Changed,
}

impl Why {
    /// One or two words for a listing.
    #[must_use]
    pub fn mark(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Link => "link",
            Self::SecondName => "has a second name elsewhere",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::OtherMount => "other mount",
            Self::Directory => "directory",
            Self::NotDirectory => "file",
            Self::NoPermission => "no permission",
            Self::Unspeakable => "name cannot be used in a path",
            Self::Changed => "changing",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "paths are relative to the workspace, without `..` and `~`; write one like notes/today.md",
            Self::Link => "it is or leads through a symbolic link, and links are not followed; use the real path",
            Self::SecondName => "it has a second name elsewhere (a hard link); only files with one name are read",
            Self::Fifo => "it is a FIFO, not a regular file",
            Self::Socket => "it is a socket, not a regular file",
            Self::Device => "it is a device, not a regular file",
            Self::OtherMount => "it lies on another mount, and the workspace ends there",
            Self::Directory => "it is a directory; list_files shows what is in it",
            Self::NotDirectory => {
                "it is a file, not a directory; name it without a slash at the end, or read it with read_file"
            }
            Self::NoPermission => "the daemon may not read it; the operator can change its permissions",
            Self::Unspeakable => "its name cannot be used in a path",
            Self::Changed => "it was replaced while it was opened; try again",
        })
    }
}

/// A path in normal form: no leading slash, no `.`, no `..`. It says nothing about what is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelPath {
    text: String,
    asked: String,
    wants_dir: bool,
}

impl RelPath {
    /// `notes/a.md`; the workspace itself is empty. What grants are matched against.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path as it was asked for; for one found by walking, as it can be asked for.
    #[must_use]
    pub fn asked(&self) -> &str {
        &self.asked
    }

    /// How this path is shown, so that it can be given back as an argument.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.text.as_str() {
            "" => ".".to_owned(),
            // A bare ~ at the start is refused, because people expect it to be expanded.
            text if text.starts_with('~') => format!("./{text}"),
            text => text.to_owned(),
        }
    }

    /// The path of `name` in this directory, if a path argument could carry it.
    #[must_use]
    pub fn join(&self, name: &str) -> Option<Self> {
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/') && !name.contains(hides);
        let text = if self.text.is_empty() { name.to_owned() } else { format!("{}/{name}", self.text) };
        let mut path = Self { text, asked: String::new(), wants_dir: false };
        path.asked = path.shown();
        let short = path.asked.len() <= PATH_MAX_BYTES && path.text.split('/').count() <= COMPONENTS_MAX;
        (plain && short).then_some(path)
    }
}

/// What a name turned out to be.
#[derive(Debug)]
pub enum Opened {
    /// A regular file with one name, open for reading.
    File(ReadFile),
    /// A directory.
    Dir(Dir),
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct ReadFile {
    /// Where reading starts at the first byte.
    pub file: File,
    /// Its size when it was opened; it may grow or shrink.
    pub bytes: u64,
    /// Its path.
    pub path: RelPath,
}

/// A directory held by its handle: renaming it does not change what we look at.
#[derive(Debug)]
pub struct Dir {
    handle: OwnedFd,
    path: RelPath,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The kinds of things a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// What is never opened, and why.
    Special(Why),
}

impl Kind {
    fn of(found: FileType) -> Self {
        match found {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Dir,
            FileType::Symlink => Self::Special(Why::Link),
            FileType::Fifo => Self::Special(Why::Fifo),
            FileType::Socket => Self::Special(Why::Socket),
            _ => Self::Special(Why::Device),
        }
    }
}

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// For showing: control characters escaped, what is not UTF-8 replaced.
    pub shown: String,
    /// Where it can be opened; none if no path argument could carry the name.
    pub path: Option<RelPath>,
    /// What it was when the directory was read. Opening judges anew.
    pub kind: Kind,
    raw: std::ffi::CString,
}

impl Dir {
    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &RelPath {
        &self.path
    }

    /// The entries, sorted by name. Each costs one of `visits`; the second value says that some stayed unread.
    ///
    /// # Errors
    /// [`ToolFailure::Cancelled`], and whatever keeps the directory from being read.
    pub fn entries(&self, visits: &mut usize, cancel: &Cancel<'_>) -> Result<(Vec<Entry>, bool), ToolFailure> {
        let fail = |errno| ToolFailure::of(&self.path.asked, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let reader = rustix::fs::openat(&self.handle, ".", flags, Mode::empty()).map_err(fail)?;
        let (mut found, mut more) = (Vec::new(), false);
        for entry in rustix::fs::Dir::new(reader).map_err(fail)? {
            if cancel() {
                return Err(ToolFailure::Cancelled);
            }
            let entry = entry.map_err(fail)?;
            let raw = entry.file_name();
            if raw == c"." || raw == c".." {
                continue;
            }
            if *visits == 0 {
                more = true;
                break;
            }
            *visits -= 1;
            let kind = match entry.file_type() {
                FileType::Unknown => match self.stat(raw) {
                    Ok(stat) => Kind::of(FileType::from_raw_mode(stat.st_mode)),
                    Err(_) => continue, // gone meanwhile
                },
                known => Kind::of(known),
            };
            let path = raw.to_str().ok().and_then(|name| self.path.join(name));
            found.push(Entry { shown: escaped(&raw.to_string_lossy()), path, kind, raw: raw.to_owned() });
        }
        found.sort_by(|a, b| a.raw.cmp(&b.raw));
        Ok((found, more))
    }

    /// The size of `entry` and whether it has a second name, if it is still there. A link is looked at itself.
    #[must_use]
    pub fn look(&self, entry: &Entry) -> Option<(u64, bool)> {
        let stat = self.stat(&entry.raw).ok()?;
        Some((length(&stat), stat.st_nlink > 1))
    }

    fn stat(&self, name: &std::ffi::CStr) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
    }
}

/// The mount a handle lies on. A bind mount has the device of its source, so the device only decides where the
/// kernel does not tell the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mount {
    Id(u64),
    Device(u64),
}

impl Mount {
    fn of(handle: BorrowedFd<'_>) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(handle, "", flags, StatxFlags::MNT_ID) {
            Ok(told) if StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::MNT_ID) => {
                Ok(Self::Id(told.stx_mnt_id))
            }
            _ => Ok(Self::Device(rustix::fs::fstat(handle)?.st_dev)),
        }
    }
}

/// The workspace: a handle on its directory. Everything is opened from here.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    /// Replaced when the directory at `path` is another one: a restored backup, a volume mounted later.
    base: Mutex<Arc<Base>>,
    /// Tests take the ways of systems without `openat2`, and without `/proc`.
    openat2: bool,
    proc: bool,
}

/// The directory that the workspace's path led to, and the mount it lies on.
#[derive(Debug)]
struct Base {
    handle: OwnedFd,
    mount: Mount,
}

impl Base {
    fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        let mount = Mount::of(handle.as_fd())?;
        Ok(Self { handle, mount })
    }
}

impl Root {
    /// Opens the directory that tools may read beneath. The operator names it, so links on the way are followed.
    ///
    /// # Errors
    /// When `path` is no directory or cannot be reached.
    pub fn open(path: &Path) -> Result<Self, RootError> {
        let base = Base::open(path).map_err(|errno| RootError { path: path.to_owned(), source: errno.into() })?;
        Ok(Self { path: path.to_owned(), base: Mutex::new(Arc::new(base)), openat2: true, proc: true })
    }

    /// The directory that stands at the workspace's path now. A handle of one that was moved away or deleted would
    /// show an empty or an old workspace for ever.
    fn base(&self) -> Result<Arc<Base>, ToolFailure> {
        let gone = |errno: Errno| ToolFailure::Gone(errno.into());
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let named = rustix::fs::stat(&self.path).map_err(gone)?;
        let held = rustix::fs::fstat(&base.handle).map_err(gone)?;
        if (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino) {
            *base = Arc::new(Base::open(&self.path).map_err(gone)?);
        }
        Ok(base.clone())
    }

    /// Brings the words of a path into normal form. Whether anything is there, and what, only opening tells.
    ///
    /// # Errors
    /// [`ToolFailure::Refused`] for words that lead out, [`ToolFailure::BadArgument`] for what cannot be a path.
    pub fn resolve(&self, rel: &str) -> Result<RelPath, ToolFailure> {
        let bad = |what: &str| Err(ToolFailure::BadArgument(format!("the path {} {what}", quoted(rel))));
        if rel.len() > PATH_MAX_BYTES {
            return bad("is longer than 1,024 bytes");
        }
        if rel.contains(hides) {
            return bad("holds control characters");
        }
        // A name may begin with ~ or hold a backslash; only where people mean their home is it refused.
        let outside = rel.starts_with(['/', '~']) || rel.split('/').any(|part| part == "..");
        if outside {
            return Err(ToolFailure::Refused { path: rel.to_owned(), why: Why::Outside });
        }
        let parts: Vec<&str> = rel.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.len() > COMPONENTS_MAX {
            return bad("has more than 64 components");
        }
        let wants_dir = parts.is_empty() || rel.ends_with('/') || rel.ends_with("/.");
        let asked = if rel.is_empty() { "." } else { rel };
        Ok(RelPath { text: parts.join("/"), asked: asked.to_owned(), wants_dir })
    }

    /// Opens whatever `path` names, if it is a regular file or a directory.
    ///
    /// # Errors
    /// [`ToolFailure::NotFound`] or [`ToolFailure::Refused`]; calling again helps only with [`Why::Changed`] and
    /// [`ToolFailure::Io`].
    pub fn any(&self, path: &RelPath) -> Result<Opened, ToolFailure> {
        let base = self.base()?;
        self.take(&base, base.handle.as_fd(), &path.text, path)
    }

    /// Opens the regular file `path`.
    ///
    /// # Errors
    /// As [`Root::any`]; a directory is refused.
    pub fn file(&self, path: &RelPath) -> Result<ReadFile, ToolFailure> {
        match self.any(path)? {
            Opened::File(file) => Ok(file),
            Opened::Dir(_) => Err(ToolFailure::Refused { path: path.asked.clone(), why: Why::Directory }),
        }
    }

    /// Opens the directory `path`.
    ///
    /// # Errors
    /// As [`Root::any`]; a file is refused.
    pub fn dir(&self, path: &RelPath) -> Result<Dir, ToolFailure> {
        match self.any(path)? {
            Opened::Dir(dir) => Ok(dir),
            Opened::File(_) => Err(ToolFailure::Refused { path: path.asked.clone(), why: Why::NotDirectory }),
        }
    }

    /// Opens `entry` of `dir`, from the handle that read it.
    ///
    /// # Errors
    /// As [`Root::any`]; also for an entry whose name no path can carry.
    pub fn any_in(&self, dir: &Dir, entry: &Entry) -> Result<Opened, ToolFailure> {
        let Some((path, name)) = entry.path.as_ref().zip(entry.raw.to_str().ok()) else {
            return Err(ToolFailure::Refused { path: entry.shown.clone(), why: Why::Unspeakable });
        };
        let base = self.base.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.take(&base, dir.as_fd(), name, path)
    }

    fn take(&self, base: &Base, from: BorrowedFd<'_>, below: &str, path: &RelPath) -> Result<Opened, ToolFailure> {
        let fail = |errno| ToolFailure::of(&path.asked, errno);
        let refused = |why| Err(ToolFailure::Refused { path: path.asked.clone(), why });
        let handle = self.pin(base, from, below, OFlags::PATH | OFlags::CLOEXEC).map_err(fail)?;
        let seen = rustix::fs::fstat(&handle).map_err(fail)?;
        match Kind::of(FileType::from_raw_mode(seen.st_mode)) {
            Kind::Dir => Ok(Opened::Dir(Dir { handle, path: path.clone() })),
            Kind::Special(why) => refused(why),
            Kind::File if path.wants_dir => refused(Why::NotDirectory),
            Kind::File if seen.st_nlink > 1 => refused(Why::SecondName),
            Kind::File => {
                let reader = self.reopen(base, &handle, from, below).map_err(fail)?;
                let got = rustix::fs::fstat(&reader).map_err(fail)?;
                if (got.st_dev, got.st_ino, got.st_mode) != (seen.st_dev, seen.st_ino, seen.st_mode) {
                    return refused(Why::Changed);
                }
                Ok(Opened::File(ReadFile { file: File::from(reader), bytes: length(&got), path: path.clone() }))
            }
        }
    }

    /// A handle on `below`, reached without crossing a link or a mount.
    fn pin(&self, base: &Base, from: BorrowedFd<'_>, below: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let name = if below.is_empty() { "." } else { below };
        for _ in 0..TRIES {
            if !self.openat2 {
                break;
            }
            match rustix::fs::openat2(from, name, flags, Mode::empty(), BENEATH) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Too old a kernel, or a sandbox that does not know the call. It cannot mean "not permitted": that is
                // EACCES, and if it did the walk would meet it again.
                Err(Errno::NOSYS | Errno::PERM) => return Self::walk(base, from, name, flags),
                done => return done,
            }
        }
        if self.openat2 { Err(Errno::AGAIN) } else { Self::walk(base, from, name, flags) }
    }

    /// What `openat2` does, by hand: each component is opened from the handle of the one before, and judged as a
    /// handle, so that a swap between two steps changes nothing.
    fn walk(base: &Base, from: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut held: Option<OwnedFd> = None;
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let flags = OFlags::NOFOLLOW | if last { flags } else { OFlags::PATH | OFlags::CLOEXEC };
            let at = held.as_ref().map_or(from, AsFd::as_fd);
            let next = rustix::fs::openat(at, part, flags, Mode::empty())?;
            match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
                FileType::Symlink => return Err(Errno::LOOP),
                FileType::Directory => {}
                _ if last => {}
                _ => return Err(Errno::NOTDIR),
            }
            if Mount::of(next.as_fd())? != base.mount {
                return Err(Errno::XDEV);
            }
            held = Some(next);
        }
        held.ok_or(Errno::NOENT)
    }

    /// Opens for reading what `pinned` holds. Without `/proc` the name has to be walked again; the caller compares.
    fn reopen(&self, base: &Base, pinned: &OwnedFd, from: BorrowedFd<'_>, below: &str) -> Result<OwnedFd, Errno> {
        if self.proc {
            match rustix::fs::open(format!("/proc/self/fd/{}", pinned.as_raw_fd()), READ, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                done => return done,
            }
        }
        self.pin(base, from, below, READ)
    }
}

fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Characters that hide or reorder what stands around them: a path with one is not what a person reads.
fn hides(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with the characters that hide something written out.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if hides(c) { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

/// `path` as messages show it: in backticks, escaped, and cut where it is very long.
#[must_use]
pub fn quoted(path: &str) -> String {
    let start: String = path.chars().take(120).collect();
    let cut = if start.len() < path.len() { "…" } else { "" };
    format!("`{}{cut}`", escaped(&start))
}

/// A size for people: `12 B`, `3.4 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// A number for people: `1,234,567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 file`, `1,200 files`.
#[must_use]
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// The JSON schema of a tool's arguments in the small dialect every provider takes: no `$schema`, no titles, nothing
/// by reference, and an optional argument is one that may be left out, not one that may be null.
#[must_use]
pub fn argument_schema<T: schemars::JsonSchema>() -> serde_json::Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("title");
        root.remove("description"); // the tool's own description says it
    }
    for argument in schema["properties"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        let Some(argument) = argument.as_object_mut() else { continue };
        argument.remove("title");
        argument.remove("format");
        if let Some(word) = argument.get("type").and_then(|kinds| kinds.get(0)).cloned() {
            argument.insert("type".to_owned(), word);
        }
    }
    schema
}

#[cfg(test)]
impl Root {
    /// The workspace by every way there is: with and without `openat2`, with and without `/proc`.
    pub(super) fn by_every_way(path: &Path) -> Vec<(String, Self)> {
        let ways = [(true, true), (true, false), (false, true), (false, false)];
        let open = |(openat2, proc)| {
            let name = format!("openat2: {openat2}, /proc: {proc}");
            (name, Self { openat2, proc, ..Self::open(path).unwrap() })
        };
        ways.map(open).into()
    }
}

#[cfg(test)]
mod tests;
