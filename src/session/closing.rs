//! Closes turns that cannot close themselves: parked ones, and ones whose task broke. The chain gets its `concluded`
//! checkpoint, an open batch its results, the chat its sentence.

use rusqlite::Connection;

use crate::domain::{Block, EndReason, Message, Origin, Role, Timestamp, TurnId};
use crate::reply;
use crate::store::chain::{self, Kind, NewCheckpoint};
use crate::store::inbox::InboxRow;
use crate::store::outbox::{self, Target};
use crate::store::timeline::{self, Entry};
use crate::store::{StoreError, inbox, turns};

/// Messages of a broken turn that are looked at for open calls.
const LOOK_BACK: i64 = 500;

/// Where the answer to `row` goes; none for the console, which reads it from the store.
#[must_use]
pub fn target_of(row: &InboxRow) -> Option<Target> {
    (!row.channel.starts_with("console:")).then(|| Target {
        channel: row.channel.clone(),
        chat: row.chat.clone(),
        thread: row.topic.clone(),
        reply_to: row.reply_to.clone(),
    })
}

/// Ends `turn` from outside, with its sentence in the chat.
///
/// # Errors
/// SQLite's, and [`StoreError::Refused`] when it has ended before.
pub fn close(db: &Connection, turn: TurnId, reason: EndReason, detail: &str, now: Timestamp) -> Result<(), StoreError> {
    let row = turns::get(db, turn)?.ok_or_else(|| StoreError::Refused(format!("{turn} is unknown")))?;
    let head = chain::head(db, row.session)?;
    let last_seq = head.as_ref().map_or(0, |head| head.last_seq);
    let recent = chain::messages(db, row.session, (last_seq - LOOK_BACK).max(1), LOOK_BACK + 1)?;
    let own = || recent.iter().filter(|numbered| numbered.turn == turn).map(|numbered| &numbered.message);
    let answered: Vec<_> = own().flat_map(Message::results).collect();
    let open = own().flat_map(Message::calls).filter(|call| !answered.contains(call)).map(|call| Block::ToolResult {
        call,
        text: "Interrupted: the outcome of this call is not known.".to_owned(),
        is_error: true,
        origin: Origin::Operator,
    });
    let open: Vec<Block> = open.collect();

    let sentence = reason.sentence().unwrap_or("This ended without an answer.");
    let shown = if reason.names_turn() { format!("{sentence} ({turn})") } else { sentence.to_owned() };
    let mut messages = Vec::new();
    if !open.is_empty() {
        messages.push(Message { role: Role::Tool, blocks: open });
    }
    messages.push(Message::text(Role::Assistant, shown.clone(), Origin::Operator));
    let checkpoint = NewCheckpoint {
        session: row.session,
        parent: head.as_ref().map(|head| head.id),
        turn,
        round: row.spent.rounds,
        kind: Kind::Concluded,
        first_seq: head.as_ref().map_or(1, |head| head.first_seq),
        messages,
        state: head.map_or(serde_json::Value::Null, |head| head.state),
    };
    chain::commit(db, &checkpoint, now)?;
    let causes = inbox::of_turn(db, turn)?;
    turns::end(db, turn, reason, Some(detail), &row.spent, now)?;
    let dead = (reason == EndReason::Parked).then_some("parked");
    inbox::end_of_turn(db, turn, dead, now)?;
    if let Some(target) = causes.first().and_then(target_of) {
        outbox::insert(db, &target, (Some(row.session), Some(turn)), &reply::plain(&shown), now)?;
    }
    let detail = serde_json::json!({ "reason": reason, "detail": detail });
    timeline::append(
        db,
        &Entry { session: Some(row.session), turn: Some(turn), call: None, kind: "turn.ended", detail },
        now,
    )
}

/// Puts the messages of a parked turn back into the queue, for a new turn.
///
/// # Errors
/// [`StoreError::Refused`] when it is not parked; SQLite's.
pub fn retry(db: &Connection, turn: TurnId, now: Timestamp) -> Result<(), StoreError> {
    settle(db, turn, "turn.retried", now)?;
    db.execute(
        "update inbox set state = 'new', turn = null, joined_to = null, reason = null, ended_at_ms = null, not_before_ms = 0
          where turn = ?1 and state in ('dead', 'joined')",
        [turn.row()],
    )?;
    Ok(())
}

/// Gives a parked turn up: it needs nobody any more.
///
/// # Errors
/// [`StoreError::Refused`] when it is not parked; SQLite's.
pub fn drop_turn(db: &Connection, turn: TurnId, now: Timestamp) -> Result<(), StoreError> {
    settle(db, turn, "turn.dropped", now)?;
    db.execute("update inbox set state = 'done', reason = 'dropped' where turn = ?1 and state = 'dead'", [turn.row()])?;
    Ok(())
}

fn settle(db: &Connection, turn: TurnId, kind: &'static str, now: Timestamp) -> Result<(), StoreError> {
    let changed = db.execute("update turns set state = 'done' where id = ?1 and state = 'parked'", [turn.row()])?;
    let row = turns::get(db, turn)?;
    match (changed, row) {
        (1, Some(row)) => {
            let detail = serde_json::json!({});
            timeline::append(db, &Entry { session: Some(row.session), turn: Some(turn), call: None, kind, detail }, now)
        }
        (_, Some(row)) => {
            Err(StoreError::Refused(format!("{turn} is {}; only parked turns can be acted on", row.state)))
        }
        (_, None) => {
            Err(StoreError::Refused(format!("{turn} is unknown; `midwatch turns` lists what can be acted on")))
        }
    }
}
