//! Inbound messages: a row before anything is acknowledged, and the state of a row ever after.
//!
//! ```text
//! new ──▶ running ──▶ done | dead          joined: part of the message it names (albums, halves of a long text)
//! ignored: not linked, not listed, not addressed; its words are not kept
//! ```

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::StoreError;
use crate::domain::{Block, InboxId, Message, Role, SessionId, ThreadKey, Timestamp, TurnId};

/// Most messages joined into one turn.
pub const JOIN_MAX: usize = 12;

/// A message as a channel brings it in.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// `kind:account`.
    pub channel: String,
    /// The platform's number for this delivery.
    pub update_key: String,
    /// The platform's number for this message within `thread.chat`.
    pub message_key: String,
    /// Where it was written, and so where the answer goes.
    pub thread: ThreadKey,
    /// The platform's immutable id of who wrote.
    pub sender: String,
    /// For people, never for rights.
    pub sender_name: String,
    /// For people, never for rights.
    pub chat_name: String,
    /// The words.
    pub text: String,
    /// Words of others that came along: forwarded or quoted.
    pub outside: Vec<Block>,
    /// A command that is not for the model, without its slash.
    pub command: Option<String>,
    /// Skips the queue.
    pub urgent: bool,
    /// Where within the chat the answer goes.
    pub topic: Option<String>,
    /// The delivery as it came, when no type of ours fits it and it is from a linked chat.
    pub raw: Option<String>,
    /// Groups pictures sent together.
    pub album: Option<String>,
    /// The text reached the platform's limit.
    pub near_limit: bool,
    /// The message the answer refers to, where chats have many speakers.
    pub reply_to: Option<String>,
    /// Not before this, so that what belongs together can come together.
    pub not_before: Timestamp,
    /// It replaces the words of an earlier message instead of being one.
    pub is_edit: bool,
    /// Taken up for this link, or ignored for this reason.
    pub taken: Result<Option<String>, &'static str>,
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// A new row that will be worked on.
    New(InboxId),
    /// A new row that will not.
    Ignored(InboxId),
    /// Known before: nothing changed.
    Known,
    /// The words of a waiting row were replaced.
    Edited(InboxId),
    /// An edit that came too late, or of a message we never took up: nothing changed.
    Late,
}

/// Stores `arrivals` in order and moves the channel's cursor, all in the caller's transaction.
///
/// # Errors
/// SQLite's.
pub fn accept(
    db: &Connection,
    arrivals: &[Arrival],
    cursor: Option<(&str, i64)>,
    now: Timestamp,
) -> Result<Vec<Accepted>, StoreError> {
    let mut accepted = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        accepted.push(if arrival.is_edit { edit(db, arrival)? } else { insert(db, arrival, now)? });
    }
    if let Some((channel, value)) = cursor {
        db.prepare_cached(
            "insert into cursors (channel, value, updated_at_ms) values (?1, ?2, ?3)
             on conflict (channel) do update set value = excluded.value, updated_at_ms = excluded.updated_at_ms",
        )?
        .execute(params![channel, value, now.0])?;
    }
    Ok(accepted)
}

fn insert(db: &Connection, arrival: &Arrival, now: Timestamp) -> Result<Accepted, StoreError> {
    let known = db
        .prepare_cached("select 1 from inbox where channel = ?1 and chat = ?2 and message_key = ?3")?
        .exists(params![arrival.channel, arrival.thread.chat, arrival.message_key])?;
    if known {
        return Ok(Accepted::Known);
    }
    // Platforms restart their numbers at random: the same number with another message is another message.
    let taken = db
        .prepare_cached("select 1 from inbox where channel = ?1 and update_key = ?2")?
        .exists(params![arrival.channel, arrival.update_key])?;
    let update_key = if taken {
        format!("{}~{}:{}", arrival.update_key, arrival.thread.chat, arrival.message_key)
    } else {
        arrival.update_key.clone()
    };
    let key = arrival.thread.to_string();
    let session = match &arrival.taken {
        Ok(link) => Some(ensure_session(db, &key, link.as_deref(), now)?.to_string()),
        Err(_) => None,
    };
    let keep = arrival.taken.is_ok();
    let outside = (keep && !arrival.outside.is_empty()).then(|| serde_json::to_string(&arrival.outside)).transpose()?;
    db.prepare_cached(
        "insert into inbox (channel, update_key, chat, message_key, thread_key, session, link, sender, sender_name,
                            chat_name, text, outside, command, urgent, album, near_limit, state, reason, reply_to,
                            not_before_ms, received_at_ms, topic, raw)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)",
    )?
    .execute(params![
        arrival.channel,
        update_key,
        arrival.thread.chat,
        arrival.message_key,
        key,
        session,
        arrival.taken.as_ref().ok().and_then(|link| link.as_deref()),
        arrival.sender,
        arrival.sender_name,
        arrival.chat_name,
        keep.then_some(&arrival.text),
        outside,
        arrival.command.as_ref().filter(|_| keep),
        arrival.urgent && keep,
        arrival.album,
        arrival.near_limit,
        if keep { "new" } else { "ignored" },
        arrival.taken.as_ref().err(),
        arrival.reply_to,
        arrival.not_before.0,
        now.0,
        arrival.topic,
        arrival.raw,
    ])?;
    let id = InboxId::from_row(db.last_insert_rowid());
    Ok(if keep { Accepted::New(id) } else { Accepted::Ignored(id) })
}

fn edit(db: &Connection, arrival: &Arrival) -> Result<Accepted, StoreError> {
    if arrival.taken.is_err() {
        return Ok(Accepted::Late);
    }
    let id: Option<i64> = db
        .prepare_cached(
            "update inbox set text = ?4
              where channel = ?1 and chat = ?2 and message_key = ?3 and sender = ?5 and state = 'new' and command is null
          returning id",
        )?
        .query_row(
            params![arrival.channel, arrival.thread.chat, arrival.message_key, arrival.text, arrival.sender],
            |row| row.get(0),
        )
        .optional()?;
    Ok(id.map_or(Accepted::Late, |id| Accepted::Edited(InboxId::from_row(id))))
}

/// The session of the thread `key`, minted when the thread is new. A thread is one session for ever.
///
/// # Errors
/// SQLite's.
pub fn ensure_session(db: &Connection, key: &str, link: Option<&str>, now: Timestamp) -> Result<SessionId, StoreError> {
    if let Some(session) = session_of(db, key)? {
        db.prepare_cached("update sessions set link = ?2 where id = ?1 and link is not ?2")?
            .execute(params![session.to_string(), link])?;
        return Ok(session);
    }
    let session = SessionId::of_key(key);
    db.execute(
        "insert into sessions (id, first_key, link, created_at_ms, active_at_ms) values (?1, ?2, ?3, ?4, ?4)",
        params![session.to_string(), key, link, now.0],
    )?;
    db.execute(
        "insert into threads (key, session, created_at_ms) values (?1, ?2, ?3)",
        params![key, session.to_string(), now.0],
    )?;
    Ok(session)
}

/// The session of the thread `key`, if it has one.
///
/// # Errors
/// SQLite's.
pub fn session_of(db: &Connection, key: &str) -> Result<Option<SessionId>, StoreError> {
    let found: Option<String> = db
        .prepare_cached("select session from threads where key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()?;
    found.map(|id| id.parse().map_err(|error| StoreError::Refused(format!("{error}")))).transpose()
}

/// Where a channel's acknowledgements stand.
///
/// # Errors
/// SQLite's.
pub fn cursor(db: &Connection, channel: &str) -> Result<Option<i64>, StoreError> {
    Ok(db.query_row("select value from cursors where channel = ?1", [channel], |row| row.get(0)).optional()?)
}

/// A message that waits or is worked on.
#[derive(Clone, Debug)]
pub struct InboxRow {
    /// Its id.
    pub id: InboxId,
    /// Its session.
    pub session: SessionId,
    /// `kind:account`.
    pub channel: String,
    /// The chat.
    pub chat: String,
    /// The thread's key as text.
    pub thread_key: String,
    /// The link that took it up.
    pub link: Option<String>,
    /// Who wrote, by immutable id.
    pub sender: String,
    /// For people.
    pub sender_name: String,
    /// The words.
    pub text: String,
    /// Words of others.
    pub outside: Vec<Block>,
    /// A command.
    pub command: Option<String>,
    /// Where within the chat the answer goes.
    pub topic: Option<String>,
    /// Pictures sent together.
    pub album: Option<String>,
    /// Its other half may follow.
    pub near_limit: bool,
    /// Which message the answer refers to.
    pub reply_to: Option<String>,
    /// Waits until then.
    pub not_before: Timestamp,
    /// When it was stored.
    pub received_at: Timestamp,
}

const COLUMNS: &str =
    "id, session, channel, chat, thread_key, link, sender, sender_name, text, outside, command, album,
                       near_limit, reply_to, not_before_ms, received_at_ms, topic";

fn from_row(row: &Row<'_>) -> rusqlite::Result<InboxRow> {
    let session: String = row.get(1)?;
    let outside: Option<String> = row.get(9)?;
    let bad = |index, error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, error)
    };
    Ok(InboxRow {
        id: InboxId::from_row(row.get(0)?),
        session: session.parse().map_err(|error| bad(1, Box::new(error)))?,
        channel: row.get(2)?,
        chat: row.get(3)?,
        thread_key: row.get(4)?,
        link: row.get(5)?,
        sender: row.get(6)?,
        sender_name: row.get(7)?,
        text: row.get::<_, Option<String>>(8)?.unwrap_or_default(),
        outside: outside
            .map_or(Ok(Vec::new()), |json| serde_json::from_str(&json))
            .map_err(|error| bad(9, Box::new(error)))?,
        command: row.get(10)?,
        album: row.get(11)?,
        near_limit: row.get(12)?,
        reply_to: row.get(13)?,
        not_before: Timestamp(row.get(14)?),
        received_at: Timestamp(row.get(15)?),
        topic: row.get(16)?,
    })
}

/// One message.
///
/// # Errors
/// SQLite's.
pub fn get(db: &Connection, id: InboxId) -> Result<Option<InboxRow>, StoreError> {
    let sql = format!("select {COLUMNS} from inbox where id = ?1 and session is not null");
    Ok(db.prepare_cached(&sql)?.query_row([id.row()], from_row).optional()?)
}

/// Messages that skip the queue, oldest first.
///
/// # Errors
/// SQLite's.
pub fn urgent(db: &Connection) -> Result<Vec<InboxRow>, StoreError> {
    let sql = format!("select {COLUMNS} from inbox where state = 'new' and urgent = 1 order by id limit 64");
    let mut sql = db.prepare_cached(&sql)?;
    let rows = sql.query_map([], from_row)?.collect::<Result<_, _>>()?;
    Ok(rows)
}

/// A session whose oldest message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The session.
    pub session: SessionId,
    /// Its oldest waiting message.
    pub head: InboxId,
    /// When its group is complete.
    pub ready_at: Timestamp,
}

/// Sessions with waiting messages and no turn of theirs open, oldest message first; at most `limit`.
///
/// # Errors
/// SQLite's.
pub fn waiting(db: &Connection, limit: usize) -> Result<Vec<Waiting>, StoreError> {
    let mut sql = db.prepare_cached(
        "select i.session, min(i.id) from inbox i join sessions s on s.id = i.session
          where i.state = 'new' and i.urgent = 0 and s.lease_turn is null and s.status = 'active'
            and not exists (select 1 from turns t where t.session = s.id and t.state = 'suspended')
          group by i.session order by min(i.id) limit ?1",
    )?;
    let heads: Vec<(String, i64)> = sql
        .query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut waiting = Vec::with_capacity(heads.len());
    for (session, head) in heads {
        let session = session.parse().map_err(|error| StoreError::Refused(format!("{error}")))?;
        let group = next_group(db, session)?;
        let ready_at = group.last().map_or(Timestamp(0), |last| last.not_before);
        waiting.push(Waiting { session, head: InboxId::from_row(head), ready_at });
    }
    Ok(waiting)
}

/// Whether a turn of `session` could begin now: none is at work or put aside.
///
/// # Errors
/// SQLite's.
pub fn is_free(db: &Connection, session: SessionId) -> Result<bool, StoreError> {
    let free = db
        .prepare_cached(
            "select 1 from sessions s where s.id = ?1 and s.lease_turn is null and s.status = 'active'
                and not exists (select 1 from turns t where t.session = s.id and t.state = 'suspended')",
        )?
        .exists([session.to_string()])?;
    Ok(free)
}

/// The oldest waiting message of `session` and those that belong to it.
///
/// # Errors
/// SQLite's.
pub fn next_group(db: &Connection, session: SessionId) -> Result<Vec<InboxRow>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from inbox where session = ?1 and state = 'new' and urgent = 0 order by id limit {JOIN_MAX}"
    );
    let mut sql = db.prepare_cached(&sql)?;
    let rows: Vec<InboxRow> = sql.query_map([session.to_string()], from_row)?.collect::<Result<_, _>>()?;
    let mut group: Vec<InboxRow> = Vec::new();
    for row in rows {
        let belongs = group.last().is_none_or(|last| {
            last.sender == row.sender
                && last.thread_key == row.thread_key
                && row.command.is_none()
                && last.command.is_none()
                && (last.near_limit && row.album.is_none() || last.album.is_some() && last.album == row.album)
        });
        if !belongs {
            break;
        }
        group.push(row);
    }
    Ok(group)
}

/// The messages a turn works on.
///
/// # Errors
/// SQLite's.
pub fn of_turn(db: &Connection, turn: TurnId) -> Result<Vec<InboxRow>, StoreError> {
    let sql = format!("select {COLUMNS} from inbox where turn = ?1 order by id");
    let mut sql = db.prepare_cached(&sql)?;
    let rows = sql.query_map([turn.row()], from_row)?.collect::<Result<_, _>>()?;
    Ok(rows)
}

/// Marks `group` as worked on by `turn`: the first runs, the others are joined to it.
///
/// # Errors
/// SQLite's, and [`StoreError::Refused`] when a row was taken meanwhile.
pub fn begin(db: &Connection, group: &[InboxRow], turn: TurnId) -> Result<(), StoreError> {
    let head = group.first().map(|row| row.id.row());
    for (at, row) in group.iter().enumerate() {
        let (state, joined_to) = if at == 0 { ("running", None) } else { ("joined", head) };
        let changed = db
            .prepare_cached(
                "update inbox set state = ?2, joined_to = ?3, turn = ?4, attempts = attempts + 1
                  where id = ?1 and state = 'new'",
            )?
            .execute(params![row.id.row(), state, joined_to, turn.row()])?;
        if changed != 1 {
            return Err(StoreError::Refused(format!("{} is no longer waiting", row.id)));
        }
    }
    Ok(())
}

/// Ends the messages of `turn`; joined ones stay joined.
///
/// # Errors
/// SQLite's.
pub fn end_of_turn(db: &Connection, turn: TurnId, dead: Option<&str>, now: Timestamp) -> Result<(), StoreError> {
    let state = if dead.is_some() { "dead" } else { "done" };
    db.prepare_cached(
        "update inbox set state = ?2, reason = ?3, ended_at_ms = ?4 where turn = ?1 and state = 'running'",
    )?
    .execute(params![turn.row(), state, dead, now.0])?;
    Ok(())
}

/// Ends a message that needed no turn; false when it had ended before.
///
/// # Errors
/// SQLite's.
pub fn end_alone(db: &Connection, id: InboxId, answer: Option<&str>, now: Timestamp) -> Result<bool, StoreError> {
    let changed = db
        .prepare_cached(
            "update inbox set state = 'done', attempts = attempts + 1, ended_at_ms = ?2, answer = ?3
              where id = ?1 and state = 'new'",
        )?
        .execute(params![id.row(), now.0, answer])?;
    Ok(changed == 1)
}

/// Writes down what a console client is shown for `turn`, where it is not just the last message.
///
/// # Errors
/// SQLite's.
pub fn answer(db: &Connection, turn: TurnId, shown: &str) -> Result<(), StoreError> {
    db.execute("update inbox set answer = ?2 where turn = ?1 and state <> 'joined'", params![turn.row(), shown])?;
    Ok(())
}

/// Ignores a waiting message after all, and forgets its words.
///
/// # Errors
/// SQLite's.
pub fn ignore(db: &Connection, id: InboxId, why: &str, now: Timestamp) -> Result<(), StoreError> {
    db.execute(
        "update inbox set state = 'ignored', reason = ?2, ended_at_ms = ?3, text = null, outside = null, raw = null
          where id = ?1 and state = 'new'",
        params![id.row(), why, now.0],
    )?;
    Ok(())
}

/// The row of a delivery that was stored before, for a console client that asks again.
///
/// # Errors
/// SQLite's.
pub fn find(db: &Connection, channel: &str, update_key: &str) -> Result<Option<InboxId>, StoreError> {
    let mut sql = db.prepare_cached("select id from inbox where channel = ?1 and update_key = ?2")?;
    Ok(sql.query_row([channel, update_key], |row| row.get(0).map(InboxId::from_row)).optional()?)
}

/// How a message fared.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Fate {
    /// new, joined, running, done, ignored or dead.
    pub state: String,
    /// The turn that works or worked on it.
    pub turn: Option<TurnId>,
    /// How that turn ended.
    pub reason: Option<String>,
    /// What was answered.
    pub answer: Option<String>,
}

/// How the message `id` fared; a joined one fares as the one it was joined to.
///
/// # Errors
/// SQLite's; blocks that do not read back.
pub fn fate(db: &Connection, id: InboxId) -> Result<Option<Fate>, StoreError> {
    let mut sql = db.prepare_cached(
        "select h.state, h.turn, coalesce(t.end_reason, h.reason), h.answer
           from inbox i join inbox h on h.id = coalesce(i.joined_to, i.id) left join turns t on t.id = h.turn
          where i.id = ?1",
    )?;
    let found = sql
        .query_row([id.row()], |row| {
            let turn = row.get::<_, Option<i64>>(1)?.map(TurnId::from_row);
            Ok(Fate { state: row.get(0)?, turn, reason: row.get(2)?, answer: row.get(3)? })
        })
        .optional()?;
    let Some(mut fate) = found else { return Ok(None) };
    if let (Some(turn), Some(_), None) = (fate.turn, &fate.reason, &fate.answer) {
        let last: Option<String> = db
            .prepare_cached(
                "select blocks from messages where turn = ?1 and session = (select session from turns where id = ?1)
                    and role = 'assistant' order by seq desc limit 1",
            )?
            .query_row([turn.row()], |row| row.get(0))
            .optional()?;
        let blocks = last.map(|json| serde_json::from_str(&json)).transpose()?;
        fate.answer = blocks.map(|blocks| Message { role: Role::Assistant, blocks }.plain_text());
    }
    Ok(Some(fate))
}

/// Removes strangers' rows beyond the newest `keep` and those older than `before`; at most `limit` at a time.
///
/// # Errors
/// SQLite's.
pub fn forget_ignored(db: &Connection, before: Timestamp, keep: i64, limit: i64) -> Result<usize, StoreError> {
    Ok(db.execute(
        "delete from inbox where id in (
             select id from inbox where state = 'ignored' and (received_at_ms < ?1 or id <= (
                 select coalesce(max(id), 0) from (select id from inbox where state = 'ignored'
                                                    order by received_at_ms desc limit -1 offset ?2)))
              limit ?3)",
        params![before.0, keep, limit],
    )?)
}
