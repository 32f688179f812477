//! The door: messages come in, and where their session is free their turn is opened in the very commit that stores
//! them. A plain turn so costs one commit less, and a message that finds everything busy waits in the inbox as ever.
//!
//! ```text
//! arrivals ─▶ one commit: inbox rows + cursor [+ lease, turn, first message, checkpoint `opened`] ─▶ the desk's hands
//! ```
//! Places are counted in one spot for desk and door, so that together they never set more turns to work than allowed.

use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;
use serde_json::json;

use super::closing::target_of;
use super::{Session, SharedServices};
use crate::domain::{Block, CheckpointId, InboxId, Message, Origin, Role, SessionId, Timestamp, TurnId};
use crate::policy::Mode;
use crate::store::chain::{self, Kind, NewCheckpoint};
use crate::store::inbox::{self, Accepted, Arrival, InboxRow};
use crate::store::outbox::Target;
use crate::store::timeline::{self, Entry};
use crate::store::turns::{self, NewTurn};
use crate::store::{StoreError, savepoint};
use crate::turn::{Saved, prompt};

/// An open turn, as the store knows it.
pub(super) struct Opened {
    pub(super) session: SessionId,
    pub(super) turn: TurnId,
    pub(super) head: Option<CheckpointId>,
    pub(super) first_seq: i64,
    pub(super) last_seq: i64,
    pub(super) saved: Saved,
}

/// A turn that the door opened, on its way to the desk.
pub(super) struct Handed {
    pub(super) opened: Opened,
    pub(super) made: Session,
    pub(super) sender: String,
    pub(super) target: Option<Target>,
}

/// Places for turns, and what the door has opened for the desk.
#[derive(Default)]
pub struct Door(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Turns that may be at work at one time.
    limit: usize,
    /// Places taken: turns at work, handed over, or about to be opened.
    taken: usize,
    /// The desk has work for every free place; what comes in waits its turn behind that.
    is_busy: bool,
    /// Commits of the door that may open turns and have not ended.
    in_flight: usize,
    /// Places that those hold.
    reserved: usize,
    /// Ends of such commits so far.
    ended: u64,
    handed: Vec<Handed>,
}

impl Door {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A desk with nothing at work: an earlier one's places are free again.
    pub(super) fn start_anew(&self) {
        let mut inner = self.inner();
        inner.taken = inner.reserved + inner.handed.len();
        inner.is_busy = false;
    }

    /// Sets how many turns may be at work.
    pub(super) fn set_limit(&self, limit: usize) {
        self.inner().limit = limit;
    }

    /// Takes a place for a turn of the desk's own; false when there is none.
    pub(super) fn take_place(&self) -> bool {
        let mut inner = self.inner();
        let free = inner.taken < inner.limit;
        inner.taken += usize::from(free);
        free
    }

    /// Gives places back.
    pub(super) fn give_back(&self, places: usize) {
        let mut inner = self.inner();
        inner.taken = inner.taken.saturating_sub(places);
    }

    /// Whether the desk has more work than places.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.inner().is_busy = is_busy;
    }

    /// What the door has opened since the last call; each holds a place.
    pub(super) fn take_handed(&self) -> Vec<Handed> {
        std::mem::take(&mut self.inner().handed)
    }

    /// A mark for [`Door::is_still`].
    pub(super) fn mark(&self) -> u64 {
        self.inner().ended
    }

    /// Whether no turn can have been opened here since `mark`, or be on its way to the desk.
    pub(super) fn is_still(&self, mark: u64) -> bool {
        let inner = self.inner();
        inner.in_flight == 0 && inner.ended == mark && inner.handed.is_empty()
    }

    fn begin(&self, wanted: usize) -> usize {
        let mut inner = self.inner();
        let free = if inner.is_busy { 0 } else { inner.limit.saturating_sub(inner.taken) };
        let places = wanted.min(free);
        inner.taken += places;
        inner.reserved += places;
        inner.in_flight += 1;
        places
    }
}

/// Places and the commit of one batch; whatever happens to it, they are given back.
struct Passing<'a> {
    door: &'a Door,
    /// Held while the batch is on its way.
    places: usize,
    /// Of those, the ones that go along to the desk.
    handed: usize,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        let mut inner = self.door.inner();
        inner.taken = inner.taken.saturating_sub(self.places - self.handed);
        inner.reserved = inner.reserved.saturating_sub(self.places);
        inner.in_flight -= 1;
        inner.ended += 1;
    }
}

/// What a turn of an arrival would be opened with.
struct Ready {
    at: usize,
    made: Session,
    new: NewTurn,
    speaker: Option<String>,
}

/// Stores `arrivals` in order, moves `cursor` (a channel and its newest number), runs `also` in the same transaction,
/// and opens the turns of those that need not wait. Returns what became of each arrival.
///
/// # Errors
/// The store's: nothing of the batch stands, or after [`StoreError::CommitUnknown`] perhaps all of it. `also`'s.
pub async fn take_in(
    services: &SharedServices,
    mode: Mode,
    arrivals: Vec<Arrival>,
    cursor: Option<(String, i64)>,
    also: impl FnOnce(&Connection, &[Arrival], &[Accepted]) -> Result<(), StoreError> + Send + 'static,
) -> Result<Vec<Accepted>, StoreError> {
    let now = services.clock.now();
    let candidates: Vec<usize> =
        arrivals.iter().enumerate().filter(|(_, arrival)| may_start(arrival, now)).map(|(at, _)| at).collect();
    let may_open = !candidates.is_empty() && !services.stop.listen().is_asked();
    let wanted = if may_open { candidates.len() } else { 0 };
    let mut passing = Passing { door: &services.door, places: services.door.begin(wanted), handed: 0 };
    let mut ready = Vec::new();
    for at in candidates.into_iter().take(passing.places) {
        ready.extend(arrivals.get(at).and_then(|arrival| prepare(services, mode, at, arrival)));
    }
    let written = services.store.write("take messages in", move |db| {
        let accepted = inbox::accept(db, &arrivals, cursor.as_ref().map(|(channel, at)| (channel.as_str(), *at)), now)?;
        also(db, &arrivals, &accepted)?;
        let mut handed = Vec::new();
        for ready in ready {
            let (at, Ready { new, speaker, made, .. }) = (ready.at, ready);
            let Some(Accepted::New(id)) = accepted.get(at).copied() else { continue };
            // A turn that cannot be opened here must not keep its message out: the desk tries it again.
            let opened = savepoint(db, "opening", || open_new(db, id, new, speaker.as_deref(), now))?;
            if let Some((opened, row)) = opened.flatten() {
                handed.push(Handed { opened, made, target: target_of(&row), sender: row.sender });
            }
        }
        Ok((accepted, handed))
    });
    let (accepted, handed) = written.await?;
    passing.handed = handed.len().min(passing.places);
    services.door.inner().handed.extend(handed);
    drop(passing);
    Ok(accepted)
}

/// Whether a turn could begin with it at once: commands are the desk's, and what may belong together waits.
fn may_start(arrival: &Arrival, now: Timestamp) -> bool {
    arrival.taken.is_ok()
        && arrival.command.is_none()
        && arrival.album.is_none()
        && !arrival.is_edit
        && !arrival.near_limit
        && arrival.not_before <= now
}

fn prepare(services: &SharedServices, mode: Mode, at: usize, arrival: &Arrival) -> Option<Ready> {
    let link = arrival.taken.as_ref().ok()?.clone();
    let made = services.create_session(mode, link.as_deref()).ok()?;
    let new = NewTurn {
        session: SessionId::of_key(&arrival.thread.to_string()),
        cause: "message",
        mode: mode.as_str(),
        link,
        sender: arrival.sender.clone(),
        boot: services.boot,
        budget: made.budget,
        model: made.model_name(),
    };
    let speaker = arrival.reply_to.is_some().then(|| arrival.sender_name.clone());
    Some(Ready { at, made, new, speaker })
}

/// Opens the turn of message `id` if its session is free and nothing of it waits before.
fn open_new(
    db: &Connection,
    id: InboxId,
    mut new: NewTurn,
    speaker: Option<&str>,
    now: Timestamp,
) -> Result<Option<(Opened, InboxRow)>, StoreError> {
    let Some(row) = inbox::get(db, id)? else { return Ok(None) };
    // A thread that got a new key keeps its session.
    new.session = row.session;
    if !inbox::is_free(db, row.session)? {
        return Ok(None);
    }
    let group = inbox::next_group(db, row.session)?;
    if group.first().map(|first| first.id) != Some(id) || group.len() != 1 {
        return Ok(None);
    }
    let opened = open_turn(db, &new, &group, speaker, now)?;
    Ok(Some((opened, row)))
}

/// Opens the turn of `group`: lease, inbox rows, first message, `opened` checkpoint, in the caller's transaction.
pub(super) fn open_turn(
    db: &rusqlite::Connection,
    new: &NewTurn,
    group: &[InboxRow],
    speaker: Option<&str>,
    now: Timestamp,
) -> Result<Opened, StoreError> {
    let turn = turns::open(db, new, now)?;
    inbox::begin(db, group, turn)?;
    let head = chain::head(db, new.session)?;
    let parent = head.as_ref().map(|head| head.id);
    let first_seq = head.as_ref().map_or(1, |head| head.first_seq);
    let saved = Saved::default();
    let checkpoint = NewCheckpoint {
        session: new.session,
        parent,
        turn,
        round: 0,
        kind: Kind::Opened,
        first_seq,
        messages: vec![cause(group, new, speaker, now)],
        state: serde_json::to_value(&saved)?,
    };
    let (id, last_seq) = chain::commit(db, &checkpoint, now)?;
    let joined: Vec<_> = group.iter().map(|row| row.id).collect();
    let detail = json!({ "messages": joined, "link": new.link, "model": new.model });
    let entry = Entry { session: Some(new.session), turn: Some(turn), call: None, kind: "turn.opened", detail };
    timeline::append(db, &entry, now)?;
    Ok(Opened { session: new.session, turn, head: Some(id), first_seq, last_seq, saved })
}

/// The turn's first message: the time and the budget, words of others, then what the sender said.
fn cause(group: &[InboxRow], new: &NewTurn, speaker: Option<&str>, now: Timestamp) -> Message {
    let mut blocks = vec![Block::Text { text: prompt::context(now, &new.budget, speaker), origin: Origin::Operator }];
    for row in group {
        blocks.extend(row.outside.iter().cloned());
        if !row.text.is_empty() {
            // Halves of one long text were one text before the platform cut it.
            let half = matches!(blocks.last(), Some(Block::Text { origin: Origin::Cause, .. })) && row.album.is_none();
            match blocks.last_mut() {
                Some(Block::Text { text, .. }) if half => text.push_str(&row.text),
                _ => blocks.push(Block::Text { text: row.text.clone(), origin: Origin::Cause }),
            }
        }
    }
    Message { role: Role::User, blocks }
}
