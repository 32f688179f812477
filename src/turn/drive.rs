//! Does what [`step()`] asks, under the turn's deadline, and feeds the results back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::attempt::{self, Then};
use super::news::{Audience, News};
use super::state::{Conclusion, Effect, Event, State};
use super::step;
use crate::domain::{BootId, CallId, CheckpointId, Clock, EndReason, Rng, SessionId, Stop, TurnId};
use crate::gate::{self, BoundToolPlan, Outcome, ToolContext};
use crate::model::{Choice, ModelError, Request};
use crate::policy::Grants;
use crate::reply;
use crate::store::chain::{self, Kind, NewCheckpoint};
use crate::store::outbox::{self, Target};
use crate::store::timeline::{self, Entry};
use crate::store::{Store, StoreError, inbox, turns};

/// Tries of one commit while the store does not take writes; with the waits between, about twenty minutes.
const COMMIT_TRIES: u32 = 45;
/// First and longest wait between them.
const COMMIT_WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// All that one turn runs with.
pub struct Driver {
    /// The store.
    pub store: Store,
    /// The models: the first answers, the others stand in for it.
    pub models: Arc<[Choice]>,
    /// The tools, fixed for the turn.
    pub plan: Arc<BoundToolPlan>,
    /// The grants of the present snapshot: a reload can only narrow, because the plan stays.
    pub grants: Arc<dyn Fn() -> Arc<Grants> + Send + Sync>,
    /// For the tools.
    pub context: ToolContext,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub rng: Arc<dyn Rng>,
    /// Who watches.
    pub audience: Arc<dyn Audience>,
    /// Asked when someone who may wants the turn to end.
    pub cancel: Stop,
    /// Asked when the daemon stops: the turn is put aside at its next checkpoint.
    pub drain: Stop,
    /// Asked when the daemon waits no longer: the turn is put aside where it is.
    pub abort: Stop,
    /// Where the answer goes; the console reads it from the store instead.
    pub target: Option<Target>,
    /// This start of the daemon.
    pub boot: BootId,
    /// The newest checkpoint.
    pub head: Option<CheckpointId>,
    /// Goes on after a crash or a stop.
    pub resumed: bool,
    /// Lines of the timeline that wait for the next commit.
    pub lines: Vec<Entry>,
    /// Number of the model that answered last.
    pub model_at: usize,
}

/// How driving ended.
#[derive(Debug)]
pub enum Ended {
    /// The turn has its end.
    Concluded(EndReason),
    /// It was put aside at a checkpoint and goes on after the next start.
    Suspended,
    /// The store did not take its next checkpoint. The turn stands where its last one is.
    Lost(StoreError),
}

/// What broke into a wait.
enum Broke {
    Cancelled,
    OutOfTime,
    Aborted,
}

impl Driver {
    fn session(&self) -> SessionId {
        self.context.session
    }

    fn turn(&self) -> TurnId {
        self.context.turn
    }

    /// Runs the turn to its end, or to where it has to be put aside.
    pub async fn drive(mut self, mut state: State) -> Ended {
        let began = self.clock.monotonic();
        let spent_before = state.saved.spent.time_ms;
        let deadline = began + state.fixed.budget.time_left(&state.saved.spent, self.resumed);
        state.saved.plan_hash = self.plan.hash().to_owned();
        self.audience.hear(self.session(), News::Opened { turn: self.turn() });
        let mut event = Event::Begin;
        loop {
            state.saved.spent.time_ms = spent_before + millis(self.clock.monotonic().saturating_sub(began));
            let (next, effect) = step(state, event);
            state = next;
            event = match effect {
                Effect::Conclude(conclusion) => return self.conclude(&state, conclusion).await,
                // At a checkpoint nothing is half done, so here is where a stop takes hold.
                _ if self.drain.is_asked() && !matches!(effect, Effect::Commit { .. }) => {
                    return self.suspend(&state).await;
                }
                Effect::Commit { kind, messages } => match self.commit(&state, kind, messages).await {
                    Ok(()) => Event::Committed,
                    Err(error) => return Ended::Lost(error),
                },
                Effect::Call(request) => {
                    match self.ask(&request, deadline).await {
                        Ok(Ok((attempt, at))) => {
                            let cost = self.models.get(at).map_or(0.0, |model| model.cost_usd(&attempt.usage));
                            // A turn that has changed its model stays with it.
                            self.model_at = at;
                            Event::Answered(attempt, cost)
                        }
                        Ok(Err((error, _))) => {
                            tracing::warn!(turn = %self.turn(), %error, "The model call failed.");
                            // A wait that would have passed the deadline ends the turn as out of time only if the
                            // provider was merely busy; a broken one is told as what it is.
                            Event::Failed(error)
                        }
                        Err(Broke::Cancelled) => Event::Halt(EndReason::Cancelled),
                        Err(Broke::OutOfTime) => Event::Halt(EndReason::TimeBudget),
                        Err(Broke::Aborted) => return self.suspend(&state).await,
                    }
                }
                Effect::Run(batch) => {
                    crash_point!("turn.before_tools");
                    for proposed in &batch {
                        let tool: String = proposed.wish.name.chars().take(80).collect();
                        self.audience.hear(self.session(), News::Call { call: proposed.call, tool });
                    }
                    let grants = (self.grants)();
                    let left = deadline.saturating_sub(self.clock.monotonic());
                    let running = gate::run_batch(&self.plan, &grants, &self.context, batch, left);
                    match self.within(deadline, running).await {
                        Ok(outcomes) => {
                            self.note_passages(&outcomes);
                            crash_point!("turn.after_tools");
                            Event::Ran(outcomes)
                        }
                        Err(Broke::Cancelled) => Event::Halt(EndReason::Cancelled),
                        Err(Broke::OutOfTime) => Event::Halt(EndReason::TimeBudget),
                        Err(Broke::Aborted) => return self.suspend(&state).await,
                    }
                }
            };
        }
    }

    /// One model call; what was tried goes into the timeline with the next commit.
    async fn ask(
        &mut self,
        request: &Request,
        deadline: Duration,
    ) -> Result<Result<attempt::Answer, (ModelError, usize)>, Broke> {
        let (tries, switches) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let name = |at: usize| self.models.get(at).map_or("none", |model| model.client.name());
        let asked = {
            let on_text = |text: &str| {
                self.audience.hear(self.session(), News::Text { text: text.to_owned() });
            };
            let on_failure = |at: usize, error: &ModelError, then: Then| {
                self.audience.asked(name(at), Some(error), self.clock.now());
                let (class, message) = (error.class, &error.message);
                match then {
                    Then::Again(wait) => {
                        tracing::warn!(turn = %self.turn(), model = name(at), %error, wait_ms = millis(wait), "The model did not answer; trying again.");
                        let line = json!({ "class": class, "message": message, "wait_ms": millis(wait) });
                        tries.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                    Then::Next(next) => {
                        tracing::warn!(turn = %self.turn(), from = name(at), to = name(next), %error, "The model did not answer; another one is asked.");
                        let line = json!({ "from": name(at), "to": name(next), "class": class, "message": message });
                        switches.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                }
                self.audience.hear(self.session(), News::Restarted);
            };
            let seams = (self.clock.as_ref(), self.rng.as_ref());
            let asking = attempt::ask((&self.models, self.model_at), request, seams, deadline, &on_text, &on_failure);
            self.within(deadline, asking).await
        };
        match &asked {
            Ok(Ok((_, at))) => self.audience.asked(name(*at), None, self.clock.now()),
            Ok(Err((error, at))) => self.audience.asked(name(*at), Some(error), self.clock.now()),
            Err(_) => {}
        }
        let tries = tries.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !tries.is_empty() {
            self.note(None, "model.retried", json!({ "tries": tries }));
        }
        for switch in switches.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.note(None, "model.fallback", switch);
        }
        asked
    }

    /// Waits for `work` until the turn is cancelled, out of time or given up.
    async fn within<T>(&self, deadline: Duration, work: impl Future<Output = T>) -> Result<T, Broke> {
        let left = deadline.saturating_sub(self.clock.monotonic());
        tokio::select! {
            biased;
            () = self.cancel.asked() => Err(Broke::Cancelled),
            () = self.abort.asked() => Err(Broke::Aborted),
            done = work => Ok(done),
            () = tokio::time::sleep(left) => Err(Broke::OutOfTime),
        }
    }

    async fn commit(
        &mut self,
        state: &State,
        kind: Kind,
        messages: Vec<crate::domain::Message>,
    ) -> Result<(), StoreError> {
        let new = self.checkpoint(state, kind, messages);
        let (spent, turn) = (state.saved.spent, self.turn());
        let clock = self.clock.clone();
        let lines = std::mem::take(&mut self.lines);
        let id = self
            .safely("commit a checkpoint", move |db| {
                let now = clock.now();
                let (id, _) = chain::commit(db, &new, now)?;
                turns::spend(db, turn, &spent)?;
                lines.iter().try_for_each(|line| timeline::append(db, line, now))?;
                Ok(id)
            })
            .await?;
        self.head = Some(id);
        crash_point!("turn.checkpoint");
        Ok(())
    }

    fn checkpoint(&self, state: &State, kind: Kind, messages: Vec<crate::domain::Message>) -> NewCheckpoint {
        NewCheckpoint {
            session: self.session(),
            parent: self.head,
            turn: self.turn(),
            round: state.saved.spent.rounds,
            kind,
            first_seq: state.first_seq,
            messages,
            // Plain data of ours always serialises.
            state: serde_json::to_value(&state.saved).unwrap_or_default(),
        }
    }

    /// Commits a change that moves the head, through outages of the store, without ever doing it twice.
    async fn safely(
        &self,
        operation: &'static str,
        change: impl Fn(&rusqlite::Connection) -> Result<CheckpointId, StoreError> + Send + Sync + Clone + 'static,
    ) -> Result<CheckpointId, StoreError> {
        let mut wait = COMMIT_WAITS.0;
        let mut tries = 0;
        loop {
            let change = change.clone();
            let error = match self.store.write(operation, move |db| change(db)).await {
                Ok(id) => return Ok(id),
                Err(error) => error,
            };
            tries += 1;
            if !error.is_outage() || matches!(error, StoreError::Closed) || tries >= COMMIT_TRIES {
                return Err(error);
            }
            tokio::select! {
                biased;
                () = self.abort.asked() => return Err(error),
                () = tokio::time::sleep(self.rng.jitter(wait)) => {}
            }
            wait = (wait * 2).min(COMMIT_WAITS.1);
            if error.is_unknown() {
                // Only we hold the session's lease, so a head that moved was moved by this very commit.
                let session = self.session();
                let head = self.store.read("read the head", move |db| chain::head(db, session)).await;
                if let Ok(Some(head)) = head
                    && Some(head.id) != self.head
                {
                    return Ok(head.id);
                }
            }
        }
    }

    /// The one commit that ends a turn: end, last messages, checkpoint, answer, inbox row.
    async fn conclude(&mut self, state: &State, conclusion: Conclusion) -> Ended {
        let checkpoint = self.checkpoint(state, Kind::Concluded, conclusion.messages.clone());
        let mut shown = conclusion.shown.clone();
        if conclusion.tells_window {
            shown.push_str(
                "\n\n_(This conversation has outgrown what the model takes at once: its oldest part is kept but no \
                 longer sent along. /new starts afresh.)_",
            );
        }
        let answer = shown.clone();
        let parts = if self.target.is_some() { reply::parts(&shown) } else { Vec::new() };
        let (target, turn, session) = (self.target.clone(), self.turn(), self.session());
        let (spent, reason, tells) = (state.saved.spent, conclusion.reason, conclusion.tells_window);
        let detail = conclusion.detail.clone();
        let clock = self.clock.clone();
        self.note(
            None,
            "turn.ended",
            json!({
                "reason": reason, "rounds": spent.rounds, "input_tokens": spent.input_tokens,
                "output_tokens": spent.output_tokens, "time_ms": spent.time_ms, "detail": detail,
            }),
        );
        let lines = std::mem::take(&mut self.lines);
        let ended = self
            .safely("conclude a turn", move |db| {
                let now = clock.now();
                let (id, _) = chain::commit(db, &checkpoint, now)?;
                turns::end(db, turn, reason, detail.as_deref(), &spent, now)?;
                inbox::end_of_turn(db, turn, None, now)?;
                if let Some(target) = &target {
                    outbox::insert(db, target, (Some(session), Some(turn)), &parts, now)?;
                }
                if target.is_none() && tells {
                    // The console reads its answer from the store, where the last message lacks the note.
                    inbox::answer(db, turn, &answer)?;
                }
                if tells {
                    db.execute("update sessions set window_told = 1 where id = ?1", [session.to_string()])?;
                }
                lines.iter().try_for_each(|line| timeline::append(db, line, now))?;
                Ok(id)
            })
            .await;
        match ended {
            Ok(_) => {
                crash_point!("turn.concluded");
                if let Some(detail) = &conclusion.detail {
                    tracing::warn!(turn = %turn, reason = %reason, detail, "A turn ended with something to look at.");
                }
                self.audience.hear(session, News::Ended { turn, reason, text: shown });
                Ended::Concluded(reason)
            }
            Err(error) => Ended::Lost(error),
        }
    }

    async fn suspend(&mut self, state: &State) -> Ended {
        let (turn, session) = (self.turn(), self.session());
        let (spent, clock) = (state.saved.spent, self.clock.clone());
        self.note(None, "turn.suspended", json!({}));
        let lines = std::mem::take(&mut self.lines);
        let put_aside = self.store.write("put a turn aside", move |db| {
            turns::suspend(db, turn, &spent)?;
            let now = clock.now();
            lines.iter().try_for_each(|line| timeline::append(db, line, now))
        });
        match put_aside.await {
            Ok(()) => {
                self.audience.hear(session, News::Suspended { turn });
                Ended::Suspended
            }
            Err(error) => Ended::Lost(error),
        }
    }

    /// Lines of the timeline go into the turn's next commit: they cost none of their own.
    fn note(&mut self, call: Option<CallId>, kind: &'static str, detail: serde_json::Value) {
        let (session, turn) = (self.session(), self.turn());
        self.lines.push(Entry { session: Some(session), turn: Some(turn), call, kind, detail });
    }

    /// Every call's way through the gate, refused ones too.
    fn note_passages(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let (call, is_error) = (outcome.passage.call, outcome.is_error);
            self.audience.hear(self.session(), News::Result { call, is_error });
            let kind = match &outcome.passage {
                passage if passage.refused.is_some() => "call.refused",
                passage if passage.failed => "call.failed",
                _ => "call.done",
            };
            // Plain data of ours always serialises.
            self.note(Some(call), kind, serde_json::to_value(&outcome.passage).unwrap_or_default());
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
