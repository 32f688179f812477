//! One start of the daemon in the simulated world: the real store, desk, turns and courier, wired as `daemon` wires
//! them, and stopped in its order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use midwatch::config::{self, Home};
use midwatch::domain::stop::{self, StopHandle};
use midwatch::domain::{SessionId, Timestamp, TurnId};
use midwatch::reply::{Courier, Pace, Rates};
use midwatch::session::{Desk, Hub, SharedServices, Snapshot};
use midwatch::store::Store;
use midwatch::store::turns::{self, TurnRow};
use midwatch::turn::News;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::messenger::{CHANNEL, Line, Messenger};
use crate::model::{Provider, SimModel};
use crate::people::CHATS;
use crate::world::{Life, SimClock, SimRng, World};
use crate::{poller, tools};

/// As the Telegram channel has them.
const RATES: Rates = Rates { account_per_sec: 30.0, chat_per_sec: 1.0, chat_burst: 5.0 };
/// As the daemon has them: for what is due in the outbox, and for a task that was told to give up.
const FLUSH_MAX: Duration = Duration::from_secs(5);
const GIVE_UP_MAX: Duration = Duration::from_secs(2);

/// All that is not the process.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) world: Arc<World>,
    pub(crate) messenger: Arc<Messenger>,
    pub(crate) provider: Arc<Provider>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) home: Home,
}

/// A time in which a turn was at work.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) turn: TurnId,
    pub(crate) life: u32,
    pub(crate) began: Duration,
    /// As a clock on the wall showed it.
    began_wall: Timestamp,
    /// None while it is at work.
    pub(crate) ended: Option<Duration>,
    /// What its budget left it when it began.
    pub(crate) allowed: Duration,
    /// The process died over it.
    pub(crate) died: bool,
}

/// When which turn was at work, as a watcher hears it.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Vec<Run>>);

impl Runs {
    fn all_mut(&self) -> MutexGuard<'_, Vec<Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Run> {
        self.all_mut().clone()
    }

    /// Whatever is at work ends with its process.
    fn end_all(&self, at: Duration, died: bool) {
        self.all_mut().iter_mut().filter(|run| run.ended.is_none()).for_each(|run| run.died = died);
        self.end(|_| true, at);
    }

    fn end(&self, which: impl Fn(&Run) -> bool, at: Duration) {
        self.all_mut().iter_mut().filter(|run| run.ended.is_none() && which(run)).for_each(|run| run.ended = Some(at));
    }
}

/// A daemon at work.
pub(crate) struct Process {
    pub(crate) life: Arc<Life>,
    pub(crate) services: Arc<SharedServices>,
    outside: Outside,
    tasks: BTreeMap<&'static str, JoinHandle<()>>,
    watchers: Vec<JoinHandle<()>>,
    courier: StopHandle,
}

impl Process {
    /// Starts life `number` on what the one before left; it may have died when this returns.
    pub(crate) async fn start(outside: &Outside, number: u32, dies_at: Option<u64>) -> Self {
        let life = Life::begin(&outside.world, number, dies_at);
        life.tell("starts");
        let store = Store::open_inline(&life.store_path()).unwrap();
        // What a power cut takes is no subject here, and thousands of seeds do not wait for a disk.
        store.read("be fast", |db| Ok(db.execute_batch("pragma synchronous = off")?)).await.unwrap();
        let config = config::load(&outside.home).unwrap();
        let model = SimModel { life: life.clone(), provider: outside.provider.clone() };
        let snapshot = Snapshot::with_model(config, Arc::new(model)).unwrap();
        let seams = (Arc::new(SimClock(life.clone())) as _, Arc::new(SimRng(life.clone())) as _);
        let services =
            Arc::new(SharedServices::new(outside.home.clone(), store, tools::catalogue(&life), seams, snapshot));
        let (courier, courier_stop) = stop::channel();
        let mut process = Self {
            life: life.clone(),
            services: services.clone(),
            outside: outside.clone(),
            tasks: BTreeMap::new(),
            watchers: Vec::new(),
            courier,
        };
        match Desk::take_over(&services).await {
            Ok(found) => life.tell(&format!("takes over {found:?}")),
            Err(error) => outside.world.complain(format!("life {number} cannot take over: {error}")),
        }
        if life.is_dead() {
            return process;
        }
        let watched = CHATS.iter().map(|chat| SessionId::of_key(&format!("{CHANNEL}:{}", chat.chat)));
        process.watchers = watched.map(|session| tokio::spawn(process.watch(session))).collect();
        let pulse = |name| services.pulses.start(name, services.clock.monotonic(), Duration::from_secs(180));
        let bringer = Courier {
            store: services.store.clone(),
            platform: Arc::new(Line {
                life: life.clone(),
                messenger: outside.messenger.clone(),
                store: services.store.clone(),
            }),
            pace: Arc::new(Pace::new(RATES)),
            clock: services.clock.clone(),
            rng: services.rng.clone(),
            boot: services.boot,
            wake: services.outbox.subscribe(),
        };
        let desk = Desk::new(services.clone()).run(services.stopping(), Some(pulse("desk")));
        let poll = poller::keep(life.clone(), services.clone(), outside.messenger.clone(), services.stopping());
        process.tasks.insert("desk", tokio::spawn(desk));
        process.tasks.insert("poller", tokio::spawn(poll));
        process.tasks.insert("courier", tokio::spawn(bringer.run(courier_stop, Some(pulse("courier")))));
        process
    }

    /// Hears when turns of `session` are at work.
    fn watch(&self, session: SessionId) -> impl Future<Output = ()> + Send + use<> {
        let (life, runs, store) = (self.life.clone(), self.outside.runs.clone(), self.services.store.clone());
        let mut heard = self.services.hub.watch(session);
        async move {
            while let Ok(news) = heard.recv().await {
                if life.is_dead() {
                    return;
                }
                let now = life.world.age();
                match news {
                    News::Opened { turn } => {
                        let row = store.read("read a turn", move |db| turns::get(db, turn)).await.unwrap().unwrap();
                        let resumed = runs.all().iter().any(|run| run.turn == turn);
                        known_to_its_checkpoints(&life, &store, &runs, &row).await;
                        let allowed = row.budget.time_left(&row.spent, resumed);
                        runs.all_mut().push(Run {
                            turn,
                            life: life.number,
                            began: now,
                            began_wall: life.world.wall(),
                            ended: None,
                            allowed,
                            died: false,
                        });
                        life.tell(&format!("{turn} is at work and has {} ms", allowed.as_millis()));
                    }
                    News::Ended { turn, reason, .. } => {
                        runs.end(|run| run.turn == turn, now);
                        life.tell(&format!("{turn} ends: {reason}"));
                    }
                    News::Suspended { turn } => {
                        runs.end(|run| run.turn == turn, now);
                        life.tell(&format!("{turn} is put aside"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Complains of what should be at work and is not.
    pub(crate) fn look(&self) {
        for (name, task) in &self.tasks {
            if task.is_finished() && !self.life.is_dead() {
                self.life.world.complain(format!("life {}: the {name} ended unasked", self.life.number));
            }
        }
        let late = self.services.pulses.late(self.services.clock.monotonic());
        if !late.is_empty() {
            self.life.world.complain(format!("life {}: late are {late:?}", self.life.number));
        }
    }

    /// Stops as the daemon does. The process may die of it.
    pub(crate) async fn stop(mut self) {
        let (life, world) = (self.life.clone(), self.life.world.clone());
        life.tell("is asked to stop");
        tokio::select! {
            biased;
            () = life.died() => {}
            () = self.stop_in_order() => {}
        }
        if !life.is_dead() {
            let unended = self.tasks.iter().filter(|(_, task)| !task.is_finished()).map(|(name, _)| *name);
            for name in unended.filter(|name| *name != "courier") {
                world.complain(format!("life {}: the {name} did not stop in time", life.number));
            }
            if !self.services.hub.all_running().borrow().is_empty() {
                world.complain(format!("life {}: turns are at work after the stop", life.number));
            }
            life.tell("has stopped");
            life.end();
        }
        self.vanish().await;
    }

    async fn stop_in_order(&mut self) {
        let services = self.services.clone();
        let drain = Duration::from_secs(services.snapshot().config.supervisor.drain_secs);
        services.stop.ask();
        services.desk.notify_one();
        let began = self.life.world.age();
        if timeout(drain, self.ended("desk")).await.is_err() {
            services.abort.ask();
            let _ = timeout(GIVE_UP_MAX, self.ended("desk")).await;
        }
        services.wake_couriers();
        self.courier.ask();
        if timeout(FLUSH_MAX, self.ended("courier")).await.is_err() {
            self.life.tell("leaves replies on their way");
        }
        let _ = timeout(GIVE_UP_MAX, self.ended("poller")).await;
        let took = self.life.world.age() - began;
        if took > drain + GIVE_UP_MAX + FLUSH_MAX {
            self.life.world.complain(format!("life {}: the stop took {took:?}", self.life.number));
        }
        for task in self.tasks.values().filter(|task| !task.is_finished()) {
            task.abort();
        }
        services.store.close();
    }

    async fn ended(&mut self, name: &str) {
        let task = self.tasks.get_mut(name).unwrap();
        if !task.is_finished()
            && let Err(error) = task.await
        {
            self.life.world.complain(format!("life {}: the {name} broke: {error}", self.life.number));
        }
    }

    /// The process is gone, and all of its tasks with it.
    pub(crate) async fn vanish(self) {
        self.outside.runs.end_all(self.life.world.age(), self.life.has_died());
        let tasks: Vec<_> = self.tasks.into_values().chain(self.watchers).collect();
        tasks.iter().for_each(JoinHandle::abort);
        // One that was waited for before must not be waited for again.
        for task in tasks.into_iter().filter(|task| !task.is_finished()) {
            let _ = task.await;
        }
    }
}

/// Complains when a turn that goes on has forgotten time that lies before its last checkpoint.
async fn known_to_its_checkpoints(life: &Life, store: &Store, runs: &Runs, row: &TurnRow) {
    let turn = row.id.row();
    let stamps = store.read("read a turn's checkpoints", move |db| {
        let mut sql = db.prepare_cached("select created_at_ms from checkpoints where turn = ?1 order by id")?;
        Ok(sql.query_map([turn], |row| row.get(0).map(Timestamp))?.collect::<Result<Vec<_>, _>>()?)
    });
    let stamps = stamps.await.unwrap();
    let earlier = runs.all().into_iter().filter(|run| run.turn == row.id);
    let known: Duration = earlier
        .map(|run| {
            let until = run.began_wall.after(run.ended.unwrap_or(run.began) - run.began);
            let within = stamps.iter().filter(|stamp| (run.began_wall..=until).contains(stamp));
            within.max().map_or(Duration::ZERO, |last| last.since(run.began_wall))
        })
        .sum();
    let spent = Duration::from_millis(row.spent.time_ms) + Duration::from_millis(5);
    if spent < known && life.world.has_a_steady_wall() {
        life.world.complain(format!("{} goes on as if {spent:?} were spent, and {known:?} were", row.id));
    }
}

/// Which turns a hub knows to be at work.
pub(crate) fn at_work(hub: &Hub) -> Vec<TurnId> {
    hub.all_running().borrow().values().map(|running| running.turn).collect()
}
