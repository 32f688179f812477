//! Signals: TERM and INT stop, a second one ends at once; HUP reloads; USR1 writes the status to the log.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tokio::runtime::Handle;

use crate::session::{SharedServices, status};

/// The exit code of a second signal: what a shell gives a program that SIGINT ended.
const ENDED_AT_ONCE: i32 = 130;

/// Hears signals on a thread of its own for the life of the process.
pub(super) fn hear(services: Arc<SharedServices>, runtime: Handle) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGHUP => {
                    if let Err(faults) = services.reload() {
                        tracing::error!(%faults, "The configuration has faults; the old one stays.");
                    }
                }
                SIGUSR1 => {
                    let services = services.clone();
                    runtime.spawn(async move {
                        match status::status(&services).await {
                            Ok(status) => tracing::info!("Status:\n{}", status.for_people()),
                            Err(error) => tracing::error!(%error, "The status could not be read."),
                        }
                    });
                }
                _ if services.stop.listen().is_asked() => {
                    // Everything accepted stands in the store; there is nothing to save that a crash would lose.
                    std::process::exit(ENDED_AT_ONCE);
                }
                _ => services.stop.ask(),
            }
        }
    })?;
    Ok(())
}
