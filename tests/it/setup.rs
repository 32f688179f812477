//! `setup`: from an empty folder to the first answer, and everything that must not happen on the way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, tcgetattr};

use crate::spine::{ANN, ends_well};
use crate::support::daemon::{Daemon, Output, cli, cli_with_input};
use crate::support::home::Home;
use crate::support::model::{self, Model, Reply};
use crate::support::telegram::{self, Telegram};
use crate::support::{assert_no_secrets, eventually};

async fn counterparts() -> (Telegram, Model, Home) {
    let telegram = Telegram::start().await;
    telegram.chats().open(ANN);
    (telegram, Model::start().await, Home::new().unwritten())
}

/// The flags of a whole set-up.
fn flags(telegram: &Telegram, model: &Model) -> Vec<String> {
    let (api, base) = (telegram.url(), model.url());
    [
        "setup",
        "--yes",
        "--provider",
        "openai",
        "--model",
        model::NAME,
        "--base-url",
        base.as_str(),
        "--api-key-env",
        "OPENAI_API_KEY",
        "--telegram-token-env",
        "TELEGRAM_BOT_TOKEN",
        "--telegram-api-url",
        api.as_str(),
        "--operator",
        "501",
    ]
    .map(str::to_owned)
    .to_vec()
}

async fn setup(home: &Home, flags: &[String]) -> Output {
    cli(home, &flags.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Everything beneath the configuration's folder, with modes, as `600 midwatch.toml`.
fn written(home: &Home) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                found.push(format!("{mode:o} {}", path.strip_prefix(root).unwrap().display()));
            }
        }
    }
    let mut found = Vec::new();
    let root = home.path().join("config");
    walk(&root, &root, &mut found);
    found.sort();
    found
}

/// Text with what differs from run to run taken out.
fn masked(text: &str, home: &Home, telegram: &Telegram, model: &Model) -> String {
    let text = text.replace(&model.url(), "MODEL").replace(&telegram.url(), "TELEGRAM");
    text.replace(&home.path().display().to_string(), "HOME")
}

fn config(home: &Home, file: &str) -> String {
    std::fs::read_to_string(home.path().join("config").join(file)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_folder_to_the_first_answer() {
    let (telegram, model, home) = counterparts().await;
    let told = setup(&home, &flags(&telegram, &model)).await;
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""), "{told:?}");
    insta::assert_snapshot!(masked(&told.stdout, &home, &telegram, &model), @"
wrote HOME/config/channels/telegram.toml
wrote HOME/config/midwatch.toml
The daemon needs OPENAI_API_KEY in its environment.
The daemon needs TELEGRAM_BOT_TOKEN in its environment.

Next:
  midwatch --home HOME serve          starts it here; systemd/midwatch.service makes it a service
  midwatch --home HOME link telegram  makes a code: send /link CODE to the bot
  midwatch --home HOME doctor         looks whether all is well
");
    assert_eq!(written(&home), ["600 channels/telegram.toml", "600 midwatch.toml"]);
    assert_eq!(cli(&home, &["check"]).await.code, Some(0));
    insta::assert_snapshot!(masked(&config(&home, "midwatch.toml"), &home, &telegram, &model), @r#"
# Written by `midwatch setup`; `midwatch config example` shows every key.

[model]
provider = "openai"
model = "fake-model"
base_url = "MODEL"
api_key = { env = "OPENAI_API_KEY" }

[operator]
telegram = [501]
"#);

    let daemon = Daemon::start(&home).await;
    let code = cli(&home, &["link", "telegram"]).await.stdout;
    let code = code.lines().find(|line| line.starts_with("/link ")).unwrap();
    telegram.says(ANN, ANN, code);
    assert!(telegram.next_sent(ANN).await.text.starts_with("This chat is linked as \"home\"."));
    telegram.says(ANN, ANN, "hello");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hello");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_leaves_an_answer_out_is_told_which_flag_and_nothing_is_written() {
    let (telegram, model, home) = counterparts().await;
    let all = flags(&telegram, &model);
    let without = |flag: &str| {
        let at = all.iter().position(|given| given == flag).unwrap();
        [&all[..at], &all[at + 2..]].concat()
    };
    let with = |flag: &str, value: &str| {
        let mut all = all.clone();
        let at = all.iter().position(|given| given == flag).unwrap();
        all[at + 1] = value.to_owned();
        all
    };
    for (flags, told) in [
        (without("--provider"), "--provider is missing"),
        (without("--model"), "--model is missing"),
        (without("--base-url"), "--base-url is missing"),
        (
            without("--telegram-token-env"),
            "--telegram-token-env or --telegram-token-file (or else --no-telegram) is missing",
        ),
        (with("--provider", "openia"), "invalid value 'openia' for '--provider <PROVIDER>'"),
        (with("--operator", "@ann"), "invalid value '@ann' for '--operator <ID>'"),
        (with("--base-url", "127.0.0.1:8080"), "`base_url` must be a URL that begins with http:// or https://"),
        (with("--base-url", "http://models.example/v1"), "a secret would travel in clear"),
        (
            with("--api-key-env", "sk-midwatch-MODELKEY-SECRET"),
            "`api_key.env` must be the name of an environment variable",
        ),
        ([all.clone(), vec!["--no-telegram".to_owned()]].concat(), "cannot be used with"),
    ] {
        let output = setup(&home, &flags).await;
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{told}: {output:?}");
        assert!(output.stderr.contains(told), "{told}: {output:?}");
        assert_no_secrets(told, &output.stderr);
        assert_eq!(written(&home), Vec::<String>::new(), "{told}");
    }
    assert!(model.requests().is_empty() && telegram.calls("getMe").is_empty(), "nobody was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_do_not_hold_are_told_with_the_cure_and_nothing_is_written() {
    let (telegram, model, home) = counterparts().await;
    let home = home.env("WRONG_TOKEN", "4242:OTHERTOKEN-SECRET").env("NO_TOKEN", "see the note on my desk");
    let all = flags(&telegram, &model);
    let with = |flag: &str, value: &str| {
        let mut all = all.clone();
        let at = all.iter().position(|given| given == flag).unwrap();
        all[at + 1] = value.to_owned();
        all
    };
    let refused = async |name: &str, flags: Vec<String>, told: &[&str]| {
        let output = setup(&home, &flags).await;
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{name}: {output:?}");
        for told in told {
            assert!(output.stderr.contains(told), "{name}: {output:?}");
        }
        assert_no_secrets(name, &output.stderr);
        assert!(!output.stderr.contains("OTHERTOKEN") && !output.stderr.contains("my desk"), "{name}: {output:?}");
        assert_eq!(written(&home), Vec::<String>::new(), "{name}");
    };
    refused(
        "a key that is not there",
        with("--api-key-env", "NOT_SET"),
        &["the environment variable `NOT_SET` is not set; nothing was written", "hint: set it where the daemon starts"],
    )
    .await;
    refused("a token that is not there", with("--telegram-token-env", "NOT_SET"), &["`NOT_SET` is not set"]).await;
    refused(
        "a wrong token",
        with("--telegram-token-env", "WRONG_TOKEN"),
        &["the server does not take the token: Unauthorized", "copy the token again from @BotFather"],
    )
    .await;
    refused("no token at all", with("--telegram-token-env", "NO_TOKEN"), &["is not a bot token"]).await;
    refused(
        "a wrong key",
        with("--api-key-env", "WRONG_TOKEN"),
        &["the model did not answer: auth: ", "look at the key"],
    )
    .await;
    refused(
        "an address where nothing is",
        with("--base-url", "http://127.0.0.1:9/v1"),
        &["the model did not answer: network: ", "does the server run, and is http://127.0.0.1:9/v1 its address"],
    )
    .await;
    model.queue(Reply::error(404, "model_not_found", "no such model"));
    refused(
        "a model of another name",
        with("--model", "qwen33"),
        &["does the server at ", "know the model by this name?"],
    )
    .await;
    telegram.set_webhook("https://hooks.example/secret-path");
    refused("a webhook", all.clone(), &["a webhook (https://hooks.example) takes the messages of @midwatch_bot"]).await;
    model.set_offline(true);
    refused("two at once", all.clone(), &["the model did not answer: network: ", "; and a webhook"]).await;

    let unverified = setup(&home, &[all, vec!["--no-verify".to_owned()]].concat()).await;
    assert_eq!(unverified.code, Some(0), "who says so is believed: {unverified:?}");
    assert_eq!(written(&home).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_there_are_kept_or_changed_line_by_line_and_only_when_asked() {
    let (telegram, model, home) = counterparts().await;
    let all = flags(&telegram, &model);
    assert_eq!(setup(&home, &all).await.code, Some(0));
    let again = setup(&home, &all).await;
    assert_eq!(again.code, Some(0));
    assert!(again.stdout.contains("which says this already") && !again.stdout.contains("wrote"), "{again:?}");

    let channel = home.path().join("config/channels/telegram.toml");
    let mine = config(&home, "channels/telegram.toml")
        + "\n# mine\n[[link]]\nname = \"home\"\nchat = 501\nsenders = [501]\nallow = []\n";
    std::fs::write(&channel, &mine).unwrap();
    std::fs::set_permissions(&channel, std::fs::Permissions::from_mode(0o640)).unwrap();
    let home = home.env("OTHER_TOKEN", telegram::TOKEN);
    let mut other = all.clone();
    for (flag, value) in [("--telegram-token-env", "OTHER_TOKEN"), ("--operator", "502")] {
        let at = other.iter().position(|given| given == flag).unwrap();
        other[at + 1] = value.to_owned();
    }
    let refused = setup(&home, &other).await;
    assert_eq!(refused.code, Some(1));
    insta::assert_snapshot!(masked(&refused.stderr, &home, &telegram, &model), @r#"
error: files that are there would change; nothing was written
HOME/config/channels/telegram.toml
  token = { env = "OTHER_TOKEN" }
HOME/config/midwatch.toml
  telegram = [501, 502]
hint: --overwrite changes these lines and keeps everything else
"#);
    assert_eq!(config(&home, "channels/telegram.toml"), mine);

    other.push("--overwrite".to_owned());
    let changed = setup(&home, &other).await;
    assert_eq!(changed.code, Some(0), "{changed:?}");
    assert_eq!(config(&home, "channels/telegram.toml"), mine.replace("TELEGRAM_BOT_TOKEN", "OTHER_TOKEN"));
    assert!(config(&home, "midwatch.toml").contains("telegram = [501, 502]"));
    assert_eq!(written(&home), ["600 midwatch.toml", "640 channels/telegram.toml"], "a mode that somebody chose stays");
    let grown = cli(&home, &["setup", "--yes", "--operator", "503", "--overwrite"]).await;
    assert_eq!(grown.code, Some(0), "what is configured need not be said again: {grown:?}");
    assert!(config(&home, "midwatch.toml").contains("telegram = [501, 502, 503]"));
    // A talk about what is configured: empty answers keep it, the key and the token included.
    let before = (config(&home, "midwatch.toml"), config(&home, "channels/telegram.toml"));
    let talked = cli_with_input(&home, &["setup"], "\n\n\n\n\n\n").await;
    assert_eq!(talked.code, Some(0), "{talked:?}");
    assert_eq!((config(&home, "midwatch.toml"), config(&home, "channels/telegram.toml")), before);
    std::fs::write(home.path().join("config/midwatch.toml"), "[model\n").unwrap();
    let broken = setup(&home, &other).await;
    assert_eq!(broken.code, Some(78), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_the_daemon_adds_meanwhile_is_not_lost() {
    let (telegram, model, home) = counterparts().await;
    let all = flags(&telegram, &model);
    assert_eq!(setup(&home, &all).await.code, Some(0));
    let mut daemon = Daemon::start(&home).await;
    let next = cli(&home, &["--json", "setup", "--yes"]).await.json()["next"][0].clone();
    assert!(next.as_str().unwrap().ends_with(" reload"), "a running daemon reads the files again: {next}");
    model.queue(Reply::text("ready").held());
    let before = model.requests().len();
    let linked = async {
        eventually("the model is asked", || (model.requests().len() > before).then_some(())).await;
        let code = cli(&home, &["link", "telegram"]).await.stdout;
        telegram.says(ANN, ANN, code.lines().find(|line| line.starts_with("/link ")).unwrap());
        telegram.next_sent(ANN).await;
        model.release();
    };
    let (late, ()) = tokio::join!(cli(&home, &["setup", "--yes", "--operator", "502", "--overwrite"]), linked);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(late.stderr.contains("telegram.toml was changed meanwhile; nothing was written"), "{late:?}");
    assert!(config(&home, "channels/telegram.toml").contains("[[link]]"));
    assert!(!config(&home, "midwatch.toml").contains("502"));
    assert_eq!(daemon.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_talk_tries_each_answer_out_and_puts_what_was_typed_into_files_of_its_own() {
    let (telegram, model, home) = counterparts().await;
    let (api, base) = (telegram.url(), model.url());
    let flags = ["setup", "--telegram-api-url", &api];
    let input = [
        "",
        "127.0.0.1",
        &base,
        "sk-wrong",
        "",
        "a",
        "",
        "",
        model::KEY,
        "",
        "4242:OTHERTOKEN-SECRET",
        "a",
        telegram::TOKEN,
        "@ann",
        "501",
        "",
    ]
    .join("\n");
    let talked = cli_with_input(&home, &flags, &input).await;
    assert_eq!(talked.code, Some(0), "{talked:?}");
    insta::assert_snapshot!(masked(&talked.stderr, &home, &telegram, &model), @r#"
This sets midwatch up in HOME/config. Nothing is written before the end; Ctrl-C leaves all as it is.

1. The model
   openai: any server that speaks OpenAI's chat completions: OpenAI, Ollama, llama.cpp, vLLM, …
   anthropic: Anthropic's own protocol
   rehearsal: built in, no language model, no key
   Provider [openai]:    The server [http://127.0.0.1:11434/v1]:    it must be a URL that begins with http:// or https://
   The server [http://127.0.0.1:11434/v1]:    The key (not shown while you type; or env:NAME, file:PATH; empty: none is needed):    it has fake-model
   The model's name, as the server knows it [fake-model]:    asking it for one word, 60 s at most …
   the model did not answer: auth: HTTP 401: Incorrect API key provided. (invalid_api_key invalid_request_error)
   look at the key: is it whole, is it valid, and is it one of this server?
   Answer again, keep it as it is, or quit? (a/k/q) [a]:    openai: any server that speaks OpenAI's chat completions: OpenAI, Ollama, llama.cpp, vLLM, …
   anthropic: Anthropic's own protocol
   rehearsal: built in, no language model, no key
   Provider [openai]:    The server [MODEL]:    The key (not shown while you type; or env:NAME, file:PATH; empty: none is needed):    it has fake-model
   The model's name, as the server knows it [fake-model]:    asking it for one word, 60 s at most …
   ok: it answers

2. Telegram
   A bot comes from @BotFather in Telegram: /newbot, then copy the token it gives you.
   The bot's token (not shown while you type; or env:NAME, file:PATH; empty: no Telegram):    Telegram did not answer for the bot: the server does not take the token: Unauthorized
   copy the token again from @BotFather: /mybots, API Token
   Answer again, keep it as it is, or quit? (a/k/q) [a]:    A bot comes from @BotFather in Telegram: /newbot, then copy the token it gives you.
   The bot's token (not shown while you type; or env:NAME, file:PATH; empty: no Telegram):    ok: the bot is @midwatch_bot; in groups it gets its name, answers to it and commands (privacy mode is on, as midwatch expects)

3. You
   Your numeric id makes you the operator: you may stop every turn, and your private chat gets the read tools
   when you link it. You need not know it now: write anything to the bot once the daemon runs, and
   `midwatch status` shows it; then run this again.
   Your numeric id on Telegram [later]:    digits alone: a name can be released and taken by someone else
   Your numeric id on Telegram [later]:
"#);
    assert_no_secrets("what was shown", &(talked.stdout.clone() + &talked.stderr));
    assert_eq!(
        written(&home),
        ["600 channels/telegram.toml", "600 midwatch.toml", "600 secrets/model.key", "600 secrets/telegram.token"]
    );
    let folder = std::fs::metadata(home.path().join("config/secrets")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let daemon = Daemon::start(&home.env("TELEGRAM_BOT_TOKEN", "").env("OPENAI_API_KEY", "")).await;
    drop(daemon);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_ends_in_the_middle_leaves_nothing() {
    let (telegram, model, home) = counterparts().await;
    let base = model.url();
    let input = ["openai", &base, model::KEY, model::NAME, telegram::TOKEN].join("\n");
    let lines: Vec<&str> = input.lines().collect();
    for end in 0..=lines.len() {
        let input: String = lines[..end].iter().map(|line| format!("{line}\n")).collect();
        let output = cli_with_input(&home, &["setup", "--telegram-api-url", &telegram.url()], &input).await;
        assert_eq!(output.code, Some(2), "{end}: {output:?}");
        assert!(
            output.stderr.contains("the input ended before all was answered; nothing was written"),
            "{end}: {output:?}"
        );
        assert_eq!(written(&home), Vec::<String>::new(), "{end}");
    }
}

/// A terminal with `midwatch setup` in it.
struct Terminal {
    child: std::process::Child,
    keys: File,
    slave: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn open(home: &Home, args: &[&str]) -> Self {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_midwatch"));
        command.env_clear().env("HOME", home.path()).arg("--home").arg(home.path()).args(args);
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave.try_clone().unwrap());
        let (keys, shown) = (File::from(master), Arc::new(Mutex::new(String::new())));
        let (mut screen, writing) = (keys.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = screen.read(&mut buffer) {
                writing.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Self { child: command.spawn().unwrap(), keys, slave, shown }
    }

    /// Waits until the screen shows `text` after all that was waited for before, then types.
    async fn types(&mut self, seen: &mut usize, text: &str, keys: &str) {
        let shown = Arc::clone(&self.shown);
        let found = || shown.lock().unwrap()[*seen..].find(text).map(|at| *seen + at + text.len());
        *seen = eventually(&format!("{text} on the screen"), found).await;
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn shows_keys(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ECHO)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_does_not_show_a_secret_and_speaks_again_after_ctrl_c() {
    let (telegram, model, home) = counterparts().await;
    let mut terminal = Terminal::open(&home, &["setup", "--telegram-api-url", &telegram.url()]);
    let mut seen = 0;
    terminal.types(&mut seen, "Provider [openai]: ", "\n").await;
    terminal.types(&mut seen, "The server [", &format!("{}\n", model.url())).await;
    terminal.types(&mut seen, "none is needed): ", &format!("wrong\x15{}\r", model::KEY)).await;
    terminal.types(&mut seen, "it has fake-model", "").await;
    terminal.types(&mut seen, "as the server knows it [fake-model]: ", "\n").await;
    terminal.types(&mut seen, "ok: it answers", "").await;
    terminal.types(&mut seen, "empty: no Telegram): ", "").await;
    assert!(!terminal.shows_keys(), "the terminal is silent while a secret is asked for");
    terminal.keys.write_all(format!("{}\x03", telegram::TOKEN).as_bytes()).unwrap();
    let ended = eventually("the end of setup", || terminal.child.try_wait().unwrap()).await;
    assert_eq!(ended.signal(), Some(2), "as a shell expects of Ctrl-C");
    assert!(terminal.shows_keys(), "the terminal speaks again");
    let shown = terminal.shown.lock().unwrap().clone();
    assert_no_secrets("the screen", &shown);
    assert!(shown.contains("fake-model"), "what is no secret was shown: {shown}");
    assert_eq!(written(&home), Vec::<String>::new());
}
