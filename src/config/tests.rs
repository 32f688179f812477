//! The reading of whole configurations: what people see when something is wrong with theirs.

use super::*;
use crate::config::tables::{TelegramKeys, WorkspaceKeys};

const MODEL: &str = "[model]\nprovider = \"rehearsal\"\n";
const ACCOUNT: &str = "kind = \"telegram\"\ntoken = { env = \"BOT_TOKEN\" }\n";

/// A home with these files, by path under `config/`.
fn home(files: &[(&str, &str)]) -> (tempfile::TempDir, Home) {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::find(Some(dir.path().to_owned()), None).unwrap();
    for (name, text) in files {
        let path = home.config.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    (dir, home)
}

fn loaded(files: &[(&str, &str)]) -> Config {
    let (_dir, home) = home(files);
    load(&home).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The faults as `check` prints them; the temporary folder's name is no part of a snapshot.
fn faults(files: &[(&str, &str)]) -> String {
    let (dir, home) = home(files);
    load(&home).unwrap_err().to_string().replace(&dir.path().display().to_string(), "HOME")
}

/// The faults of one `midwatch.toml`, each on a line without its hint.
fn main_faults(text: &str) -> String {
    faults(&[("midwatch.toml", text)])
}

fn channel_faults(text: &str) -> String {
    faults(&[("midwatch.toml", MODEL), ("channels/telegram.toml", text)])
}

#[test]
fn many_faults_are_shown_at_once() {
    let shown = faults(&[
        (
            "midwatch.toml",
            "[modle]\n[model]\nprovider = \"opanai\"\nstall_secs = 0\nprice = { inptu = 1 }\n\n[limits]\nrounds = \"many\"\n\
             daemon_turn_secs = -5\nrounds_max =\n\n[operator]\ntelegram = [\"@owner\", 5]\n",
        ),
        (
            "channels/telegram.toml",
            "kind = \"telegram\"\ntoken = \"123:ABC\"\npoll_timout_secs = 3\n\n[[link]]\nname = \"Home Base\"\nchat = 0\n\
             senders = [\"@owner\"]\n",
        ),
        ("channels/other.toml", ""),
    ]);
    insta::assert_snapshot!(shown, @r#"
error: channels/other.toml: the file lacks `kind`
hint: write kind = "telegram"
error: channels/other.toml: the file lacks `token`
hint: write token = { env = "TELEGRAM_BOT_TOKEN" }
error: channels/telegram.toml:2: `token` must say where the secret lies, not hold it
hint: write { env = "NAME" }, { file = "PATH" } or { credential = "NAME" }; a secret that stood in this file in clear should be renewed
error: channels/telegram.toml:3: unknown key `poll_timout_secs`
hint: did you mean `poll_timeout_secs`?
error: channels/telegram.toml:6: `name` must be 1 to 32 of a-z, 0-9, - and _
error: channels/telegram.toml:7: `chat` must not be 0: no chat has that id
error: channels/telegram.toml:8: `senders` takes numeric ids, not names
hint: only numeric ids authorise, since a username can be released and taken by someone else; `midwatch status` shows the ids of chats that wrote to the bot in the last day
error: midwatch.toml:1: unknown key `modle`
hint: did you mean `model`?
error: midwatch.toml:3: `provider` must be one of `openai`, `anthropic`, `rehearsal`
hint: did you mean `openai`?
error: midwatch.toml:4: `stall_secs` must lie between 1 and 3600
error: midwatch.toml:5: unknown key `inptu`
hint: did you mean `input`?
error: midwatch.toml:8: `rounds` must be a whole number above 0, not a text in quotes
error: midwatch.toml:9: `daemon_turn_secs` must be a whole number above 0
error: midwatch.toml:10: no valid TOML: string values must be quoted, expected literal string
error: midwatch.toml:13: `telegram` takes numeric ids, not names
hint: only numeric ids authorise, since a username can be released and taken by someone else; `midwatch status` shows the ids of chats that wrote to the bot in the last day
"#);
}

#[test]
fn a_fallback_is_as_complete_as_the_model_it_stands_in_for() {
    let shown = [
        "[model]\nprovider = \"rehearsal\"\n[[model.fallback]]\nprovider = \"openai\"\n",
        "[model]\nprovider = \"rehearsal\"\n[[model.fallback]]\nmodel = \"x\"\n",
        "[model]\nprovider = \"rehearsal\"\n[model.fallback]\nprovider = \"rehearsal\"\n",
        "[model]\nprovider = \"rehearsal\"\n[[model.fallback]]\nprovider = \"rehearsal\"\n[[model.fallback.fallback]]\n",
        "[model]\nprovider = \"rehearsal\"\nprice = { input = 1.0 }\n[[model.fallback]]\nprovider = \"rehearsal\"\n\
         [limits]\nday_cost_usd = 1.0\n",
        "[model]\nprovider = \"rehearsal\"\n[[model.fallback]]\nprovider = \"rehearsal\"\ncontext_window = 4096\n",
    ];
    insta::assert_snapshot!(shown.map(main_faults).join("\n"), @r#"
error: midwatch.toml:3: `[[model.fallback]]` lacks `model`
hint: the model's name, as the server knows it
error: midwatch.toml:3: `[[model.fallback]]` lacks `base_url`
hint: the server, such as "http://127.0.0.1:11434/v1" or "https://api.openai.com/v1"
error: midwatch.toml:3: `[[model.fallback]]` lacks `provider`
hint: "openai" is any compatible server, "anthropic" Anthropic's own; "rehearsal" needs no key
error: midwatch.toml:3: `fallback` must be a list of tables, each headed `[[model.fallback]]`, not a table
error: midwatch.toml:5: a fallback has no fallback of its own
hint: write one `[[model.fallback]]` after the other
error: midwatch.toml:7: a cost limit needs prices: `day_cost_usd` is set
hint: write `price = { input = …, output = …, cached = … }` under `[model]` and each `[[model.fallback]]`, per million tokens
error: midwatch.toml:5: `max_output_tokens` must be below `context_window`, which holds question and answer
"#);
}

#[test]
fn anthropic_has_a_server_of_its_own_and_needs_a_model() {
    let base_url = |text: &str| loaded(&[("midwatch.toml", text)]).model.base_url;
    let named = "[model]\nprovider = \"anthropic\"\nmodel = \"m\"\n";
    assert_eq!(base_url(named), "https://api.anthropic.com");
    assert_eq!(base_url(&format!("{named}base_url = \"http://127.0.0.1:1/\"\n")), "http://127.0.0.1:1");
    let in_clear = format!("{named}base_url = \"http://example.org\"\napi_key = {{ env = \"K\" }}\n");
    let shown = [main_faults("[model]\nprovider = \"anthropic\"\n"), main_faults(&in_clear)].join("\n");
    insta::assert_snapshot!(shown, @r"
error: midwatch.toml:1: `[model]` lacks `model`
hint: the model's name, as the server knows it
error: midwatch.toml:4: `base_url` must begin with https://, or a secret would travel in clear; plain http is for this machine alone
");
}

#[test]
fn what_this_version_does_not_run_is_refused_with_a_cure() {
    let mut shown = Vec::new();
    for text in [
        "[model]\nprovider = \"rehearsal\"\n[[hook]]\nevent = \"PreToolUse\"\n",
        "[model]\nprovider = \"rehearsal\"\n[programs.backup]\nargv = [\"x\"]\n",
        "[model]\nprovider = \"rehearsal\"\n[computer_use]\nenabled = true\n",
        "[model]\nprovider = \"rehearsal\"\n[console]\nlisten = \"127.0.0.1:80\"\n",
        "[model]\nprovider = \"rehearsal\"\n[limits]\nconcurrent_jobs = 2\nschedule_turn_secs = 300\njobs_per_link = 20\n",
    ] {
        shown.push(main_faults(text));
    }
    let link = |delivery: &str| format!("{ACCOUNT}[[link]]\nname = \"home\"\nchat = 5\ndelivery = \"{delivery}\"\n");
    shown.push(channel_faults(&link("auto")));
    shown.push(channel_faults(&link("edit")));
    shown.push(channel_faults("kind = \"discord\"\ntoken = { env = \"T\" }\n[[link]]\nchannel = 5\n"));
    shown.push(faults(&[
        ("midwatch.toml", MODEL),
        ("schedules/morning.toml", "cron = \"0 7 * * *\"\n"),
        ("schedules/README.md", "notes"),
        ("schedules/evening.toml.example", "cron = \"\"\n"),
    ]));
    insta::assert_snapshot!(shown.join("\n"), @r#"
error: midwatch.toml:3: `[[hook]]` is not run by this version
hint: remove the tables; no hook is run
error: midwatch.toml:3: `[programs]` is not run by this version
hint: remove the tables; no program is run
error: midwatch.toml:4: computer use is not run by this version
hint: write enabled = false, or remove the table
error: midwatch.toml:4: listening on a network address is not run by this version
hint: write listen = "off"
error: midwatch.toml:4: `concurrent_jobs` is not run by this version
hint: remove the line; it belongs to schedules
error: midwatch.toml:5: `schedule_turn_secs` is not run by this version
hint: remove the line; it belongs to schedules
error: midwatch.toml:6: `jobs_per_link` is not run by this version
hint: remove the line; it belongs to schedules
error: channels/telegram.toml:6: `auto` is not run by this version
hint: remove the line: "send" is the default
error: channels/telegram.toml:6: `edit` is not run by this version
hint: remove the line: "send" is the default
error: channels/telegram.toml:1: `discord` is not run by this version
hint: rename the file to NAME.toml.example to keep it for a later version
error: schedules/morning.toml: a schedule is not run by this version
hint: rename it to NAME.toml.example to keep it for a later version
"#);
    assert!(
        main_faults("[computer_use]\nenabled = false\n").starts_with("error: midwatch.toml: there is no `[model]`")
    );
}

#[test]
fn contradictions_within_midwatch_toml_are_refused() {
    let openai = "[model]\nprovider = \"openai\"\nmodel = \"m\"\n";
    let mut shown = Vec::new();
    for text in [
        "[model]\nmodel = \"m\"\n",
        "[model]\nprovider = \"openai\"\n",
        &format!("{openai}base_url = \"http://192.168.1.5/v1\"\napi_key = {{ env = \"K\" }}\n"),
        &format!("{openai}base_url = \"https://me:pass@example.org/v1\"\n"),
        &format!("{openai}base_url = \"https://example.org/v1?key=1\"\n"),
        &format!("{openai}base_url = \"ftp://example.org\"\n"),
        &format!("{MODEL}request_timeout_secs = 30\n[limits]\ndaemon_turn_secs = 40\n"),
        &format!("{MODEL}max_output_tokens = 40000\n"),
        &format!("{MODEL}[limits]\nturn_cost_usd = 1\nday_cost_usd = 5.0\n"),
        &format!(
            "{MODEL}[limits]\nrounds = 0\nturn_tokens = 0\nday_tokens = 0\ndaemon_turn_secs = 0\nturn_cost_usd = nan\n"
        ),
        &format!("{MODEL}[supervisor]\nbackoff_first_ms = 70000\n"),
        &format!("{MODEL}[workspace]\npath = \"../elsewhere\"\n"),
        &format!("{MODEL}[workspace]\npath = \".\"\n"),
        &format!("{MODEL}[workspace]\npath = \"/\"\n"),
        &format!("{MODEL}[workspace]\npath = \"~/files\"\n"),
        &format!("{MODEL}[operator]\nnotify = \"home\"\n"),
        "model = 3\n",
    ] {
        shown.push(main_faults(text));
    }
    insta::assert_snapshot!(shown.join("\n"), @r#"
error: midwatch.toml:1: `[model]` lacks `provider`
hint: "openai" is any compatible server, "anthropic" Anthropic's own; "rehearsal" needs no key
error: midwatch.toml:1: `[model]` lacks `model`
hint: the model's name, as the server knows it
error: midwatch.toml:1: `[model]` lacks `base_url`
hint: the server, such as "http://127.0.0.1:11434/v1" or "https://api.openai.com/v1"
error: midwatch.toml:4: `base_url` must begin with https://, or a secret would travel in clear; plain http is for this machine alone
error: midwatch.toml:4: `base_url` must not hold a user name or password
error: midwatch.toml:4: `base_url` must end with its path: no `?` and no `#`
error: midwatch.toml:4: `base_url` must be a URL that begins with http:// or https://
error: midwatch.toml:3: `stall_secs` (40) must be below `request_timeout_secs` (30)
error: midwatch.toml:5: `stall_secs` (40) must be below `daemon_turn_secs` (40)
error: midwatch.toml:3: `max_output_tokens` must be below `context_window`, which holds question and answer
error: midwatch.toml:4: a cost limit needs prices: `turn_cost_usd` is set
hint: write `price = { input = …, output = …, cached = … }` under `[model]` and each `[[model.fallback]]`, per million tokens
error: midwatch.toml:5: a cost limit needs prices: `day_cost_usd` is set
hint: write `price = { input = …, output = …, cached = … }` under `[model]` and each `[[model.fallback]]`, per million tokens
error: midwatch.toml:4: `rounds` must lie between 1 and 1000
error: midwatch.toml:5: `turn_tokens` must lie between 1 and 1000000000
error: midwatch.toml:6: `day_tokens` must lie between 1 and 1000000000000
error: midwatch.toml:7: `daemon_turn_secs` must lie between 1 and 86400
error: midwatch.toml:8: `turn_cost_usd` must lie between 0 and 1000000
error: midwatch.toml:4: `backoff_first_ms` must not be above `backoff_max_ms`
error: midwatch.toml:4: `path` must not contain `..`
hint: the agent writes there; midwatch's own files must lie out of its reach
error: midwatch.toml:4: `path` must not hold midwatch's own folders, or lie in one
hint: the agent writes there; midwatch's own files must lie out of its reach
error: midwatch.toml:4: `path` must not hold midwatch's own folders, or lie in one
hint: the agent writes there; midwatch's own files must lie out of its reach
error: midwatch.toml:4: `path` must be a path as it is: `~` and `$` are not expanded
error: midwatch.toml:4: `notify` names no link
hint: link that chat first, then name its link here
error: midwatch.toml:1: `model` must be a table, not a number
"#);
}

#[test]
fn contradictions_among_links_and_accounts_are_refused() {
    let link = |name: &str, chat: i64| format!("[[link]]\nname = \"{name}\"\nchat = {chat}\n");
    let mut shown = Vec::new();
    for text in [
        "",
        &format!("{ACCOUNT}api_url = \"http://example.org\"\n"),
        &format!("{ACCOUNT}api_url = \"http://127.0.0.1.example.org\"\n"),
        &format!("{ACCOUNT}[link]\nname = \"home\"\n"),
        &format!("{ACCOUNT}[[link]]\nsenders = [-100, 0]\ntime_budget_secs = 0\n"),
        &format!("{ACCOUNT}[[link]]\nname = \"home\"\nchat = \"@group\"\nmention = \"sometimes\"\nallow = [1]\n"),
        &format!("{ACCOUNT}{}{}{}", link("home", 5), link("home", 6), link("work", 5)),
    ] {
        shown.push(channel_faults(text));
    }
    shown.push(faults(&[
        ("midwatch.toml", MODEL),
        ("channels/a.toml", &format!("{ACCOUNT}{}", link("home", 5))),
        ("channels/B.toml", &format!("{ACCOUNT}{}", link("home", 5))),
    ]));
    insta::assert_snapshot!(shown.join("\n"), @r#"
error: channels/telegram.toml: the file lacks `kind`
hint: write kind = "telegram"
error: channels/telegram.toml: the file lacks `token`
hint: write token = { env = "TELEGRAM_BOT_TOKEN" }
error: channels/telegram.toml:3: `api_url` must begin with https://, or a secret would travel in clear; plain http is for this machine alone
error: channels/telegram.toml:3: `api_url` must begin with https://, or a secret would travel in clear; plain http is for this machine alone
error: channels/telegram.toml:3: `link` must be a list of tables, each headed `[[link]]`, not a table
error: channels/telegram.toml:3: the link lacks `name`
hint: write name = "home"
error: channels/telegram.toml:3: the link lacks `chat`
hint: write chat = ID, the chat's number
error: channels/telegram.toml:4: `senders` takes ids of people, which are above 0
hint: a number below 0 is a group's id; a group cannot be a sender
error: channels/telegram.toml:4: `senders` takes ids of people, which are above 0
hint: a number below 0 is a group's id; a group cannot be a sender
error: channels/telegram.toml:5: `time_budget_secs` must lie between 1 and 86400
error: channels/telegram.toml:5: `chat` takes numeric ids, not names
hint: only numeric ids authorise, since a username can be released and taken by someone else; `midwatch status` shows the ids of chats that wrote to the bot in the last day
error: channels/telegram.toml:6: `mention` must be one of `always`, `required`
error: channels/telegram.toml:7: `allow` must be a list of texts in quotes, not a number
error: channels/telegram.toml:6: the link name `home` stands in channels/telegram.toml:3 already
hint: a name means one link over all channel files
error: channels/telegram.toml:11: chat 5 has the link `home` already
hint: a chat has one link; join the two
error: channels/B.toml: the file's name must be 1 to 32 of a-z, 0-9, - and _, then .toml
error: channels/a.toml:2: `token` comes from the environment variable `BOT_TOKEN`, as in channels/B.toml
hint: one bot has one file; add a `[[link]]` there for each chat
error: channels/a.toml:3: the link name `home` stands in channels/B.toml:3 already
hint: a name means one link over all channel files
"#);
}

#[test]
fn no_message_holds_what_may_be_a_secret() {
    let token = "8123456789:AAEhBP0av28fakefakefakefakefake";
    for (name, line) in [
        ("in clear", format!("token = \"{token}\"")),
        ("without quotes", format!("token = {token}")),
        ("as a variable's name", format!("token = {{ env = \"{token}\" }}")),
        ("as a file's name", format!("token = {{ file = \"{token}\" }}")),
        ("as a credential's name", format!("token = {{ credential = \"{token}\" }}")),
        ("as a kind of source", format!("token = {{ \"{token}\" = \"x\" }}")),
        ("two sources", format!("token = {{ env = \"A\", file = \"{token}\" }}")),
        ("as a key", format!("\"{token}\" = 1")),
        ("as a number", format!("poll_timeout_secs = \"{token}\"")),
        ("in the URL", format!("api_url = \"https://api.telegram.org/bot{token}?x\"")),
        ("as the platform", format!("kind = \"{token}\"")),
        ("as a sender", format!("[[link]]\nname = \"{token}\"\nsenders = [\"{token}\"]")),
        ("a string never closed", format!("token = \"{token}")),
    ] {
        let (_dir, home) = home(&[("midwatch.toml", MODEL), ("channels/telegram.toml", &line)]);
        let faults = load(&home).unwrap_err();
        assert!(!faults.is_empty(), "{name}");
        assert!(!format!("{faults} {faults:?}").contains("AAEhBP0av28"), "{name}: {faults}");
    }
}

#[test]
fn files_that_cannot_be_read_are_faults() {
    insta::assert_snapshot!(faults(&[]), @"
error: HOME/config/midwatch.toml: there is no such file
hint: `midwatch setup` writes it; `midwatch config example` prints one to save as HOME/config/midwatch.toml
");
    let (dir, home) = home(&[("midwatch.toml", MODEL), ("channels/big.toml", &" ".repeat(1024 * 1024 + 1))]);
    std::fs::create_dir(home.channels_dir().join("folder.toml")).unwrap();
    std::fs::write(home.channels_dir().join("latin.toml"), b"kind = \"telegram\"\n# caf\xe9\n").unwrap();
    std::os::unix::fs::symlink(dir.path().join("nowhere"), home.channels_dir().join("gone.toml")).unwrap();
    std::fs::write(home.channels_dir().join(".hidden.toml"), "nonsense").unwrap();
    insta::assert_snapshot!(load(&home).unwrap_err(), @"
error: channels/big.toml: the file is larger than 1024 KiB
error: channels/folder.toml: this is a folder, where a file should be
error: channels/gone.toml: cannot read the file: No such file or directory (os error 2)
error: channels/latin.toml:2: this line is not UTF-8 text
");
    let many: Vec<_> = (0..33)
        .map(|n| (format!("channels/c{n}.toml"), format!("kind = \"telegram\"\ntoken = {{ env = \"T{n}\" }}\n")))
        .collect();
    let mut files: Vec<_> = many.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    files.push(("midwatch.toml", MODEL));
    insta::assert_snapshot!(faults(&files), @"error: channels: 33 channel files are more than the 32 that are read");
}

#[test]
fn a_whole_configuration_is_read() {
    let config = loaded(&[
        (
            "midwatch.toml",
            "[model]\nprovider = \"openai\"\nmodel = \"qwen3:8b\"\nbase_url = \"http://127.0.0.1:11434/v1/\"\n\
             api_key = { file = \"keys/model\" }\nprice = { input = 1, output = 2.5 }\n\n[operator]\ntelegram = [5]\n\
             [limits]\nday_cost_usd = 3\n[policy]\ndeny = [\"fetch_url\"]\n[workspace]\npath = \"/srv/files\"\n",
        ),
        (
            "channels/telegram.toml",
            &format!(
                "{ACCOUNT}[[link]]\nname = \"home\"\nchat = 5\nsenders = [5]\nallow = [\n  \"read_file\",\n  \"write_file(a)\",\n]\n\
                 [[link]]\nname = \"group\"\nchat = -100\nthreads = \"chat\"\ntime_budget_secs = 60\n"
            ),
        ),
    ]);
    assert_eq!(config.model.base_url, "http://127.0.0.1:11434/v1");
    assert_eq!(config.model.price, Price { input: 1.0, output: 2.5, cached: 0.0 });
    assert!(config.model.api_key.as_ref().unwrap().describe().ends_with("/config/keys/model"));
    assert_eq!((config.operator.telegram.as_slice(), config.limits.day_cost_usd), ([5_u64].as_slice(), 3.0));
    assert_eq!(config.workspace, std::path::Path::new("/srv/files"));
    assert_eq!(config.policy.deny[0].text, "fetch_url");
    let account = &config.telegram[0];
    assert_eq!((account.name.as_str(), account.api_url.as_str()), ("telegram", "https://api.telegram.org"));
    let [home, group] = account.links.as_slice() else { panic!("two links") };
    assert_eq!((home.mention, home.threads, home.time_budget_secs), (Mention::Always, Threads::Topic, None));
    assert_eq!((group.mention, group.threads, group.time_budget_secs), (Mention::Required, Threads::Chat, Some(60)));
    assert_eq!(home.allow[1].place.to_string(), "channels/telegram.toml:9");
    assert_eq!(group.place.to_string(), "channels/telegram.toml:11");
    assert_eq!(config.files.len(), 2);
    // The key's file does not exist, which is for `check` to say and not for a start to find out by reading.
    assert_eq!(check_secrets(&config).len(), 1);
}

#[test]
fn an_empty_table_and_the_printed_example_both_mean_the_defaults() {
    let minimal = loaded(&[("midwatch.toml", MODEL)]);
    let printed = loaded(&[("midwatch.toml", &example())]);
    assert_eq!(Config { workspace: minimal.workspace.clone(), files: minimal.files.clone(), ..printed }, minimal);
    let defaults = (Model::default(), Operator::default(), Limits::default(), Supervisor::default());
    assert_eq!((minimal.model, minimal.operator, minimal.limits, minimal.supervisor), defaults);
    assert_eq!((minimal.policy, minimal.console), (Policy::default(), Console::default()));
    assert!(minimal.workspace.ends_with(format!("data/{}", WorkspaceKeys::default().path)));
}

#[test]
fn the_examples_are_what_people_start_from() {
    insta::assert_snapshot!(example(), @r#"
# midwatch.toml: every key and its default. A line to leave out can be left out.

# The model that answers. Needs `provider`; "openai" also needs `model` and `base_url`, "anthropic" needs `model`.
[model]
# "openai" (any compatible server), "anthropic" (Messages), or "rehearsal" (built in; for trying things out, without key and network).
provider = "rehearsal"
# The model's name, as the server knows it.
# model = "qwen3:8b"
# The server; with "anthropic" its own unless another is named. Plain http only on this machine, or without a key.
# base_url = "http://127.0.0.1:11434/v1"
# Where the key lies: { env = "NAME" }, { file = "PATH" } or { credential = "NAME" } (systemd). Local servers need none.
# api_key = { env = "OPENAI_API_KEY" }
# How many tokens the model takes at once, question and answer together.
context_window = 32768
# Longest answer of one call, in tokens; part of the window.
max_output_tokens = 4096
# Longest time of one call, in seconds.
request_timeout_secs = 120
# No content for so long means that the call failed; below `request_timeout_secs` and `daemon_turn_secs`.
stall_secs = 40
# US dollars per million tokens. A cost limit needs them.
price = { input = 0.0, output = 0.0, cached = 0.0 }
# Models that stand in where that one is busy, broken or refuses its key; each with the keys of `[model]`.
# [[model.fallback]]
# provider = "openai"

# The person who runs midwatch, by numeric ids: may stop any turn, and gets the read tools when pairing.
[operator]
# Their ids on Telegram.
telegram = []
# The link that is told of what needs a person.
# notify = "home"

# What turns may spend.
[limits]
# Turns that run at the same time, each in another session.
concurrent_turns = 8
# Running time of a turn from a chat, in seconds.
daemon_turn_secs = 120
# Running time of a turn from the console, in seconds; waiting for an answer counts.
console_turn_secs = 1800
# Model calls of a turn.
rounds = 40
# Tokens of a turn, read and written together.
turn_tokens = 200000
# Tokens of all turns of a day (UTC).
day_tokens = 2000000
# US dollars of a turn; 0 means no limit.
turn_cost_usd = 0.0
# US dollars of all turns of a day (UTC); 0 means no limit.
day_cost_usd = 0.0

# How tasks are restarted, and how a stop ends.
[supervisor]
# Longest wait for running turns after a stop is asked for, in seconds; below the unit's TimeoutStopSec.
drain_secs = 20
# First wait before a failed task starts again, in milliseconds; doubles up to `backoff_max_ms`.
backoff_first_ms = 250
# Longest such wait, in milliseconds.
backoff_max_ms = 60000

# How long what has ended is kept, in days. What is open, in doubt or still seen by the model always stays.
[retention]
# What was said, once the model no longer sees it.
history_days = 365
# What happened: the timeline.
timeline_days = 90
# Messages, turns and replies. Not below 3: what a platform delivers once more has to be known again.
ended_days = 30

# The files the agent works on.
[workspace]
# Relative to the data folder, or absolute.
path = "workspace"

# Grants and refusals for every link.
[policy]
# Grants for every link; usually empty.
allow = []
# Refusals; the strictest of all matching rules wins.
deny = []

# The local console.
[console]
# The Unix socket only.
listen = "off"
"#);
    insta::assert_snapshot!(telegram_example(), @r#"
# A Telegram bot: save as channels/telegram.toml. Each chat it answers is a `[[link]]`.
# The platform.
kind = "telegram"
# Where the bot's token lies: { env = "NAME" }, { file = "PATH" } or { credential = "NAME" } (systemd).
token = { env = "TELEGRAM_BOT_TOKEN" }
# The Bot API's server.
api_url = "https://api.telegram.org"
# How long one request waits for messages, in seconds.
poll_timeout_secs = 30

# One chat that is answered. Only listed senders are heard, and nothing is allowed that is not granted here.
# [[link]]
# Its name here: a-z, 0-9, - and _, at most 32.
# name = "home"
# The chat's numeric id; below 0 for groups.
# chat = 123456789
# Numeric ids of those who may speak; an empty list means nobody.
# senders = []
# "always", or "required": only messages that name the bot or answer it. Default: "required" in groups.
# mention = "always"
# "topic": each forum topic is a session of its own; "chat": one session.
# threads = "topic"
# Grants, such as "read_file" or "read_file(notes/**)".
# allow = []
# Refusals, which win over grants.
# deny = []
# Running time of a turn, in seconds. Default: `daemon_turn_secs`.
# time_budget_secs = 120
# "send": each part of a reply is sent once.
# delivery = "send"
"#);
}

#[test]
fn the_telegram_example_parses_with_and_without_its_link() {
    let example = telegram_example();
    let config = loaded(&[("midwatch.toml", MODEL), ("channels/telegram.toml", &example)]);
    let defaults = TelegramKeys::default();
    let account = &config.telegram[0];
    assert_eq!((&account.api_url, account.poll_timeout_secs), (&defaults.api_url, defaults.poll_timeout_secs));
    assert_eq!(account.links, []);
    let is_key =
        |line: &str| line.starts_with("[[") || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let uncommented: Vec<_> =
        example.lines().map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line)).collect();
    let config = loaded(&[("midwatch.toml", MODEL), ("channels/telegram.toml", &uncommented.join("\n"))]);
    assert_eq!((config.telegram[0].links[0].name.as_str(), config.telegram[0].links[0].chat), ("home", 123_456_789));
}
