//! How the channels are: progress, not connection. Each reports what it did last, and `status` shows it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Serialize, Serializer};

use crate::domain::{ChannelKind, Timestamp};

/// One channel's report.
#[derive(Clone, Debug, Serialize)]
pub struct ChannelHealth {
    /// The channel file's name.
    pub name: String,
    /// Its platform.
    pub kind: ChannelKind,
    /// starting, up, retrying or stopped.
    pub state: &'static str,
    /// When the platform was last heard.
    #[serde(serialize_with = "time")]
    pub last_poll_at: Option<Timestamp>,
    /// When a message was last stored.
    #[serde(serialize_with = "time")]
    pub last_accepted_at: Option<Timestamp>,
    /// When a turn for it last ended.
    #[serde(serialize_with = "time")]
    pub last_handled_at: Option<Timestamp>,
    /// What is wrong, and what to do.
    pub error: Option<String>,
    /// Deliveries that no type of ours fits; they are stored raw.
    pub unparsed: u64,
}

fn time<S: Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    at.map(Timestamp::rfc3339).serialize(to)
}

/// All reports.
#[derive(Debug, Default)]
pub struct Health(Mutex<BTreeMap<String, ChannelHealth>>);

impl Health {
    /// Changes the report of the channel `name`, which begins as `starting`.
    pub fn report(&self, name: &str, kind: ChannelKind, change: impl FnOnce(&mut ChannelHealth)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(name.to_owned()).or_insert_with(|| ChannelHealth {
            name: name.to_owned(),
            kind,
            state: "starting",
            last_poll_at: None,
            last_accepted_at: None,
            last_handled_at: None,
            error: None,
            unparsed: 0,
        }));
    }

    /// Forgets a channel that was taken out of the configuration.
    pub fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<ChannelHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
