//! `serve` and `check`.

use std::io::IsTerminal as _;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::complain::{Complaint, Exit};
use super::out;
use crate::config::{Fault, Home, check_secrets};
use crate::daemon::{Daemon, Held};
use crate::record::logs;
use crate::session::Snapshot;

/// Longest wait for threads that a file or a tool holds up after everything else has ended.
const BLOCKED_MAX: Duration = Duration::from_secs(2);

/// Runs the daemon until it is stopped.
pub(super) fn run(home: Home, runtime: Runtime) -> Result<Exit, Complaint> {
    if !home.config_file().exists() {
        // A mistyped --home leaves no folders behind.
        Snapshot::load(&home)?;
    }
    home.create()?;
    let _held = Held::take(&home.lock_path())?;
    let snapshot = Snapshot::load(&home)?;
    let guards = logs::start(&home.logs_dir(), true)
        .map_err(|error| Complaint::failed(format!("the log cannot be written: {error}")))?;
    for fault in check_secrets(&snapshot.config) {
        tracing::warn!("{}", warning(&fault));
    }
    let gave_up = runtime.block_on(async {
        let daemon = Daemon::start(home, snapshot).await?;
        daemon.hear_signals()?;
        daemon.say_ready();
        if std::io::stderr().is_terminal() {
            out::note("midwatch keeps watch; Ctrl-C stops it.");
        }
        Ok::<_, Complaint>(daemon.run().await)
    })?;
    // What still blocks a thread has had its time: a stop has to end.
    runtime.shutdown_timeout(BLOCKED_MAX);
    drop(guards);
    Ok(if gave_up { Exit::Failed } else { Exit::Done })
}

/// Parses everything and opens nothing.
pub(super) fn check(home: &Home, json: bool) -> Result<Exit, Complaint> {
    let snapshot = Snapshot::load(home)?;
    let warnings = check_secrets(&snapshot.config);
    for fault in &warnings {
        out::note(warning(fault));
    }
    let files: Vec<_> = snapshot.config.files.iter().map(|file| file.display().to_string()).collect();
    if json {
        out::line(serde_json::json!({ "ok": true, "files": files, "warnings": warnings }))?;
    } else {
        out::line(format_args!("well: {}", files.join(", ")))?;
    }
    Ok(Exit::Done)
}

/// A fault that does not keep the daemon from starting.
fn warning(fault: &Fault) -> String {
    let text = fault.to_string();
    text.trim_end().strip_prefix("error: ").map_or_else(|| text.clone(), |text| format!("warning: {text}"))
}
