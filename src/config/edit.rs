//! Sets the keys that `midwatch setup` asks for, in a new file or in one that is there.
//!
//! Everything else in an existing file stays as it is, comments and links included. What changes is told key by key,
//! and only as it will be: an old line may hold a secret in the wrong place.

use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::config::secret::Source;
use crate::config::{Provider, Secret, tables};

/// Whether requests can go to this server at all.
///
/// # Errors
/// Why not, in words that follow its name: `must be a URL …`.
pub fn check_server(url: &str) -> Result<(), String> {
    tables::http_url(url)
}

/// Where a secret lies, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lies {
    /// In an environment variable.
    Env(String),
    /// In a file; a relative path refers to the configuration's folder.
    File(PathBuf),
    /// In a credential that systemd passes.
    Credential(String),
}

impl Lies {
    /// The handle, with `base` as the configuration's folder.
    #[must_use]
    pub fn secret(&self, base: &Path) -> Secret {
        match self {
            Self::Env(name) => Secret::env(name),
            Self::File(path) => Secret::file(base.join(path)),
            Self::Credential(name) => Secret::credential(name),
        }
    }

    /// Where a configured secret lies; a file beneath `base` is written relative to it.
    #[must_use]
    pub fn of(secret: &Secret, base: &Path) -> Option<Self> {
        match &secret.source {
            Source::Env(name) => Some(Self::Env(name.clone())),
            Source::File(path) => Some(Self::File(path.strip_prefix(base).unwrap_or(path).to_owned())),
            Source::Credential(name) => Some(Self::Credential(name.clone())),
            Source::Held(_) => None,
        }
    }

    fn value(&self) -> Value {
        let (kind, text) = match self {
            Self::Env(name) => ("env", name.clone()),
            Self::File(path) => ("file", path.display().to_string()),
            Self::Credential(name) => ("credential", name.clone()),
        };
        let mut table = InlineTable::new();
        table.insert(kind, text.into());
        table.into()
    }
}

/// The answers about the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAnswers {
    /// Who answers.
    pub provider: Provider,
    /// The model's name.
    pub model: Option<String>,
    /// The server.
    pub base_url: Option<String>,
    /// The key, where there is one.
    pub api_key: Option<Lies>,
}

/// The answers about the bot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BotAnswers {
    /// Its token.
    pub token: Lies,
    /// Another server than Telegram's own.
    pub api_url: Option<String>,
}

/// A file as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// The whole text.
    pub text: String,
    /// The lines that are new or different, and the names of keys that go: `api_key goes`. Empty when nothing changes.
    pub changes: Vec<String>,
}

/// The file is no TOML, or has something else where a table belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not in a state to be edited")]
pub struct Unfit;

/// The first line of a new file.
const HEAD: &str = "# Written by `midwatch setup`; `midwatch config example";

/// `midwatch.toml` with these answers; `operator` adds to the ids that are there.
///
/// # Errors
/// [`Unfit`].
pub fn main_file(old: Option<&str>, model: &ModelAnswers, operator: &[u64]) -> Result<Edited, Unfit> {
    let mut edit = Edit::of(old, &format!("{HEAD}` shows every key.\n\n"))?;
    let table = edit.table("model")?;
    let mut changes = Vec::new();
    set(table, "provider", model.provider.as_str().into(), &mut changes);
    if let Some(name) = &model.model {
        set(table, "model", name.into(), &mut changes);
    }
    if let Some(base_url) = &model.base_url {
        set(table, "base_url", base_url.into(), &mut changes);
    }
    match &model.api_key {
        Some(key) => set(table, "api_key", key.value(), &mut changes),
        // A key that stays behind would be sent to the new server.
        None if table.remove("api_key").is_some() => changes.push("api_key goes".to_owned()),
        None => {}
    }
    if !operator.is_empty() {
        let table = edit.table("operator")?;
        let there = table.get("telegram").and_then(Item::as_array).cloned().unwrap_or_default();
        let known = |id: u64| there.iter().any(|item| item.as_integer() == i64::try_from(id).ok());
        let mut all: Array = there.iter().filter_map(Value::as_integer).collect();
        for id in operator.iter().filter(|id| !known(**id)) {
            // An id above i64 exists on no platform; TOML could not hold it either.
            all.extend(i64::try_from(*id).ok());
        }
        set(table, "telegram", all.into(), &mut changes);
    }
    edit.done(changes)
}

/// `channels/telegram.toml` with these answers; its links stay.
///
/// # Errors
/// [`Unfit`].
pub fn telegram_file(old: Option<&str>, bot: &BotAnswers) -> Result<Edited, Unfit> {
    let head = format!("{HEAD} telegram` shows every key.\n# `midwatch link telegram` adds the links.\n\n");
    let mut edit = Edit::of(old, &head)?;
    let mut changes = Vec::new();
    let table = edit.document.as_table_mut();
    set(table, "kind", "telegram".into(), &mut changes);
    set(table, "token", bot.token.value(), &mut changes);
    match &bot.api_url {
        Some(api_url) => set(table, "api_url", api_url.into(), &mut changes),
        // A token must not go to a server that was meant for another one.
        None if table.remove("api_url").is_some() => changes.push("api_url goes".to_owned()),
        None => {}
    }
    edit.done(changes)
}

struct Edit {
    document: DocumentMut,
    old: Option<String>,
    head: String,
}

impl Edit {
    fn of(old: Option<&str>, head: &str) -> Result<Self, Unfit> {
        let document = old.unwrap_or_default().parse().map_err(|_| Unfit)?;
        Ok(Self { document, old: old.map(str::to_owned), head: head.to_owned() })
    }

    fn table(&mut self, name: &str) -> Result<&mut dyn TableLike, Unfit> {
        let item = self.document.entry(name).or_insert_with(|| Item::Table(Table::new()));
        item.as_table_like_mut().ok_or(Unfit)
    }

    fn done(self, changes: Vec<String>) -> Result<Edited, Unfit> {
        let text = match self.old {
            Some(old) if changes.is_empty() => old,
            Some(_) => self.document.to_string(),
            None => format!("{}{}", self.head, self.document),
        };
        text.parse::<DocumentMut>().map_err(|_| Unfit)?;
        Ok(Edited { text, changes })
    }
}

fn set(table: &mut dyn TableLike, key: &str, mut new: Value, changes: &mut Vec<String>) {
    let line = format!("{key} = {}", new.to_string().trim());
    match table.get_mut(key) {
        Some(item) => {
            if let Some(old) = item.as_value() {
                let mut bare = old.clone();
                bare.decor_mut().clear();
                if bare.to_string() == new.to_string() {
                    return;
                }
                // What stands behind it on its line stays there.
                *new.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(new);
        }
        None => {
            table.insert(key, Item::Value(new));
        }
    }
    changes.push(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> ModelAnswers {
        ModelAnswers {
            provider: Provider::OpenAi,
            model: Some("qwen3:8b".to_owned()),
            base_url: Some("http://127.0.0.1:11434/v1".to_owned()),
            api_key: Some(Lies::File("secrets/model.key".into())),
        }
    }

    #[test]
    fn new_files_hold_the_answers_and_say_where_they_come_from() {
        insta::assert_snapshot!(main_file(None, &answers(), &[501]).unwrap().text, @r#"
# Written by `midwatch setup`; `midwatch config example` shows every key.

[model]
provider = "openai"
model = "qwen3:8b"
base_url = "http://127.0.0.1:11434/v1"
api_key = { file = "secrets/model.key" }

[operator]
telegram = [501]
"#);
        let bot = BotAnswers { token: Lies::Env("TELEGRAM_BOT_TOKEN".to_owned()), api_url: None };
        insta::assert_snapshot!(telegram_file(None, &bot).unwrap().text, @r#"
# Written by `midwatch setup`; `midwatch config example telegram` shows every key.
# `midwatch link telegram` adds the links.

kind = "telegram"
token = { env = "TELEGRAM_BOT_TOKEN" }
"#);
    }

    #[test]
    fn an_old_file_keeps_what_was_not_asked_for_and_the_changes_are_told_without_the_old_values() {
        let old = "# mine\n[model]\n# fast\nprovider = \"openai\" # here\nmodel = \"old\"\napi_key = \"sk-in-the-clear\"\n\
                   stall_secs = 5\n\n[limits]\nrounds = 3\n\n[operator]\ntelegram = [7]\n";
        let edited = main_file(Some(old), &ModelAnswers { api_key: None, ..answers() }, &[7, 501]).unwrap();
        insta::assert_snapshot!(edited.text, @r#"
# mine
[model]
# fast
provider = "openai" # here
model = "qwen3:8b"
stall_secs = 5
base_url = "http://127.0.0.1:11434/v1"

[limits]
rounds = 3

[operator]
telegram = [7, 501]
"#);
        insta::assert_snapshot!(edited.changes.join("\n"), @r#"
model = "qwen3:8b"
base_url = "http://127.0.0.1:11434/v1"
api_key goes
telegram = [7, 501]
"#);
        let again = main_file(Some(&edited.text), &ModelAnswers { api_key: None, ..answers() }, &[501]).unwrap();
        assert_eq!((again.text, again.changes.len()), (edited.text, 0), "a second time nothing changes");

        let old = "kind = \"telegram\"\ntoken = { env = \"OLD\" }\n\n[[link]]\nname = \"home\"\nchat = 5\n";
        let bot = BotAnswers { token: Lies::Credential("telegram".to_owned()), api_url: None };
        let edited = telegram_file(Some(old), &bot).unwrap();
        assert_eq!(edited.text, old.replace("env = \"OLD\"", "credential = \"telegram\""));
    }

    #[test]
    fn the_examples_can_be_edited() {
        let edited = main_file(Some(&crate::config::example()), &answers(), &[501]).unwrap();
        let model: toml::Table = edited.text.parse().unwrap();
        assert_eq!(model["model"]["model"].as_str(), Some("qwen3:8b"));
        assert_eq!(model["operator"]["telegram"].as_array().unwrap().len(), 1);
        assert!(edited.text.contains("# Longest answer of one call"), "its comments stay: {}", edited.text);
        let bot = BotAnswers { token: Lies::File("secrets/telegram.token".into()), api_url: None };
        let edited = telegram_file(Some(&crate::config::telegram_example()), &bot).unwrap();
        assert!(edited.text.contains("token = { file = \"secrets/telegram.token\" }"), "{}", edited.text);
        assert!(edited.text.contains("# chat = 123456789"), "{}", edited.text);
    }

    #[test]
    fn what_is_no_table_is_not_edited() {
        for old in ["[model", "model = 3\n", "operator = [1]\n"] {
            assert_eq!(main_file(Some(old), &answers(), &[1]), Err(Unfit), "{old}");
        }
    }
}
