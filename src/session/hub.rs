//! Who watches which session, and which turns run. In memory only: the store knows what matters.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::{broadcast, watch};

use crate::domain::{SessionId, StopHandle, Timestamp, TurnId};
use crate::model::{ErrorClass, ModelError};
use crate::store::outbox::Target;
use crate::turn::{Audience, News};

/// Pieces of news a slow watcher may lag behind before it has to read the store instead.
const LAG_MAX: usize = 1_024;

/// A turn at work.
#[derive(Clone, Debug)]
pub struct Running {
    /// Which.
    pub turn: TurnId,
    /// Who began it.
    pub sender: String,
    /// Ends it.
    pub cancel: StopHandle,
    /// Where its answer goes; none for the console.
    pub target: Option<Target>,
    /// The link whose rights it has.
    pub link: Option<String>,
}

/// Turns at work by session, and their watchers.
#[derive(Debug)]
pub struct Hub {
    watchers: Mutex<BTreeMap<SessionId, broadcast::Sender<News>>>,
    running: watch::Sender<BTreeMap<SessionId, Running>>,
    models: Mutex<BTreeMap<String, ModelHealth>>,
}

/// How a model was the last time it was asked.
#[derive(Clone, Debug, Serialize)]
pub struct ModelHealth {
    /// Its name.
    pub name: String,
    /// When it last answered, RFC 3339.
    pub last_answered_at: Option<String>,
    /// Why it did not, the last time it was asked.
    pub error: Option<String>,
    /// Only the operator can mend that: the key, or what was paid.
    pub needs_operator: bool,
}

impl Default for Hub {
    fn default() -> Self {
        Self { watchers: Mutex::default(), running: watch::Sender::new(BTreeMap::new()), models: Mutex::default() }
    }
}

impl Hub {
    /// Watches a session from now on.
    #[must_use]
    pub fn watch(&self, session: SessionId) -> broadcast::Receiver<News> {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|_, sender| sender.receiver_count() > 0);
        watchers.entry(session).or_insert_with(|| broadcast::channel(LAG_MAX).0).subscribe()
    }

    /// The turn at work in `session`.
    #[must_use]
    pub fn running(&self, session: SessionId) -> Option<Running> {
        self.running.borrow().get(&session).cloned()
    }

    /// All turns at work, and a way to wait for a change.
    #[must_use]
    pub fn all_running(&self) -> watch::Receiver<BTreeMap<SessionId, Running>> {
        self.running.subscribe()
    }

    /// How the models are that are named here, as far as they were asked since the start.
    #[must_use]
    pub fn models<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<ModelHealth> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.map(|name| {
            let unasked = ModelHealth { name: name.into(), last_answered_at: None, error: None, needs_operator: false };
            models.get(name).cloned().unwrap_or(unasked)
        });
        known.collect()
    }

    /// A turn goes to work.
    pub fn begin(&self, session: SessionId, running: Running) {
        self.running.send_modify(|all| {
            all.insert(session, running);
        });
    }

    /// A turn is no longer at work; returns what it was.
    pub fn end(&self, session: SessionId) -> Option<Running> {
        let mut was = None;
        self.running.send_modify(|all| was = all.remove(&session));
        was
    }
}

impl Hub {
    /// Something in `session` changed that is no turn's news: whoever waits looks at the store.
    pub fn nudge(&self, session: SessionId) {
        self.hear(session, News::Changed);
    }
}

impl Audience for Hub {
    fn hear(&self, session: SessionId, news: News) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = watchers.get(&session) {
            // Nobody there is no failure.
            let _ = sender.send(news);
        }
    }

    fn asked(&self, model: &str, failed: Option<&ModelError>, now: Timestamp) {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let health = models.entry(model.to_owned()).or_insert_with(|| ModelHealth {
            name: model.to_owned(),
            last_answered_at: None,
            error: None,
            needs_operator: false,
        });
        if failed.is_none() {
            health.last_answered_at = Some(now.rfc3339());
        }
        health.error = failed.map(ToString::to_string);
        health.needs_operator = failed.is_some_and(|error| matches!(error.class, ErrorClass::Auth | ErrorClass::Quota));
    }
}
