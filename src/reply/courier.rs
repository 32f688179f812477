//! Brings outbox rows to a platform: in order per chat, several chats at a time, and never the same row twice on its
//! own account.
//!
//! A row is `sending` in the store before the first byte leaves. Then the answer decides; where no answer comes the
//! row is *uncertain* and stays so until a person acts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use super::Pace;
use crate::domain::{BootId, Clock, OutboxId, Pulse, Rng, Stop, Timestamp};
use crate::store::outbox::{self, Outcome, Part, Target};
use crate::store::timeline::{self, Entry};
use crate::store::{Store, StoreError};

/// Chats that are written to at the same time.
const CHATS_AT_ONCE: usize = 16;
/// Sends that surely did not arrive before a part is dead; with the growing waits, about a day of outage.
const ATTEMPTS_MAX: u32 = 1_000;
/// Tries to write down how a send ended before others get their turn.
const FINISH_TRIES: u32 = 5;
/// First and longest wait after a send that surely did not arrive.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));
/// The courier looks again after this long even if nobody calls, and says that it is well.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After the store failed to say what is due.
const AFTER_TROUBLE: Duration = Duration::from_secs(2);
/// What a reader is told before a text that may have arrived before.
pub const AGAIN: &str = "(sent again) ";

/// A part as a platform gets it.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Where to.
    pub target: Target,
    /// With formatting; none when it is to be plain.
    pub html: Option<String>,
    /// Without.
    pub plain: String,
}

/// Why a send did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The platform asks to wait so long; it did nothing.
    Later(Duration),
    /// It surely did nothing: no connection came about.
    NotSent(String),
    /// It refused the formatting.
    Formatting(String),
    /// It refused for good.
    Refused(String),
    /// No answer, or none that says: it may stand in the chat.
    Unknown(String),
    /// The account cannot send at all now; the part waits.
    Account(String),
}

/// What the courier needs of a platform.
pub trait Platform: Send + Sync {
    /// `kind:account`, as in the outbox.
    fn channel(&self) -> String;

    /// Sends one part once. Never tries again by itself.
    ///
    /// # Errors
    /// [`SendError`].
    fn send<'a>(&'a self, part: &'a Outgoing) -> BoxFuture<'a, Result<String, SendError>>;

    /// Shows that an answer is on its way; failure is of no consequence.
    fn typing<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, ()>;
}

/// Brings one account's parts out.
pub struct Courier {
    /// The store.
    pub store: Store,
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// The account's rate gate.
    pub pace: Arc<Pace>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub rng: Arc<dyn Rng>,
    /// This start of the daemon.
    pub boot: BootId,
    /// Called when a turn ended or a part was put back.
    pub wake: watch::Receiver<u64>,
}

impl Courier {
    /// Works until a stop is asked, then finishes what is on its way and flushes what is due, for as long as the
    /// caller lets it.
    pub async fn run(self, stop: Stop, pulse: Option<Pulse>) {
        let mut busy: Vec<String> = Vec::new();
        let mut sends = FuturesUnordered::new();
        // Sends whose end the store did not take yet; they must not be forgotten.
        let mut unwritten: Vec<(Part, Outcome)> = Vec::new();
        let mut doubted = false;
        // `self` is borrowed by the sends, so the wake has to be a value of its own.
        let mut wake = self.wake.clone();
        let mut waking = true;
        loop {
            if let Some(pulse) = &pulse {
                pulse.beat(self.clock.monotonic(), LOOK_EVERY * 3);
            }
            wake.mark_unchanged();
            for (part, outcome) in std::mem::take(&mut unwritten) {
                match self.finish(&part, outcome).await {
                    None => busy.retain(|other| *other != part.target.chat),
                    Some(outcome) => unwritten.push((part, outcome)),
                }
            }
            let mut next_look = LOOK_EVERY;
            if !doubted {
                // Before anything of this attempt is on its way, so that it cannot be taken for what broke.
                doubted = self.doubt_own().await;
            }
            match self.due().await {
                Ok(_) if !doubted => next_look = AFTER_TROUBLE,
                Ok(parts) => {
                    let now = self.clock.now();
                    let mut room = CHATS_AT_ONCE.saturating_sub(sends.len());
                    for part in parts {
                        if busy.contains(&part.target.chat) {
                            continue;
                        }
                        if part.not_before > now {
                            next_look = next_look.min(part.not_before.since(now));
                            continue;
                        }
                        if room == 0 {
                            break;
                        }
                        match self.pace.take(&part.target.chat, self.clock.monotonic()) {
                            Ok(()) => {
                                room -= 1;
                                busy.push(part.target.chat.clone());
                                sends.push(self.bring(part));
                            }
                            Err(wait) => next_look = next_look.min(wait),
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "The outbox could not be read.");
                    next_look = AFTER_TROUBLE;
                }
            }
            if sends.is_empty() && stop.is_asked() && (!unwritten.is_empty() || self.is_flushed().await) {
                return;
            }
            if !unwritten.is_empty() {
                next_look = next_look.min(Duration::from_secs(5));
            }
            tokio::select! {
                biased;
                Some((part, left)) = sends.next(), if !sends.is_empty() => match left {
                    None => busy.retain(|other| *other != part.target.chat),
                    Some(outcome) => unwritten.push((part, outcome)),
                },
                woken = wake.changed(), if waking => waking = woken.is_ok(),
                () = stop.asked(), if !stop.is_asked() => {}
                () = tokio::time::sleep(next_look.max(Duration::from_millis(5))) => {}
            }
        }
    }

    async fn due(&self) -> Result<Vec<Part>, StoreError> {
        let channel = self.platform.channel();
        self.store.read("read the outbox", move |db| outbox::heads(db, &channel, 1_000)).await
    }

    /// Whether nothing is due now: what waits for its time waits in the store.
    async fn is_flushed(&self) -> bool {
        let now = self.clock.now();
        self.due().await.map_or(true, |parts| parts.iter().all(|part| part.not_before > now))
    }

    /// What an earlier attempt of this task had on its way when it broke: its answers are lost.
    async fn doubt_own(&self) -> bool {
        let (channel, boot, now) = (self.platform.channel(), self.boot, self.clock.now());
        let doubted = self.store.write("doubt broken sends", move |db| outbox::doubt(db, &channel, boot, now)).await;
        match &doubted {
            Ok(0) => {}
            Ok(parts) => tracing::warn!(parts, "Replies were on their way when the courier broke."),
            Err(error) => tracing::warn!(%error, "The outbox could not be looked through."),
        }
        doubted.is_ok()
    }

    /// Sends one part; returns it, with its outcome where the store did not take that.
    async fn bring(&self, part: Part) -> (Part, Option<Outcome>) {
        let (id, boot) = (part.id, self.boot);
        if let Err(error) = self.store.write("begin a send", move |db| outbox::begin(db, id, boot)).await {
            // After an unknown commit the row may stand as `sending`; nothing has left, so it may go back.
            tracing::warn!(part = %id, %error, "A send could not begin.");
            let mut left = None;
            if error.is_unknown() {
                let outcome = Outcome::Later(self.clock.now(), "the store broke before the send".to_owned());
                left = self.finish(&part, outcome).await;
            }
            if error.is_outage() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            return (part, left);
        }
        crash_point!("outbox.sending");
        let label = if part.again { AGAIN } else { "" };
        let outgoing = Outgoing {
            target: part.target.clone(),
            html: part.html.as_ref().map(|html| format!("{label}{html}")),
            plain: format!("{label}{}", part.plain),
        };
        let sent = self.platform.send(&outgoing).await;
        crash_point!("outbox.sent_unrecorded");
        let attempts = part.attempts + 1;
        let outcome = match sent {
            Ok(platform_id) => Outcome::Sent(platform_id),
            Err(SendError::Later(wait)) => {
                self.pace.close_until(self.clock.monotonic() + wait);
                Outcome::Later(self.clock.now().after(wait), format!("the platform asked for {} s", wait.as_secs()))
            }
            Err(SendError::NotSent(why) | SendError::Account(why)) if attempts < ATTEMPTS_MAX => {
                Outcome::Later(self.after_failure(attempts), why)
            }
            Err(SendError::NotSent(why) | SendError::Account(why)) => Outcome::Dead(why),
            Err(SendError::Formatting(why)) if part.html.is_some() => Outcome::Plain(why),
            Err(SendError::Formatting(why) | SendError::Refused(why)) => Outcome::Dead(why),
            Err(SendError::Unknown(why)) => Outcome::Uncertain(why),
        };
        let left = self.finish(&part, outcome).await;
        crash_point!("outbox.recorded");
        (part, left)
    }

    fn after_failure(&self, attempts: u32) -> Timestamp {
        let wait = WAITS.0.saturating_mul(1 << attempts.min(7)).min(WAITS.1);
        self.clock.now().after(self.rng.jitter(wait))
    }

    /// Writes down how a send ended, through short outages of the store; gives the outcome back after a long one.
    async fn finish(&self, part: &Part, outcome: Outcome) -> Option<Outcome> {
        let id: OutboxId = part.id;
        let line = match &outcome {
            Outcome::Sent(_) => None,
            Outcome::Later(_, why) => Some(("reply.waits", why.clone())),
            Outcome::Plain(why) => Some(("reply.plain", why.clone())),
            Outcome::Uncertain(why) => Some(("reply.uncertain", why.clone())),
            Outcome::Dead(why) => Some(("reply.dead", why.clone())),
        };
        if let Some((kind, why)) = &line {
            tracing::warn!(part = %id, chat = part.target.chat, kind, why, "A reply did not go out as it should.");
        }
        let (session, turn) = (part.session, part.turn);
        for tries in 1..=FINISH_TRIES {
            let (outcome, line, now) = (outcome.clone(), line.clone(), self.clock.now());
            let written = self.store.write("finish a send", move |db| {
                outbox::finish(db, id, &outcome, now)?;
                if let Some((kind, why)) = line {
                    let detail = serde_json::json!({ "reply": id, "why": why });
                    timeline::append(db, &Entry { session, turn, call: None, kind, detail }, now)?;
                }
                Ok(())
            });
            // Finishing twice changes nothing: only a row in `sending` is touched.
            match written.await {
                Ok(()) => return None,
                Err(error @ StoreError::Closed) => {
                    tracing::error!(part = %id, %error, "How a send ended could not be stored; the next start finds it uncertain.");
                    return None;
                }
                Err(error) => {
                    if !error.is_outage() {
                        tracing::error!(part = %id, %error, "How a send ended could not be stored; trying again.");
                    }
                    tokio::time::sleep(self.rng.jitter(Duration::from_millis(200) * (1 << tries.min(7)))).await;
                }
            }
        }
        Some(outcome)
    }
}
