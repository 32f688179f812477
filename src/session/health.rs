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

/// All reports, by `kind:account`.
#[derive(Debug, Default)]
pub struct Health(Mutex<BTreeMap<String, ChannelHealth>>);

impl Health {
    /// A channel begins, under its file's name.
    pub fn begin(&self, channel: &str, name: &str, kind: ChannelKind) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(channel.to_owned()).or_insert_with(|| ChannelHealth {
            name: name.to_owned(),
            kind,
            state: "starting",
            last_poll_at: None,
            last_accepted_at: None,
            last_handled_at: None,
            error: None,
            unparsed: 0,
        });
    }

    /// Changes the report of a channel that has begun.
    pub fn progress(&self, channel: &str, change: impl FnOnce(&mut ChannelHealth)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(channel).map(change);
    }

    /// Forgets a channel that was taken out of the configuration.
    pub fn forget(&self, channel: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(channel);
    }

    /// A channel's state.
    #[must_use]
    pub fn state(&self, channel: &str) -> Option<&'static str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(channel).map(|channel| channel.state)
    }

    /// The channel file's name.
    #[must_use]
    pub fn name(&self, channel: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(channel).map(|channel| channel.name.clone())
    }

    /// All of them with their `kind:account`.
    #[must_use]
    pub fn all_keyed(&self) -> Vec<(String, ChannelHealth)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(key, channel)| (key.clone(), channel.clone())).collect()
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<ChannelHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
