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
    let depth = args.depth.unwrap_or(DEPTH_DEFAULT);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(ToolFailure::BadArgument(format!("depth is 1 to {DEPTH_MAX}, not {depth}")));
    }
    let start = root.resolve(args.path.as_deref().unwrap_or("."))?;
    let mut listing = Listing { root, depth, cancel, lines: Vec::new(), bytes: 0, full: None, unread: false };
    let mut visits = VISITED_MAX;
    let mut waiting = VecDeque::new();
    listing.read(&root.dir(&start)?, None, 1, &mut visits, &mut waiting)?;
    while let (Some((path, line, level)), None, false) = (waiting.pop_front(), &listing.full, listing.unread) {
        let read = root.dir(&path).and_then(|dir| listing.read(&dir, Some(line), level, &mut visits, &mut waiting));
        match read {
            Ok(()) => {}
            Err(ToolFailure::Cancelled) => return Err(ToolFailure::Cancelled),
            Err(ToolFailure::Refused { why, .. }) => listing.lines[line].mark = why.mark(),
            Err(_) => listing.lines[line].mark = "gone or unreadable",
        }
    }
    Ok(listing.finish(&start))
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

    fn finish(mut self, start: &RelPath) -> String {
        let (listed, visited) = (self.lines.len(), grouped(VISITED_MAX as u64));
        let closed = self.lines.iter().filter(|line| line.closed && line.mark.is_empty()).count();
        if listed == 0 && self.full.is_none() {
            return format!("[{} is empty]", quoted(start.asked()));
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
            text.push_str(&format!(
                "[… stopped after {listed} entries: {left} in {place} and directories not yet opened are left out; \
                 ask for one directory with path]\n"
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
