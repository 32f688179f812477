//! `list_files`: the names in a directory and below it.
//!
//! Directories are read level by level, so that a crowded one deep down cannot hide its neighbours above; the lines
//! are then sorted into a tree.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::Deserialize;

use super::beneath::{
    self, Cancel, Dir, Entry, Kind, OUTPUT_MAX_BYTES, RelPath, Root, ToolFailure, VISITED_MAX, Why, count, grouped,
    quoted, size,
};

/// The tool's name.
pub const NAME: &str = "list_files";
/// What the model is told.
pub const DESCRIPTION: &str = "Lists files and directories in the workspace, hidden ones too, with sizes. \
                               Links and special files are shown but not followed.";

/// Most entries one call lists.
pub const LISTED_MAX: usize = 500;
/// Levels listed when the call names none.
pub const DEPTH_DEFAULT: u32 = 2;
/// Most levels one call lists.
pub const DEPTH_MAX: u32 = 8;

/// Room for the notes at the end.
const NOTES_BYTES: usize = 2 * 1024;

/// The arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Directory to list, relative to the workspace. Default: the workspace itself.
    pub path: Option<String>,
    /// How many levels to list, at most 8. Default 2.
    #[schemars(range(min = 1, max = 8))]
    pub depth: Option<u32>,
}

/// The schema of [`Args`].
#[must_use]
pub fn schema() -> serde_json::Value {
    beneath::argument_schema::<Args>()
}

/// One line an entry: the path as `read_file` takes it, `/` after directories, sizes, and a mark on what is not opened.
///
/// # Errors
/// [`ToolFailure::NotFound`], [`ToolFailure::Refused`], [`ToolFailure::BadArgument`], [`ToolFailure::Cancelled`].
pub fn run(root: &Root, args: &Args, cancel: &Cancel<'_>) -> Result<String, ToolFailure> {
    list(root, args, cancel, VISITED_MAX)
}

fn list(root: &Root, args: &Args, cancel: &Cancel<'_>, visited_max: usize) -> Result<String, ToolFailure> {
    let depth = args.depth.unwrap_or(DEPTH_DEFAULT);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(ToolFailure::BadArgument(format!("depth must be 1 to {DEPTH_MAX}, not {depth}")));
    }
    let start = root.resolve(args.path.as_deref().unwrap_or("."))?;
    let mut listing = Listing { root, depth, cancel, lines: Vec::new(), bytes: 0, full: None, unread: false };
    let mut visits = visited_max;
    let mut waiting = VecDeque::new();
    listing.read(&root.dir(&start)?, None, 1, &mut visits, &mut waiting)?;
    while listing.full.is_none() && !listing.unread {
        let Some((path, line, level)) = waiting.pop_front() else { break };
        let read = root.dir(&path).and_then(|dir| listing.read(&dir, Some(line), level, &mut visits, &mut waiting));
        match read {
            Ok(()) => {}
            Err(ToolFailure::Cancelled) => return Err(ToolFailure::Cancelled),
            Err(ToolFailure::Refused { why, .. }) => listing.lines[line].mark = why.mark(),
            Err(_) => listing.lines[line].mark = "gone or unreadable",
        }
    }
    Ok(listing.finish(&start, waiting.len() as u64, visited_max))
}

/// A directory still to be read: where it is, which line shows it, and the level of what is in it.
type Waiting = (RelPath, usize, u32);

struct Line {
    /// Sorts a directory's entries right behind it: the path, with a separator below all letters.
    key: Vec<u8>,
    text: String,
    mark: &'static str,
    /// A directory that the depth keeps closed.
    closed: bool,
}

struct Listing<'a> {
    root: &'a Root,
    depth: u32,
    cancel: &'a Cancel<'a>,
    lines: Vec<Line>,
    bytes: usize,
    /// Where the limit was met, and how many entries stayed out there.
    full: Option<(String, u64)>,
    /// The limit of entries looked at was met.
    unread: bool,
}

impl Listing<'_> {
    fn read(
        &mut self,
        dir: &Dir,
        line: Option<usize>,
        level: u32,
        visits: &mut usize,
        waiting: &mut VecDeque<Waiting>,
    ) -> Result<(), ToolFailure> {
        let (entries, more) = dir.entries(visits, self.cancel)?;
        self.unread |= more;
        let above = line.map_or_else(Vec::new, |line| self.lines[line].key.clone());
        for entry in entries {
            if (self.cancel)() {
                return Err(ToolFailure::Cancelled);
            }
            if let Some((_, left)) = &mut self.full {
                *left += 1;
                continue;
            }
            let mut shown = self.line(dir, &entry, &above);
            let cost = shown.text.len() + 64; // the mark may come later
            if self.lines.len() == LISTED_MAX || self.bytes + cost > OUTPUT_MAX_BYTES - NOTES_BYTES {
                self.full = Some((dir.path().shown(), 1));
                continue;
            }
            if let (Kind::Dir, Some(path), "") = (entry.kind, &entry.path, shown.mark) {
                if level < self.depth {
                    waiting.push_back((path.clone(), self.lines.len(), level + 1));
                } else {
                    shown.closed = true;
                    shown.mark = mark_of(&self.root.any_in(dir, &entry).map(drop));
                }
            }
            self.bytes += cost;
            self.lines.push(shown);
        }
        Ok(())
    }

    fn line(&self, dir: &Dir, entry: &Entry, above: &[u8]) -> Line {
        let mut text = entry.path.as_ref().map_or_else(
            || match dir.path().as_str() {
                "" => entry.shown.clone(),
                parent => format!("{parent}/{}", entry.shown),
            },
            RelPath::shown,
        );
        let key = [above, b"\0", entry.shown.as_bytes()].concat();
        let mut mark = if entry.path.is_none() { Why::Unspeakable.mark() } else { "" };
        match entry.kind {
            Kind::Dir => text.push('/'),
            Kind::Special(why) => mark = why.mark(),
            Kind::File => match dir.look(entry) {
                Some((bytes, second)) => {
                    text.push_str(&format!("  {}", size(bytes)));
                    if second && mark.is_empty() {
                        mark = Why::SecondName.mark();
                    }
                }
                None => mark = "gone",
            },
        }
        Line { key, text, mark, closed: false }
    }

    fn finish(mut self, start: &RelPath, unopened: u64, visited_max: usize) -> String {
        let (listed, visited) = (self.lines.len(), grouped(visited_max as u64));
        let closed = self.lines.iter().filter(|line| line.closed && line.mark.is_empty()).count();
        if listed == 0 && self.full.is_none() {
            return format!("[{} is empty]\n", quoted(start.asked()));
        }
        self.lines.sort_by(|a, b| a.key.cmp(&b.key));
        let mut text = String::new();
        for line in self.lines {
            text.push_str(&line.text);
            if !line.mark.is_empty() {
                text.push_str(&format!("  [{}]", line.mark));
            }
            text.push('\n');
        }
        if let Some((place, left)) = self.full {
            let (listed, left) = (grouped(listed as u64), count(left, "more entry", "more entries"));
            let place = quoted(&place);
            let unopened = match unopened {
                0 => String::new(),
                some => format!(", and {} not opened", count(some, "directory", "directories")),
            };
            text.push_str(&format!(
                "[… stopped after {listed} entries: left out are {left} in {place}{unopened}; \
                 ask for a directory below with path]\n"
            ));
        } else if closed > 0 && !self.unread {
            let closed = count(closed as u64, "directory was", "directories were");
            text.push_str(&format!(
                "[{closed} not opened at depth {}; ask with path or a greater depth]\n",
                self.depth
            ));
        }
        if self.unread {
            text.push_str(&format!("[… looked at {visited} entries, the most one call does; there are more]\n"));
        }
        text
    }
}

fn mark_of(opened: &Result<(), ToolFailure>) -> &'static str {
    match opened {
        Ok(()) => "",
        Err(ToolFailure::Refused { why, .. }) => why.mark(),
        Err(_) => "gone or unreadable",
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const GO_ON: &Cancel<'static> = &|| false;

    fn listing(work: &Path, path: Option<&str>, depth: Option<u32>) -> String {
        let args = Args { path: path.map(str::to_owned), depth };
        run(&Root::open(work).unwrap(), &args, GO_ON).unwrap_or_else(|failure| format!("error: {failure}"))
    }

    #[test]
    fn a_tree_shows_everything_and_follows_nothing() {
        let home = tempfile::tempdir().unwrap();
        let work = home.path().join("work");
        fs::create_dir_all(work.join("notes/deep/deeper")).unwrap();
        fs::create_dir(work.join("empty")).unwrap();
        fs::write(home.path().join("outside"), "SECRET").unwrap();
        for (name, bytes) in
            [("notes/b.md", 12), ("notes/deep/c.md", 1), ("notes.md", 1_536), (".hidden", 0), ("~x", 7)]
        {
            fs::write(work.join(name), vec![b'x'; bytes]).unwrap();
        }
        symlink(home.path(), work.join("link")).unwrap();
        symlink("nowhere", work.join("notes/dangling")).unwrap();
        fs::hard_link(home.path().join("outside"), work.join("hard")).unwrap();
        mknodat(CWD, work.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = UnixListener::bind(work.join("socket")).unwrap();
        fs::write(work.join(OsStr::from_bytes(b"caf\xe9")), "x").unwrap();
        fs::write(work.join("esc\u{1b}[2Jape\nd"), "x").unwrap();
        fs::create_dir(work.join("bad\rdir")).unwrap();
        for (_, root) in Root::by_every_way(&work) {
            assert_eq!(run(&root, &Args::default(), GO_ON).unwrap(), listing(&work, None, None));
        }
        insta::assert_snapshot!(listing(&work, None, None), @r"
        .hidden  0 B
        bad\rdir/  [name cannot be used in a path]
        caf�  1 B  [name cannot be used in a path]
        empty/
        esc\u{1b}[2Jape\nd  1 B  [name cannot be used in a path]
        fifo  [fifo]
        hard  6 B  [has a second name elsewhere]
        link  [link]
        notes/
        notes/b.md  12 B
        notes/dangling  [link]
        notes/deep/
        notes.md  1.5 KiB
        socket  [socket]
        ./~x  7 B
        [1 directory was not opened at depth 2; ask with path or a greater depth]
        ");
        insta::assert_snapshot!(listing(&work, Some("notes/"), Some(8)), @r"
        notes/b.md  12 B
        notes/dangling  [link]
        notes/deep/
        notes/deep/c.md  1 B
        notes/deep/deeper/
        ");
        insta::assert_snapshot!(listing(&work, Some("empty"), None), @"[`empty` is empty]");
        insta::assert_snapshot!(listing(&work, Some("notes.md"), None), @"error: `notes.md` is refused: it is a file, not a directory; name it without a slash at the end, or read it with read_file");
        insta::assert_snapshot!(listing(&work, Some("link"), None), @"error: `link` is refused: it is or leads through a symbolic link, and links are not followed; use the real path");
        insta::assert_snapshot!(listing(&work, Some("none"), None), @"error: `none` is not in the workspace; list_files shows what is");
        insta::assert_snapshot!(listing(&work, None, Some(9)), @"error: depth must be 1 to 8, not 9");
    }

    #[test]
    fn a_crowded_directory_does_not_hide_its_neighbours() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("crowd")).unwrap();
        fs::create_dir_all(home.path().join("later")).unwrap();
        fs::write(home.path().join("zebra"), "").unwrap();
        for n in 0..700 {
            fs::write(home.path().join(format!("crowd/{n:03}")), "").unwrap();
        }
        let text = listing(home.path(), None, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1], lines[499]), (501, "crowd/000  0 B", "zebra  0 B"));
        insta::assert_snapshot!(lines[500], @"[… stopped after 500 entries: left out are 203 more entries in `crowd`, and 1 directory not opened; ask for a directory below with path]");
    }

    #[test]
    fn long_names_keep_to_the_size_of_an_answer() {
        let home = tempfile::tempdir().unwrap();
        for n in 0..400 {
            fs::write(home.path().join(format!("{n:0250}")), "").unwrap();
        }
        let text = listing(home.path(), None, None);
        assert!(text.len() <= OUTPUT_MAX_BYTES, "{}", text.len());
        insta::assert_snapshot!(text.lines().last().unwrap(), @"[… stopped after 199 entries: left out are 201 more entries in `.`; ask for a directory below with path]");
    }

    #[test]
    fn a_directory_without_end_is_left_after_a_bounded_look() {
        let home = tempfile::tempdir().unwrap();
        for n in 0..700 {
            fs::write(home.path().join(format!("{n:03}")), "").unwrap();
        }
        let root = Root::open(home.path()).unwrap();
        let text = list(&root, &Args::default(), GO_ON, 650).unwrap();
        insta::assert_snapshot!(text.lines().skip(LISTED_MAX).collect::<Vec<_>>().join("\n"), @r"
        [… stopped after 500 entries: left out are 150 more entries in `.`; ask for a directory below with path]
        [… looked at 650 entries, the most one call does; there are more]
        ");
        let text = list(&root, &Args::default(), GO_ON, 3).unwrap();
        insta::assert_snapshot!(text.lines().skip(3).collect::<Vec<_>>().join("\n"), @"[… looked at 3 entries, the most one call does; there are more]");
    }

    #[test]
    fn a_stop_is_heard() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a"), "").unwrap();
        let stopped = run(&Root::open(home.path()).unwrap(), &Args::default(), &|| true);
        assert!(matches!(stopped, Err(ToolFailure::Cancelled)));
    }

    #[test]
    fn the_schema_is_small_and_knows_no_other_arguments() {
        assert_eq!(
            schema(),
            serde_json::json!({
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "depth": {
                        "description": "How many levels to list, at most 8. Default 2.",
                        "maximum": 8,
                        "minimum": 1,
                        "type": "integer",
                    },
                    "path": {
                        "description": "Directory to list, relative to the workspace. Default: the workspace itself.",
                        "type": "string",
                    },
                },
            })
        );
        assert!(serde_json::from_str::<Args>(r#"{"paths": "a"}"#).is_err());
        assert_eq!(serde_json::from_str::<Args>("{}").unwrap(), Args::default());
    }
}
