//! What the service manager hears: ready, a line of status, the watchdog's sign of life, stopping.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::domain::Stop;
use crate::session::SharedServices;

/// The status line is renewed this often at most.
const STATUS_EVERY: Duration = Duration::from_secs(60);

/// Work is taken.
pub(super) fn ready() {
    say(&[NotifyState::Ready]);
}

/// No new work is taken.
pub(super) fn stopping() {
    say(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

fn say(state: &[NotifyState<'_>]) {
    // Without a service manager there is nobody to tell.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "The service manager could not be told.");
    }
}

/// Feeds the watchdog while every critical loop comes round in time, and keeps the status line true.
pub(super) async fn keep(services: Arc<SharedServices>, stop: Stop) {
    let watchdog = sd_notify::watchdog_enabled();
    // Twice within the watchdog's time, so that one late wake-up is no death.
    let every = watchdog.map_or(STATUS_EVERY, |within| (within / 2).min(STATUS_EVERY)).max(Duration::from_millis(50));
    let mut shown = String::new();
    let mut was_late = Vec::new();
    loop {
        let late = services.pulses.late(services.clock.monotonic());
        if late.is_empty() && watchdog.is_some() {
            say(&[NotifyState::Watchdog]);
        }
        if late != was_late {
            if !late.is_empty() {
                tracing::error!(?late, "Loops have not come round in time; the watchdog is not fed.");
            }
            was_late.clone_from(&late);
        }
        let line = line(&services, &late);
        if line != shown {
            say(&[NotifyState::Status(&line)]);
            shown = line;
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}

fn line(services: &SharedServices, late: &[String]) -> String {
    let channels = services.health.all();
    let mut parts: Vec<String> = channels.iter().map(|channel| format!("{} {}", channel.name, channel.state)).collect();
    if services.store.has_outage() {
        parts.push("store does not take writes".to_owned());
    }
    parts.extend(late.iter().map(|name| format!("{name} late")));
    parts.join(", ")
}
