//! Files → [`Config`], with every fault at once, each with file, line and the nearest name.
//!
//! ```text
//! Home::find ──▶ load: midwatch.toml, channels/*.toml, schedules/ ──▶ Config
//!                  └──▶ Faults: what is unknown, of the wrong type, contradictory, or not run by this version
//! ```
//!
//! Reading opens these files and nothing else: secrets stay handles until a request needs them. What this version does
//! not run is refused, never accepted in silence. Grants are kept as text with their [`Place`], for the room that
//! knows the tools.

#[macro_use]
mod schema;
pub mod draft;
pub mod edit;
pub mod faults;
pub mod home;
pub mod links;
pub mod load;
pub mod secret;
mod tables;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use draft::Draft;
pub use faults::{Fault, Faults, Place};
pub use home::{Home, HomeError};
pub use links::{AppendError, Appended, NewLink, append_link, free_name};
pub use load::{ANTHROPIC_URL, check_secrets, example, load, read_all, telegram_example};
pub use secret::{Secret, SecretError, SecretValue};
pub use tables::{
    Console, Delivery, Kind, Limits, Listen, Mention, Model, Operator, Policy, Price, Provider, Retention, Supervisor,
    Threads, keeps_secrets,
};

/// A whole configuration: one snapshot, which a reload replaces in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The model that answers.
    pub model: Model,
    /// The models that stand in for it, in order.
    pub fallback: Vec<Model>,
    /// Who runs this.
    pub operator: Operator,
    /// What turns may spend.
    pub limits: Limits,
    /// How tasks are restarted, and how a stop ends.
    pub supervisor: Supervisor,
    /// How long what has ended is kept.
    pub retention: Retention,
    /// The folder the agent works in, absolute.
    pub workspace: PathBuf,
    /// Grants and refusals for every link.
    pub policy: Policy,
    /// The local console.
    pub console: Console,
    /// The Telegram accounts, by file name.
    pub telegram: Vec<Telegram>,
    /// The files that were read, absolute, in the order of reading.
    pub files: Vec<PathBuf>,
}

/// One Telegram bot: one file in `channels/`.
#[derive(Clone, Debug, PartialEq)]
pub struct Telegram {
    /// The file's name without `.toml`.
    pub name: String,
    /// The file, absolute: pairing appends to it.
    pub file: PathBuf,
    /// Where the bot's token lies.
    pub token: Secret,
    /// The Bot API's server, without a slash at the end.
    pub api_url: String,
    /// How long one request waits for messages, in seconds.
    pub poll_timeout_secs: u64,
    /// The chats that are answered.
    pub links: Vec<Link>,
}

/// One chat that is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name, unique over all channel files.
    pub name: String,
    /// The chat's id; below 0 for groups. Never 0.
    pub chat: i64,
    /// Who may speak, by numeric id.
    pub senders: Vec<u64>,
    /// When a message is meant for the agent.
    pub mention: Mention,
    /// What a session follows in a group with topics.
    pub threads: Threads,
    /// Grants, not parsed yet.
    pub allow: Vec<Placed>,
    /// Refusals, not parsed yet.
    pub deny: Vec<Placed>,
    /// Running time of a turn, in seconds, where the link has its own.
    pub time_budget_secs: Option<u64>,
    /// How replies reach the chat.
    pub delivery: Delivery,
    /// The line of its `[[link]]`.
    pub place: Place,
}

/// A grant or refusal as it stands in a file, with its position for whoever parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The text between the quotes.
    pub text: String,
    /// Where it stands.
    pub place: Place,
}
