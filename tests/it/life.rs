//! The daemon's life: one at a time, started with faults, stopped in mid-work, reloaded, watched, and out of disk.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

mod disk;
mod parking;
mod reload;
mod secrets;
mod stop;

use crate::spine::{ANN, ends_well};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::Model;
use crate::support::telegram::Telegram;
use crate::support::{PATIENCE, eventually};

use rustix::process::Signal;
use serde_json::Value;

/// Waits until `status` shows the Telegram account in `state`; returns its report.
async fn telegram_is(home: &Home, state: &str) -> Value {
    let looks = async {
        loop {
            let status = cli(home, &["--json", "status"]).await.json();
            let found = status["channels"].as_array().unwrap().iter().find(|channel| channel["kind"] == "telegram");
            if let Some(channel) = found.filter(|channel| channel["state"] == state) {
                return channel.clone();
            }
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap_or_else(|_| panic!("the account is never {state}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_on_the_same_home_exits_75_and_names_the_first() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let mut daemon = Daemon::start(&home).await;
    let second = cli(&home, &["serve"]).await;
    assert_eq!(second.code, Some(75), "{second:?}");
    let told = second.stderr.replace(&daemon.pid().to_string(), "PID").replace(home.path().to_str().unwrap(), "HOME");
    insta::assert_snapshot!(told, @"
    error: another midwatch (pid PID) holds HOME/data/midwatch.lock
    hint: one daemon serves one home; `midwatch stop` ends the other, --home names another folder
    ");
    telegram.says(ANN, ANN, "still there?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: still there?", "the first is not disturbed");
    assert_eq!(cli(&home, &["status"]).await.code, Some(0), "nor is its socket");

    // The lock ends with its owner, whatever ends it and whatever stands in the file.
    daemon.kill9().await;
    std::fs::write(home.path().join("data/midwatch.lock"), format!("{}\n", std::process::id())).unwrap();
    daemon.restart().await;
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and now?");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_configuration_exits_78_with_every_fault_its_line_and_its_cure() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new()
        .model(&model)
        .set("supervisor", "drain_sec", "5")
        .set("limits", "rounds", "0")
        .telegram(&telegram)
        .link("home", ANN, &[ANN])
        .grant("home", &["read_fil"])
        .link_line("home", "sender = [7]");
    let served = cli(&home, &["serve"]).await;
    assert_eq!((served.code, served.stdout.as_str()), (Some(78), ""), "{served:?}");
    insta::assert_snapshot!(served.stderr, @"
    error: channels/telegram.toml:9: unknown tool `read_fil` in a grant
    hint: did you mean `read_file`?
    error: channels/telegram.toml:10: unknown key `sender`
    hint: did you mean `senders`?
    error: midwatch.toml:2: `rounds` must lie between 1 and 1000
    error: midwatch.toml:11: unknown key `drain_sec`
    hint: did you mean `drain_secs`?
    ");
    let checked = cli(&home, &["check"]).await;
    assert_eq!((checked.code, &checked.stderr), (Some(78), &served.stderr), "`check` says the same");
    let faults = cli(&home, &["--json", "check"]).await.json();
    assert_eq!(faults["faults"].as_array().map(Vec::len), Some(served.stderr.matches("error:").count()));
    assert!(!home.store_path().exists(), "nothing was opened");
    assert_eq!(telegram.calls("getMe").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_home_exits_78_and_leaves_nothing_there() {
    let home = Home::new();
    let wrong = home.path().join("typo");
    for command in ["serve", "check"] {
        // `--home` stands on the line already, and once only; the environment is asked where it does not.
        let mut run = tokio::process::Command::new(env!("CARGO_BIN_EXE_midwatch"));
        let run = run.env_clear().env("MIDWATCH_HOME", &wrong).arg(command).output().await.unwrap();
        let stderr = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(78), "{command}: {stderr}");
        assert!(stderr.contains("midwatch.toml") && stderr.contains("hint: "), "{command}: {stderr}");
        assert!(!wrong.exists(), "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_what_needs_one_exits_69_with_the_cure() {
    let model = Model::start().await;
    let home = Home::new().model(&model);
    let commands = [
        &["status"][..],
        &["--json", "status"],
        &["say", "hello"],
        &["chat"],
        &["turns"],
        &["turns", "retry", "turn-1"],
        &["replies"],
        &["link", "telegram"],
        &["links"],
        &["sessions"],
        &["timeline", "main"],
        &["reload"],
        &["stop"],
    ];
    for when in ["never started", "killed"] {
        for args in commands {
            let output = cli(&home, args).await;
            assert_eq!(output.code, Some(69), "{when}: {args:?}: {output:?}");
            assert!(output.stderr.contains("hint: `midwatch serve` starts it"), "{when}: {args:?}: {output:?}");
        }
        if when == "never started" {
            assert!(!home.store_path().exists() && !home.path().join("run").exists());
            // A dead daemon's socket and token lie there still.
            Daemon::start(&home).await.kill9().await;
            assert!(home.path().join("run/midwatch.sock").exists());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_exits_2_and_help_0() {
    let home = Home::new();
    for args in [
        &[][..],
        &["watch"],
        &["say"],
        &["status", "--verbose"],
        &["turns", "retry"],
        &["turns", "burn", "turn-1"],
        &["link", "icq"],
        &["config"],
        &["sessions", "show"],
    ] {
        let output = cli(&home, args).await;
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{args:?}: {output:?}");
        assert!(output.stderr.contains("Usage: midwatch"), "{args:?}: {output:?}");
    }
    for args in [&["--help"][..], &["--version"], &["say", "--help"], &["config", "example"]] {
        let output = cli(&home, args).await;
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{args:?}: {output:?}");
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_hears_ready_status_and_stopping_in_order_and_the_watchdog_is_fed() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).channel_line("poll_timeout_secs = 1");
    let mut daemon = Daemon::start_with_env(&home, &[("WATCHDOG_USEC", "200000")]).await;
    daemon.wait_notify("STATUS=console up, telegram up").await;
    let fed = || daemon.notify_lines().iter().filter(|line| *line == "WATCHDOG=1").count();
    eventually("the watchdog fed five times", || (fed() >= 5).then_some(())).await;

    // An outage of a platform or a model is no reason to be restarted.
    telegram.set_offline(true);
    model.set_offline(true);
    daemon.wait_notify("STATUS=console up, telegram retrying").await;
    let before = fed();
    eventually("the watchdog fed in an outage", || (fed() >= before + 5).then_some(())).await;
    telegram.set_offline(false);

    assert_eq!(daemon.stop().await, Some(0));
    let lines = daemon.notify_lines();
    let at = |line: &str| lines.iter().position(|said| said.starts_with(line));
    assert!(at("READY=1") < at("STOPPING=1"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "READY=1").count(), 1, "{lines:?}");
    let stopping = at("STOPPING=1").unwrap();
    assert!(lines[..stopping].iter().any(|line| line.starts_with("STATUS=")), "{lines:?}");
    assert!(lines[stopping..].contains(&"STATUS=stopping".to_owned()), "{lines:?}");
    assert!(!lines[stopping..].iter().any(|line| line.contains("telegram up")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_watchdog_none_is_fed() {
    let model = Model::start().await;
    let home = Home::new().model(&model);
    let mut daemon = Daemon::start(&home).await;
    daemon.wait_notify("STATUS=").await;
    assert_eq!(daemon.stop().await, Some(0));
    assert!(!daemon.notify_lines().contains(&"WATCHDOG=1".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_that_is_down_does_not_delay_the_start() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    telegram.set_offline(true);
    telegram.says(ANN, ANN, "are you up?");
    let daemon = Daemon::start(&home).await;
    assert_eq!(cli(&home, &["say", "hello"]).await.stdout, "echo: hello\n", "others are served meanwhile");
    let channel = telegram_is(&home, "retrying").await;
    assert!(channel["last_poll_at"].is_null() && channel["error"].is_string(), "{channel}");
    assert_eq!(cli(&home, &["--json", "status"]).await.json()["ready"], true);
    telegram.set_offline(false);
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: are you up?");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usr1_writes_the_status_into_the_log() {
    let model = Model::start().await;
    let home = Home::new().model(&model);
    let mut daemon = Daemon::start(&home).await;
    assert!(!daemon.all_logs().contains("Status:"));
    daemon.signal(Signal::USR1);
    let pid = format!("midwatch {} is ready (pid {}", env!("CARGO_PKG_VERSION"), daemon.pid());
    eventually("the status in the log", || {
        let logs = daemon.all_logs();
        (logs.contains("Status:") && logs.contains(&pid) && logs.contains("turns: 0 running")).then_some(())
    })
    .await;
    assert_eq!(daemon.stop().await, Some(0), "a signal that asks does not stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    home.write();
    let file = home.path().join("config/channels/telegram.toml");
    let token = home.path().join("config/token");
    std::fs::write(&token, format!("{}\n", crate::support::telegram::TOKEN)).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("{ env = \"TELEGRAM_BOT_TOKEN\" }", &format!("{{ file = {:?} }}", token.to_str().unwrap()));
    std::fs::write(&file, text).unwrap();
    for (mode, warned) in [(0o644, true), (0o640, true), (0o600, false), (0o400, false)] {
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode)).unwrap();
        let checked = cli(&home, &["check"]).await;
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert_eq!(!checked.stderr.is_empty(), warned, "{mode:o}: {checked:?}");
        if mode == 0o644 {
            insta::assert_snapshot!(checked.stderr.replace(home.path().to_str().unwrap(), "HOME"), @"
            warning: channels/telegram.toml:2: the secret's file HOME/config/token is open to others than its owner
            hint: chmod 600 HOME/config/token
            ");
        }
    }
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let daemon = Daemon::start(&home).await;
    let warned = daemon.all_logs();
    assert!(warned.contains("config/token") && warned.contains("WARN"), "{warned}");
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi", "a warning is not a refusal");
    crate::support::assert_no_secrets("a log", &daemon.all_logs());
    ends_well(daemon, &home, &telegram, &model).await;
}
