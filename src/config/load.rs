//! Reads the files of a configuration, and holds them against each other.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::config::schema::{Reader, Table, span_of};
use crate::config::tables::{self, ComputerUseKeys, Kind, LinkKeys, ROOT_KEYS, TelegramKeys, WorkspaceKeys};
use crate::config::{
    Config, Console, Fault, Faults, Home, Limits, Link, Mention, Model, Operator, Policy, Provider, Retention,
    Supervisor, Telegram,
};

/// A file of a configuration is small; more than this is something else.
pub const FILE_MAX_BYTES: u64 = 1024 * 1024;
/// The most models that stand in for another.
pub const FALLBACKS_MAX: usize = 8;
/// The server of provider "anthropic" where no other is named.
pub const ANTHROPIC_URL: &str = "https://api.anthropic.com";
/// The most messenger accounts of one daemon.
pub const CHANNELS_MAX: usize = 32;

/// Reads `midwatch.toml`, `channels/*.toml` and `schedules/` of `home`, and opens nothing else.
///
/// # Errors
/// All faults at once, by file and line. Calling again helps only after the files changed.
pub fn load(home: &Home) -> Result<Config, Faults> {
    match read_all(home) {
        (Some(config), faults) if faults.is_empty() => Ok(config),
        (_, faults) => Err(Faults::new(faults)),
    }
}

/// As [`load`], but gives what could be read beside the faults, so that a higher room can look for more of them.
#[must_use]
pub fn read_all(home: &Home) -> (Option<Config>, Vec<Fault>) {
    let mut load = Load { home, files: Vec::new(), faults: Vec::new() };
    let main = load.main();
    let telegram = load.channels();
    load.schedules();
    load.across(main.as_ref(), &telegram);
    let Load { files, faults, .. } = load;
    (main.map(|config| Config { telegram, files, ..config }), faults)
}

/// What is wrong with the files that hold secrets, looked at from outside: `midwatch check` opens none of them.
#[must_use]
pub fn check_secrets(config: &Config) -> Vec<Fault> {
    let tokens = config.telegram.iter().map(|account| &account.token);
    let keys = [&config.model].into_iter().chain(&config.fallback).filter_map(|model| model.api_key.as_ref());
    keys.chain(tokens).filter_map(crate::config::Secret::check).collect()
}

/// `midwatch.toml` with every key that this version runs, its default and what it means.
#[must_use]
pub fn example() -> String {
    let head = "# midwatch.toml: every key and its default. A line to leave out can be left out.\n";
    let tables = [
        Model::example() + FALLBACK_EXAMPLE,
        Operator::example(),
        Limits::example(),
        Supervisor::example(),
        Retention::example(),
        WorkspaceKeys::example(),
        Policy::example(),
        Console::example(),
    ];
    format!("{head}\n{}", tables.join("\n"))
}

/// The keys are those of `[model]`, so they are not repeated.
const FALLBACK_EXAMPLE: &str = "\
# Models that stand in where that one is busy, broken or refuses its key; each with the keys of `[model]`.
# [[model.fallback]]
# provider = \"openai\"
";

/// `channels/telegram.toml` with every key, its default and what it means; the link is commented out.
#[must_use]
pub fn telegram_example() -> String {
    // Without a token the file would be refused, so its line is the one sample that stands.
    let account = TelegramKeys::example().replace("# token = ", "token = ");
    let link = LinkKeys::example();
    let lines = link.lines().map(|line| if line.starts_with('#') { line.to_owned() } else { format!("# {line}") });
    format!("{account}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
}

struct Load<'h> {
    home: &'h Home,
    files: Vec<PathBuf>,
    faults: Vec<Fault>,
}

impl Load<'_> {
    /// The path as faults show it.
    fn shown(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.home.config).unwrap_or(path).to_owned()
    }

    /// The text of `path`; notes why it cannot be had.
    fn text(&mut self, path: &Path) -> Option<String> {
        let text = read(path).map_err(|reason| {
            let fault = Fault::in_file(self.shown(path), reason.message);
            self.faults.push(Fault { line: reason.line, ..fault });
        });
        self.files.push(path.to_owned());
        text.ok()
    }

    fn main(&mut self) -> Option<Config> {
        let path = self.home.config_file();
        if matches!(path.try_exists(), Ok(false)) {
            let fault = Fault::in_file(&path, "there is no such file");
            self.faults.push(fault.with_hint(format!(
                "`midwatch setup` writes it; `midwatch config example` prints one to save as {}",
                path.display()
            )));
            return None;
        }
        let text = self.text(&path)?;
        let (mut reader, root) = Reader::parse(&self.shown(&path), &self.home.config, &text);
        let main = read_main(&mut reader, root.get_ref(), self.home);
        self.faults.extend(reader.into_faults());
        Some(main)
    }

    /// The `*.toml` files of a folder by name. Hidden ones are what editors leave; a missing folder is an empty one.
    fn listed(&mut self, dir: &Path) -> Vec<PathBuf> {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(err) => {
                self.faults.push(Fault::in_file(self.shown(dir), format!("cannot read the folder: {err}")));
                return Vec::new();
            }
        };
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let mut paths: Vec<_> =
            paths.filter(|path| !hidden(path) && path.extension().is_some_and(|ext| ext == "toml")).collect();
        paths.sort();
        paths
    }

    fn channels(&mut self) -> Vec<Telegram> {
        let dir = self.home.channels_dir();
        let mut paths = self.listed(&dir);
        if paths.len() > CHANNELS_MAX {
            let message = format!("{} channel files are more than the {CHANNELS_MAX} that are read", paths.len());
            self.faults.push(Fault::in_file(self.shown(&dir), message));
            paths.truncate(CHANNELS_MAX);
        }
        paths.into_iter().filter_map(|path| self.channel(path)).collect()
    }

    fn channel(&mut self, path: PathBuf) -> Option<Telegram> {
        let text = self.text(&path)?;
        let shown = self.shown(&path);
        let (mut reader, root) = Reader::parse(&shown, &self.home.config, &text);
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        if !tables::is_name(&name) {
            self.faults
                .push(Fault::in_file(&shown, "the file's name must be 1 to 32 of a-z, 0-9, - and _, then .toml"));
        }
        let account = read_telegram(&mut reader, root.get_ref(), name, path);
        self.faults.extend(reader.into_faults());
        account
    }

    fn schedules(&mut self) {
        for path in self.listed(&self.home.schedules_dir()) {
            let fault = Fault::in_file(self.shown(&path), "a schedule is not run by this version");
            self.faults.push(fault.with_hint("rename it to NAME.toml.example to keep it for a later version"));
        }
    }

    /// What no file can know alone: names and tokens.
    fn across(&mut self, main: Option<&Config>, accounts: &[Telegram]) {
        let named = |name: &str| accounts.iter().flat_map(|account| &account.links).any(|link| link.name == name);
        if let Some(notify) = main.and_then(|main| main.operator.notify.as_ref())
            && !named(&notify.text)
        {
            let fault = Fault::at(&notify.place, "`notify` names no link");
            self.faults.push(fault.with_hint("link that chat first, then name its link here"));
        }
        for (number, account) in accounts.iter().enumerate() {
            let earlier = accounts.iter().take(number);
            if let Some(twin) = earlier.clone().find(|earlier| earlier.token == account.token) {
                let message = format!(
                    "`token` comes from {}, as in {}",
                    account.token.describe(),
                    self.shown(&twin.file).display()
                );
                let fault = match &account.token.place {
                    Some(place) => Fault::at(place, message),
                    None => Fault::in_file(self.shown(&account.file), message),
                };
                self.faults.push(fault.with_hint("one bot has one file; add a `[[link]]` there for each chat"));
            }
        }
        let mut links: Vec<&Link> = Vec::new();
        for link in accounts.iter().flat_map(|account| &account.links) {
            if let Some(twin) = links.iter().find(|earlier| earlier.name == link.name) {
                let message = format!("the link name `{}` stands in {} already", link.name, twin.place);
                self.faults
                    .push(Fault::at(&link.place, message).with_hint("a name means one link over all channel files"));
            }
            links.push(link);
        }
    }
}

/// Why a file gives no text.
pub(super) struct Unreadable {
    line: Option<usize>,
    pub(super) message: String,
}

pub(super) fn read(path: &Path) -> Result<String, Unreadable> {
    let whole = |message: String| Unreadable { line: None, message };
    let system = |err: std::io::Error| whole(format!("cannot read the file: {err}"));
    let meta = std::fs::metadata(path).map_err(system)?;
    if !meta.is_file() {
        let kind = if meta.is_dir() { "this is a folder" } else { "this is no regular file" };
        return Err(whole(format!("{kind}, where a file should be")));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(system)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(whole(format!("the file is larger than {} KiB", FILE_MAX_BYTES / 1024)));
    }
    String::from_utf8(bytes).map_err(|err| {
        let good = err.utf8_error().valid_up_to();
        let line = 1 + err.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count();
        Unreadable { line: Some(line), message: "this line is not UTF-8 text".to_owned() }
    })
}

fn read_main(reader: &mut Reader<'_>, root: &DeTable<'_>, home: &Home) -> Config {
    for (key, value) in root {
        match key.get_ref().as_ref() {
            "programs" => reader.not_run(key.span(), "`[programs]`", "remove the tables; no program is run"),
            "hook" => reader.not_run(key.span(), "`[[hook]]`", "remove the tables; no hook is run"),
            "computer_use" => {
                if let Some(table) = reader.table("computer_use", value)
                    && ComputerUseKeys::read(reader, table).enabled
                {
                    let at = span_of(table, "enabled").unwrap_or_else(|| key.span());
                    reader.not_run(at, "computer use", "write enabled = false, or remove the table");
                }
            }
            name if ROOT_KEYS.contains(&name) => {}
            _ => reader.unknown(key, ROOT_KEYS),
        }
    }
    let model_table = section(reader, root, "model");
    let limits_table = section(reader, root, "limits");
    let mut model = model_table.map(|table| Model::read(reader, table)).unwrap_or_default();
    let limits = limits_table.map(|table| Limits::read(reader, table)).unwrap_or_default();
    let header = root.get("model").map(toml::Spanned::span);
    let mut fallback = Vec::new();
    match model_table {
        Some(table) => {
            check_model(reader, ("[model]", header), table, &mut model);
            fallback = read_fallback(reader, table);
        }
        None if root.contains_key("model") => {}
        None => reader.missing(
            None,
            "there is no `[model]` table",
            "`midwatch config example` prints one; provider = \"rehearsal\" needs no key",
        ),
    }
    check_limits(reader, [model_table, limits_table], (&model, &fallback), &limits);

    let operator = section(reader, root, "operator");
    let operator = operator.map(|table| Operator::read(reader, table)).unwrap_or_default();
    let supervisor_table = section(reader, root, "supervisor");
    let supervisor = supervisor_table.map(|table| Supervisor::read(reader, table)).unwrap_or_default();
    if supervisor.backoff_first_ms > supervisor.backoff_max_ms {
        let at = first_of(&[supervisor_table], &["backoff_first_ms", "backoff_max_ms"]);
        reader.fault(at, "`backoff_first_ms` must not be above `backoff_max_ms`");
    }
    let retention = section(reader, root, "retention");
    let retention = retention.map(|table| Retention::read(reader, table)).unwrap_or_default();
    let policy = section(reader, root, "policy").map(|table| Policy::read(reader, table)).unwrap_or_default();
    let console = section(reader, root, "console").map(|table| Console::read(reader, table)).unwrap_or_default();
    let workspace_table = section(reader, root, "workspace");
    let workspace = workspace_table.map(|table| WorkspaceKeys::read(reader, table)).unwrap_or_default();
    let workspace = home.data.join(workspace.path);
    if let Some(reason) = misplaced(&workspace, home) {
        let at = first_of(&[workspace_table], &["path"]);
        reader.fault(at, reason).hint("the agent writes there; midwatch's own files must lie out of its reach");
    }
    Config {
        model,
        fallback,
        operator,
        limits,
        supervisor,
        retention,
        workspace,
        policy,
        console,
        telegram: Vec::new(),
        files: Vec::new(),
    }
}

/// The table `name` of the file, where it is one.
fn section<'t, 'v>(reader: &mut Reader<'_>, root: &'v DeTable<'t>, name: &str) -> Option<&'v DeTable<'t>> {
    root.get(name).and_then(|value| reader.table(name, value))
}

/// Where the first of `keys` stands that a file sets; the top of the file when none is set.
fn first_of(tables: &[Option<&DeTable<'_>>], keys: &[&str]) -> Range<usize> {
    let set = |key: &&str| tables.iter().flatten().find_map(|table| span_of(table, key));
    keys.iter().find_map(set).unwrap_or(0..0)
}

/// The `[[model.fallback]]` tables: each as complete as `[model]` itself.
fn read_fallback(reader: &mut Reader<'_>, main: &DeTable<'_>) -> Vec<Model> {
    let Some(value) = main.get("fallback") else { return Vec::new() };
    let DeValue::Array(items) = value.get_ref() else {
        reader.wrong_type("fallback", value, "a list of tables, each headed `[[model.fallback]]`");
        return Vec::new();
    };
    if items.len() > FALLBACKS_MAX {
        reader.fault(
            value.span(),
            format!("there are {} fallback models; at most {FALLBACKS_MAX} are asked", items.len()),
        );
    }
    let mut models = Vec::new();
    for item in items.iter() {
        let Some(table) = reader.table("fallback", item) else { continue };
        if let Some(at) = span_of(table, "fallback") {
            reader
                .fault(at, "a fallback has no fallback of its own")
                .hint("write one `[[model.fallback]]` after the other");
        }
        let mut model = Model::read(reader, table);
        check_model(reader, ("[[model.fallback]]", Some(item.span())), table, &mut model);
        check_sizes(reader, &[Some(table)], &model);
        models.push(model);
    }
    models
}

fn check_model(
    reader: &mut Reader<'_>,
    (name, header): (&str, Option<Range<usize>>),
    table: &DeTable<'_>,
    model: &mut Model,
) {
    model.base_url.truncate(model.base_url.trim_end_matches('/').len());
    if model.provider == Provider::Anthropic && !table.contains_key("base_url") {
        ANTHROPIC_URL.clone_into(&mut model.base_url);
    }
    if !table.contains_key("provider") {
        reader.missing(
            header,
            &format!("`{name}` lacks `provider`"),
            "\"openai\" is any compatible server, \"anthropic\" Anthropic's own; \"rehearsal\" needs no key",
        );
        return;
    }
    if model.provider != Provider::Rehearsal {
        for (key, hint) in [
            ("model", "the model's name, as the server knows it"),
            ("base_url", "the server, such as \"http://127.0.0.1:11434/v1\" or \"https://api.openai.com/v1\""),
        ] {
            if key == "base_url" && model.provider == Provider::Anthropic {
                continue; // this one has a server of its own
            }
            if !table.contains_key(key) {
                reader.missing(header.clone(), &format!("`{name}` lacks `{key}`"), hint);
            }
        }
        if let Some(at) = span_of(table, "base_url")
            && model.api_key.is_some()
            && !model.base_url.is_empty()
            && !tables::keeps_secrets(&model.base_url)
        {
            reader.fault(at, format!("`base_url` {}", tables::IN_CLEAR));
        }
    }
}

fn check_limits(
    reader: &mut Reader<'_>,
    tables: [Option<&DeTable<'_>>; 2],
    (model, fallback): (&Model, &[Model]),
    limits: &Limits,
) {
    for (above, key) in
        [(limits.daemon_turn_secs, "daemon_turn_secs"), (model.request_timeout_secs, "request_timeout_secs")]
    {
        if model.stall_secs >= above {
            let at = first_of(&tables, &["stall_secs", key]);
            reader.fault(at, format!("`stall_secs` ({}) must be below `{key}` ({above})", model.stall_secs));
        }
    }
    check_sizes(reader, &tables, model);
    for (limit, key) in [(limits.turn_cost_usd, "turn_cost_usd"), (limits.day_cost_usd, "day_cost_usd")] {
        let priced = model.price.is_set() && fallback.iter().all(|other| other.price.is_set());
        if limit > 0.0 && !priced {
            let fault = reader.fault(first_of(&tables, &[key]), format!("a cost limit needs prices: `{key}` is set"));
            fault.hint("write `price = { input = …, output = …, cached = … }` under `[model]` and each `[[model.fallback]]`, per million tokens");
        }
    }
}

fn check_sizes(reader: &mut Reader<'_>, tables: &[Option<&DeTable<'_>>], model: &Model) {
    if model.max_output_tokens >= model.context_window {
        let at = first_of(tables, &["max_output_tokens", "context_window"]);
        reader.fault(at, "`max_output_tokens` must be below `context_window`, which holds question and answer");
    }
}

/// Why the workspace must not lie there: it would bring the store, the policy or the socket within the agent's reach.
fn misplaced(workspace: &Path, home: &Home) -> Option<&'static str> {
    if workspace.components().any(|part| part == Component::ParentDir) {
        return Some("`path` must not contain `..`");
    }
    let own = [&home.config, &home.state, &home.run, &home.prompt_dir(), &home.data.join("blobs")];
    let within = own.iter().any(|own| workspace.starts_with(own));
    let around = own.iter().any(|own| own.starts_with(workspace)) || home.data.starts_with(workspace);
    (within || around).then_some("`path` must not hold midwatch's own folders, or lie in one")
}

fn read_telegram(reader: &mut Reader<'_>, root: &DeTable<'_>, name: String, file: PathBuf) -> Option<Telegram> {
    match root.get("kind") {
        None => reader.missing(None, "the file lacks `kind`", "write kind = \"telegram\""),
        // The keys of another platform are none that we know, so one fault speaks for the whole file.
        Some(kind) if kind.get_ref().as_str() == Some("discord") => {
            <Kind as crate::config::schema::Value>::read(reader, "kind", kind);
            return None;
        }
        Some(_) => {}
    }
    let keys = TelegramKeys::read(reader, root);
    if !root.contains_key("token") {
        reader.missing(None, "the file lacks `token`", "write token = { env = \"TELEGRAM_BOT_TOKEN\" }");
    }
    let links = read_links(reader, root);
    let api_url = keys.api_url.trim_end_matches('/').to_owned();
    let poll_timeout_secs = keys.poll_timeout_secs;
    keys.token.map(|token| Telegram { name, file, token, api_url, poll_timeout_secs, links })
}

fn read_links(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Vec<Link> {
    let Some(value) = root.get("link") else { return Vec::new() };
    let DeValue::Array(items) = value.get_ref() else {
        reader.wrong_type("link", value, "a list of tables, each headed `[[link]]`");
        return Vec::new();
    };
    let mut links: Vec<Link> = Vec::new();
    for item in items.iter() {
        let Some(table) = reader.table("link", item) else { continue };
        let keys = LinkKeys::read(reader, table);
        for key in ["name", "chat"] {
            if !table.contains_key(key) {
                let hint = if key == "name" { "write name = \"home\"" } else { "write chat = ID, the chat's number" };
                reader.missing(Some(item.span()), &format!("the link lacks `{key}`"), hint);
            }
        }
        let (Some(name), Some(chat)) = (keys.name, keys.chat) else { continue };
        if let Some(twin) = links.iter().find(|earlier| earlier.chat == chat) {
            let message = format!("chat {chat} has the link `{}` already", twin.name);
            reader
                .fault(span_of(table, "chat").unwrap_or(item.span()), message)
                .hint("a chat has one link; join the two");
        }
        links.push(Link {
            name,
            chat,
            senders: keys.senders,
            mention: keys.mention.unwrap_or(if chat < 0 { Mention::Required } else { Mention::Always }),
            threads: keys.threads,
            allow: keys.allow,
            deny: keys.deny,
            time_budget_secs: keys.time_budget_secs,
            delivery: keys.delivery,
            place: reader.place(&item.span()),
        });
    }
    links
}
