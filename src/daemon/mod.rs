//! The daemon's life: start, work, stop.
//!
//! ```text
//! start: lock ▸ config ▸ store ▸ repair ▸ socket ▸ channels ▸ READY=1
//! stop:  STOPPING=1 ▸ intake off ▸ turns to their next checkpoint ▸ outbox flushed ▸ store closed
//! ```
//! The [`supervisor`] owns every task. A second signal ends at once: what is in the store is safe anyway.

mod channels;
mod lock;
mod notify;
mod signals;
pub mod supervisor;

use std::sync::Arc;
use std::time::Duration;

pub use lock::{Held, LockError};
use supervisor::{Backoff, Ended, Rule, Task, supervise};
use tokio::task::JoinHandle;

use crate::channel::console::{Console, SocketError};
use crate::config::{Home, HomeError};
use crate::domain::{OsRng, Rng as _, SystemClock, stop};
use crate::session::{Desk, SharedServices, Snapshot, notices};
use crate::store::{Closing, Store, StoreError};
use crate::tool::{self, ToolError};

/// Longest wait for what is due in the outbox after the turns are put aside.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a task that was told to give up.
const GIVE_UP_MAX: Duration = Duration::from_secs(2);

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folders cannot be made.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The workspace cannot be opened.
    #[error("[workspace] path: {0}")]
    Tools(#[from] ToolError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The console's socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The signals cannot be heard.
    #[error("signals cannot be heard: {0}")]
    Signals(std::io::Error),
}

/// A daemon at work.
pub struct Daemon {
    services: Arc<SharedServices>,
    closing: Closing,
    desk: JoinHandle<Ended>,
    console: JoinHandle<Ended>,
    channels: JoinHandle<Ended>,
    couriers: stop::StopHandle,
    notifier: JoinHandle<Ended>,
}

impl Daemon {
    /// Starts everything; the caller holds the lock and has read the configuration.
    ///
    /// # Errors
    /// [`StartError`]: nothing runs.
    pub async fn start(home: Home, snapshot: Snapshot) -> Result<Self, StartError> {
        let catalogue = tool::catalogue(&snapshot.config.workspace)?;
        let backoff = Backoff {
            first: Duration::from_millis(snapshot.config.supervisor.backoff_first_ms),
            max: Duration::from_millis(snapshot.config.supervisor.backoff_max_ms),
        };
        let (store, closing) = Store::open(&home.db_path())?;
        let seams = (Arc::new(SystemClock::new()) as _, Arc::new(OsRng) as _);
        let services = Arc::new(SharedServices::new(home, store, catalogue, seams, snapshot));
        let found = Desk::take_over(&services).await?;
        if found != crate::store::recover::Found::default() {
            tracing::info!(
                resumed = found.resumed.len(),
                parked = found.to_park.len(),
                uncertain_replies = found.uncertain,
                "An earlier start ended in mid-work."
            );
        }
        let console = Console::open(services.clone())?;
        let (couriers, _) = stop::channel();

        let desk_services = services.clone();
        let desk = Task::new("desk", Rule::Critical, services.stopping(), move |stop| {
            let services = desk_services.clone();
            let pulse = services.pulses.start("desk", services.clock.monotonic(), Duration::from_secs(180));
            async move {
                Desk::new(services).run(stop, Some(pulse)).await;
                Ok(())
            }
        });
        // The socket is open before READY=1; if serving breaks, a fresh one is opened.
        let mut opened = Some(console);
        let console_services = services.clone();
        let console = Task::new("console", Rule::Critical, services.abort.listen(), move |stop| {
            let console = opened.take().map_or_else(|| Console::open(console_services.clone()), Ok);
            async move {
                let console = console.map_err(|error| error.to_string())?;
                tokio::select! {
                    biased;
                    () = stop.asked() => Ok(()),
                    served = console.serve() => served.map_err(|error| error.to_string()),
                }
            }
        });
        let channel_services = services.clone();
        let channels = Task::new("channels", Rule::Critical, couriers.listen(), move |stop| {
            let services = channel_services.clone();
            async move {
                channels::keep(services, backoff, stop).await;
                Ok(())
            }
        });
        let notify_services = services.clone();
        let notifier = Task::new("notify", Rule::Restart, services.abort.listen(), move |stop| {
            let services = notify_services.clone();
            async move {
                notify::keep(services, stop).await;
                Ok(())
            }
        });
        let notices_services = services.clone();
        let notices = Task::new("notices", Rule::Restart, services.stopping(), move |stop| {
            let services = notices_services.clone();
            async move {
                notices::keep(services, stop).await;
                Ok(())
            }
        });
        let spawn = |task: Task| {
            let services = services.clone();
            tokio::spawn(async move { supervise(task, backoff, services).await })
        };
        let (desk, console, channels, notifier) = (spawn(desk), spawn(console), spawn(channels), spawn(notifier));
        // Asked to stop with the daemon; nobody waits for it.
        drop(spawn(notices));
        Ok(Self { services, closing, desk, console, channels, couriers, notifier })
    }

    /// What the daemon's parts share.
    #[must_use]
    pub fn services(&self) -> &Arc<SharedServices> {
        &self.services
    }

    /// Waits for a stop to be asked, then stops in order; true when a critical task had given up.
    pub async fn run(self) -> bool {
        self.services.stop.listen().asked().await;
        notify::stopping();
        tracing::info!("Stopping: no new work is taken.");
        let drain = Duration::from_secs(self.services.snapshot().config.supervisor.drain_secs);
        self.services.desk.notify_one();
        let mut desk = self.desk;
        let gave_up = match tokio::time::timeout(drain, &mut desk).await {
            Ok(ended) => ended.is_ok_and(|ended| ended == Ended::GaveUp),
            Err(_) => {
                tracing::warn!(
                    drain_secs = drain.as_secs(),
                    "Turns did not reach a checkpoint in time; they are put aside where they are."
                );
                self.services.abort.ask();
                matches!(tokio::time::timeout(GIVE_UP_MAX, desk).await, Ok(Ok(Ended::GaveUp)))
            }
        };
        // Everything that will be said stands in the outbox now.
        self.services.wake_couriers();
        self.couriers.ask();
        let mut channels = self.channels;
        if tokio::time::timeout(FLUSH_MAX, &mut channels).await.is_err() {
            tracing::warn!("Some replies are still on their way; they go out or are told of at the next start.");
            channels.abort();
        }
        self.services.abort.ask();
        if let Err(error) = Desk::put_aside(&self.services).await {
            tracing::warn!(%error, "Open turns could not be put aside; the next start takes them up.");
        }
        let ended = async {
            let console = self.console.await;
            let notifier = self.notifier.await;
            [console, notifier].into_iter().any(|ended| ended.is_ok_and(|ended| ended == Ended::GaveUp))
        };
        let also = tokio::time::timeout(GIVE_UP_MAX, ended).await.unwrap_or(false);
        let _ = std::fs::remove_file(self.services.home.socket_path());
        self.services.store.close();
        let closing = self.closing;
        // Joining blocks; what is left to do is one checkpoint of the write-ahead file.
        closing.join();
        tracing::info!("Stopped.");
        gave_up || also
    }

    /// Hears the process's signals from now on.
    ///
    /// # Errors
    /// [`StartError::Signals`].
    pub fn hear_signals(&self) -> Result<(), StartError> {
        signals::hear(self.services.clone(), tokio::runtime::Handle::current()).map_err(StartError::Signals)
    }

    /// Tells systemd that work is taken.
    pub fn say_ready(&self) {
        notify::ready();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            pid = std::process::id(),
            home = %self.services.home.data.display(),
            "Ready."
        );
    }
}

/// A random word, for clients that number their messages.
#[must_use]
pub fn random_word() -> String {
    format!("{:016x}{:016x}", OsRng.next_u64(), OsRng.next_u64())
}
