//! `search_files`: lines that match a regular expression, in one file or in all files below a directory.
//!
//! Everything is bounded, because the pattern and the tree are the model's: the compiled size, the entries looked at,
//! the bytes of a file, of a line and in all, and the answer. What a bound left out is said at the end.

use std::io::Read;
use std::ops::Range;

use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;

use super::beneath::{
    self, Cancel, Dir, Kind, OUTPUT_MAX_BYTES, Opened, ReadFile, Root, ToolFailure, VISITED_MAX, Why, count, escaped,
    grouped, quoted, size,
};

/// The tool's name.
pub const NAME: &str = "search_files";
/// What the model is told.
pub const DESCRIPTION: &str = "Finds lines matching a regular expression in the text files of the workspace. \
                               Answers with path:line: text.";

/// Matching lines given when the call names no number.
pub const MATCHES_DEFAULT: u32 = 50;
/// Most matching lines of one call.
pub const MATCHES_MAX: u32 = 200;
/// Deepest level searched.
pub const DEPTH_MAX: u32 = 16;
/// How much of one file is searched.
pub const FILE_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// How much one call reads in all.
pub const TOTAL_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// How much of one line is searched: within a line nothing asks whether to stop.
pub const LINE_MAX_BYTES: usize = 8 * 1024;
/// How much of a line is shown, in characters.
pub const SHOWN_MAX_CHARS: usize = 300;
/// Longest pattern, in bytes.
pub const PATTERN_MAX_BYTES: usize = 1_024;

/// Compiled size of a pattern: what a line can cost grows with it.
const COMPILED_MAX_BYTES: usize = 1024 * 1024;
/// Room for the notes at the end.
const NOTES_BYTES: usize = 2 * 1024;

/// The arguments.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Regular expression (Rust syntax: no look-around, no back-references), matched line by line. (?i) ignores case.
    pub pattern: String,
    /// File or directory to search, relative to the workspace. Default: the whole workspace.
    pub path: Option<String>,
    /// Most matching lines to give, at most 200. Default 50.
    #[schemars(range(min = 1, max = 200))]
    pub max: Option<u32>,
}

/// The schema of [`Args`].
#[must_use]
pub fn schema() -> serde_json::Value {
    beneath::argument_schema::<Args>()
}

/// One line a matching line, in the order of the paths, followed by notes on what was skipped or cut.
///
/// # Errors
/// [`ToolFailure::BadArgument`] with the expression's own fault; [`ToolFailure::NotFound`], [`ToolFailure::Refused`],
/// [`ToolFailure::Cancelled`]. What cannot be read *below* a directory is counted in the notes instead.
pub fn run(root: &Root, args: &Args, cancel: &Cancel<'_>) -> Result<String, ToolFailure> {
    let max = args.max.unwrap_or(MATCHES_DEFAULT);
    if !(1..=MATCHES_MAX).contains(&max) {
        return Err(ToolFailure::BadArgument(format!("max is 1 to {MATCHES_MAX}, not {max}")));
    }
    let pattern = compile(&args.pattern)?;
    let path = root.resolve(args.path.as_deref().unwrap_or("."))?;
    let mut search = Search::new(root, pattern, u64::from(max), cancel);
    match root.any(&path)? {
        Opened::Dir(dir) => search.dir(&dir, 1)?,
        Opened::File(mut file) => {
            let bytes = file.bytes;
            search.file(&mut file)?;
            if search.tally.not_text > 0 {
                return Err(ToolFailure::NotText { path: path.asked().to_owned(), bytes });
            }
        }
    }
    Ok(search.finish(&args.pattern, path.asked()))
}

fn compile(pattern: &str) -> Result<Regex, ToolFailure> {
    if pattern.is_empty() || pattern.len() > PATTERN_MAX_BYTES {
        let what = format!("pattern has 1 to {} bytes", grouped(PATTERN_MAX_BYTES as u64));
        return Err(ToolFailure::BadArgument(what));
    }
    RegexBuilder::new(pattern)
        .size_limit(COMPILED_MAX_BYTES)
        .dfa_size_limit(2 * COMPILED_MAX_BYTES)
        .build()
        .map_err(|fault| ToolFailure::BadArgument(format!("pattern does not work: {fault}")))
}

/// What was searched, and what was not.
#[derive(Default)]
struct Tally {
    files: u64,
    not_text: u64,
    links: u64,
    special: u64,
    unreadable: u64,
    deep: u64,
    cut_files: u64,
    cut_lines: u64,
}

/// The bound that ended a search.
enum Ended {
    Matches,
    Output,
    Visits,
    Bytes,
}

struct Search<'a> {
    root: &'a Root,
    pattern: Regex,
    max: u64,
    cancel: &'a Cancel<'a>,
    visits: usize,
    bytes_left: u64,
    found: u64,
    text: String,
    tally: Tally,
    ended: Option<Ended>,
}

impl<'a> Search<'a> {
    fn new(root: &'a Root, pattern: Regex, max: u64, cancel: &'a Cancel<'a>) -> Self {
        let (text, tally) = (String::new(), Tally::default());
        let (visits, bytes_left) = (VISITED_MAX, TOTAL_MAX_BYTES);
        Self { root, pattern, max, cancel, visits, bytes_left, found: 0, text, tally, ended: None }
    }

    fn dir(&mut self, dir: &Dir, level: u32) -> Result<(), ToolFailure> {
        let (entries, more) = dir.entries(&mut self.visits, self.cancel)?;
        for entry in entries {
            if (self.cancel)() {
                return Err(ToolFailure::Cancelled);
            }
            if self.ended.is_some() {
                return Ok(());
            }
            match entry.kind {
                Kind::Special(Why::Link) => self.tally.links += 1,
                Kind::Special(_) => self.tally.special += 1,
                Kind::Dir if level == DEPTH_MAX => self.tally.deep += 1,
                Kind::Dir | Kind::File => match self.root.any_in(dir, &entry) {
                    Ok(Opened::Dir(below)) => self.below(&below, level + 1)?,
                    Ok(Opened::File(mut file)) => self.file(&mut file)?,
                    Err(_) => self.tally.unreadable += 1,
                },
            }
        }
        if more && self.ended.is_none() {
            self.ended = Some(Ended::Visits);
        }
        Ok(())
    }

    /// A directory that cannot be read is no reason to lose what the others hold.
    fn below(&mut self, dir: &Dir, level: u32) -> Result<(), ToolFailure> {
        match self.dir(dir, level) {
            Ok(()) => Ok(()),
            Err(ToolFailure::Cancelled) => Err(ToolFailure::Cancelled),
            Err(_) => {
                self.tally.unreadable += 1;
                Ok(())
            }
        }
    }

    fn file(&mut self, opened: &mut ReadFile) -> Result<(), ToolFailure> {
        if self.bytes_left == 0 {
            self.ended = Some(Ended::Bytes);
            return Ok(());
        }
        let limit = FILE_MAX_BYTES.min(self.bytes_left);
        let mut bytes = Vec::new();
        let mut piece = vec![0; 64 * 1024];
        let cut = loop {
            if (self.cancel)() {
                return Err(ToolFailure::Cancelled);
            }
            let got = match opened.file.read(&mut piece) {
                Ok(got) => got,
                Err(err) if err.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.tally.unreadable += 1;
                    return Ok(());
                }
            };
            let room = usize::try_from(limit).unwrap_or(usize::MAX) - bytes.len();
            bytes.extend_from_slice(&piece[..got.min(room)]);
            if got == 0 || got > room || piece[..got].contains(&0) {
                break got > room;
            }
        };
        self.bytes_left -= bytes.len() as u64;
        let Some(text) = text_of(&bytes, cut) else {
            self.tally.not_text += 1;
            return Ok(());
        };
        self.tally.files += 1;
        match cut {
            true if limit < FILE_MAX_BYTES => self.ended = Some(Ended::Bytes),
            cut => self.tally.cut_files += u64::from(cut),
        }
        self.lines(&opened.path.shown(), text)
    }

    fn lines(&mut self, path: &str, text: &str) -> Result<(), ToolFailure> {
        for (number, line) in (1_u64..).zip(text.lines()) {
            if (self.cancel)() {
                return Err(ToolFailure::Cancelled);
            }
            let searched = &line[..line.floor_char_boundary(LINE_MAX_BYTES)];
            self.tally.cut_lines += u64::from(searched.len() < line.len());
            let Some(hit) = self.pattern.find(searched) else { continue };
            if self.found == self.max {
                self.ended = Some(Ended::Matches);
                return Ok(());
            }
            let shown = format!("{path}:{number}: {}\n", excerpt(line, hit.range()));
            if self.text.len() + shown.len() > OUTPUT_MAX_BYTES - NOTES_BYTES {
                self.ended = Some(Ended::Output);
                return Ok(());
            }
            self.found += 1;
            self.text.push_str(&shown);
        }
        Ok(())
    }

    fn finish(self, pattern: &str, asked: &str) -> String {
        let Self { mut text, tally, found, .. } = self;
        let files = count(tally.files, "file", "files");
        if found == 0 {
            text = format!("[no line matches {} in {files} under {}]\n", quoted(pattern), quoted(asked));
        }
        let ended = match self.ended {
            None => None,
            Some(Ended::Matches) => Some(format!(
                "[… stopped after {}; narrow with path or pattern, or raise max (at most {MATCHES_MAX})]",
                count(found, "match", "matches")
            )),
            Some(Ended::Output) => {
                Some(format!("[… stopped: the answer holds {}; narrow it]", size(text.len() as u64)))
            }
            Some(Ended::Visits) => Some(format!(
                "[… stopped after {} entries, so some files were not searched; narrow with path]",
                grouped(VISITED_MAX as u64)
            )),
            Some(Ended::Bytes) => Some(format!(
                "[… stopped after reading {}, so some files were not searched; narrow with path]",
                size(TOTAL_MAX_BYTES)
            )),
        };
        let skipped = [
            (tally.not_text, "not text"),
            (tally.links, "links"),
            (tally.special, "special files"),
            (tally.unreadable, "not readable or refused"),
            (tally.deep, "directories too deep"),
        ];
        let skipped: Vec<String> =
            skipped.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n))).collect();
        let notes = [
            ended,
            (!skipped.is_empty()).then(|| format!("[skipped: {}]", skipped.join(", "))),
            (tally.cut_files > 0).then(|| {
                let cut = count(tally.cut_files, "file was", "files were");
                format!("[{cut} searched only at the start, up to {}]", size(FILE_MAX_BYTES))
            }),
            (tally.cut_lines > 0).then(|| {
                let cut = count(tally.cut_lines, "line was", "lines were");
                format!("[{cut} searched only at the start, up to {}]", size(LINE_MAX_BYTES as u64))
            }),
        ];
        for note in notes.into_iter().flatten() {
            text.push_str(&note);
            text.push('\n');
        }
        text
    }
}

/// The text in `bytes`, unless it is none. Of a file that was cut, the last line is left out when it is not whole.
fn text_of(bytes: &[u8], cut: bool) -> Option<&str> {
    if bytes.contains(&0) {
        return None;
    }
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(end) if cut => &bytes[..=end],
        _ => bytes,
    };
    let text = match std::str::from_utf8(whole) {
        Ok(text) => text,
        Err(err) if cut && err.error_len().is_none() => std::str::from_utf8(&whole[..err.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    Some(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// At most [`SHOWN_MAX_CHARS`] characters of `line` around the match, on one line and without hidden characters.
fn excerpt(line: &str, hit: Range<usize>) -> String {
    // The match begins in the first third, so that its surroundings are seen; near the end, more of what is before.
    let before = line[..hit.start].chars().count();
    let after = line[hit.start..].chars().take(SHOWN_MAX_CHARS).count();
    let lead = (SHOWN_MAX_CHARS / 3).max(SHOWN_MAX_CHARS - after);
    let skip = if before + after <= SHOWN_MAX_CHARS { 0 } else { before.saturating_sub(lead) };
    let shown: String = line.chars().skip(skip).take(SHOWN_MAX_CHARS).collect();
    let start = if skip > 0 { "…" } else { "" };
    let end = if line.chars().nth(skip + SHOWN_MAX_CHARS).is_some() { "…" } else { "" };
    format!("{start}{}{end}", escaped(&shown.replace('\t', "    ")))
}
