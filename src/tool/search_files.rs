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
    /// Regular expression in Rust syntax, without look-around, matched line by line. (?i) ignores case.
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
    search(root, args, cancel, VISITED_MAX)
}

fn search(root: &Root, args: &Args, cancel: &Cancel<'_>, visited_max: usize) -> Result<String, ToolFailure> {
    let max = args.max.unwrap_or(MATCHES_DEFAULT);
    if !(1..=MATCHES_MAX).contains(&max) {
        return Err(ToolFailure::BadArgument(format!("max must be 1 to {MATCHES_MAX}, not {max}")));
    }
    let pattern = compile(&args.pattern)?;
    let path = root.resolve(args.path.as_deref().unwrap_or("."))?;
    let mut search = Search::new(root, pattern, u64::from(max), cancel, visited_max);
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
    Ok(search.finish(&args.pattern, path.asked(), visited_max))
}

fn compile(pattern: &str) -> Result<Regex, ToolFailure> {
    if pattern.is_empty() || pattern.len() > PATTERN_MAX_BYTES {
        let what = format!("pattern must have 1 to {} bytes", grouped(PATTERN_MAX_BYTES as u64));
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
    fn new(root: &'a Root, pattern: Regex, max: u64, cancel: &'a Cancel<'a>, visits: usize) -> Self {
        let (text, tally) = (String::new(), Tally::default());
        let bytes_left = TOTAL_MAX_BYTES;
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

    fn finish(self, pattern: &str, asked: &str, visited_max: usize) -> String {
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
                grouped(visited_max as u64)
            )),
            Some(Ended::Bytes) => Some(format!(
                "[… stopped after reading {}, so some files were not searched; narrow with path]",
                size(TOTAL_MAX_BYTES)
            )),
        };
        let skipped = [
            (tally.not_text, "file without text", "files without text"),
            (tally.links, "link", "links"),
            (tally.special, "special file", "special files"),
            (tally.unreadable, "not readable or refused", "not readable or refused"),
            (tally.deep, "directory too deep", "directories too deep"),
        ];
        let skipped = skipped.iter().filter(|(number, ..)| *number > 0);
        let skipped: Vec<String> = skipped.map(|(number, one, many)| count(*number, one, many)).collect();
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const GO_ON: &Cancel<'static> = &|| false;

    fn args(pattern: &str, path: Option<&str>, max: Option<u32>) -> Args {
        Args { pattern: pattern.to_owned(), path: path.map(str::to_owned), max }
    }

    fn finding(work: &Path, pattern: &str, path: Option<&str>, max: Option<u32>) -> String {
        let found = run(&Root::open(work).unwrap(), &args(pattern, path, max), GO_ON);
        found.unwrap_or_else(|failure| format!("error: {failure}"))
    }

    #[test]
    fn lines_are_found_below_and_nothing_else_is_read() {
        let home = tempfile::tempdir().unwrap();
        let work = home.path().join("work");
        fs::create_dir_all(work.join("notes/deep")).unwrap();
        fs::write(home.path().join("outside"), "due SECRET\n").unwrap();
        fs::write(work.join("notes/a.md"), "# Today\r\nRent is due\r\n\tdue: \u{1b}[31m tax\n").unwrap();
        fs::write(work.join("notes/deep/b.md"), "\u{feff}due tomorrow").unwrap();
        fs::write(work.join("~x"), "due\n").unwrap();
        fs::write(work.join("latin"), b"due caf\xe9\n").unwrap();
        fs::write(work.join("picture"), b"due\n\0\0").unwrap();
        symlink(home.path(), work.join("link")).unwrap();
        fs::hard_link(home.path().join("outside"), work.join("hard")).unwrap();
        mknodat(CWD, work.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for (way, root) in Root::by_every_way(&work) {
            let found = run(&root, &args("due", None, None), GO_ON).unwrap();
            assert_eq!(found, finding(&work, "due", None, None), "{way}");
        }
        insta::assert_snapshot!(finding(&work, "due", None, None), @r"
        notes/a.md:2: Rent is due
        notes/a.md:3:     due: \u{1b}[31m tax
        notes/deep/b.md:1: due tomorrow
        ./~x:1: due
        [skipped: 2 files without text, 1 link, 1 special file, 1 not readable or refused]
        ");
        insta::assert_snapshot!(finding(&work, "^(?i)RENT.*due$", Some("notes"), None), @"notes/a.md:2: Rent is due");
        insta::assert_snapshot!(finding(&work, "due", Some("notes/a.md"), Some(1)), @r"
        notes/a.md:2: Rent is due
        [… stopped after 1 match; narrow with path or pattern, or raise max (at most 200)]
        ");
        insta::assert_snapshot!(finding(&work, "nothing like it", Some("notes"), None), @"[no line matches `nothing like it` in 2 files under `notes`]");
        insta::assert_snapshot!(finding(&work, "due", Some("picture"), None), @"error: `picture` is no UTF-8 text (6 B), so it cannot be read here; choose another file");
        insta::assert_snapshot!(finding(&work, "due", Some("hard"), None), @"error: `hard` is refused: it has a second name elsewhere (a hard link); only files with one name are read");
        insta::assert_snapshot!(finding(&work, "due", Some("none"), None), @"error: `none` is not in the workspace; list_files shows what is");
    }

    #[test]
    fn a_pattern_that_does_not_work_says_why() {
        let home = tempfile::tempdir().unwrap();
        insta::assert_snapshot!(finding(home.path(), "a(b", None, None), @r"
        error: pattern does not work: regex parse error:
            a(b
             ^
        error: unclosed group
        ");
        insta::assert_snapshot!(finding(home.path(), "(?=x)", None, None), @r"
        error: pattern does not work: regex parse error:
            (?=x)
            ^^^
        error: look-around, including look-ahead and look-behind, is not supported
        ");
        insta::assert_snapshot!(finding(home.path(), r"(?:\w{100}){100}", None, None), @"error: pattern does not work: Compiled regex exceeds size limit of 1048576 bytes.");
        insta::assert_snapshot!(finding(home.path(), "", None, None), @"error: pattern must have 1 to 1,024 bytes");
        insta::assert_snapshot!(finding(home.path(), "x", None, Some(201)), @"error: max must be 1 to 200, not 201");
    }

    #[test]
    fn a_long_line_is_shown_around_its_match() {
        let line = format!("{}needle{}", "é".repeat(1_000), "x".repeat(1_000));
        let shown = excerpt(&line, 2_000..2_006);
        assert_eq!(shown, format!("…{}needle{}…", "é".repeat(100), "x".repeat(194)));
        let last = excerpt(&line[..2_006], 2_000..2_006);
        assert_eq!(last, format!("…{}needle", "é".repeat(294)));
        assert_eq!(excerpt("short needle", 6..12), "short needle");
        assert_eq!(excerpt(&"x".repeat(301), 0..301), format!("{}…", "x".repeat(300)));
    }

    #[test]
    fn a_long_line_and_a_long_file_are_searched_at_the_start() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("line"), format!("{}needle\nneedle\n", "x".repeat(LINE_MAX_BYTES))).unwrap();
        let file = format!("needle\n{}needle\n", format!("{}\n", "é".repeat(4_000)).repeat(1_024));
        fs::write(home.path().join("long"), file).unwrap();
        insta::assert_snapshot!(finding(home.path(), "needle", None, None), @r"
        line:2: needle
        long:1: needle
        [1 file was searched only at the start, up to 4.0 MiB]
        [1 line was searched only at the start, up to 8.0 KiB]
        ");
    }

    #[test]
    fn every_bound_is_said() {
        let home = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = home.path().join(name);
            fs::create_dir_all(&dir).unwrap();
            dir
        };
        let last = |path: &str, max: Option<u32>| {
            let text = finding(home.path(), "x", Some(path), max);
            assert!(text.len() <= OUTPUT_MAX_BYTES, "{}", text.len());
            text.lines().filter(|line| line.starts_with('[')).collect::<Vec<_>>().join("\n")
        };
        fs::write(dir("matches").join("a"), "x\n".repeat(201)).unwrap();
        insta::assert_snapshot!(last("matches", Some(200)), @"[… stopped after 200 matches; narrow with path or pattern, or raise max (at most 200)]");

        fs::write(dir("output").join("a"), format!("{}\n", "x€".repeat(300)).repeat(200)).unwrap();
        insta::assert_snapshot!(last("output", Some(200)), @"[… stopped: the answer holds 61.4 KiB; narrow it]");

        fs::create_dir_all(dir("deep").join("d/".repeat(16))).unwrap();
        insta::assert_snapshot!(last("deep", None), @r"
        [no line matches `x` in 0 files under `deep`]
        [skipped: 1 directory too deep]
        ");

        for n in 0..18 {
            fs::write(dir("bytes").join(format!("{n}")), format!("{}\n", "y".repeat(4_095)).repeat(1_024 - n)).unwrap();
        }
        insta::assert_snapshot!(last("bytes", None), @r"
        [no line matches `x` in 17 files under `bytes`]
        [… stopped after reading 64.0 MiB, so some files were not searched; narrow with path]
        ");

        for n in 0..9 {
            fs::write(dir("many").join(n.to_string()), "y").unwrap();
        }
        let root = Root::open(home.path()).unwrap();
        insta::assert_snapshot!(search(&root, &args("x", Some("many"), None), GO_ON, 8).unwrap(), @r"
        [no line matches `x` in 8 files under `many`]
        [… stopped after 8 entries, so some files were not searched; narrow with path]
        ");

        match fs::File::create(dir("sparse").join("a")).unwrap().set_len(1 << 40) {
            Ok(()) => insta::assert_snapshot!(last("sparse", None), @r"
        [no line matches `x` in 0 files under `sparse`]
        [skipped: 1 file without text]
        "),
            Err(err) => println!("no sparse file, this file system has none: {err}"),
        }
    }

    #[test]
    fn a_stop_is_heard_within_a_file() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a"), "y\n".repeat(1_000)).unwrap();
        let asked = AtomicU64::new(0);
        let soon = || asked.fetch_add(1, Ordering::SeqCst) == 100;
        let stopped = run(&Root::open(home.path()).unwrap(), &args("x", None, None), &soon);
        assert!(matches!(stopped, Err(ToolFailure::Cancelled)));
        assert_eq!(asked.load(Ordering::SeqCst), 101);
    }

    #[test]
    fn the_schema_is_small_and_knows_no_other_arguments() {
        assert_eq!(
            schema(),
            serde_json::json!({
                "type": "object",
                "additionalProperties": false,
                "required": ["pattern"],
                "properties": {
                    "max": {
                        "description": "Most matching lines to give, at most 200. Default 50.",
                        "maximum": 200,
                        "minimum": 1,
                        "type": "integer",
                    },
                    "path": {
                        "description": "File or directory to search, relative to the workspace. Default: the whole workspace.",
                        "type": "string",
                    },
                    "pattern": {
                        "description": "Regular expression in Rust syntax, without look-around, matched line by line. (?i) ignores case.",
                        "type": "string",
                    },
                },
            })
        );
        assert!(serde_json::from_str::<Args>(r#"{"pattern": "a", "regex": "b"}"#).is_err());
    }
}
