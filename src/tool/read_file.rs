//! `read_file`: a window of lines out of one text file.
//!
//! The whole file streams by, whatever the window is: only so can it be said how many lines are left, and that all of
//! it is text. What is kept is the window, and never more than [`OUTPUT_MAX_BYTES`].

use std::io::Read;

use schemars::JsonSchema;
use serde::Deserialize;

use super::beneath::{self, Cancel, OUTPUT_MAX_BYTES, Root, ToolFailure, count, grouped, quoted, size};

/// The tool's name.
pub const NAME: &str = "read_file";
/// What the model is told.
pub const DESCRIPTION: &str = "Reads a text file in the workspace, up to 2,000 lines or 64 KiB at a time. \
                               Says how to go on when there is more.";

/// Largest file that is read.
pub const FILE_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Lines given when the call names no limit.
pub const LINES_DEFAULT: u64 = 2_000;
/// Where a line is cut: one line of minified text must not fill the whole answer.
pub const LINE_MAX_BYTES: usize = 8 * 1024;

/// Room for the notes at the end, so that the answer with them stays within its bounds.
const NOTES_BYTES: usize = 512;

/// The arguments.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Path of the file, relative to the workspace: notes/today.md
    pub path: String,
    /// First line to read, counted from 1. Default 1.
    #[schemars(range(min = 1))]
    pub offset: Option<u64>,
    /// How many lines to read. Default 2000.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
}

/// The schema of [`Args`].
#[must_use]
pub fn schema() -> serde_json::Value {
    beneath::argument_schema::<Args>()
}

/// The lines asked for, followed by a note on what was left out.
///
/// # Errors
/// Every [`ToolFailure`]; each says what to do.
pub fn run(root: &Root, args: &Args, cancel: &Cancel<'_>) -> Result<String, ToolFailure> {
    let (first, limit) = (args.offset.unwrap_or(1), args.limit.unwrap_or(LINES_DEFAULT));
    if first == 0 || limit == 0 {
        return Err(ToolFailure::BadArgument("offset and limit count from 1".to_owned()));
    }
    let path = root.resolve(&args.path)?;
    let mut opened = root.file(&path)?;
    if opened.bytes > FILE_MAX_BYTES {
        return Err(ToolFailure::TooLarge { path: args.path.clone(), bytes: opened.bytes, limit: FILE_MAX_BYTES });
    }
    let mut window = Window::new(first, limit);
    let stream = stream_text(&mut opened.file, FILE_MAX_BYTES, cancel, |text| window.take(text));
    let grew = match stream {
        Ok(done) => done,
        Err(Broken::Cancelled) => return Err(ToolFailure::Cancelled),
        Err(Broken::Io(source)) => return Err(ToolFailure::Io { path: args.path.clone(), source }),
        Err(Broken::NotText) => return Err(ToolFailure::NotText { path: args.path.clone(), bytes: opened.bytes }),
    };
    if window.lines == 0 {
        return Ok(format!("[{} is empty: 0 bytes]\n", quoted(&args.path)));
    }
    window.finish(&args.path, grew)
}

/// Why a stream of text ended early.
enum Broken {
    Cancelled,
    Io(std::io::Error),
    NotText,
}

/// Hands the file's text on in pieces, at most `limit` bytes of it, and says whether there were more: a file that
/// grows while we read would otherwise keep us for ever.
fn stream_text(
    file: &mut impl Read,
    limit: u64,
    cancel: &Cancel<'_>,
    mut take: impl FnMut(&str),
) -> Result<bool, Broken> {
    let mut buffer = vec![0; 64 * 1024];
    let (mut kept, mut total, mut at_start) = (0, 0, true);
    loop {
        if cancel() {
            return Err(Broken::Cancelled);
        }
        let got = match file.read(&mut buffer[kept..]) {
            Ok(got) => got,
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(Broken::Io(err)),
        };
        let room = usize::try_from(limit - total).unwrap_or(usize::MAX);
        let (fresh, grew) = (got.min(room), got > room);
        total += fresh as u64;
        let filled = &buffer[..kept + fresh];
        if filled.contains(&0) {
            return Err(Broken::NotText);
        }
        let whole = match std::str::from_utf8(filled) {
            Ok(_) => filled.len(),
            // The piece ends within a character; the rest of it comes with the next one.
            Err(err) if err.error_len().is_none() && (got > 0) => err.valid_up_to(),
            Err(_) => return Err(Broken::NotText),
        };
        let text = std::str::from_utf8(&filled[..whole]).map_err(|_| Broken::NotText)?;
        // A byte order mark is no part of the first line.
        take(if at_start { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text });
        at_start &= text.is_empty();
        if got == 0 || grew {
            return Ok(grew);
        }
        kept = filled.len() - whole;
        buffer.copy_within(whole..whole + kept, 0);
    }
}

/// The lines asked for, picked out of a stream.
struct Window {
    first: u64,
    limit: u64,
    /// Lines begun so far; the last of them is current.
    lines: u64,
    /// Bytes of the current line so far.
    current: usize,
    /// The stream stands at the start of a line that may not come.
    fresh: bool,
    text: String,
    /// Where the current line begins in `text`.
    begun: usize,
    /// First line that did not fit, once one did not.
    full: Option<u64>,
    long: u64,
}

impl Window {
    fn new(first: u64, limit: u64) -> Self {
        let text = String::new();
        Self { first, limit, lines: 0, current: 0, fresh: true, text, begun: 0, full: None, long: 0 }
    }

    fn wanted(&self) -> bool {
        self.full.is_none() && self.lines >= self.first && self.lines - self.first < self.limit
    }

    fn take(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            if self.fresh {
                (self.fresh, self.current, self.begun) = (false, 0, self.text.len());
                self.lines += 1;
            }
            let words = piece.strip_suffix('\n');
            self.add(words.unwrap_or(piece));
            if words.is_some() {
                self.end_line();
                self.fresh = true;
            }
        }
    }

    fn add(&mut self, words: &str) {
        let room = LINE_MAX_BYTES.saturating_sub(self.current);
        self.current += words.len();
        if !self.wanted() || room == 0 {
            return;
        }
        self.text.push_str(&words[..words.floor_char_boundary(room)]);
    }

    fn end_line(&mut self) {
        if !self.wanted() {
            return;
        }
        let over = self.current.saturating_sub(LINE_MAX_BYTES);
        if over > 0 {
            let note = format!(" [… {} more of this line]", count(over as u64, "byte", "bytes"));
            self.text.push_str(&note);
        }
        self.text.push('\n');
        if self.text.len() > OUTPUT_MAX_BYTES - NOTES_BYTES {
            self.text.truncate(self.begun);
            self.full = Some(self.lines);
        } else {
            self.long += u64::from(over > 0);
        }
    }

    fn finish(mut self, path: &str, grew: bool) -> Result<String, ToolFailure> {
        if !self.fresh {
            self.end_line();
        }
        if self.first > self.lines {
            let lines = count(self.lines, "line", "lines");
            let what = format!("{} has {lines}; offset = {} is beyond its end", quoted(path), self.first);
            return Err(ToolFailure::BadArgument(what));
        }
        let next = self.full.unwrap_or_else(|| self.first.saturating_add(self.limit));
        if next <= self.lines {
            let more = count(self.lines - next + 1, "more line", "more lines");
            self.text.push_str(&format!("[… {more}; go on with offset = {next}]\n"));
        }
        if self.long > 0 {
            let long = count(self.long, "line was", "lines were");
            self.text.push_str(&format!("[{long} cut at {} bytes]\n", grouped(LINE_MAX_BYTES as u64)));
        }
        if grew {
            let limit = size(FILE_MAX_BYTES);
            self.text.push_str(&format!("[the file grew while it was read; nothing after {limit} was read]\n"));
        }
        Ok(self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;
    use crate::tool::{list_files, search_files};

    const GO_ON: &Cancel<'static> = &|| false;

    fn args(path: &str, offset: impl Into<Option<u64>>, limit: impl Into<Option<u64>>) -> Args {
        Args { path: path.to_owned(), offset: offset.into(), limit: limit.into() }
    }

    /// What the model reads of a file that holds `bytes`, be it lines or a failure.
    fn reading(bytes: &[u8], offset: impl Into<Option<u64>>, limit: impl Into<Option<u64>>) -> String {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a.md"), bytes).unwrap();
        let root = Root::open(home.path()).unwrap();
        run(&root, &args("a.md", offset, limit), GO_ON).unwrap_or_else(|failure| format!("error: {failure}"))
    }

    fn numbered(lines: u64) -> String {
        (1..=lines).map(|n| format!("line {n}\n")).collect()
    }

    #[test]
    fn a_window_of_lines_says_how_to_go_on() {
        insta::assert_snapshot!(reading(b"one\ntwo\n", None, None), @r"
        one
        two
        ");
        insta::assert_snapshot!(reading(b"one\ntwo", None, None), @r"
        one
        two
        ");
        insta::assert_snapshot!(reading(numbered(1_205).as_bytes(), 3, 2), @r"
        line 3
        line 4
        [… 1,201 more lines; go on with offset = 5]
        ");
        insta::assert_snapshot!(reading(numbered(5).as_bytes(), 4, 1), @r"
        line 4
        [… 1 more line; go on with offset = 5]
        ");
        insta::assert_snapshot!(reading(numbered(5).as_bytes(), 4, 9), @r"
        line 4
        line 5
        ");
        let all = reading(numbered(3_200).as_bytes(), None, None);
        insta::assert_snapshot!(all.lines().skip(1_999).collect::<Vec<_>>().join("\n"), @r"
        line 2000
        [… 1,200 more lines; go on with offset = 2001]
        ");
    }

    #[test]
    fn what_gives_no_lines_says_why() {
        insta::assert_snapshot!(reading(b"", None, None), @"[`a.md` is empty: 0 bytes]");
        assert_eq!(reading("\u{feff}".as_bytes(), None, None), reading(b"", None, None));
        insta::assert_snapshot!(reading(b"one\ntwo\nthree\n", 10, None), @"error: `a.md` has 3 lines; offset = 10 is beyond its end");
        insta::assert_snapshot!(reading(b"one\n", 0, None), @"error: offset and limit count from 1");
        insta::assert_snapshot!(reading(b"one\n\0two", None, None), @"error: `a.md` is no UTF-8 text (8 B), so it cannot be read here; choose another file");
        insta::assert_snapshot!(reading(b"caf\xe9", None, None), @"error: `a.md` is no UTF-8 text (4 B), so it cannot be read here; choose another file");
        insta::assert_snapshot!(reading(b"cut \xe2\x82", None, None), @"error: `a.md` is no UTF-8 text (6 B), so it cannot be read here; choose another file");
        insta::assert_snapshot!(reading(&vec![b'a'; 16 * 1024 * 1024 + 1], None, None), @"error: `a.md` has 16.0 MiB, and only files up to 16.0 MiB are read; work with a smaller file");
        let home = tempfile::tempdir().unwrap();
        symlink("b", home.path().join("link")).unwrap();
        fs::create_dir(home.path().join("notes")).unwrap();
        let root = Root::open(home.path()).unwrap();
        let failure = |path: &str| run(&root, &args(path, None, None), GO_ON).unwrap_err().to_string();
        insta::assert_snapshot!(failure("none.md"), @"`none.md` is not in the workspace; list_files shows what is");
        insta::assert_snapshot!(failure("../x"), @"`../x` is refused: paths are relative to the workspace, without `..` and `~`; write one like notes/today.md");
        insta::assert_snapshot!(failure("link"), @"`link` is refused: it is or leads through a symbolic link, and links are not followed; use the real path");
        insta::assert_snapshot!(failure("notes"), @"`notes` is refused: it is a directory; list_files shows what is in it");
        insta::assert_snapshot!(failure("a\u{1b}b"), @r"the path `a\u{1b}b` holds control characters");
        let stopped = run(&root, &args("none.md", None, None), &|| true);
        assert!(matches!(stopped, Err(ToolFailure::NotFound { .. })));
    }

    #[test]
    fn an_answer_stays_within_its_bounds_and_can_be_continued_to_the_end() {
        let text: String = (0..3_000).map(|n| format!("{n} {}\n", "é".repeat(n % 90))).collect();
        let (mut offset, mut got) = (1, String::new());
        loop {
            let page = reading(text.as_bytes(), offset, None);
            assert!(page.len() <= OUTPUT_MAX_BYTES);
            let Some((lines, rest)) = page.split_once("[… ") else {
                got.push_str(&page);
                break;
            };
            got.push_str(lines);
            offset = rest.split_once("offset = ").unwrap().1.trim_end_matches("]\n").parse().unwrap();
        }
        assert_eq!(got, text);
    }

    #[test]
    fn a_very_long_line_is_cut_and_the_next_ones_are_not_lost() {
        let page = reading(format!("first\n{}\nlast\n", "é".repeat(100_000)).as_bytes(), None, None);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!((lines[0], lines[2], lines[1].chars().filter(|c| *c == 'é').count()), ("first", "last", 4_096));
        insta::assert_snapshot!(lines[1].trim_start_matches('é'), @" [… 191,808 bytes more of this line]");
        insta::assert_snapshot!(lines[3], @"[1 line was cut at 8,192 bytes]");
    }

    #[test]
    fn a_character_may_lie_across_two_pieces() {
        /// Gives one byte at a time.
        struct Drip<'a>(&'a [u8]);
        impl Read for Drip<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(&mut into[..1])
            }
        }
        let mut got = String::new();
        let done = stream_text(&mut Drip("\u{feff}aé€😀\n".as_bytes()), 99, GO_ON, |text| got.push_str(text));
        assert!(matches!(done, Ok(false)));
        assert_eq!(got, "aé€😀\n");
    }

    #[test]
    fn a_file_that_grows_while_it_is_read_has_an_end() {
        let mut lines = Window::new(1, 1);
        let done = stream_text(&mut std::io::repeat(b'a'), 1_000_000, GO_ON, |text| lines.take(text));
        assert!(matches!(done, Ok(true)));
        assert_eq!(lines.current, 1_000_000);
        let text = lines.finish("a.log", true).unwrap();
        insta::assert_snapshot!(text.trim_start_matches('a'), @r"
         [… 991,808 bytes more of this line]
        [1 line was cut at 8,192 bytes]
        [the file grew while it was read; nothing after 16.0 MiB was read]
        ");
    }

    #[test]
    fn a_stop_is_heard() {
        let asked = AtomicU64::new(0);
        let soon = || asked.fetch_add(1, Ordering::SeqCst) == 3;
        let done = stream_text(&mut std::io::repeat(b'a'), u64::MAX, &soon, |_| ());
        assert!(matches!(done, Err(Broken::Cancelled)));
    }

    #[test]
    fn a_sparse_file_of_a_tebibyte_is_refused_at_once() {
        let home = tempfile::tempdir().unwrap();
        if let Err(err) = fs::File::create(home.path().join("huge")).unwrap().set_len(1 << 40) {
            return println!("skipped, this file system has no such files: {err}");
        }
        let root = Root::open(home.path()).unwrap();
        insta::assert_snapshot!(run(&root, &args("huge", None, None), GO_ON).unwrap_err(), @"`huge` has 1.0 TiB, and only files up to 16.0 MiB are read; work with a smaller file");
    }

    #[test]
    fn the_schema_is_small_and_knows_no_other_arguments() {
        assert_eq!(
            schema(),
            serde_json::json!({
                "type": "object",
                "additionalProperties": false,
                "required": ["path"],
                "properties": {
                    "limit": {
                        "description": "How many lines to read. Default 2000.",
                        "minimum": 1,
                        "type": "integer",
                    },
                    "offset": {
                        "description": "First line to read, counted from 1. Default 1.",
                        "minimum": 1,
                        "type": "integer",
                    },
                    "path": {
                        "description": "Path of the file, relative to the workspace: notes/today.md",
                        "type": "string",
                    },
                },
            })
        );
        assert!(serde_json::from_str::<Args>(r#"{"path": "a", "follow": true}"#).is_err());
        assert_eq!(serde_json::from_str::<Args>(r#"{"path": "a", "offset": null}"#).unwrap(), args("a", None, None));
    }

    /// Reads by all three tools while a directory and a file change places with links that lead outside.
    #[test]
    fn b095_a_swap_of_directory_and_link_never_gives_a_byte_from_outside() {
        const SWAPS: u64 = 10_000;
        let home = tempfile::tempdir().unwrap();
        let (work, outside) = (home.path().join("work"), home.path().join("outside"));
        for dir in [work.join("turn"), outside.clone()] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(outside.join("a.md"), "SECRET").unwrap();
        fs::write(outside.join("SECRET-name"), "SECRET").unwrap();
        for inside in ["turn/a.md", "file", "other"] {
            fs::write(work.join(inside), "INSIDE").unwrap();
        }
        symlink(&outside, work.join("gate")).unwrap();
        symlink(outside.join("a.md"), work.join("link")).unwrap();
        fs::hard_link(outside.join("a.md"), work.join("hard")).unwrap();

        let (over, work) = (AtomicBool::new(false), work.as_path());
        let tallies: Vec<[AtomicU64; 2]> = (0..4).map(|_| Default::default()).collect();
        let read = |root: &Root, tally: &[AtomicU64; 2]| {
            for path in ["turn/a.md", "file", "other"] {
                let got = run(root, &args(path, None, None), GO_ON);
                tally[usize::from(got.is_err())].fetch_add(1, Ordering::Relaxed);
                let text = got.unwrap_or_else(|failure| failure.to_string());
                assert!(!text.contains("SECRET"), "{path}: {text}");
            }
            for path in [None, Some("turn".to_owned())] {
                let all = list_files::Args { path: path.clone(), depth: None };
                let names = list_files::run(root, &all, GO_ON).unwrap_or_default();
                assert!(!names.contains("SECRET"), "{names}");
                let every = search_files::Args { pattern: "[A-Z]".to_owned(), path, max: None };
                let lines = search_files::run(root, &every, GO_ON).unwrap_or_default();
                assert!(!lines.contains("SECRET"), "{lines}");
            }
        };
        std::thread::scope(|threads| {
            for ((way, root), tally) in Root::by_every_way(work).into_iter().zip(&tallies) {
                let (over, read) = (&over, &read);
                let reader = move || {
                    while !over.load(Ordering::Relaxed) {
                        read(&root, tally);
                    }
                };
                std::thread::Builder::new().name(way).spawn_scoped(threads, reader).unwrap();
            }
            let swap = |a: &str, b: &str| {
                renameat_with(CWD, work.join(a), CWD, work.join(b), RenameFlags::EXCHANGE).unwrap();
            };
            // Readers that never met both sides would prove nothing, so it goes on until each has.
            let met = || tallies.iter().flatten().all(|side| side.load(Ordering::Relaxed) >= 100);
            let mut swaps = 0;
            while swaps < SWAPS || (swaps < 100 * SWAPS && !met()) {
                swap("turn", "gate");
                swap("file", "link");
                swap("other", "hard");
                swaps += 1;
            }
            over.store(true, Ordering::Relaxed);
            assert!(met(), "after {swaps} swaps: {tallies:?}");
        });
        assert_eq!(fs::read_to_string(Path::new(&outside).join("a.md")).unwrap(), "SECRET");
    }
}
