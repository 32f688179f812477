//! Commands in a chat that need no model.

use super::status::Status;

/// The commands and what they do, for a platform's menu and for `/help`.
pub const MENU: &[(&str, &str)] = &[
    ("new", "a fresh start: I stop looking at what was said before (nothing is deleted)"),
    ("stop", "stop what I am doing for you"),
    ("status", "how I am"),
    ("help", "what you can type"),
];

/// `/help`.
#[must_use]
pub fn help() -> String {
    let lines: Vec<_> = MENU.iter().map(|(word, told)| format!("/{word} – {told}")).collect();
    format!("I am midwatch, an agent that keeps watch. Write what you need; I answer here.\n\n{}", lines.join("\n"))
}

/// `/new`.
pub const NEW: &str = "A fresh start. What was said before is kept, but I no longer look at it.";

/// `/stop` where nothing runs.
pub const NOTHING_RUNS: &str = "Nothing is running here.";

/// `/stop` by someone who may not.
pub const NOT_YOURS: &str = "Only the person who began this can stop it.";

/// `/status`, for people who are not the operator: how things are in one glance, without names.
#[must_use]
pub fn status_line(status: &Status, working_here: bool) -> String {
    let here = if working_here { "I am working on something here" } else { "I am idle here" };
    let waiting = match status.inbox.new {
        0 => String::new(),
        1 => ", and one message waits".to_owned(),
        n => format!(", and {n} messages wait"),
    };
    let trouble = match status.needs_a_person() {
        0 => String::new(),
        1 => " One thing needs the operator.".to_owned(),
        n => format!(" {n} things need the operator."),
    };
    let turns = match status.usage_today.turns {
        1 => "1 turn".to_owned(),
        n => format!("{n} turns"),
    };
    format!("{here}{waiting}. {turns} today.{trouble}")
}
