//! `doctor`: looks at everything a deployment stands on, and says of each thing how it is and how to mend it.
//!
//! ```text
//! files: configuration, secrets, folders, disk, store, links, unit ─┐
//! network, side by side: model, each bot, clock, the daemon ────────┴─▶ findings ─▶ ok | warn | fault, and the fix
//! ```
//! It changes nothing, it works whether the daemon runs or not, and no look takes longer than its deadline.

mod local;
mod network;
mod service;
mod store;

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::complain::{Complaint, Exit};
use super::out;
use super::probe::Trouble;
use crate::config::{Config, Home, read_all};
use crate::session::Snapshot;

/// Longest time of one look over the network or into the store.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// As it should be.
    Ok,
    /// It works, and somebody should know.
    Warn,
    /// Something does not work, or will not.
    Fault,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// What was looked at, in a word or two.
    topic: String,
    /// How it is, a clause without a full stop.
    what: String,
    /// What to do about it.
    fix: Option<String>,
}

impl Finding {
    fn ok(topic: &str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, topic: topic.to_owned(), what: what.into(), fix: None }
    }

    fn warn(topic: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warn, fix: Some(fix.into()), ..Self::ok(topic, what) }
    }

    fn fault(topic: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Fault, ..Self::warn(topic, what, fix) }
    }

    fn of(level: Level, topic: &str, trouble: Trouble) -> Self {
        Self { level, topic: topic.to_owned(), what: trouble.what, fix: trouble.cure }
    }
}

/// Looks at everything.
pub(super) async fn run(home: &Home, is_default_home: bool, as_json: bool) -> Result<Exit, Complaint> {
    let loaded = Snapshot::load(home);
    // Where the files have faults, what could be read of them still says where to look.
    let config: Option<Config> = match &loaded {
        Ok(snapshot) => Some(snapshot.config.clone()),
        Err(_) => read_all(home).0,
    };
    let mut findings = local::configuration(home, &loaded);
    let daemon = service::daemon(home);
    let store = store::look(home);
    let network = network::look(config.as_ref());
    let (running, store, network) = tokio::join!(daemon, store, network);
    if let Some(config) = &config {
        findings.extend(local::secrets(config, running.is_running));
    }
    findings.extend(local::folders(home));
    findings.extend(local::disk(home));
    findings.extend(store);
    findings.extend(network);
    if let Some(config) = &config {
        findings.extend(local::links(config, loaded.as_ref().ok()));
    }
    findings.extend(running.findings);
    findings.extend(service::unit(home, config.as_ref(), is_default_home));
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (faults, warnings) = (count(Level::Fault), count(Level::Warn));
    if as_json {
        out::line(json!({ "ok": faults == 0, "faults": faults, "warnings": warnings, "findings": findings }))?;
    } else {
        out::line(for_people(&findings))?;
    }
    Ok(if faults == 0 { Exit::Done } else { Exit::Failed })
}

fn for_people(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.topic.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { level, topic, what, fix } in findings {
        let level = match level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fault => "fault",
        };
        text.push_str(&format!("{level:<5}  {topic:<width$}  {what}\n"));
        if let Some(fix) = fix {
            text.push_str(&format!("{:<5}  {:<width$}  fix: {fix}\n", "", ""));
        }
    }
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let sum = match (count(Level::Fault), count(Level::Warn)) {
        (0, 0) => "All is well.".to_owned(),
        (faults, warnings) => format!("{}, {}.", counted(faults, "fault"), counted(warnings, "warning")),
    };
    format!("{text}\n{sum}")
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
