//! The tables of the files, each defined once.

use reqwest::Url;
use toml::de::DeTable;

use crate::config::Placed;
use crate::config::schema::{Found, Reader, Table, Value, listed, nearest};
use crate::config::secret::Secret;

words! {
    /// Who answers the model calls.
    pub enum Provider {
        /// Any server that speaks OpenAI's chat completions.
        OpenAi = "openai",
        /// Any server that speaks Anthropic's Messages.
        Anthropic = "anthropic",
        /// The built-in rehearsal model, which needs no key and no network.
        Rehearsal = "rehearsal",
    }
}

words! {
    /// When a message in a chat is meant for the agent.
    pub enum Mention {
        /// Every message is.
        Always = "always",
        /// Only one that names the bot or answers it.
        Required = "required",
    }
}

words! {
    /// What a session follows in a group with topics.
    pub enum Threads {
        /// Each forum topic is a session of its own.
        Topic = "topic",
        /// The whole chat is one session.
        Chat = "chat",
    }
}

words! {
    /// How replies reach the chat.
    pub enum Delivery {
        /// Each part is sent once; a lost answer leaves it uncertain.
        Send = "send",
    }
    not run {
        "auto", "remove the line: \"send\" is the default";
        "edit", "remove the line: \"send\" is the default";
    }
}

words! {
    /// The platform of a channel file.
    pub enum Kind {
        /// A Telegram bot.
        Telegram = "telegram",
    }
    not run { "discord", "rename the file to NAME.toml.example to keep it for a later version"; }
}

/// Where the console listens besides its Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
}

impl Value for Listen {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        match value.get_ref().as_str() {
            Some("off") => return Some(Self::Off),
            Some(_) => reader.not_run(value.span(), "listening on a network address", "write listen = \"off\""),
            None => reader.wrong_type(key, value, "\"off\""),
        }
        None
    }

    fn show(&self) -> Option<String> {
        Some("\"off\"".to_owned())
    }
}

table! {
    /// The model that answers. Needs `provider`; "openai" also needs `model` and `base_url`, "anthropic" needs `model`.
    pub struct Model = "[model]\n" {
        /// "openai" (any compatible server), "anthropic" (Messages), or "rehearsal" (built in; for trying things out, without key and network).
        provider: Provider = Provider::Rehearsal;
        /// The model's name, as the server knows it.
        model: String = String::new(), if not_blank, like "\"qwen3:8b\"";
        /// The server; with "anthropic" its own unless another is named. Plain http only on this machine, or without a key.
        base_url: String = String::new(), if http_url, like "\"http://127.0.0.1:11434/v1\"";
        /// Where the key lies: { env = "NAME" }, { file = "PATH" } or { credential = "NAME" } (systemd). Local servers need none.
        api_key: Option<Secret> = None, like "{ env = \"OPENAI_API_KEY\" }";
        /// How many tokens the model takes at once, question and answer together.
        context_window: u32 = 32_768, in 2_048..=10_000_000;
        /// Longest answer of one call, in tokens; part of the window.
        max_output_tokens: u32 = 4_096, in 16..=1_000_000;
        /// Longest time of one call, in seconds.
        request_timeout_secs: u64 = 120, in 1..=3_600;
        /// No content for so long means that the call failed; below `request_timeout_secs` and `daemon_turn_secs`.
        stall_secs: u64 = 40, in 1..=3_600;
        /// US dollars per million tokens. A cost limit needs them.
        price: Price = Price::default();
        besides fallback;
    }
}

table! {
    /// What a million tokens cost, in US dollars.
    pub struct Price = "" {
        /// Read by the model.
        input: f64 = 0.0, in 0.0..=100_000.0;
        /// Written by the model.
        output: f64 = 0.0, in 0.0..=100_000.0;
        /// Read from the provider's cache.
        cached: f64 = 0.0, in 0.0..=100_000.0;
    }
}

impl Price {
    /// Whether calls cost anything, so that a cost limit can be kept.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.input > 0.0 || self.output > 0.0
    }
}

impl Value for Price {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        reader.table(key, value).map(|table| <Self as Table>::read(reader, table))
    }

    fn show(&self) -> Option<String> {
        Some(format!("{{ input = {:?}, output = {:?}, cached = {:?} }}", self.input, self.output, self.cached))
    }
}

table! {
    /// The person who runs midwatch, by numeric ids: may stop any turn, and gets the read tools when pairing.
    pub struct Operator = "[operator]\n" {
        /// Their ids on Telegram.
        telegram: Vec<u64> = Vec::new();
        /// The link that is told of what needs a person.
        notify: Option<Placed> = None, like "\"home\"";
        not run discord, "remove the line; it belongs to Discord";
    }
}

table! {
    /// What turns may spend.
    pub struct Limits = "[limits]\n" {
        /// Turns that run at the same time, each in another session.
        concurrent_turns: u32 = 8, in 1..=256;
        /// Running time of a turn from a chat, in seconds.
        daemon_turn_secs: u64 = 120, in 1..=86_400;
        /// Running time of a turn from the console, in seconds; waiting for an answer counts.
        console_turn_secs: u64 = 1_800, in 1..=86_400;
        /// Model calls of a turn.
        rounds: u32 = 40, in 1..=1_000;
        /// Tokens of a turn, read and written together.
        turn_tokens: u64 = 200_000, in 1..=1_000_000_000;
        /// Tokens of all turns of a day (UTC).
        day_tokens: u64 = 2_000_000, in 1..=1_000_000_000_000;
        /// US dollars of a turn; 0 means no limit.
        turn_cost_usd: f64 = 0.0, in 0.0..=1_000_000.0;
        /// US dollars of all turns of a day (UTC); 0 means no limit.
        day_cost_usd: f64 = 0.0, in 0.0..=1_000_000.0;
        not run concurrent_jobs, "remove the line; it belongs to schedules";
        not run schedule_turn_secs, "remove the line; it belongs to schedules";
        not run jobs_per_link, "remove the line; it belongs to schedules";
    }
}

table! {
    /// How tasks are restarted, and how a stop ends.
    pub struct Supervisor = "[supervisor]\n" {
        /// Longest wait for running turns after a stop is asked for, in seconds; below the unit's TimeoutStopSec.
        drain_secs: u64 = 20, in 1..=600;
        /// First wait before a failed task starts again, in milliseconds; doubles up to `backoff_max_ms`.
        backoff_first_ms: u64 = 250, in 1..=600_000;
        /// Longest such wait, in milliseconds.
        backoff_max_ms: u64 = 60_000, in 1..=3_600_000;
    }
}

table! {
    /// How long what has ended is kept, in days. What is open, in doubt or still seen by the model always stays.
    pub struct Retention = "[retention]\n" {
        /// What was said, once the model no longer sees it.
        history_days: u32 = 365, in 1..=36_500;
        /// What happened: the timeline.
        timeline_days: u32 = 90, in 1..=36_500;
        /// Messages, turns and replies. Not below 3: what a platform delivers once more has to be known again.
        ended_days: u32 = 30, in 3..=36_500;
    }
}

table! {
    /// The files the agent works on.
    pub(super) struct WorkspaceKeys = "[workspace]\n" {
        /// Relative to the data folder, or absolute.
        path: String = "workspace".to_owned(), if folder;
    }
}

table! {
    /// Grants and refusals for every link.
    pub struct Policy = "[policy]\n" {
        /// Grants for every link; usually empty.
        allow: Vec<Placed> = Vec::new();
        /// Refusals; the strictest of all matching rules wins.
        deny: Vec<Placed> = Vec::new();
    }
}

table! {
    /// The local console.
    pub struct Console = "[console]\n" {
        /// The Unix socket only.
        listen: Listen = Listen::Off;
    }
}

table! {
    /// The switch for the desktop, which this version does not have: known, so that it may be written off.
    pub(super) struct ComputerUseKeys = "[computer_use]\n" {
        /// Whether the switch is on.
        enabled: bool = false;
        /// The X display.
        display: String = ":0".to_owned();
    }
}

table! {
    /// A Telegram bot: save as channels/telegram.toml. Each chat it answers is a `[[link]]`.
    pub(super) struct TelegramKeys = "" {
        /// The platform.
        kind: Kind = Kind::Telegram;
        /// Where the bot's token lies: { env = "NAME" }, { file = "PATH" } or { credential = "NAME" } (systemd).
        token: Option<Secret> = None, like "{ env = \"TELEGRAM_BOT_TOKEN\" }";
        /// The Bot API's server.
        api_url: String = "https://api.telegram.org".to_owned(), if private_url;
        /// How long one request waits for messages, in seconds.
        poll_timeout_secs: u64 = 30, in 1..=50;
        besides link;
    }
}

table! {
    /// One chat that is answered. Only listed senders are heard, and nothing is allowed that is not granted here.
    pub(super) struct LinkKeys = "[[link]]\n" {
        /// Its name here: a-z, 0-9, - and _, at most 32.
        name: Option<String> = None, if link_name, like "\"home\"";
        /// The chat's numeric id; below 0 for groups.
        chat: Option<i64> = None, if chat_id, like "123456789";
        /// Numeric ids of those who may speak; an empty list means nobody.
        senders: Vec<u64> = Vec::new();
        /// "always", or "required": only messages that name the bot or answer it. Default: "required" in groups.
        mention: Option<Mention> = None, like "\"always\"";
        /// "topic": each forum topic is a session of its own; "chat": one session.
        threads: Threads = Threads::Topic;
        /// Grants, such as "read_file" or "read_file(notes/**)".
        allow: Vec<Placed> = Vec::new();
        /// Refusals, which win over grants.
        deny: Vec<Placed> = Vec::new();
        /// Running time of a turn, in seconds. Default: `daemon_turn_secs`.
        time_budget_secs: Option<u64> = None, if turn_secs, like "120";
        /// "send": each part of a reply is sent once.
        delivery: Delivery = Delivery::Send;
    }
}

/// The tables of midwatch.toml, known or refused.
pub(super) const ROOT_KEYS: &[&str] = &[
    "model",
    "operator",
    "limits",
    "supervisor",
    "retention",
    "workspace",
    "policy",
    "programs",
    "computer_use",
    "hook",
    "console",
];

fn not_blank(text: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
}

fn folder(path: &str) -> Result<(), String> {
    not_blank(path)?;
    if path.starts_with(['~', '$']) {
        Err("must be a path as it is: `~` and `$` are not expanded".to_owned())
    } else {
        Ok(())
    }
}

/// Whether `text` can name a link or a channel file.
pub(super) fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    (1..=32).contains(&text.len()) && text.bytes().all(fits)
}

fn link_name(name: &Option<String>) -> Result<(), String> {
    match name {
        Some(name) if !is_name(name) => Err("must be 1 to 32 of a-z, 0-9, - and _".to_owned()),
        _ => Ok(()),
    }
}

fn chat_id(chat: &Option<i64>) -> Result<(), String> {
    if *chat == Some(0) { Err("must not be 0: no chat has that id".to_owned()) } else { Ok(()) }
}

fn turn_secs(secs: &Option<u64>) -> Result<(), String> {
    match secs {
        Some(secs) if !(1..=86_400).contains(secs) => Err("must lie between 1 and 86400".to_owned()),
        _ => Ok(()),
    }
}

/// A URL to which a path can be added. The message does not quote it: people paste keys into URLs.
pub(super) fn http_url(text: &str) -> Result<(), String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match url {
        None => Err("must be a URL that begins with http:// or https://".to_owned()),
        Some(url) if !url.username().is_empty() || url.password().is_some() => {
            Err("must not hold a user name or password".to_owned())
        }
        Some(url) if url.query().is_some() || url.fragment().is_some() => {
            Err("must end with its path: no `?` and no `#`".to_owned())
        }
        Some(_) => Ok(()),
    }
}

/// Why a secret must not travel to this URL.
pub(super) const IN_CLEAR: &str =
    "must begin with https://, or a secret would travel in clear; plain http is for this machine alone";

fn private_url(text: &str) -> Result<(), String> {
    http_url(text)?;
    if keeps_secrets(text) { Ok(()) } else { Err(IN_CLEAR.to_owned()) }
}

/// Whether what is sent to this URL is encrypted or stays on this machine.
#[must_use]
pub fn keeps_secrets(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    // `host_str` writes an IPv6 address in brackets; numbers in odd notations are already in their usual form.
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    url.scheme() == "https" || local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_travels_encrypted_or_stays_on_this_machine() {
        for (url, kept) in [
            ("https://api.telegram.org", true),
            ("http://localhost:8081", true),
            ("http://127.0.0.1:8081/v1", true),
            ("http://127.9.9.9", true),
            ("http://2130706433", true),
            ("http://[::1]:8081", true),
            ("http://api.telegram.org", false),
            ("http://localhost.example.org", false),
            ("http://127.0.0.1.example.org", false),
            ("http://[::ffff:10.0.0.1]", false),
            ("http://0.0.0.0", false),
        ] {
            assert_eq!(private_url(url).is_ok(), kept, "{url}");
        }
    }
}
