//! Progress of the critical loops: each beats when it comes round, and names the time within which it will again.
//!
//! The watchdog is fed from here and `status` shows it: health is progress, not a connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// All pulses of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Mutex<BTreeMap<String, Due>>>);

#[derive(Clone, Copy, Debug)]
struct Due {
    /// Monotonic instant by which the loop comes round again.
    by: Duration,
}

/// One loop's pulse; a pulse that is dropped counts no more.
#[derive(Debug)]
pub struct Pulse {
    all: Pulses,
    name: String,
}

impl Pulses {
    /// A new pulse called `name`, which must beat within `within` of monotonic `now`.
    #[must_use]
    pub fn start(&self, name: &str, now: Duration, within: Duration) -> Pulse {
        let pulse = Pulse { all: self.clone(), name: name.to_owned() };
        pulse.beat(now, within);
        pulse
    }

    /// The loops that have not come round in time, by monotonic `now`.
    #[must_use]
    pub fn late(&self, now: Duration) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(_, due)| due.by < now).map(|(name, _)| name.clone()).collect()
    }
}

impl Pulse {
    /// The loop came round at monotonic `now`, and will again before `now + within`.
    pub fn beat(&self, now: Duration, within: Duration) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(self.name.clone(), Due { by: now.saturating_add(within) });
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}
