//! The daemon that runs, and the unit that starts it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Finding, LOOK_MAX, Level};
use crate::cli::client::Client;
use crate::cli::complain::Exit;
use crate::cli::probe::Trouble;
use crate::config::edit::Lies;
use crate::config::{Config, Home, Supervisor};

/// A stop takes this much longer than `drain_secs`: replies on their way, and closing.
const CLOSING_SECS: u64 = 10;
/// What systemd waits where the unit says nothing.
const SYSTEMD_STOP_SECS: u64 = 90;

/// What the daemon itself says.
pub(super) struct Running {
    pub is_running: bool,
    pub findings: Vec<Finding>,
}

/// Asks the daemon of this home how it is.
pub(super) async fn daemon(home: &Home) -> Running {
    const TOPIC: &str = "daemon";
    let down = |finding| Running { is_running: false, findings: vec![finding] };
    let client = match Client::connect(home) {
        Ok(client) => client,
        Err(complaint) => return down(Finding::warn(TOPIC, complaint.text(), "try again")),
    };
    let status: Value = match tokio::time::timeout(LOOK_MAX, client.get("/v1/status")).await {
        Ok(Ok(status)) => status,
        Ok(Err(complaint)) if complaint.exit == Exit::NoDaemon => {
            return down(Finding::warn(
                TOPIC,
                "it does not run",
                "`midwatch serve`, or systemctl --user start midwatch",
            ));
        }
        Ok(Err(complaint)) => {
            return down(Finding::fault(TOPIC, complaint.text(), "run this as the user of the daemon"));
        }
        Err(_) => {
            let what = format!("it runs and did not answer within {} s", LOOK_MAX.as_secs());
            return down(Finding::fault(TOPIC, what, "look at its log, then restart it"));
        }
    };
    Running { is_running: true, findings: of_status(&status) }
}

fn of_status(status: &Value) -> Vec<Finding> {
    const TOPIC: &str = "daemon";
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (theirs, ours) = (text(&status["version"]), env!("CARGO_PKG_VERSION"));
    let mut findings = vec![if theirs == ours {
        Finding::ok(TOPIC, format!("version {theirs} runs (pid {})", status["pid"]))
    } else {
        let what = format!("version {theirs} runs, and this is version {ours}");
        Finding::warn(
            TOPIC,
            what,
            "restart it: systemctl --user restart midwatch, or `midwatch stop` and `midwatch serve`",
        )
    }];
    if status["store_ok"] == Value::Bool(false) {
        findings.push(Finding::fault(TOPIC, "its store takes no writes", "look at the disk"));
    }
    for channel in status["channels"].as_array().into_iter().flatten() {
        let (name, state) = (text(&channel["name"]), text(&channel["state"]));
        let error = channel["error"].as_str().unwrap_or("it does not say why");
        match state.as_str() {
            "stopped" => findings.push(Finding::fault(
                TOPIC,
                format!("{name} is stopped: {error}"),
                "mend it, then `midwatch reload`",
            )),
            "retrying" => findings.push(Finding::warn(
                TOPIC,
                format!("{name} is retrying: {error}"),
                "`midwatch status` shows when it is back",
            )),
            _ => {}
        }
    }
    for late in status["late"].as_array().into_iter().flatten() {
        let what = format!("{} has not come round in time", text(late));
        findings.push(Finding::fault(TOPIC, what, "look at its log, then restart it"));
    }
    let lists = [&status["parked"], &status["replies"]];
    let waiting: usize = lists.iter().filter_map(|list| list.as_array()).map(Vec::len).sum();
    if waiting > 0 {
        let what = format!(
            "{} for a person",
            if waiting == 1 { "1 thing waits".to_owned() } else { format!("{waiting} things wait") }
        );
        findings.push(Finding::warn(TOPIC, what, "`midwatch status` shows each with its command"));
    }
    findings
}

/// The user unit, where systemd is and a unit for this home is installed.
pub(super) fn unit(home: &Home, config: Option<&Config>, is_default_home: bool) -> Vec<Finding> {
    const TOPIC: &str = "service";
    let Some((path, unit)) = installed() else {
        return vec![Finding::ok(TOPIC, "no unit is installed; the head of systemd/midwatch.service says how")];
    };
    let start = last_of(&unit, "ExecStart");
    let names_home = start.as_ref().is_some_and(|start| is_of_home(start, home));
    if !is_default_home && !names_home {
        return vec![Finding::ok(TOPIC, format!("{} starts another deployment", path.display()))];
    }
    let mut findings = Vec::new();
    let binary = start.as_deref().and_then(binary_of);
    match binary {
        Some(binary) if !binary.is_file() => {
            let what = format!("{} starts {}, which is not there", path.display(), binary.display());
            findings.push(Finding::fault(
                TOPIC,
                what,
                format!("install -Dm755 target/release/midwatch {}", binary.display()),
            ));
        }
        _ => {}
    }
    let drain = config.map_or(Supervisor::default().drain_secs, |config| config.supervisor.drain_secs);
    let stop = last_of(&unit, "TimeoutStopSec").map_or(Some(SYSTEMD_STOP_SECS), |text| seconds(&text));
    if let Some(stop) = stop.filter(|stop| *stop < drain + CLOSING_SECS) {
        findings.push(Finding::fault(
            TOPIC,
            format!("the unit's TimeoutStopSec ({stop} s) is less than drain_secs ({drain}) and {CLOSING_SECS} s to close: a stop would be killed"),
            format!("TimeoutStopSec={} in `systemctl --user edit midwatch`, or a lower drain_secs", drain + 25),
        ));
    }
    findings.extend(config.into_iter().flat_map(|config| passed_on(&unit, config, home)));
    findings.extend(linger(&path));
    if findings.is_empty() {
        findings
            .push(Finding::ok(TOPIC, format!("{} is installed, and runs when you are logged out too", path.display())));
    }
    findings
}

/// A service has neither the shell's environment nor credentials but what its unit passes on.
fn passed_on(unit: &str, config: &Config, home: &Home) -> Vec<Finding> {
    let models = std::iter::once(&config.model).chain(&config.fallback);
    let keys = models.filter_map(|model| model.api_key.as_ref());
    let secrets = keys.chain(config.telegram.iter().map(|account| &account.token));
    let set = |key: &str| {
        let lines = unit.lines().map(str::trim).filter_map(|line| line.split_once('='));
        lines.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let has_file = set("EnvironmentFile").iter().any(|value| !value.is_empty());
    let environment = [set("Environment"), set("PassEnvironment")].concat().join(" ");
    let credentials = [set("LoadCredential"), set("LoadCredentialEncrypted"), set("SetCredential")].concat();
    let missing = secrets.filter_map(|secret| match Lies::of(secret, &home.config)? {
        Lies::Env(name) if !has_file && !environment.contains(&name) => Some((
            format!("the unit passes no {name} on, where a secret is looked for"),
            format!("EnvironmentFile= in `systemctl --user edit midwatch`, with a file of {name}=… lines; or {{ file = \"PATH\" }}"),
        )),
        Lies::Credential(name) if !credentials.iter().any(|it| it.split(':').next() == Some(name.as_str())) => Some((
            format!("the unit loads no credential {name}, where a secret is looked for"),
            format!("LoadCredential={name}:PATH in `systemctl --user edit midwatch`"),
        )),
        _ => None,
    });
    missing.map(|(what, fix)| Finding::fault("service", what, fix)).collect()
}

/// Without lingering, a user's services end with the last login.
fn linger(unit: &Path) -> Option<Finding> {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok()?;
    let folder = Path::new("/var/lib/systemd/linger");
    if !folder.is_dir() || user.contains('/') || folder.join(&user).exists() {
        return None;
    }
    let what = format!("{} ends when {user} logs out, and does not start with the machine", unit.display());
    Some(Finding::of(Level::Warn, "service", Trouble::new(what, "loginctl enable-linger")))
}

/// The unit's file and its text, with what was added to it beside the file.
fn installed() -> Option<(PathBuf, String)> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let config = std::env::var_os("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from);
    let folders = [
        config.join("systemd/user"),
        PathBuf::from("/etc/systemd/user"),
        home.join(".local/share/systemd/user"),
        PathBuf::from("/usr/local/lib/systemd/user"),
        PathBuf::from("/usr/lib/systemd/user"),
    ];
    let path = folders.iter().map(|folder| folder.join("midwatch.service")).find(|path| path.is_file())?;
    let mut text = std::fs::read_to_string(&path).ok()?;
    let mut more: Vec<PathBuf> = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder.join("midwatch.service.d")).ok())
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "conf"))
        .collect();
    more.sort();
    for path in more {
        text.push('\n');
        text.push_str(&std::fs::read_to_string(path).unwrap_or_default());
    }
    Some((path, text))
}

/// The last value of a key, as systemd takes it.
fn last_of(unit: &str, key: &str) -> Option<String> {
    let values = unit.lines().filter_map(|line| line.trim().split_once('=')).filter(|(name, _)| name.trim() == key);
    values.map(|(_, value)| value.trim().to_owned()).rfind(|value| !value.is_empty())
}

/// The program of an `ExecStart=`, with `%h` for the user's home.
fn binary_of(start: &str) -> Option<PathBuf> {
    let word = start.trim_start_matches(['-', '@', ':', '+', '!']).split_whitespace().next()?;
    let home = std::env::var("HOME").unwrap_or_default();
    let path = PathBuf::from(word.replace("%h", &home));
    path.is_absolute().then_some(path)
}

/// Whether a command line names this home.
fn is_of_home(start: &str, home: &Home) -> bool {
    let Some(folder) = home.data.parent() else { return false };
    let mut words = start.split_whitespace();
    let shown = folder.display().to_string();
    words.any(|word| word.strip_prefix("--home=").unwrap_or(word).trim_end_matches('/') == shown)
}

/// A time as systemd writes it, in seconds; none when it is endless or not one that we know.
fn seconds(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    for word in text.split_whitespace() {
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let number: u64 = number.parse().ok()?;
        total += match unit {
            "" | "s" | "sec" => number,
            "min" | "m" => number * 60,
            "h" => number * 3_600,
            "ms" => number / 1_000,
            _ => return None,
        };
    }
    // 0 switches the limit off.
    (total > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_systemd_writes_them() {
        for (text, expected) in [
            ("45", Some(45)),
            ("45s", Some(45)),
            ("1min 30s", Some(90)),
            ("2 min", None),
            ("1h", Some(3_600)),
            ("500ms", None),
            ("infinity", None),
            ("0", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn the_last_value_counts() {
        let unit =
            "[Service]\n#TimeoutStopSec=1\nTimeoutStopSec = 45\n[Service]\nTimeoutStopSec=90s\nTimeoutStopSec=\n";
        assert_eq!(last_of(unit, "TimeoutStopSec").as_deref(), Some("90s"));
        assert_eq!(last_of(unit, "ExecStart"), None);
    }
}
