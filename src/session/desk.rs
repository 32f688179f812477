//! Gives every waiting message its turn: strictly in order within a session, sessions side by side up to the limit.
//!
//! The store says what waits; nothing here needs to be remembered over a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::{Id, JoinSet};

use super::closing::{close, target_of};
use super::door::{Handed, Opened, open_turn};
use super::hub::Running;
use super::{SharedServices, commands, status};
use crate::domain::stop;
use crate::domain::{EndReason, InboxId, Pulse, SessionId, Stop, Timestamp, TurnId};
use crate::gate::ToolContext;
use crate::policy::Mode;
use crate::reply;
use crate::store::chain::{self, Kind, NewCheckpoint, Numbered};
use crate::store::inbox::{self, InboxRow, Waiting};
use crate::store::retention::{self, Cutoffs};
use crate::store::timeline::{self, Entry};
use crate::store::turns::{self, NewTurn, TurnRow};
use crate::store::{StoreError, outbox, recover};
use crate::turn::{Audience as _, Driver, Ended, News, Saved, State};

/// The desk looks again after this long even if nobody calls, and says that it is well.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After an outage of the store.
const LOOK_AFTER_TROUBLE: Duration = Duration::from_secs(2);
/// Failed tries to begin a message before it is refused, and lost checkpoints of a turn before it ends.
const STUMBLES_MAX: u32 = 3;
/// Strangers' rows are cleared away this often, once they are older than a day or more than so many.
const TIDY_EVERY: Duration = Duration::from_secs(600);
/// After a round that left something over.
const TIDY_AGAIN: Duration = Duration::from_secs(5);
const STRANGERS_FOR: Duration = Duration::from_secs(86_400);
const STRANGERS_MAX: i64 = 10_000;
const TIDY_AT_ONCE: i64 = 5_000;
/// Where turns without a platform come from.
const CONSOLE: &str = "console:local";
/// Most messages of a window read at once.
const HISTORY_MAX: i64 = 5_000;

/// The one place where turns are begun.
pub struct Desk {
    services: Arc<SharedServices>,
    turns: JoinSet<Ended>,
    at_work: BTreeMap<Id, (SessionId, TurnId)>,
    /// Turns whose store failed them: they are put aside as soon as it takes writes again.
    lost: Vec<(TurnId, Option<&'static str>)>,
    /// How often a message could not be begun although the store takes writes.
    stumbles: BTreeMap<InboxId, u32>,
    /// How often a turn could not store its next checkpoint although the store takes writes.
    losses: BTreeMap<TurnId, u32>,
    /// When old rows are cleared away next, monotonic; the first time at once.
    tidy_at: Duration,
    /// Where clearing away goes on.
    swept: retention::Position,
}

impl Desk {
    /// A desk with nothing on it.
    #[must_use]
    pub fn new(services: Arc<SharedServices>) -> Self {
        services.door.start_anew();
        Self {
            services,
            turns: JoinSet::new(),
            at_work: BTreeMap::new(),
            lost: Vec::new(),
            stumbles: BTreeMap::new(),
            losses: BTreeMap::new(),
            tidy_at: Duration::ZERO,
            swept: retention::Position::default(),
        }
    }

    /// Takes over from earlier boots: voids their leases, parks what the process died over too often.
    ///
    /// # Errors
    /// The store's; the daemon does not start then.
    pub async fn take_over(services: &SharedServices) -> Result<recover::Found, StoreError> {
        let (boot, now) = (services.boot, services.clock.now());
        let found = services
            .store
            .write("take over", move |db| {
                let found = recover::take_over(db, boot, now)?;
                for turn in &found.to_park {
                    close(db, *turn, EndReason::Parked, "the process died while it worked on this turn", now)?;
                }
                let detail = json!({
                    "resumed": found.resumed, "parked": found.to_park, "uncertain_replies": found.uncertain,
                });
                timeline::append(db, &Entry { kind: "daemon.started", detail, ..Entry::default() }, now)?;
                Ok(found)
            })
            .await?;
        crash_point!("start.taken_over");
        Ok(found)
    }

    /// Works until a stop is asked and every turn is put aside or done.
    pub async fn run(mut self, stop: Stop, pulse: Option<Pulse>) {
        loop {
            if let Some(pulse) = &pulse {
                pulse.beat(self.services.clock.monotonic(), LOOK_EVERY * 3);
            }
            let wait = if stop.is_asked() {
                if self.turns.is_empty() {
                    self.services.door.set_busy(true);
                    return;
                }
                LOOK_EVERY
            } else {
                match self.look().await {
                    Ok(wait) => wait,
                    Err(error) => {
                        tracing::warn!(%error, "The desk could not look at the inbox.");
                        LOOK_AFTER_TROUBLE
                    }
                }
            };
            let services = self.services.clone();
            tokio::select! {
                biased;
                Some(done) = self.turns.join_next_with_id(), if !self.turns.is_empty() => self.done(done).await,
                () = services.desk.notified() => {}
                () = stop.asked(), if !stop.is_asked() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Does all that can be done now; returns how long until there is more.
    async fn look(&mut self) -> Result<Duration, StoreError> {
        self.settle_lost().await;
        self.take_handed().await?;
        self.answer_urgent().await?;
        let limit = self.services.snapshot().config.limits.concurrent_turns as usize;
        let mut wait = if self.lost.is_empty() { LOOK_EVERY } else { LOOK_AFTER_TROUBLE };
        self.services.door.set_limit(limit);
        if self.turns.len() >= limit {
            self.services.door.set_busy(true);
            return Ok(wait);
        }
        let room = limit - self.turns.len();
        let boot = self.services.boot;
        let mark = self.services.door.mark();
        let (held, suspended, waiting) = self
            .services
            .store
            .read("look at the inbox", move |db| {
                Ok((turns::held_by(db, boot)?, turns::suspended(db, room)?, inbox::waiting(db, room + 64)?))
            })
            .await?;
        // Opened by a commit whose answer was lost, or left by a desk that broke: nobody works on it.
        let at_work: Vec<TurnId> = self.at_work.values().map(|(_, turn)| *turn).collect();
        let known = |turn: &TurnId| at_work.contains(turn) || self.lost.iter().any(|(lost, _)| lost == turn);
        // What the door opened meanwhile is on its way here.
        let held = if self.services.door.is_still(mark) { held } else { Vec::new() };
        let orphans: Vec<TurnId> = held.into_iter().filter(|turn| !known(turn)).collect();
        if !orphans.is_empty() {
            tracing::warn!(?orphans, "Turns were open and nobody worked on them.");
            self.lost.extend(orphans.into_iter().map(|turn| (turn, None)));
            self.settle_lost().await;
        }
        let mut is_busy = false;
        for turn in suspended {
            if !self.is_at_work(turn.session) {
                if !self.services.door.take_place() {
                    is_busy = true;
                    break;
                }
                let at_work = self.turns.len();
                let (id, resumed) = (turn.id, self.resume(turn).await);
                if let Err(error) = resumed {
                    // A turn that cannot be resumed must not stand in the way of the others.
                    self.services.door.give_back(1);
                    self.trip(error, None, Some(id))?;
                } else if self.turns.len() == at_work {
                    self.services.door.give_back(1);
                }
            }
        }
        let now = self.services.clock.now();
        for next in waiting {
            if self.is_at_work(next.session) {
                continue;
            }
            if next.ready_at > now {
                wait = wait.min(next.ready_at.since(now));
                continue;
            }
            if is_busy || !self.services.door.take_place() {
                is_busy = true;
                break;
            }
            match self.begin(next).await {
                Ok(true) => {}
                Ok(false) => {
                    self.services.door.give_back(1);
                    // It ended without a turn at work: the next message of that session can go at once.
                    self.services.desk.notify_one();
                }
                Err(error) => {
                    self.services.door.give_back(1);
                    self.trip(error, Some(next.head), None)?;
                    if self.stumbles.get(&next.head).is_some_and(|times| *times >= STUMBLES_MAX) {
                        self.stumbles.remove(&next.head);
                        self.refuse(next.head).await?;
                    }
                    wait = wait.min(LOOK_AFTER_TROUBLE);
                }
            }
        }
        self.services.door.set_busy(is_busy);
        // People come first.
        self.tidy().await?;
        Ok(wait)
    }

    /// Sets to work what the door has opened.
    async fn take_handed(&mut self) -> Result<(), StoreError> {
        for Handed { opened, made, sender, target } in self.services.door.take_handed() {
            crash_point!("desk.turn_handed");
            let (turn, link) = (opened.turn, made.link.clone());
            if let Err(error) = self.set_to_work(opened, made, (sender, link), target, false).await {
                self.services.door.give_back(1);
                tracing::warn!(%turn, %error, "An opened turn could not be set to work yet.");
            }
        }
        Ok(())
    }

    /// Puts turns aside that this start still holds when nobody is left to work on them: a message that came in
    /// while the desk closed.
    ///
    /// # Errors
    /// The store's; the next start finds them then.
    pub async fn put_aside(services: &SharedServices) -> Result<(), StoreError> {
        let boot = services.boot;
        let aside = services.store.write("put open turns aside", move |db| {
            for turn in turns::held_by(db, boot)? {
                let spent = turns::get(db, turn)?.map(|row| row.spent).unwrap_or_default();
                turns::suspend(db, turn, &spent)?;
            }
            Ok(())
        });
        aside.await
    }

    async fn tidy(&mut self) -> Result<(), StoreError> {
        let now = self.services.clock.monotonic();
        if now < self.tidy_at {
            return Ok(());
        }
        self.tidy_at = now + TIDY_EVERY;
        let wall = self.services.clock.now();
        let before = Timestamp(wall.0 - i64::try_from(STRANGERS_FOR.as_millis()).unwrap_or_default());
        let gone = self.services.store.write("clear strangers' rows away", move |db| {
            inbox::forget_ignored(db, before, STRANGERS_MAX, TIDY_AT_ONCE)
        });
        let gone = gone.await?;
        if gone > 0 {
            tracing::info!(gone, "Rows of messages that were not answered were cleared away.");
        }
        self.sweep(wall).await
    }

    /// Clears away some of what has ended long ago.
    async fn sweep(&mut self, wall: Timestamp) -> Result<(), StoreError> {
        let days = self.services.snapshot().config.retention.clone();
        let before = |days: u32| Timestamp(wall.0.saturating_sub(i64::from(days) * 86_400_000));
        let cutoffs = Cutoffs {
            history: before(days.history_days),
            timeline: before(days.timeline_days),
            ended: before(days.ended_days),
        };
        let from = self.swept.clone();
        let swept = self
            .services
            .store
            .write("clear what is old away", move |db| retention::sweep(db, &cutoffs, &from))
            .await?;
        if swept.rows > 0 {
            tracing::info!(rows = swept.rows, "Rows that had ended long ago were cleared away.");
        }
        if swept.has_more {
            // Not at once: people come first.
            self.tidy_at = self.services.clock.monotonic() + TIDY_AGAIN;
        }
        self.swept = swept.next;
        Ok(())
    }

    /// Takes an error of one message or turn down, unless the store itself is to blame.
    fn trip(&mut self, error: StoreError, message: Option<InboxId>, turn: Option<TurnId>) -> Result<(), StoreError> {
        if error.is_outage() {
            return Err(error);
        }
        tracing::error!(?message, ?turn, %error, "A message could not be set to work.");
        if let Some(message) = message {
            *self.stumbles.entry(message).or_default() += 1;
        }
        if let Some(turn) = turn {
            self.lost.push((turn, Some("it could not be resumed; the log says why")));
        }
        Ok(())
    }

    /// A message that cannot be begun ends, with its sentence in the chat: it must not hold up its thread for ever.
    async fn refuse(&self, message: InboxId) -> Result<(), StoreError> {
        let now = self.services.clock.now();
        self.services
            .store
            .write("refuse a message", move |db| {
                let Some(row) = inbox::get(db, message)? else { return Ok(()) };
                let told = EndReason::InputBlocked.sentence().unwrap_or_default();
                if inbox::end_alone(db, message, Some(told), now)?
                    && let Some(target) = target_of(&row)
                {
                    outbox::insert(db, &target, (Some(row.session), None), &reply::plain(told), now)?;
                }
                let detail = json!({ "message": message, "reason": EndReason::InputBlocked });
                let entry = Entry { session: Some(row.session), kind: "message.refused", detail, ..Entry::default() };
                timeline::append(db, &entry, now)
            })
            .await?;
        self.services.wake_couriers();
        Ok(())
    }

    fn is_at_work(&self, session: SessionId) -> bool {
        self.at_work.values().any(|(busy, _)| *busy == session)
    }

    /// `/stop`, `/status`: answered without waiting for the queue.
    async fn answer_urgent(&self) -> Result<(), StoreError> {
        let rows = self.services.store.read("look for commands", inbox::urgent).await?;
        for row in rows {
            let (session, now) = (row.session, self.services.clock.now());
            let running = self.services.hub.running(session);
            let answer = if row.command.as_deref() == Some("stop") {
                None
            } else {
                let status = status::status(&self.services).await?;
                Some(commands::status_line(&status, running.is_some()))
            };
            let is_operator = self.is_operator(&row);
            let stopped = self
                .services
                .store
                .write("answer a command", move |db| {
                    let (answer, stopped) = match answer {
                        Some(answer) => (Some(answer), None),
                        None => stop_turn(db, &row, is_operator, now)?,
                    };
                    if !inbox::end_alone(db, row.id, answer.as_deref(), now)? {
                        return Ok(None);
                    }
                    if let (Some(answer), Some(target)) = (answer, target_of(&row)) {
                        outbox::insert(db, &target, (Some(row.session), None), &reply::plain(&answer), now)?;
                    }
                    let detail = json!({ "command": row.command, "message": row.id });
                    let entry = Entry { session: Some(row.session), kind: "command.done", detail, ..Entry::default() };
                    timeline::append(db, &entry, now)?;
                    Ok(stopped)
                })
                .await?;
            if let Some(running) = running.filter(|running| Some(running.turn) == stopped) {
                running.cancel.ask();
            }
            crash_point!("desk.command_done");
            self.services.hub.nudge(session);
            self.services.wake_couriers();
        }
        Ok(())
    }

    fn is_operator(&self, row: &InboxRow) -> bool {
        if row.channel.starts_with("console:") {
            return true;
        }
        let operator = &self.services.snapshot().config.operator;
        row.channel.starts_with("telegram:") && operator.telegram.iter().any(|id| id.to_string() == row.sender)
    }

    /// Claims a session's oldest message and sets its turn to work; false when it ended without one.
    async fn begin(&mut self, next: Waiting) -> Result<bool, StoreError> {
        let services = self.services.clone();
        let session = next.session;
        let group = services.store.read("read a message", move |db| inbox::next_group(db, session)).await?;
        let Some(head) = group.first().cloned() else { return Ok(false) };
        let mode = if head.channel.starts_with("console:") { Mode::Console } else { Mode::Daemon };
        let link = services.link_now(head.link.as_deref(), (&head.channel, &head.chat), &head.sender);
        let made = match services.create_session(mode, link.as_deref()) {
            Ok(made) => made,
            Err(gone) => {
                self.ignore(head, gone.to_string()).await?;
                return Ok(false);
            }
        };
        let new = NewTurn {
            session,
            cause: if head.command.is_some() { "command" } else { "message" },
            mode: mode.as_str(),
            link: link.clone(),
            sender: head.sender.clone(),
            boot: services.boot,
            budget: made.budget,
            model: made.model_name(),
        };
        let now = services.clock.now();
        if let Some(command) = head.command.clone() {
            self.do_command(new, command, now).await?;
            return Ok(false);
        }
        let first = head.id;
        let speaker = (head.reply_to.is_some()).then(|| head.sender_name.clone());
        let opened = services
            .store
            .write("open a turn", move |db| {
                let group = inbox::next_group(db, session)?;
                if group.first().map(|row| row.id) != Some(first) {
                    return Ok(None);
                }
                open_turn(db, &new, &group, speaker.as_deref(), now).map(Some)
            })
            .await?;
        // The door has opened its turn, or an edit or a person took it out of the queue.
        let Some(opened) = opened else { return Ok(false) };
        crash_point!("desk.turn_opened");
        self.set_to_work(opened, made, (head.sender.clone(), link), target_of(&head), false).await
    }

    /// Goes on with a turn that a stop or a crash left at a checkpoint.
    async fn resume(&mut self, row: TurnRow) -> Result<(), StoreError> {
        let services = self.services.clone();
        let mode = if row.mode == Mode::Console.as_str() { Mode::Console } else { Mode::Daemon };
        let (turn, now) = (row.id, services.clock.now());
        let causes = services.store.read("read a turn's messages", move |db| inbox::of_turn(db, turn)).await?;
        let target = causes.first().and_then(target_of);
        let place = causes.first().map_or(("", ""), |cause| (&cause.channel, &cause.chat));
        let link = services.link_now(row.link.as_deref(), place, &row.sender);
        let made = services.create_session(mode, link.as_deref());
        let made = match made {
            Ok(made) if !row.cancel_asked => made,
            ended => {
                let detail = ended.err().map_or_else(|| "its end was asked for".to_owned(), |gone| gone.to_string());
                services
                    .store
                    .write("close a turn", move |db| close(db, turn, EndReason::Cancelled, &detail, now))
                    .await?;
                services.wake_couriers();
                return Ok(());
            }
        };
        let boot = services.boot;
        let mut opened = services
            .store
            .write("resume a turn", move |db| {
                let row = turns::resume(db, turn, boot)?;
                let head = chain::head(db, row.session)?;
                let entry = Entry {
                    session: Some(row.session),
                    turn: Some(turn),
                    kind: "turn.resumed",
                    detail: json!({ "crashes": row.crashes }),
                    call: None,
                };
                timeline::append(db, &entry, now)?;
                Ok(Opened {
                    session: row.session,
                    turn,
                    head: head.as_ref().map(|head| head.id),
                    first_seq: head.as_ref().map_or(1, |head| head.first_seq),
                    last_seq: head.as_ref().map_or(0, |head| head.last_seq),
                    saved: head.and_then(|head| serde_json::from_value(head.state).ok()).unwrap_or_default(),
                })
            })
            .await?;
        // What the last checkpoint does not know was spent all the same.
        opened.saved.spent = row.spent;
        let mut made = made;
        made.budget = row.budget;
        self.set_to_work(opened, made, (row.sender, link), target, true).await?;
        Ok(())
    }

    async fn set_to_work(
        &mut self,
        opened: Opened,
        made: super::Session,
        (sender, link): (String, Option<String>),
        target: Option<outbox::Target>,
        resumed: bool,
    ) -> Result<bool, StoreError> {
        let services = self.services.clone();
        let (session, turn, from) = (opened.session, opened.turn, opened.first_seq);
        let prepared = async {
            let day_over = services.day_over().await?;
            let (history, told, cancel_asked) = services
                .store
                .read("read the window", move |db| {
                    let told: bool =
                        db.query_row("select window_told from sessions where id = ?1", [session.to_string()], |row| {
                            row.get(0)
                        })?;
                    let cancel_asked = turns::get(db, turn)?.is_some_and(|row| row.cancel_asked);
                    Ok((chain::messages(db, session, from, HISTORY_MAX)?, told, cancel_asked))
                })
                .await?;
            Ok::<_, StoreError>((day_over, history, told, cancel_asked))
        };
        let (day_over, history, told, cancel_asked): (_, Vec<Numbered>, bool, bool) = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => {
                // The turn is open in the store and nobody works on it: put it aside again.
                self.lost.push((turn, None));
                return Err(error);
            }
        };
        let fixed = Arc::new(made.fixed(turn, day_over, told));
        let state = State::new(fixed, history, from, opened.last_seq, opened.saved);
        let (cancel, cancelled) = stop::channel();
        if cancel_asked {
            // Between the commit that opened it and now.
            cancel.ask();
        }
        let (mode, snapshot_of) = (made.mode, services.clone());
        let (grants_link, of) = (link.clone(), sender.clone());
        let place = target.as_ref().map(|target| (target.channel.clone(), target.chat.clone())).unwrap_or_default();
        let driver = Driver {
            store: services.store.clone(),
            models: made.models.clone(),
            plan: made.plan.clone(),
            grants: Arc::new(move || {
                let link = snapshot_of.link_now(grants_link.as_deref(), (&place.0, &place.1), &of);
                snapshot_of.grants_now(mode, link.as_deref())
            }),
            context: ToolContext {
                session,
                turn,
                mode,
                link: link.clone(),
                sender: sender.clone(),
                stop: cancelled.clone(),
            },
            clock: services.clock.clone(),
            rng: services.rng.clone(),
            audience: services.hub.clone(),
            cancel: cancelled,
            drain: services.stop.listen(),
            abort: services.abort.listen(),
            target: target.clone(),
            boot: services.boot,
            head: opened.head,
            resumed,
            lines: Vec::new(),
            model_at: 0,
        };
        services.hub.begin(session, Running { turn, sender, cancel, target, link });
        let task = self.turns.spawn(driver.drive(state));
        self.at_work.insert(task.id(), (session, turn));
        Ok(true)
    }

    /// A turn's task ended, one way or another.
    async fn done(&mut self, done: Result<(Id, Ended), tokio::task::JoinError>) {
        let (id, ended) = match done {
            Ok((id, ended)) => (id, Ok(ended)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some((session, turn)) = self.at_work.remove(&id) else { return };
        self.services.door.give_back(1);
        let target = self.services.hub.end(session).and_then(|running| running.target);
        let channel = target.map_or_else(|| CONSOLE.to_owned(), |target| target.channel);
        let now = self.services.clock.now();
        self.services.health.progress(&channel, |channel| channel.last_handled_at = Some(now));
        self.services.hub.nudge(session);
        let losses = self.losses.remove(&turn).unwrap_or_default();
        match ended {
            Ok(Ended::Concluded(reason)) => tracing::info!(%turn, %session, %reason, "A turn ended."),
            Ok(Ended::Suspended) => tracing::info!(%turn, %session, "A turn was put aside."),
            Ok(Ended::Lost(error)) => {
                tracing::error!(%turn, %session, %error, "A turn lost its store; it goes on from its last checkpoint.");
                let ends = if error.is_outage() {
                    None
                } else {
                    self.losses.insert(turn, losses + 1);
                    (losses + 1 >= STUMBLES_MAX).then_some("its checkpoints could not be stored; the log says why")
                };
                self.lost.push((turn, ends));
            }
            Err(error) => {
                tracing::error!(%turn, %session, %error, "A turn broke.");
                self.lost.push((turn, Some("its task panicked; the log says where")));
            }
        }
        self.settle_lost().await;
        self.services.wake_couriers();
    }

    /// Turns without a task get their end, or go back to the queue, once the store takes it.
    async fn settle_lost(&mut self) {
        let now = self.services.clock.now();
        let mut still = Vec::new();
        for (turn, broke) in std::mem::take(&mut self.lost) {
            let settled = self
                .services
                .store
                .write("settle a lost turn", move |db| match broke {
                    Some(detail) => close(db, turn, EndReason::Failed, detail, now),
                    None => match turns::get(db, turn)? {
                        Some(row) if row.state == "running" => turns::suspend(db, turn, &row.spent),
                        // Its last commit had gone through after all.
                        _ => Ok(()),
                    },
                })
                .await;
            match settled {
                Ok(()) => self.services.desk.notify_one(),
                Err(StoreError::Refused(_)) => {}
                Err(StoreError::Closed) => {}
                Err(error) => {
                    tracing::warn!(%turn, %error, "A lost turn could not be settled yet.");
                    still.push((turn, broke));
                }
            }
        }
        self.lost = still;
    }

    /// A message whose link was taken away while it waited: nobody is answered there any more, and its words go too.
    async fn ignore(&self, row: InboxRow, why: String) -> Result<(), StoreError> {
        let now = self.services.clock.now();
        tracing::info!(message = %row.id, why, "A message is not worked on.");
        self.services
            .store
            .write("ignore a message", move |db| {
                inbox::ignore(db, row.id, &why, now)?;
                let detail = json!({ "message": row.id, "why": why });
                let entry = Entry { session: Some(row.session), kind: "message.ignored", detail, ..Entry::default() };
                timeline::append(db, &entry, now)
            })
            .await
    }

    /// `/new` and `/help`: a turn without a model, in one commit.
    async fn do_command(&self, new: NewTurn, command: String, now: Timestamp) -> Result<(), StoreError> {
        let session = new.session;
        let (turn, shown) = self
            .services
            .store
            .write("do a command", move |db| {
                let group = inbox::next_group(db, session)?;
                let Some(row) = group.first() else {
                    return Err(StoreError::Refused("the message is no longer waiting".to_owned()));
                };
                let turn = turns::open(db, &new, now)?;
                inbox::begin(db, &group, turn)?;
                let head = chain::head(db, session)?;
                let (mut first_seq, last_seq) = head.as_ref().map_or((1, 0), |head| (head.first_seq, head.last_seq));
                let shown = if command == "new" {
                    first_seq = last_seq + 1;
                    commands::NEW.to_owned()
                } else {
                    commands::help()
                };
                let checkpoint = NewCheckpoint {
                    session,
                    parent: head.as_ref().map(|head| head.id),
                    turn,
                    round: 0,
                    kind: Kind::Concluded,
                    first_seq,
                    messages: Vec::new(),
                    state: serde_json::to_value(Saved::default())?,
                };
                chain::commit(db, &checkpoint, now)?;
                let spent = crate::domain::Spent::default();
                turns::end(db, turn, EndReason::Natural, None, &spent, now)?;
                inbox::end_of_turn(db, turn, None, now)?;
                if command == "new" {
                    db.execute("update sessions set window_told = 0 where id = ?1", [session.to_string()])?;
                }
                match target_of(row) {
                    Some(target) => {
                        outbox::insert(db, &target, (Some(session), Some(turn)), &reply::plain(&shown), now)?;
                    }
                    None => inbox::answer(db, turn, &shown)?,
                }
                let detail = json!({ "command": command });
                let entry =
                    Entry { session: Some(session), turn: Some(turn), call: None, kind: "command.done", detail };
                timeline::append(db, &entry, now)?;
                Ok((turn, shown))
            })
            .await?;
        crash_point!("desk.command_done");
        let ended = News::Ended { turn, reason: EndReason::Natural, text: shown };
        self.services.hub.hear(session, ended);
        self.services.wake_couriers();
        Ok(())
    }
}

/// `/stop`: ends the session's open turn if `row`'s sender may. Returns what the sender is told at once, and the turn
/// whose task is to be told; a turn that is at work says "Stopped." itself.
fn stop_turn(
    db: &rusqlite::Connection,
    row: &InboxRow,
    is_operator: bool,
    now: Timestamp,
) -> Result<(Option<String>, Option<TurnId>), StoreError> {
    let Some(open) = turns::open_of(db, row.session)? else {
        return Ok((Some(commands::NOTHING_RUNS.to_owned()), None));
    };
    if open.sender != row.sender && !is_operator {
        return Ok((Some(commands::NOT_YOURS.to_owned()), None));
    }
    turns::ask_cancel(db, open.id)?;
    if open.state == "suspended" {
        close(db, open.id, EndReason::Cancelled, "its end was asked for", now)?;
    }
    Ok((None, Some(open.id)))
}
