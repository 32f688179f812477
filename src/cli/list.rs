//! Commands that show or change one thing of the running daemon.

use serde_json::{Value, json};

use super::client::Client;
use super::complain::{Complaint, Exit};
use super::{Command, LinkCommand, ReplyCommand, SessionCommand, TurnCommand, out};
use crate::channel::console::wire::{Code, Link};

pub(super) async fn run(client: &Client, command: &Command, as_json: bool) -> Result<Exit, Complaint> {
    let nothing = json!({});
    let (answer, text): (Value, String) = match command {
        Command::Status => {
            let answer: Value = client.get(if as_json { "/v1/status" } else { "/v1/status?text=true" }).await?;
            let text = answer["text"].as_str().unwrap_or_default().trim_end().to_owned();
            (answer, text)
        }
        Command::Turns { act: None } => {
            let answer: Value = client.get("/v1/turns").await?;
            let text = rows(&answer["turns"], "no turn is open or set aside", |turn| {
                format!(
                    "{}  {}  {}  since {}",
                    word(turn, "id"),
                    word(turn, "state"),
                    word(turn, "session"),
                    word(turn, "started_at")
                )
            });
            (answer, text)
        }
        Command::Turns { act: Some(act) } => {
            let (id, act, told) = match act {
                TurnCommand::Retry { id } => (id, "retry", "its messages are back in the queue"),
                TurnCommand::Drop { id } => (id, "drop", "dropped"),
            };
            (client.post(&format!("/v1/turns/{}/{act}", checked(id)?), &nothing).await?, format!("{id}: {told}"))
        }
        Command::Replies { act: None } => {
            let answer: Value = client.get("/v1/replies").await?;
            let text = rows(&answer["replies"], "no reply needs you", |reply| {
                format!(
                    "{}  {}  {} {}  {}",
                    word(reply, "id"),
                    word(reply, "state"),
                    word(reply, "channel"),
                    word(reply, "chat"),
                    word(reply, "error")
                )
            });
            (answer, text)
        }
        Command::Replies { act: Some(act) } => {
            let (id, act, told) = match act {
                ReplyCommand::Resend { id } => (id, "resend", "on its way again"),
                ReplyCommand::Drop { id } => (id, "drop", "dropped"),
            };
            (client.post(&format!("/v1/replies/{}/{act}", checked(id)?), &nothing).await?, format!("{id}: {told}"))
        }
        Command::Link { platform: LinkCommand::Telegram { channel } } => {
            let code: Code = client.post("/v1/link", &Link { channel: channel.clone() }).await?;
            let text = format!(
                "Send this in the chat that is to be linked, before {}:\n\n/link {}\n\nIt holds once, for one chat. In a group the bot sees it because it is a command.",
                code.valid_until, code.code
            );
            (serde_json::to_value(code).unwrap_or_default(), text)
        }
        Command::Links => {
            let mut answer: Value = client.get("/v1/links").await?;
            for link in answer["links"].as_array_mut().into_iter().flatten() {
                link["trouble"] = trouble(link).into();
            }
            let text = rows(&answer["links"], "no chat is linked; `midwatch link telegram` makes a code", one_link);
            (answer, text)
        }
        Command::Sessions { act: None } => {
            let answer: Value = client.get("/v1/sessions").await?;
            let text = rows(&answer["sessions"], "no session yet", |session| {
                format!(
                    "{}  {}  {} turns, {} messages, last {}",
                    word(session, "id"),
                    word(session, "thread"),
                    word(session, "turns"),
                    word(session, "messages"),
                    word(session, "active_at")
                )
            });
            (answer, text)
        }
        Command::Sessions { act: Some(SessionCommand::Show { id }) } => {
            let answer: Value = client.get(&format!("/v1/sessions/{}", checked(id)?)).await?;
            let text = rows(&answer["messages"], "nothing was said yet", transcript);
            (answer, text)
        }
        Command::Timeline { id } => {
            let answer: Value = client.get(&format!("/v1/timeline/{}", checked(id)?)).await?;
            if id.starts_with("turn-") && answer["timeline"].as_array().is_none_or(Vec::is_empty) {
                // A turn's first line is written with the turn, so one without lines never was.
                return Err(Complaint::failed(format!("{id} is unknown")).hint(
                    "`midwatch timeline SESSION` shows the turns of a session, `midwatch sessions` the sessions",
                ));
            }
            let text = rows(&answer["timeline"], "nothing happened yet", |line| {
                format!(
                    "{}  {}  {}  {}  {}",
                    word(line, "at"),
                    word(line, "turn"),
                    word(line, "kind"),
                    word(line, "call"),
                    brief(&line["detail"])
                )
            });
            (answer, text)
        }
        Command::Reload => {
            let answer: Value = client.post("/v1/reload", &nothing).await?;
            if let Some(faults) = answer["text"].as_str() {
                if as_json {
                    out::line(&answer)?;
                }
                out::note(faults.trim_end());
                out::note("the old configuration stays");
                return Ok(Exit::Config);
            }
            let later = answer["at_next_start"].as_array().map(Vec::as_slice).unwrap_or_default();
            let later: Vec<_> = later.iter().filter_map(Value::as_str).collect();
            let text = if later.is_empty() {
                "read again".to_owned()
            } else {
                format!("read again; {} takes effect at the next start", later.join(", "))
            };
            (answer, text)
        }
        Command::Stop => (client.post("/v1/stop", &nothing).await?, "stopping".to_owned()),
        Command::Try
        | Command::Doctor
        | Command::Setup(_)
        | Command::Config { .. }
        | Command::Serve
        | Command::Check
        | Command::Say { .. }
        | Command::Chat { .. } => {
            return Err(Complaint::failed("this command does not ask the daemon"));
        }
    };
    if as_json {
        out::line(&answer)?
    } else {
        out::line(text)?
    }
    Ok(Exit::Done)
}

/// What goes into a path: anything else than an id's signs would change the route.
fn checked(id: &str) -> Result<&str, Complaint> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_:".contains(c);
    if !id.is_empty() && id.len() <= 200 && id.chars().all(fits) {
        Ok(id)
    } else {
        Err(Complaint::new(Exit::Usage, format!("`{}` is no id", id.escape_debug())))
    }
}

fn rows(list: &Value, none: &str, row: impl Fn(&Value) -> String) -> String {
    match list.as_array() {
        Some(list) if !list.is_empty() => list.iter().map(row).collect::<Vec<_>>().join("\n"),
        _ => none.to_owned(),
    }
}

fn word(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What keeps a link from being of use.
fn trouble(link: &Value) -> Vec<String> {
    let is_empty = |key: &str| link[key].as_array().is_none_or(Vec::is_empty);
    let mut trouble = Vec::new();
    if is_empty("senders") {
        trouble.push("nobody may speak here: add numeric ids to its senders, then `midwatch reload`".to_owned());
    }
    if is_empty("allow") {
        trouble.push("no tool may be used here: allow = [\"read_file\"] grants one, then `midwatch reload`".to_owned());
    }
    trouble
}

/// A link on one line, and each trouble with it on one more.
fn one_link(link: &Value) -> String {
    let list = |key: &str, none: &str| {
        let items = link[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let items: Vec<_> =
            items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), ToOwned::to_owned)).collect();
        if items.is_empty() { none.to_owned() } else { items.join(", ") }
    };
    let kind = if link["chat"].as_i64().is_some_and(|chat| chat < 0) { "group" } else { "private chat" };
    let hears = if link["mention"] == "required" { "what is meant for the bot" } else { "every message" };
    let mut text = format!(
        "{}: {} {} on {}, hears {hears} of {}, may {}",
        word(link, "name"),
        kind,
        word(link, "chat"),
        word(link, "channel"),
        list("senders", "nobody"),
        list("allow", "only talk")
    );
    for trouble in link["trouble"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text.push_str(&format!("\n  {trouble}"));
    }
    text
}

/// One message as people read it.
fn transcript(message: &Value) -> String {
    let who = match message["role"].as_str() {
        Some("user") => "them",
        Some("assistant") => "me",
        _ => "tool",
    };
    let blocks = message["blocks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let words: Vec<String> = blocks
        .iter()
        .map(|block| match block["type"].as_str() {
            Some("tool_call") => format!("{} {} {}", word(block, "call"), word(block, "name"), block["arguments"]),
            Some("tool_result") => format!("{}: {}", word(block, "call"), word(block, "text")),
            _ => word(block, "text"),
        })
        .collect();
    format!("{} {who}: {}", word(message, "turn"), words.join("\n    "))
}

/// The facts of a line as people read them; `--json` has all of them.
fn brief(detail: &Value) -> String {
    let refused = &detail["refused"];
    if refused.is_object() {
        return format!("{} refused at {}: {}", word(detail, "tool"), word(refused, "step"), word(refused, "rule"));
    }
    if detail["passed"].is_array() {
        return word(detail, "tool");
    }
    let facts = detail.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    facts.map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
}
