//! The direction of the rooms: a room uses only rooms on floors below its own.
//!
//! `src/lib.rs` lists the rooms as a message meets them, one block of `pub mod` lines a floor. Every path that begins
//! at the crate's root (`crate::store::…`, in groups and behind `super::super::` too) is a look from the room whose
//! file it stands in to the room it names. Comments and texts are no looks: a doc link may point anywhere.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what cannot be read here is a failed test, and may end as one")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Files of `src/` that are no room: the map, the way in, and macros that every room uses.
const NO_ROOMS: &[&str] = &["lib", "main", "macros"];
/// With fewer paths than this the reading is broken, not the house well ordered.
const FEW_PATHS: usize = 200;

#[test]
fn a_room_uses_only_rooms_on_floors_below_its_own() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let house = House::of(&std::fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut looks = Vec::new();
    let mut rooms = BTreeSet::new();
    for file in rust_files(&src) {
        let name = file.strip_prefix(&src).unwrap();
        let room = room_of(name);
        if !NO_ROOMS.contains(&room.as_str()) {
            let name = Path::new("src").join(name).display().to_string();
            looks.append(&mut house.looks(&name, &std::fs::read_to_string(&file).unwrap()));
            rooms.insert(room);
        }
    }
    println!("{} paths looked at, from {} rooms on {} floors", looks.len(), rooms.len(), house.height());
    let unlisted: Vec<_> = rooms.iter().filter(|room| !house.floors.contains_key(*room)).collect();
    assert!(unlisted.is_empty(), "lib.rs gives no floor to {unlisted:?}");
    assert!(looks.len() >= FEW_PATHS, "only {} paths were found: they are not read as they are written", looks.len());
    let wrong = house.wrong(&looks);
    assert!(wrong.is_empty(), "some rooms look up or across:\n{wrong}");
}

/// The floors, counted from the top.
struct House {
    floors: BTreeMap<String, usize>,
}

/// A path in the code of one room that names a room.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    file: String,
    line: usize,
    from: String,
    to: String,
}

impl House {
    /// Reads the blocks of `pub mod` lines; comments and attributes belong to the line below them.
    fn of(lib: &str) -> Self {
        let mut floors = BTreeMap::new();
        let (mut floor, mut is_open) = (0, false);
        for line in lib.lines().map(str::trim) {
            if line.is_empty() {
                floor += usize::from(is_open);
                is_open = false;
            } else if let Some(room) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) {
                floors.insert(room.to_owned(), floor);
                is_open = true;
            }
        }
        Self { floors }
    }

    fn height(&self) -> usize {
        self.floors.values().max().map_or(0, |deepest| deepest + 1)
    }

    /// All looks of one file; `file` is its path from the package's folder.
    fn looks(&self, file: &str, source: &str) -> Vec<Look> {
        let name = Path::new(file).strip_prefix("src").unwrap();
        let from = room_of(name);
        let code = code_only(source);
        let mut looks = Vec::new();
        let mut note = |at: usize, to: String| {
            let line = code[..at].matches('\n').count() + 1;
            looks.push(Look { file: file.to_owned(), line, from: from.clone(), to });
        };
        for (at, _) in code.match_indices("crate::") {
            let begins = !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            if begins {
                names(&code[at + "crate::".len()..]).into_iter().for_each(|to| note(at, to));
            }
        }
        // As many steps up as the file lies deep: the same as `crate::`. Fewer stay within the room.
        let depth = depth_of(name);
        for (at, _) in code.match_indices("super::") {
            if code[..at].ends_with("super::") {
                continue;
            }
            let rest = code[at..].trim_start_matches("super::");
            let steps = (code.len() - at - rest.len()) / "super::".len();
            if steps >= depth {
                let known = names(rest).into_iter().filter(|to| self.floors.contains_key(to));
                known.for_each(|to| note(at, to));
            }
        }
        looks
    }

    /// One line for each look that goes up, across, or to no room at all.
    fn wrong(&self, looks: &[Look]) -> String {
        let mut text = String::new();
        for Look { file, line, from, to } in looks.iter().filter(|look| look.from != look.to) {
            let why = match (self.floors.get(from), self.floors.get(to)) {
                (Some(from), Some(to)) if from < to => continue,
                (Some(from), Some(to)) if from == to => "lies on the same floor",
                (Some(_), Some(_)) => "lies above it",
                (_, None) => "is no room of lib.rs",
                (None, _) => "is used by what is no room of lib.rs",
            };
            let _ = writeln!(text, "{file}:{line}: {from} uses {to}, which {why}");
        }
        text
    }
}

/// The room of a file under `src/`: its folder, or its own name.
fn room_of(name: &Path) -> String {
    let first = name.components().next().unwrap().as_os_str();
    Path::new(first).file_stem().unwrap().to_string_lossy().into_owned()
}

/// How many modules lead from the root to this file: 1 for `store/mod.rs`, 2 for `store/inbox.rs`.
fn depth_of(name: &Path) -> usize {
    name.components().count() - usize::from(name.ends_with("mod.rs"))
}

/// What a path goes on with: its next name, or the first name of each member of its group.
fn names(rest: &str) -> Vec<String> {
    let word = |text: &str| {
        let text = text.trim_start();
        let text = text.strip_prefix("r#").unwrap_or(text);
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        text[..end].to_owned()
    };
    let Some(group) = rest.trim_start().strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut members, mut member) = (0, Vec::new(), String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => members.push(std::mem::take(&mut member)),
            _ => {}
        }
        if c != ',' || depth > 0 {
            member.push(c);
        }
    }
    members.push(member);
    members.iter().map(|member| word(member)).filter(|name| !name.is_empty() && name != "self").collect()
}

/// The source with comments and literals made blank, byte for byte, so that places stay where they are.
fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = source.to_owned().into_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(source, at);
        if end > at + 1 {
            code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        }
        at = end;
    }
    String::from_utf8(code).unwrap()
}

/// Where the comment or literal that begins at `at` ends; one byte on where none begins.
fn token_end(source: &str, at: usize) -> usize {
    let bytes = source.as_bytes();
    let until = |from: usize, end: &str| {
        let rest = bytes.get(from..).unwrap_or_default();
        let found = rest.windows(end.len()).position(|window| window == end.as_bytes());
        found.map_or(bytes.len(), |found| from + found + end.len())
    };
    let rest = &bytes[at..];
    let in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if rest.starts_with(b"//") {
        return until(at, "\n") - usize::from(until(at, "\n") < bytes.len());
    }
    if rest.starts_with(b"/*") {
        let (mut depth, mut end) = (1, at + 2);
        while depth > 0 && end < bytes.len() {
            let two = bytes.get(end..end + 2).unwrap_or_default();
            depth = if two == b"/*" { depth + 1 } else { depth - usize::from(two == b"*/") };
            end += if two == b"/*" || two == b"*/" { 2 } else { 1 };
        }
        return end;
    }
    if rest[0] == b'r' && (!in_word || matches!(bytes[at - 1], b'b' | b'c')) {
        let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            return until(at + 2 + hashes, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    if rest[0] == b'"' {
        let mut end = at + 1;
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        return (end + 1).min(bytes.len());
    }
    if rest[0] == b'\'' {
        // A character, or a lifetime, which has no second quote.
        let text = String::from_utf8_lossy(rest.get(1..).unwrap_or_default());
        let mut chars = text.chars();
        return match chars.next() {
            Some('\\') => until(at + 3, "'"),
            Some(c) if chars.next() == Some('\'') => at + 2 + c.len_utf8(),
            _ => at + 1,
        };
    }
    at + 1
}

/// All `.rs` files below a folder, in order.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let (folders, files): (Vec<_>, Vec<_>) = entries.into_iter().partition(|path| path.is_dir());
    let mut found: Vec<_> =
        files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect();
    found.extend(folders.iter().flat_map(|folder| rust_files(folder)));
    found
}

const MADE_UP: &str = "\
//! Words.

#[macro_use]
mod macros;

/// The top.
pub mod channel;
pub mod schedule;

pub mod gate;

pub mod store;
";

#[test]
fn floors_are_the_blocks_of_lib() {
    let house = House::of(MADE_UP);
    let floors: Vec<_> = house.floors.iter().map(|(room, floor)| (room.as_str(), *floor)).collect();
    assert_eq!(floors, [("channel", 0), ("gate", 1), ("schedule", 0), ("store", 2)]);
    assert_eq!(house.height(), 3);
}

#[test]
fn a_look_is_found_however_it_is_written() {
    for (name, file, source, expected) in [
        ("a use", "src/gate/mod.rs", "use crate::store::Store;", &[("store", 1)][..]),
        ("a path in code", "src/gate/mod.rs", "\nfn f() { crate::store::get(); }", &[("store", 2)]),
        (
            "a group",
            "src/gate/a.rs",
            "use crate::{\n    channel::{a, b},\n    store,\n};",
            &[("channel", 1), ("store", 1)],
        ),
        ("self in a group is nobody", "src/gate/a.rs", "use crate::{self, store};", &[("store", 1)]),
        ("a visibility", "src/gate/a.rs", "pub(in crate::gate) fn f() {}", &[("gate", 1)]),
        ("a macro's", "src/gate/a.rs", "$crate::store::f()", &[("store", 1)]),
        ("up to the root", "src/gate/mod.rs", "use super::channel::Ear;", &[("channel", 1)]),
        ("from a file too", "src/gate/a.rs", "use super::super::channel::Ear;", &[("channel", 1)]),
        ("up within the room", "src/gate/a.rs", "use super::store::Own;", &[]),
        ("another crate's word", "src/gate/a.rs", "use my_crate::channel::X;", &[]),
        ("a comment", "src/gate/a.rs", "// crate::channel\n/* crate::channel /* and */ crate::channel */", &[]),
        ("a doc link", "src/gate/a.rs", "/// See [`crate::channel::Ear`].\nfn f() {}", &[]),
        ("a text", "src/gate/a.rs", r##"f("crate::channel \" crate::channel", r#"" crate::channel"#);"##, &[]),
        ("after a text", "src/gate/a.rs", r#"f("é\\", '"', '\'', 'é'); g::<'a>(crate::store::X)"#, &[("store", 1)]),
        ("after a comment", "src/gate/a.rs", "// it's \"open\ncrate::store::X", &[("store", 2)]),
    ] {
        let looks = House::of(MADE_UP).looks(file, source);
        let found: Vec<_> = looks.iter().map(|look| (look.to.as_str(), look.line)).collect();
        assert_eq!(found, expected, "{name}");
        assert!(looks.iter().all(|look| look.from == "gate" && look.file == file), "{name}");
    }
}

#[test]
fn a_wrong_look_is_named_with_its_place() {
    let house = House::of(MADE_UP);
    let mut looks = house.looks("src/gate/mod.rs", "use crate::store::X;\n\nuse crate::channel::Y;\n");
    looks.append(&mut house.looks("src/channel/ear.rs", "use crate::gate::X;\nuse crate::schedule::Y;\n"));
    looks.append(&mut house.looks("src/store.rs", "use crate::{store::own, attic};\n"));
    looks.append(&mut house.looks("src/cellar/mod.rs", "use crate::store::X;\n"));
    insta::assert_snapshot!(house.wrong(&looks), @r"
    src/gate/mod.rs:3: gate uses channel, which lies above it
    src/channel/ear.rs:2: channel uses schedule, which lies on the same floor
    src/store.rs:1: store uses attic, which is no room of lib.rs
    src/cellar/mod.rs:1: cellar uses store, which is used by what is no room of lib.rs
    ");
}
