//! A stand-in that is built in, for the first minute without a key and for tests: no language model, and it says so.
//!
//! ```text
//! last message ──" and then "──▶ steps ──▶ one tool call a round ──▶ all results seen: one answer in text
//! ```
//!
//! It knows a dozen plain requests and turns them into real calls, granted or not: the gate, the receipts and the chain
//! behind it are the real ones, and what is refused is refused where one can see it. It remembers nothing and guesses
//! nothing: the same request gives the same answer, so a turn that was cut by a crash goes on as if nothing had been.

use std::fmt::Write as _;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::domain::{Block, Message, Role};
use crate::model::{Attempt, Finish, ModelClient, ModelError, OnText, ProposedCall, Request, Usage};

/// The most characters of a result that an answer shows.
const SHOWN_MAX: usize = 1_500;

/// The daemon's own notes in a message begin with this; the rest is what people said.
const NOTE: &str = "[midwatch:";

/// Under each answer that a newcomer could take for a model's.
const SIGNATURE: &str = "(rehearsal model: built in, no language model)";

/// Words by which a refusal of the gate is told from a tool that failed; they decide over one sentence, nothing else.
const REFUSED: &[&str] = &["refused", "denied", "grant", "not allowed", "no rule", "not offered", "policy"];

/// The stand-in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rehearsal;

impl Rehearsal {
    /// One is like the other.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl ModelClient for Rehearsal {
    fn name(&self) -> &str {
        "rehearsal"
    }

    fn attempt<'a>(&'a self, request: &'a Request, on_text: OnText<'a>) -> BoxFuture<'a, Result<Attempt, ModelError>> {
        Box::pin(async move {
            let attempt = answer(request);
            for word in attempt.text().split_inclusive(' ') {
                on_text(word);
                tokio::task::yield_now().await; // so that a stop finds its way in between, as with a real model
            }
            Ok(attempt)
        })
    }
}

fn answer(request: &Request) -> Attempt {
    let talk = Talk::of(&request.messages);
    let steps: Vec<Step> = split_steps(&talk.said).into_iter().map(understand).collect();
    let next = steps.iter().filter_map(|step| step.call()).nth(talk.results.len());
    let (text, calls) = match next {
        Some(call) if request.tool_use => (String::new(), vec![call]),
        _ => (conclude(&steps, &talk, request), Vec::new()),
    };
    let finish = if calls.is_empty() { Finish::Stop } else { Finish::Calls };
    let usage = estimate(request, &text, &calls);
    Attempt::new(text, calls, finish, usage)
}

/// What the history says that matters for the next answer.
#[derive(Debug, Default, PartialEq)]
struct Talk<'r> {
    /// What was asked last.
    said: String,
    /// What was said before that.
    said_before: Option<String>,
    /// The time in the daemon's note.
    time: Option<&'r str>,
    /// What the calls since then brought, in their order.
    results: Vec<Outcome<'r>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome<'r> {
    text: &'r str,
    is_error: bool,
}

impl<'r> Talk<'r> {
    fn of(messages: &'r [Message]) -> Self {
        let mut talk = Self::default();
        for message in messages {
            if message.role == Role::User {
                talk.time = message.blocks.iter().filter_map(text).find_map(time_in).or(talk.time);
                // A message that is a note alone (time is running out) goes on with what was asked.
                if let Some(said) = message.blocks.iter().filter_map(text).filter_map(without_note).next_back() {
                    let before = std::mem::replace(&mut talk.said, said.to_owned());
                    talk.said_before = Some(before).filter(|before| !before.is_empty());
                    talk.results.clear();
                }
            }
            talk.results.extend(message.blocks.iter().filter_map(|block| match block {
                Block::ToolResult { text, is_error, .. } => Some(Outcome { text, is_error: *is_error }),
                _ => None,
            }));
        }
        talk
    }
}

fn text(block: &Block) -> Option<&str> {
    match block {
        Block::Text { text, .. } => Some(text),
        _ => None,
    }
}

/// The text without the note it begins with; nothing when no more is left.
fn without_note(text: &str) -> Option<&str> {
    let mut rest = text.trim();
    while rest.starts_with(NOTE) {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest.trim_start());
    }
    (!rest.is_empty()).then_some(rest)
}

/// `2026-12-01T00:05:00+01:00[Europe/Zurich]` of `[midwatch: it is 2026-…[Europe/Zurich]; 120 s for this turn]`.
fn time_in(text: &str) -> Option<&str> {
    let line = text.trim_start().strip_prefix(NOTE)?.lines().next()?;
    let time = line.trim().strip_prefix("it is ")?;
    let end = time.find(';').or_else(|| time.rfind(']')).unwrap_or(time.len()); // the zone has brackets of its own
    time.get(..end).map(str::trim).filter(|time| !time.is_empty())
}

/// One thing that was asked for.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Read { path: String },
    List { path: Option<String> },
    Search { words: String, path: Option<String> },
    Write { path: String, content: String },
    Delete { path: String },
    Time,
    Before,
    Other { said: String },
}

impl Step {
    fn call(&self) -> Option<ProposedCall> {
        let (name, arguments) = match self {
            Self::Read { path } => ("read_file", json!({"path": path})),
            Self::List { path: Some(path) } => ("list_files", json!({"path": path})),
            Self::List { path: None } => ("list_files", json!({})),
            Self::Search { words, path: Some(path) } => {
                ("search_files", json!({"pattern": regex::escape(words), "path": path}))
            }
            Self::Search { words, path: None } => ("search_files", json!({"pattern": regex::escape(words)})),
            Self::Write { path, content } => ("write_file", json!({"path": path, "content": content})),
            // No version has such a tool: a stand-in for a model must not empty anybody's file.
            Self::Delete { path } => ("delete_file", json!({"path": path})),
            Self::Time | Self::Before | Self::Other { .. } => return None,
        };
        let arguments: Map<String, Value> = arguments.as_object().cloned().unwrap_or_default();
        Some(ProposedCall { name: name.to_owned(), arguments: Ok(arguments) })
    }

    /// What the step wanted, to go on with "I asked …".
    fn wish(&self) -> String {
        match self {
            Self::Read { path } => format!("to read `{path}`"),
            Self::List { path } => format!("to list the files in `{}`", path.as_deref().unwrap_or(".")),
            Self::Search { words, .. } => format!("to search the files for `{words}`"),
            Self::Write { path, .. } => format!("to write `{path}`"),
            Self::Delete { path } => format!("to delete `{path}`"),
            Self::Time | Self::Before | Self::Other { .. } => String::new(),
        }
    }

    fn heading(&self) -> String {
        match self {
            Self::Read { path } => format!("`{path}` says:"),
            Self::List { path: Some(path) } => format!("The files in `{path}`:"),
            Self::List { path: None } => "The files here:".to_owned(),
            Self::Search { words, .. } => format!("What I found for `{words}`:"),
            _ => format!("I asked {}, and it was done:", self.wish()),
        }
    }
}

fn split_steps(said: &str) -> Vec<&str> {
    const JOIN: &str = " and then ";
    let lower = said.to_ascii_lowercase(); // ASCII: every byte stays where it is
    let mut steps = Vec::new();
    let mut from = 0;
    for (at, _) in lower.match_indices(JOIN) {
        steps.push(said.get(from..at).unwrap_or_default().trim());
        from = at + JOIN.len();
    }
    steps.push(said.get(from..).unwrap_or_default().trim());
    steps
}

fn understand(said: &str) -> Step {
    let plain = trim_ending(said);
    let plain =
        ["please ", "can you ", "could you ", "please "].iter().fold(plain, |text, w| after(text, w).unwrap_or(text));
    let lower = plain.to_lowercase();
    match lower.as_str() {
        "what time is it" | "what is the time" | "what's the time" | "what day is it" | "time" => return Step::Time,
        "what did i say" | "what did i just say" | "what did i write" => return Step::Before,
        "ls" | "list" | "list files" | "list the files" | "list all files" | "list my files" => {
            return Step::List { path: None };
        }
        _ => {}
    }
    let found = ["read ", "cat ", "show me ", "show "].iter().find_map(|verb| after(plain, verb)).and_then(|rest| {
        let rest = ["the file ", "file ", "the "].iter().find_map(|filler| after(rest, filler)).unwrap_or(rest);
        Some(Step::Read { path: path_at_start(rest)? })
    });
    let found = found.or_else(|| {
        let rest = ["list the files in ", "list files in ", "ls "].iter().find_map(|verb| after(plain, verb))?;
        Some(Step::List { path: Some(path_at_start(rest)?) })
    });
    let found = found.or_else(|| {
        let rest = ["search for ", "look for ", "find "].iter().find_map(|verb| after(plain, verb))?;
        let (words, path) = match rest.rsplit_once(" in ") {
            Some((words, path)) if !path.trim().contains(char::is_whitespace) => (words, Some(unquoted(path))),
            _ => (rest, None),
        };
        Some(Step::Search { words: unquoted(words), path }).filter(|_| !words.trim().is_empty())
    });
    let found = found.or_else(|| {
        let (content, path) = after(plain, "write ")?.rsplit_once(" to ")?;
        Some(Step::Write { path: path_at_start(path)?, content: unquoted(content) })
    });
    let found = found.or_else(|| {
        let rest = ["delete ", "remove "].iter().find_map(|verb| after(plain, verb))?;
        let rest = ["the file ", "file ", "the "].iter().find_map(|filler| after(rest, filler)).unwrap_or(rest);
        Some(Step::Delete { path: path_at_start(rest)? })
    });
    found.unwrap_or_else(|| Step::Other { said: said.to_owned() })
}

/// The rest of `text` after `prefix`, whatever its case.
fn after<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| rest.trim_start())
}

/// Without the mark that ends a sentence; the point in `list files in .` is none.
fn trim_ending(text: &str) -> &str {
    let text = text.trim();
    match text.strip_suffix(['.', '?', '!']) {
        Some(rest) if rest.ends_with(|c: char| c.is_alphanumeric() || "\"'`".contains(c)) => rest,
        _ => text,
    }
}

/// A path in quotes, or the first word, if it stands alone or looks like a path: "read between the lines" holds none.
fn path_at_start(text: &str) -> Option<String> {
    let text = text.trim();
    for quote in ['"', '\'', '`'] {
        if let Some((path, _)) = text.strip_prefix(quote).and_then(|rest| rest.split_once(quote)) {
            return Some(path.to_owned()).filter(|path| !path.is_empty());
        }
    }
    let word = text.split_whitespace().next()?;
    let looks_like_one = word.contains('/') || word.trim_end_matches('.').contains('.');
    let word = if word == text { word } else { word.trim_end_matches([',', ';', ':']) };
    (word == text || looks_like_one).then(|| word.to_owned())
}

fn unquoted(text: &str) -> String {
    let text = text.trim();
    let inner = ['"', '\'', '`'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote));
    inner.filter(|inner| !inner.is_empty()).unwrap_or(text).to_owned()
}

/// The answer in text: what came of each step, in order.
fn conclude(steps: &[Step], talk: &Talk<'_>, request: &Request) -> String {
    if let [Step::Other { .. }] = steps {
        return hello(request);
    }
    let mut results = talk.results.iter();
    let parts = steps.iter().map(|step| match step {
        Step::Time => time(talk.time),
        Step::Before => before(talk.said_before.as_deref()),
        Step::Other { said } => format!("`{}` is nothing I understand. \"hello\" lists what is.", cut(said, 80).0),
        call => match results.next() {
            Some(outcome) if outcome.is_error => refusal(call, outcome.text),
            Some(outcome) => format!("{}\n{}", call.heading(), fenced(outcome.text)),
            None => format!("I would ask {}, but this answer has to be given without tools.", call.wish()),
        },
    });
    let mut parts: Vec<String> = parts.collect();
    parts.push(SIGNATURE.to_owned());
    parts.join("\n\n")
}

fn time(note: Option<&str>) -> String {
    let Some(time) = note else {
        return "I do not know what time it is: no note of it stands before your message.".to_owned();
    };
    let civil = time.get(..19).and_then(|local| local.parse::<jiff::civil::DateTime>().ok());
    let zone = time.split_once('[').and_then(|(_, zone)| zone.strip_suffix(']'));
    match (civil, zone) {
        (Some(local), Some(zone)) => format!("It is {} in the zone {zone}.", local.strftime("%H:%M on %A, %-d %B %Y")),
        _ => format!("It is {time}."),
    }
}

fn before(said: Option<&str>) -> String {
    match said {
        Some(said) => format!("Before this you said:\n{}", quoted(said)),
        None => "Before this you said nothing that I can see: the conversation begins here.".to_owned(),
    }
}

fn refusal(step: &Step, why: &str) -> String {
    let tool = step.call().map(|call| call.name).unwrap_or_default();
    let lower = why.to_lowercase();
    let moral = if REFUSED.iter().any(|mark| lower.contains(mark)) {
        "\nA model only proposes. What no rule of the operator allows is refused, whoever asks for it."
    } else {
        ""
    };
    let wish = step.wish();
    format!(
        "I asked {wish} with the tool `{tool}`, and it did not go through. What I was told:\n{}{moral}",
        quoted(why)
    )
}

fn hello(request: &Request) -> String {
    let mut text =
        "Hello. I am the rehearsal model of midwatch: built in, deterministic, and no language model. I show \
                    the machinery around a model; what I ask for goes through the real gate. Try one of these:\n\
                    - list files\n\
                    - read notes/today.md\n\
                    - search for milk in notes\n\
                    - write milk to notes/list.md (refused: this version has no tool that writes)\n\
                    - what time is it\n\
                    - what did I say\n\
                    - list files and then read notes/today.md"
            .to_owned();
    let tools: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let _ = match tools.as_slice() {
        [] => write!(text, "\n\nNo tools are offered to me here."),
        tools => write!(text, "\n\nThe tools offered to me here: {}.", tools.join(", ")),
    };
    text
}

/// The first `max` characters, and how many there are when that is not all.
fn cut(text: &str, max: usize) -> (&str, Option<usize>) {
    match text.char_indices().nth(max) {
        Some((at, _)) => (text.get(..at).unwrap_or_default(), Some(text.chars().count())),
        None => (text, None),
    }
}

/// In a fence that the text itself cannot close.
fn fenced(text: &str) -> String {
    let (shown, of) = cut(text.trim_end_matches('\n'), SHOWN_MAX);
    let longest = shown.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let note = of.map(|of| format!("\n(cut: the first {SHOWN_MAX} of {of} characters)")).unwrap_or_default();
    format!("{fence}\n{shown}\n{fence}{note}")
}

fn quoted(text: &str) -> String {
    let (shown, of) = cut(text.trim(), SHOWN_MAX);
    let lines: Vec<String> = shown.lines().map(|line| format!("> {line}")).collect();
    let note = of.map(|of| format!("\n(cut: the first {SHOWN_MAX} of {of} characters)")).unwrap_or_default();
    format!("{}{note}", lines.join("\n"))
}

/// Four characters are about a token; what matters is that the same request always costs the same.
fn estimate(request: &Request, text: &str, calls: &[ProposedCall]) -> Usage {
    let chars = |text: &str| text.chars().count() as u64;
    let block = |block: &Block| match block {
        Block::Text { text, .. } | Block::ToolResult { text, .. } => chars(text),
        Block::ToolCall { name, arguments, .. } => chars(name) + chars(&arguments.to_string()),
        Block::Reasoning(reasoning) => chars(&reasoning.raw.to_string()),
    };
    let history: u64 = request.messages.iter().flat_map(|message| &message.blocks).map(block).sum();
    let tool = |tool: &crate::model::ToolSchema| {
        chars(&tool.name) + chars(&tool.description) + chars(&tool.parameters.to_string())
    };
    let input = chars(&request.system) + history + request.tools.iter().map(tool).sum::<u64>();
    let call = |call: &ProposedCall| {
        chars(&call.name) + call.arguments.as_ref().map_or(0, |map| chars(&Value::Object(map.clone()).to_string()))
    };
    let output = chars(text) + calls.iter().map(call).sum::<u64>();
    Usage { input_tokens: input.div_ceil(4), output_tokens: output.div_ceil(4), cached_tokens: 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::domain::{CallId, Origin, TurnId};
    use crate::model::ToolSchema;

    const CONTEXT: &str = "[midwatch: it is 2026-12-01T00:05:00+01:00[Europe/Zurich]; 120 s for this turn]";

    fn user(said: &str) -> Message {
        let block = |text: &str, origin| Block::Text { text: text.into(), origin };
        Message { role: Role::User, blocks: vec![block(CONTEXT, Origin::Operator), block(said, Origin::Cause)] }
    }

    fn request(messages: Vec<Message>) -> Request {
        let tool = |name: &str| ToolSchema { name: name.into(), description: "Does.".into(), parameters: json!({}) };
        let tools = vec![tool("read_file"), tool("list_files"), tool("search_files")];
        Request { system: "You are midwatch.".into(), messages, tools, max_output_tokens: 512, tool_use: true }
    }

    /// The messages that this proposal and its result add to the history.
    fn round(attempt: &Attempt, number: u32, result: &str, is_error: bool) -> [Message; 2] {
        let call = CallId::new(TurnId::from_row(4), number);
        let proposed = attempt.calls().next().unwrap();
        let arguments = Value::Object(proposed.arguments.clone().unwrap());
        let result = Block::ToolResult { call, text: result.into(), is_error, origin: Origin::Workspace };
        let proposal = Block::ToolCall { call, name: proposed.name.clone(), arguments };
        [Message { role: Role::Assistant, blocks: vec![proposal] }, Message { role: Role::Tool, blocks: vec![result] }]
    }

    /// The calls that come of `said`, every one answered with `result`, and the text in the end.
    fn play(said: &str, result: &str, is_error: bool) -> (Vec<String>, String) {
        let mut request = request(vec![user(said)]);
        let mut calls = Vec::new();
        loop {
            let attempt = answer(&request);
            let Some(call) = attempt.calls().next() else {
                assert_eq!(attempt.finish, Finish::Stop);
                return (calls, attempt.text());
            };
            assert_eq!((attempt.calls().count(), attempt.finish, attempt.text().as_str()), (1, Finish::Calls, ""));
            calls.push(format!("{} {}", call.name, Value::Object(call.arguments.clone().unwrap())));
            let number = u32::try_from(calls.len()).unwrap();
            request.messages.extend(round(&attempt, number, result, is_error));
        }
    }

    #[test]
    fn plain_requests_become_calls() {
        for (said, expected) in [
            ("read notes/today.md", vec![r#"read_file {"path":"notes/today.md"}"#]),
            ("Read notes/today.md and tell me what is due.", vec![r#"read_file {"path":"notes/today.md"}"#]),
            ("please show me the file Notes.md!", vec![r#"read_file {"path":"Notes.md"}"#]),
            ("cat README", vec![r#"read_file {"path":"README"}"#]),
            ("read \"my notes.md\"", vec![r#"read_file {"path":"my notes.md"}"#]),
            ("read ../../etc/passwd", vec![r#"read_file {"path":"../../etc/passwd"}"#]),
            ("list files", vec!["list_files {}"]),
            ("ls", vec!["list_files {}"]),
            ("List the files in notes.", vec![r#"list_files {"path":"notes"}"#]),
            ("ls .", vec![r#"list_files {"path":"."}"#]),
            ("search for a.b (c) in notes", vec![r#"search_files {"path":"notes","pattern":"a\\.b \\(c\\)"}"#]),
            ("find milk", vec![r#"search_files {"pattern":"milk"}"#]),
            ("search for bread in the oven", vec![r#"search_files {"pattern":"bread in the oven"}"#]),
            ("write \"milk\" to notes/list.md", vec![r#"write_file {"content":"milk","path":"notes/list.md"}"#]),
            ("write back to Ann to a.md", vec![r#"write_file {"content":"back to Ann","path":"a.md"}"#]),
            ("delete notes/list.md", vec![r#"delete_file {"path":"notes/list.md"}"#]),
            ("list files And then read a.md", vec!["list_files {}", r#"read_file {"path":"a.md"}"#]),
            ("what time is it and then ls", vec!["list_files {}"]),
            ("what time is it?", vec![]),
            ("what did I say?", vec![]),
            ("hello", vec![]),
            ("read between the lines", vec![]),
            ("write a poem", vec![]),
            ("search for ", vec![]),
            ("read", vec![]),
            ("ünïcödé 🦉", vec![]),
            ("", vec![]),
        ] {
            let (mut calls, text) = play(said, "ok", false);
            for call in &mut calls {
                *call = call.trim().to_owned();
            }
            assert_eq!(calls, expected, "{said}");
            assert!(text.contains("no language model"), "{said}: {text}");
        }
    }

    #[test]
    fn what_it_says_in_the_end() {
        for (name, said, result, is_error, expected) in [
            ("a file", "read a.md", "milk\n", false, "`a.md` says:\n```\nmilk\n```"),
            ("a fence in it", "cat a.md", "```\nx\n```", false, "`a.md` says:\n````\n```\nx\n```\n````"),
            ("files", "ls", "a.md", false, "The files here:\n```\na.md\n```"),
            ("matches", "find milk", "a.md:1: milk", false, "What I found for `milk`:\n```\na.md:1: milk\n```"),
            (
                "written",
                "write x to a.md",
                "1 byte",
                false,
                "I asked to write `a.md`, and it was done:\n```\n1 byte\n```",
            ),
            (
                "refused",
                "write x to a.md",
                "denied: no rule grants write_file\n(call-4-1)",
                true,
                "I asked to write `a.md` with the tool `write_file`, and it did not go through. What I was told:\n\
                 > denied: no rule grants write_file\n> (call-4-1)\n\
                 A model only proposes. What no rule of the operator allows is refused, whoever asks for it.",
            ),
            (
                "failed",
                "read a.md",
                "there is no such file",
                true,
                "I asked to read `a.md` with the tool `read_file`, and it did not go through. What I was told:\n\
                 > there is no such file",
            ),
            (
                "the time",
                "what time is it",
                "",
                false,
                "It is 00:05 on Tuesday, 1 December 2026 in the zone Europe/Zurich.",
            ),
            (
                "two steps",
                "ls and then dance and then ls",
                "a.md",
                false,
                "The files here:\n```\na.md\n```\n\n`dance` is nothing I understand. \"hello\" lists what is.\n\n\
                 The files here:\n```\na.md\n```",
            ),
        ] {
            assert_eq!(play(said, result, is_error).1, format!("{expected}\n\n{SIGNATURE}"), "{name}");
        }
        let (_, text) = play("read a.md", &"é".repeat(2_000), false);
        assert_eq!(text.matches('é').count(), 1_500);
        assert!(text.contains("```\n(cut: the first 1500 of 2000 characters)"), "{text}");
    }

    #[test]
    fn all_it_knows_stands_in_the_history() {
        let mut request =
            request(vec![user("the owl is called Ada"), Message::text(Role::Assistant, "x", Origin::Agent)]);
        request.messages.push(user("what did I say?"));
        assert_eq!(answer(&request).text(), format!("Before this you said:\n> the owl is called Ada\n\n{SIGNATURE}"));
        request.messages.drain(..2);
        assert!(answer(&request).text().contains("the conversation begins here"));

        // A note of the daemon in between is no new request, and results of an earlier turn are none of this one.
        request.messages = vec![user("read a.md")];
        let first = answer(&request);
        request.messages.extend(round(&first, 1, "one", false));
        request.messages.push(Message::text(Role::User, "[midwatch: 20 s are left]", Origin::Operator));
        assert!(answer(&request).text().contains("one"));
        request.messages.push(user("read b.md"));
        assert_eq!(answer(&request).calls().next().unwrap().arguments.as_ref().unwrap()["path"], "b.md");
    }

    #[test]
    fn without_tools_it_answers_in_text() {
        let mut request = request(vec![user("read a.md")]);
        request.tool_use = false;
        let attempt = answer(&request);
        assert_eq!((attempt.calls().count(), attempt.finish), (0, Finish::Stop));
        let expected = "I would ask to read `a.md`, but this answer has to be given without tools.";
        assert_eq!(attempt.text(), format!("{expected}\n\n{SIGNATURE}"));
    }

    #[test]
    fn the_note_with_the_time() {
        for (note, expected) in [
            (CONTEXT, Some("2026-12-01T00:05:00+01:00[Europe/Zurich]")),
            (
                "[midwatch: it is 2026-12-01T00:05:00+01:00[Europe/Zurich]]",
                Some("2026-12-01T00:05:00+01:00[Europe/Zurich]"),
            ),
            ("[midwatch: it is 2026-12-01T00:05:00Z]\nmore; text", Some("2026-12-01T00:05:00Z")),
            ("[midwatch: 20 s are left]", None),
            ("it is late", None),
        ] {
            assert_eq!(time_in(note), expected, "{note}");
        }
        assert_eq!(time(Some("2026-12-01T00:05:00Z")), "It is 2026-12-01T00:05:00Z.");
        assert_eq!(time(Some("ünïcödé ünïcödé ünïcödé")), "It is ünïcödé ünïcödé ünïcödé.");
        assert!(time(None).starts_with("I do not know"));
        assert_eq!(without_note(&format!("{CONTEXT}\nhi")), Some("hi"));
        assert_eq!(without_note(CONTEXT), None);
    }

    #[tokio::test]
    async fn words_come_one_by_one_and_always_the_same() {
        let request = request(vec![user("hello")]);
        let heard = Mutex::new(Vec::new());
        let attempt = Rehearsal::new().attempt(&request, &|word| heard.lock().unwrap().push(word.to_owned())).await;
        let attempt = attempt.unwrap();
        let heard = heard.into_inner().unwrap();
        assert!(heard.len() > 50 && heard.concat() == attempt.text(), "{heard:?}");
        assert_eq!(Ok(&attempt), Rehearsal::new().attempt(&request, &|_| {}).await.as_ref());
        assert_eq!(attempt.usage.output_tokens, (attempt.text().chars().count() as u64).div_ceil(4));
        assert!(attempt.usage.input_tokens > 30);
        insta::assert_snapshot!(attempt.text(), @r"
        Hello. I am the rehearsal model of midwatch: built in, deterministic, and no language model. I show the machinery around a model; what I ask for goes through the real gate. Try one of these:
        - list files
        - read notes/today.md
        - search for milk in notes
        - write milk to notes/list.md (refused: this version has no tool that writes)
        - what time is it
        - what did I say
        - list files and then read notes/today.md

        The tools offered to me here: read_file, list_files, search_files.
        ");
    }
}
