//! A home for the daemon: a folder of its own with the configuration that a test wants.
//!
//! ```ignore
//! let home = Home::new().model(&model).telegram(&telegram).link("home", 7, &[7]).grant("home", &["read_file"]);
//! ```

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use super::model::{self, Model};
use super::telegram::{self, Chats, Telegram};

/// One deployment. The folder is gone when the last of home and daemon is.
#[derive(Debug)]
pub(crate) struct Home {
    dir: Arc<TempDir>,
    /// Lines of `[model]`, `[limits]` and so on, by table; `""` holds what stands outside of tables.
    tables: BTreeMap<String, Vec<String>>,
    channel: Vec<String>,
    links: Vec<(String, Vec<String>)>,
    schedules: BTreeMap<String, String>,
    extra: String,
    chats: Option<Chats>,
    env: BTreeMap<String, String>,
    /// The files do not yet hold what was asked for. The daemon writes into them too (pairing), so they are not
    /// written again without need.
    dirty: Cell<bool>,
}

impl Home {
    /// An empty home: no model, no channel.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mw").tempdir().unwrap();
        for part in ["config/channels", "config/schedules", "data/workspace", "data/prompt"] {
            std::fs::create_dir_all(dir.path().join(part)).unwrap();
        }
        let env = [("TELEGRAM_BOT_TOKEN", telegram::TOKEN), ("OPENAI_API_KEY", model::KEY)];
        Self {
            dir: Arc::new(dir),
            tables: BTreeMap::new(),
            channel: Vec::new(),
            links: Vec::new(),
            schedules: BTreeMap::new(),
            extra: String::new(),
            chats: None,
            env: env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            dirty: Cell::new(true),
        }
    }

    /// Writes no configuration: the test, or what it runs, does.
    pub(crate) fn unwritten(self) -> Self {
        self.dirty.set(false);
        self
    }

    /// Uses this model.
    pub(crate) fn model(self, model: &Model) -> Self {
        let url = model.url();
        self.set("model", "provider", "\"openai\"")
            .set("model", "model", &format!("\"{}\"", model::NAME))
            .set("model", "base_url", &format!("\"{url}\""))
            .set("model", "api_key", "{ env = \"OPENAI_API_KEY\" }")
    }

    /// Uses this model over Anthropic's protocol.
    pub(crate) fn anthropic(self, model: &Model) -> Self {
        let url = model.root();
        self.model(model).set("model", "provider", "\"anthropic\"").set("model", "base_url", &format!("\"{url}\""))
    }

    /// Falls back to this model, under the name `fallback-model`.
    pub(crate) fn fallback(self, model: &Model) -> Self {
        let url = model.url();
        self.toml(&format!(
            "[[model.fallback]]\nprovider = \"openai\"\nmodel = \"fallback-model\"\nbase_url = \"{url}\"\n\
             api_key = {{ env = \"OPENAI_API_KEY\" }}\n"
        ))
    }

    /// Speaks on this platform; the chats of links named later are opened there.
    pub(crate) fn telegram(mut self, telegram: &Telegram) -> Self {
        self.chats = Some(telegram.chats());
        self.channel.push("kind = \"telegram\"\ntoken = { env = \"TELEGRAM_BOT_TOKEN\" }".to_owned());
        self.channel_line(&format!("api_url = \"{}\"", telegram.url()))
    }

    /// A line of `telegram.toml` above its links: `poll_timeout_secs = 1`.
    pub(crate) fn channel_line(mut self, line: &str) -> Self {
        self.channel.push(line.to_owned());
        self.changed()
    }

    /// Links a chat; without `senders` nobody is answered.
    pub(crate) fn link(mut self, name: &str, chat: i64, senders: &[i64]) -> Self {
        if let Some(chats) = &self.chats {
            chats.open(chat);
        }
        let lines = vec![format!("name = \"{name}\"\nchat = {chat}\nsenders = {senders:?}")];
        self.links.push((name.to_owned(), lines));
        self.changed()
    }

    /// A line of a link's table: `mention = "always"`.
    pub(crate) fn link_line(mut self, link: &str, line: &str) -> Self {
        let (_, lines) = self.links.iter_mut().find(|(name, _)| name == link).expect("the link was named before");
        lines.push(line.to_owned());
        self.changed()
    }

    /// Grants of a link.
    pub(crate) fn grant(self, link: &str, grants: &[&str]) -> Self {
        self.link_line(link, &format!("allow = {grants:?}"))
    }

    /// Takes a link away again.
    pub(crate) fn unlink(mut self, link: &str) -> Self {
        self.links.retain(|(name, _)| name != link);
        self.changed()
    }

    /// The model's context window, in tokens.
    pub(crate) fn window(self, tokens: u64) -> Self {
        self.set("model", "context_window", &tokens.to_string())
    }

    /// A key of `[limits]`.
    pub(crate) fn limit(self, key: &str, value: u64) -> Self {
        self.set("limits", key, &value.to_string())
    }

    /// Telegram ids of the operator.
    pub(crate) fn operator(self, ids: &[i64]) -> Self {
        self.set("operator", "telegram", &format!("{ids:?}"))
    }

    /// A key of a table of `midwatch.toml`, with its value as TOML; a later value replaces an earlier one.
    pub(crate) fn set(mut self, table: &str, key: &str, value: &str) -> Self {
        let lines = self.tables.entry(table.to_owned()).or_default();
        lines.retain(|line| line.split_once(" = ").is_none_or(|(before, _)| before != key));
        lines.push(format!("{key} = {value}"));
        self.changed()
    }

    /// Whole tables for the end of `midwatch.toml`, as they are.
    pub(crate) fn toml(mut self, text: &str) -> Self {
        self.extra.push_str(text);
        self.extra.push('\n');
        self.changed()
    }

    /// `schedules/NAME.toml`, as it is.
    pub(crate) fn schedule(mut self, name: &str, toml: &str) -> Self {
        self.schedules.insert(name.to_owned(), toml.to_owned());
        self.changed()
    }

    /// A file of the operator under `data/prompt/`.
    pub(crate) fn prompt_file(self, name: &str, text: &str) -> Self {
        write(&self.path().join("data/prompt").join(name), text);
        self
    }

    /// A file the agent works on.
    pub(crate) fn workspace_file(self, name: &str, text: &str) -> Self {
        write(&self.workspace().join(name), text);
        self
    }

    /// A variable of the daemon's environment, which is otherwise empty.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    fn changed(self) -> Self {
        self.dirty.set(true);
        self
    }

    /// Writes the configuration if it changed since it was last written; `Daemon::start` and `cli` do so too.
    pub(crate) fn write(&self) {
        if !self.dirty.replace(false) {
            return;
        }
        let mut main = self.tables.get("").map(|lines| lines.join("\n") + "\n").unwrap_or_default();
        for (table, lines) in self.tables.iter().filter(|(table, _)| !table.is_empty()) {
            let _ = writeln!(main, "[{table}]\n{}\n", lines.join("\n"));
        }
        write(&self.path().join("config/midwatch.toml"), &(main + &self.extra));
        let channel = self.path().join("config/channels/telegram.toml");
        if self.channel.is_empty() {
            let _ = std::fs::remove_file(channel);
        } else {
            let mut text = self.channel.join("\n") + "\n";
            for (_, lines) in &self.links {
                let _ = writeln!(text, "\n[[link]]\n{}", lines.join("\n"));
            }
            write(&channel, &text);
        }
        for (name, text) in &self.schedules {
            write(&self.path().join(format!("config/schedules/{name}.toml")), text);
        }
    }

    /// What `--home` is given.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.path().join("data/workspace")
    }

    /// The store's file.
    pub(crate) fn store_path(&self) -> PathBuf {
        self.path().join("data/midwatch.db")
    }

    /// The store, to look at.
    pub(crate) fn store(&self) -> Connection {
        open_store(&self.store_path())
    }

    /// Changes the store of a daemon that is stopped.
    pub(crate) fn set_store(&self, sql: &str) {
        Connection::open(self.store_path()).unwrap().execute_batch(sql).unwrap();
    }

    /// The one number that `sql` gives.
    pub(crate) fn count(&self, sql: &str) -> i64 {
        self.store().query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The rows that `sql` gives, columns joined by `|` and null as nothing, as the sqlite3 shell prints them.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        rows(&self.store(), sql)
    }

    pub(super) fn dir(&self) -> Arc<TempDir> {
        Arc::clone(&self.dir)
    }

    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        self.env.clone()
    }
}

/// Opens a store to look at: nothing a test does can change it.
pub(crate) fn open_store(path: &Path) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let store = Connection::open_with_flags(path, flags).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    store.busy_timeout(super::PATIENCE).unwrap();
    store
}

/// The rows that `sql` gives, columns joined by `|`.
pub(crate) fn rows(store: &Connection, sql: &str) -> Vec<String> {
    let mut statement = store.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let cells = (0..columns).map(|column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => String::new(),
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Real(number) => number.to_string(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()),
            })
        });
        cells.collect::<rusqlite::Result<Vec<_>>>().map(|cells| cells.join("|"))
    });
    rows.and_then(Iterator::collect).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a file has a folder")).unwrap();
    std::fs::write(path, text).unwrap();
}
