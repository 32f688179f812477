//! What every session shares, and the one place that makes sessions.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};

use super::{Door, Health, Hub, Snapshot};
use crate::config::{Faults, Home};
use crate::domain::stop::{self, Stop, StopHandle};
use crate::domain::{BootId, Budget, Clock, EndReason, Pulses, Rng, Timestamp, TurnId};
use crate::gate::{BoundToolPlan, Catalogue};
use crate::model::Choice;
use crate::policy::{Grants, Mode};
use crate::store::{Store, StoreError, turns};
use crate::turn::{Fixed, prompt};

/// Owned by the supervisor; every entry point gets its sessions from [`SharedServices::create_session`].
pub struct SharedServices {
    /// The deployment's folders.
    pub home: Home,
    /// The store.
    pub store: Store,
    /// The tools.
    pub catalogue: Catalogue,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub rng: Arc<dyn Rng>,
    /// This start of the daemon.
    pub boot: BootId,
    /// When it was.
    pub started_at: Timestamp,
    /// Watchers and turns at work.
    pub hub: Arc<Hub>,
    /// The channels' reports.
    pub health: Arc<Health>,
    /// The critical loops' pulses.
    pub pulses: Pulses,
    /// Where messages come in.
    pub door: Door,
    /// Wakes the desk: a message was stored, or a turn was put back.
    pub desk: Arc<Notify>,
    /// Wakes the couriers: an answer was stored, or a part was put back.
    pub outbox: Arc<watch::Sender<u64>>,
    /// Asks the daemon to stop.
    pub stop: StopHandle,
    /// Asks what still runs to give up.
    pub abort: StopHandle,
    snapshot: watch::Sender<Arc<Snapshot>>,
    reloading: Mutex<()>,
}

/// The rights and settings of one session, fixed for one turn.
pub struct Session {
    /// Its mode.
    pub mode: Mode,
    /// The link whose rights it has.
    pub link: Option<String>,
    /// Its tools.
    pub plan: Arc<BoundToolPlan>,
    /// Its models: the first answers, the others stand in for it.
    pub models: Arc<[Choice]>,
    /// What its turn may spend.
    pub budget: Budget,
    snapshot: Arc<Snapshot>,
    prompt_dir: PathBuf,
}

/// The link of a message is no longer in the configuration.
#[derive(Debug, thiserror::Error)]
#[error("link `{0}` is no longer configured")]
pub struct LinkGone(pub String);

impl SharedServices {
    /// Puts the services together; the caller has opened everything.
    #[must_use]
    pub fn new(
        home: Home,
        store: Store,
        catalogue: Catalogue,
        (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>),
        snapshot: Snapshot,
    ) -> Self {
        let (stop, _) = stop::channel();
        let (abort, _) = stop::channel();
        Self {
            home,
            store,
            catalogue,
            boot: BootId::new(rng.as_ref()),
            started_at: clock.now(),
            clock,
            rng,
            hub: Arc::default(),
            health: Arc::default(),
            pulses: Pulses::default(),
            door: Door::default(),
            desk: Arc::default(),
            outbox: Arc::new(watch::Sender::new(0)),
            stop,
            abort,
            snapshot: watch::Sender::new(Arc::new(snapshot)),
            reloading: Mutex::default(),
        }
    }

    /// The present snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.borrow().clone()
    }

    /// Hears of every swap.
    #[must_use]
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshot.subscribe()
    }

    /// Reads the operator's files again and swaps the snapshot in one step; on any fault the old one stays.
    /// Turns of links that are gone are cancelled. Returns what takes effect only at the next start.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn reload(&self) -> Result<Vec<&'static str>, Faults> {
        // Two at once must not leave the older reading in force.
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Snapshot::load(&self.home)?;
        let old = self.snapshot();
        let mut later = Vec::new();
        if new.config.workspace != old.config.workspace {
            later.push("[workspace] path");
        }
        if new.config.supervisor != old.config.supervisor {
            later.push("[supervisor]");
        }
        let new = Arc::new(new);
        self.snapshot.send_replace(new.clone());
        for running in self.hub.all_running().borrow().values() {
            let place = running.target.as_ref().map_or(("", ""), |target| (&target.channel, &target.chat));
            let link = self.link_now(running.link.as_deref(), place, &running.sender);
            if link.is_some_and(|link| !new.links.contains_key(&link)) {
                running.cancel.ask();
            }
        }
        self.desk.notify_one();
        tracing::info!(files = new.config.files.len(), "The configuration was read again.");
        Ok(later)
    }

    /// A stop that is asked for with the daemon's.
    #[must_use]
    pub fn stopping(&self) -> Stop {
        self.stop.listen()
    }

    /// Wakes the couriers.
    pub fn wake_couriers(&self) {
        self.outbox.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The link under which a message of `sender` in `chat` of `channel` is worked on now. It is the one that took the
    /// message up unless that is gone: a link that was renamed meanwhile still holds the chat, and still lists the
    /// sender.
    #[must_use]
    pub fn link_now(&self, taken: Option<&str>, (channel, chat): (&str, &str), sender: &str) -> Option<String> {
        let snapshot = self.snapshot();
        let taken = taken?;
        if snapshot.links.contains_key(taken) {
            return Some(taken.to_owned());
        }
        let name = self.health.name(channel);
        let mut links = snapshot
            .config
            .telegram
            .iter()
            .filter(|account| Some(&account.name) == name.as_ref())
            .flat_map(|account| &account.links);
        let heir =
            links.find(|link| link.chat.to_string() == chat && link.senders.iter().any(|id| id.to_string() == sender));
        Some(heir.map_or(taken, |link| &link.name).to_owned())
    }

    /// Makes the session of `mode` for a link, with the rights of the present snapshot.
    ///
    /// # Errors
    /// [`LinkGone`]: its messages are not worked on.
    pub fn create_session(&self, mode: Mode, link: Option<&str>) -> Result<Session, LinkGone> {
        let snapshot = self.snapshot();
        let limits = &snapshot.config.limits;
        let (grants, secs) = match (mode, link) {
            (Mode::Console, _) => (snapshot.console.clone(), limits.console_turn_secs),
            (Mode::Daemon, link) => {
                let name = link.unwrap_or_default();
                let rights = snapshot.links.get(name).ok_or_else(|| LinkGone(name.to_owned()))?;
                (rights.grants.clone(), rights.time_budget_secs.unwrap_or(limits.daemon_turn_secs))
            }
        };
        let budget = Budget {
            time_ms: secs.saturating_mul(1000),
            rounds: limits.rounds,
            tokens: limits.turn_tokens,
            cost_usd: limits.turn_cost_usd,
        };
        let plan = Arc::new(BoundToolPlan::compile(&self.catalogue, &grants, mode));
        Ok(Session {
            mode,
            link: link.map(ToOwned::to_owned),
            plan,
            models: snapshot.models.clone(),
            budget,
            prompt_dir: self.home.prompt_dir(),
            snapshot,
        })
    }

    /// The grants that a running turn of `mode` and `link` has now; none when its link is gone.
    #[must_use]
    pub fn grants_now(&self, mode: Mode, link: Option<&str>) -> Arc<Grants> {
        let snapshot = self.snapshot();
        match mode {
            Mode::Console => snapshot.console.clone(),
            Mode::Daemon => {
                link.and_then(|link| snapshot.links.get(link)).map_or_else(Arc::default, |rights| rights.grants.clone())
            }
        }
    }

    /// Whether the day's tokens or money are used up.
    ///
    /// # Errors
    /// The store's.
    pub async fn day_over(&self) -> Result<Option<EndReason>, StoreError> {
        let limits = self.snapshot().config.limits.clone();
        let (_, spent) = self.spent_today().await?;
        Ok(if spent.tokens() >= limits.day_tokens {
            Some(EndReason::TokenBudget)
        } else if limits.day_cost_usd > 0.0 && spent.cost_usd >= limits.day_cost_usd {
            Some(EndReason::CostBudget)
        } else {
            None
        })
    }

    /// Turns opened since midnight UTC, and what they spent.
    ///
    /// # Errors
    /// The store's.
    pub async fn spent_today(&self) -> Result<(u64, crate::domain::Spent), StoreError> {
        const DAY_MS: i64 = 86_400_000;
        let midnight = Timestamp(self.clock.now().0.div_euclid(DAY_MS) * DAY_MS);
        self.store.read("sum up the day", move |db| turns::spent_since(db, midnight)).await
    }
}

impl Session {
    /// The name of the model that is asked first.
    #[must_use]
    pub fn model_name(&self) -> String {
        self.models.first().map_or_else(String::new, |model| model.client.name().to_owned())
    }

    /// What does not change during a turn of this session.
    #[must_use]
    pub fn fixed(&self, turn: TurnId, day_over: Option<EndReason>, window_told: bool) -> Fixed {
        let model = &self.snapshot.config.model;
        Fixed {
            turn,
            system: prompt::system(&self.prompt_dir, self.mode, self.link.as_deref()),
            tools: self.plan.schemas(),
            plan_hash: self.plan.hash().to_owned(),
            budget: self.budget,
            window_tokens: model.context_window,
            max_output_tokens: model.max_output_tokens,
            day_over,
            window_told,
        }
    }
}
