//! What outlives a process: time, chance, the disk, and the story of what happened.
//!
//! ```text
//! World   simulated time, the wall clock and its jumps, the story
//!   └ Life   one start of the daemon: counts each touch of the outside, and dies at the one the seed names
//! ```
//!
//! A process touches the outside when it asks for the time, a number or a file, speaks to the model or to the
//! messenger. At the fatal touch the store's files are copied as they lie on disk at that instant, perhaps in the
//! middle of a transaction: that copy is what the next life finds. Whatever the dead process still does until its
//! tasks are gone happens to the old files and reaches nobody.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use midwatch::domain::{Clock, Rng, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

/// 2026-11-30T22:00:00Z: a day ends within two hours, and with it the day's usage.
const BASE_MS: i64 = 1_796_076_000_000;

/// A world with more complaints is over.
const COMPLAINTS_MAX: usize = 20;

/// Random numbers of one concern, so that a change in one does not shift the others.
#[derive(Debug)]
pub(crate) struct Chance(Mutex<fastrand::Rng>);

impl Chance {
    /// The numbers of `concern` under `seed`.
    pub(crate) fn new(seed: u64, concern: &str) -> Self {
        // FNV-1a: the same on every machine and in every version, which a standard hasher does not promise.
        let hash = concern.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(Mutex::new(fastrand::Rng::with_seed(hash)))
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn is(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A number below `bound`, which is above 0.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).u64(..bound)
    }

    /// A number from `low` to `high`, both possible.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A time from `low` to `high` milliseconds.
    pub(crate) fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// One of `choices`, each as likely as its weight.
    pub(crate) fn weighed<T: Copy>(&self, choices: &[(u64, T)]) -> T {
        let mut at = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for (weight, choice) in choices {
            if at < *weight {
                return *choice;
            }
            at -= weight;
        }
        unreachable!("a number below the sum of the weights falls on one of them")
    }
}

/// One simulated world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) dir: PathBuf,
    began: Instant,
    jumped_ms: AtomicI64,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    story: String,
    complaints: Vec<String>,
}

impl World {
    /// A world at its first instant, with its disk at `dir`.
    pub(crate) fn new(seed: u64, dir: &Path) -> Arc<Self> {
        let world = Self {
            seed,
            dir: dir.to_owned(),
            began: Instant::now(),
            jumped_ms: AtomicI64::new(0),
            told: Mutex::default(),
        };
        Arc::new(world)
    }

    /// How long the world has been.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until the world is `age` old.
    pub(crate) async fn until(&self, age: Duration) {
        tokio::time::sleep_until(self.began + age).await;
    }

    /// What a clock on a wall shows.
    pub(crate) fn wall(&self) -> Timestamp {
        let jumped = self.jumped_ms.load(Ordering::Relaxed);
        Timestamp(BASE_MS + jumped).after(self.age())
    }

    /// Somebody sets the clock on the wall.
    pub(crate) fn jump(&self, by_ms: i64) {
        self.jumped_ms.fetch_add(by_ms, Ordering::Relaxed);
        self.tell(&format!("the wall clock jumps by {by_ms} ms"));
    }

    /// Nobody has set it, so that it tells how much time has gone by.
    pub(crate) fn has_a_steady_wall(&self) -> bool {
        self.jumped_ms.load(Ordering::Relaxed) == 0
    }

    /// Adds a line to the story.
    pub(crate) fn tell(&self, line: &str) {
        let age = self.age();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(told.story, "{:6}.{:03} {line}", age.as_secs(), age.subsec_millis());
    }

    /// Something happened that a promise rules out.
    pub(crate) fn complain(&self, what: String) {
        self.tell(&format!("!! {what}"));
        self.told.lock().unwrap_or_else(PoisonError::into_inner).complaints.push(what);
    }

    /// The story so far.
    pub(crate) fn story(&self) -> String {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).story.clone()
    }

    /// So much is wrong that nothing more is to be learnt.
    pub(crate) fn is_broken(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).complaints.len() > COMPLAINTS_MAX
    }

    /// What was complained of while things happened.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).complaints.clone()
    }
}

/// One start of the daemon, from its first touch of the world to its end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) world: Arc<World>,
    /// Counted from 1.
    pub(crate) number: u32,
    began: Instant,
    chance: Chance,
    touches: AtomicU64,
    dies_at: Option<u64>,
    /// Nothing reaches it any more.
    dead: AtomicBool,
    /// It did not end in order.
    fell: AtomicBool,
    died: Notify,
}

impl Life {
    /// Begins the life `number`, which ends at its touch `dies_at` if it comes so far.
    pub(crate) fn begin(world: &Arc<World>, number: u32, dies_at: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            number,
            began: Instant::now(),
            chance: Chance::new(world.seed, &format!("daemon {number}")),
            touches: AtomicU64::new(0),
            dies_at,
            dead: AtomicBool::new(false),
            fell: AtomicBool::new(false),
            died: Notify::new(),
        })
    }

    /// The store of this life.
    pub(crate) fn store_path(&self) -> PathBuf {
        store_path(&self.world.dir, self.number)
    }

    /// The process reaches for `what` outside of itself; false when it is dead and gets nothing.
    pub(crate) fn touch(&self, what: &str) -> bool {
        if self.is_dead() {
            return false;
        }
        let touches = self.touches.fetch_add(1, Ordering::Relaxed) + 1;
        if Some(touches) == self.dies_at {
            self.die(&format!("at its touch {touches} ({what})"));
        }
        !self.is_dead()
    }

    /// As [`Life::touch`], for what can be waited for: a dead process waits for ever.
    pub(crate) async fn reach(&self, what: &str) {
        if !self.touch(what) {
            std::future::pending::<()>().await;
        }
    }

    /// Sleeps on behalf of the world; a process that has died meanwhile does not wake up.
    pub(crate) async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the process here and now.
    pub(crate) fn die(&self, how: &str) {
        self.world.tell(&format!("life {}: the process dies {how}", self.number));
        self.dead.store(true, Ordering::Relaxed);
        self.fell.store(true, Ordering::Relaxed);
        self.bury();
        self.died.notify_one();
    }

    /// Ends the process after an orderly stop.
    pub(crate) fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.bury();
    }

    /// Leaves the store's files to the next life as they are now.
    fn bury(&self) {
        let (from, to) = (self.store_path(), store_path(&self.world.dir, self.number + 1));
        for ending in ["", "-wal"] {
            let with = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
            if with(&from).exists() {
                std::fs::copy(with(&from), with(&to)).unwrap();
            }
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// It came to its fatal touch.
    pub(crate) fn has_died(&self) -> bool {
        self.fell.load(Ordering::Relaxed)
    }

    /// Waits for the fatal touch.
    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }

    /// Adds a line to the story, unless nobody is left to tell it.
    pub(crate) fn tell(&self, line: &str) {
        if !self.is_dead() {
            self.world.tell(&format!("life {}: {line}", self.number));
        }
    }
}

fn store_path(dir: &Path, life: u32) -> PathBuf {
    dir.join(format!("life-{life}.db"))
}

/// The daemon's clocks in one life.
pub(crate) struct SimClock(pub(crate) Arc<Life>);

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        self.0.touch("the time");
        self.0.world.wall()
    }

    fn monotonic(&self) -> Duration {
        self.0.began.elapsed()
    }
}

/// The daemon's chance in one life.
pub(crate) struct SimRng(pub(crate) Arc<Life>);

impl Rng for SimRng {
    fn next_u64(&self) -> u64 {
        self.0.touch("a number");
        self.0.chance.below(u64::MAX)
    }
}
