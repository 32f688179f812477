//! What the fake platform knows: its queue of updates, its chats, and everything that was asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::people::{self, Update};
use super::{Fault, Said};

/// One call of the bot, in the order in which they came in.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Place in the journal, counted from 0.
    pub(crate) seq: usize,
    /// Since the fake started.
    pub(crate) at: Duration,
    /// As documented: `sendMessage`.
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
    /// What the platform answered; none while the call is open, and for a caller that went away.
    pub(crate) status: Option<u16>,
    pub(crate) answer: Value,
    /// The work was done, and the answer never arrived.
    pub(crate) lost: bool,
    /// The fault that was played.
    pub(crate) fault: Option<Fault>,
}

impl Call {
    /// The chat it is for, where there is one.
    pub(crate) fn chat(&self) -> Option<i64> {
        self.params.get("chat_id").and_then(Value::as_i64)
    }
}

/// A message of the bot, as its chat shows it now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) chat: i64,
    pub(crate) message_id: i64,
    /// The topic it stands in.
    pub(crate) thread: Option<i64>,
    /// What a person reads.
    pub(crate) text: String,
    /// What was sent, when it was sent as HTML.
    pub(crate) html: Option<String>,
    pub(crate) entities: Vec<Value>,
    pub(crate) reply_to: Option<i64>,
    /// Without a sound.
    pub(crate) silent: bool,
    /// Every text the message has had before, oldest first.
    pub(crate) earlier: Vec<String>,
    /// What the sender wanted of a preview of links, if anything.
    pub(crate) link_preview: Option<Value>,
    /// Data of its buttons.
    pub(crate) buttons: Vec<String>,
    /// The call that sent it.
    pub(crate) call: usize,
}

/// All that was seen, in time order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    pub(crate) calls: Vec<Call>,
    /// Messages of the bot, in the order in which they appeared.
    pub(crate) sent: Vec<Sent>,
    /// What people did, with the number of calls before it.
    pub(crate) updates: Vec<(usize, Value)>,
    /// Updates that the bot has confirmed.
    pub(crate) acknowledged: BTreeSet<i64>,
    pub(crate) violations: Vec<String>,
}

impl Journal {
    /// The calls of one method.
    pub(crate) fn calls(&self, method: &str) -> Vec<&Call> {
        self.calls.iter().filter(|call| call.method.eq_ignore_ascii_case(method)).collect()
    }

    /// The bot's messages in one chat.
    pub(crate) fn sent(&self, chat: i64) -> Vec<&Sent> {
        self.sent.iter().filter(|sent| sent.chat == chat).collect()
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut updates = self.updates.iter().peekable();
        writeln!(f, "what Telegram saw:")?;
        for call in &self.calls {
            while let Some((_, update)) = updates.next_if(|(before, _)| *before <= call.seq) {
                writeln!(f, "           -> {}", short(update))?;
            }
            let answer = match call.status {
                None => "open".to_owned(),
                Some(200) => format!("200 {}", short(&call.answer["result"])),
                Some(status) => format!("{status} {}", call.answer["description"]),
            };
            let lost = if call.lost { " (answer lost)" } else { "" };
            let params = short(&Value::Object(call.params.clone()));
            writeln!(f, "{:4} {:6} ms {} {params} = {answer}{lost}", call.seq, call.at.as_millis(), call.method)?;
        }
        for (_, update) in updates {
            writeln!(f, "           -> {}", short(update))?;
        }
        for violation in &self.violations {
            writeln!(f, "violation: {violation}")?;
        }
        Ok(())
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 220 { text } else { text.chars().take(220).collect::<String>() + "…" }
}

/// One chat.
#[derive(Debug)]
pub(super) struct Chat {
    pub(super) about: Value,
    pub(super) last_message: i64,
    pub(super) messages: BTreeMap<i64, Value>,
    pub(super) topics: BTreeSet<i64>,
    /// A deleted topic takes messages into the main chat instead of refusing them.
    pub(super) falls_through: bool,
    pub(super) blocked: bool,
    pub(super) moved_to: Option<i64>,
}

#[derive(Debug)]
struct Queued {
    id: i64,
    update: Value,
    /// Given out once more although it was confirmed: an offset cannot forget it before it was seen again.
    again: bool,
}

pub(super) struct Planned {
    pub(super) method: String,
    pub(super) fault: Fault,
    pub(super) skip: usize,
    pub(super) times: usize,
}

type Hook = Box<dyn Fn(&Value) -> Option<String> + Send>;

pub(super) struct State {
    pub(super) journal: Journal,
    pub(super) chats: BTreeMap<i64, Chat>,
    pub(super) revoked: bool,
    pub(super) offline: bool,
    pub(super) webhook: String,
    pub(super) faults: Vec<Planned>,
    /// Rises with each release of what hangs.
    pub(super) releases: u64,
    /// Polls of other programs with the same token: each ends those that were seen before it.
    pub(super) rivals: u64,
    /// Open polls, oldest first; those in `beaten` are to be answered with a conflict.
    pub(super) polls: Vec<u64>,
    pub(super) beaten: BTreeSet<u64>,
    /// When a chat (or everything, for methods without one) may be called again after a 429.
    pub(super) not_before: BTreeMap<(String, i64), Instant>,
    /// Messages that `next_sent` has handed out, by chat.
    pub(super) told: BTreeMap<i64, usize>,
    /// Asked about each update at the moment of its confirmation; an answer is a violation.
    pub(super) on_acknowledge: Option<Hook>,
    /// Open callback queries.
    pub(super) callbacks: BTreeSet<String>,
    started: Instant,
    queue: Vec<Queued>,
    archive: BTreeMap<i64, Value>,
    next_update: i64,
    allowed: Option<Vec<String>>,
    next_poll: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telegram")
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.journal.fmt(f)
    }
}

#[expect(clippy::disallowed_methods, reason = "the platform has a clock of its own")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Unix time in seconds, as messages carry it.
#[expect(clippy::disallowed_methods, reason = "the platform has a clock of its own")]
pub(super) fn date() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(0)
}

/// Offsets this far past the newest update mean nothing to the server: it answers from the head and forgets nothing.
const FUTURE: i64 = 10;

impl State {
    pub(super) fn new() -> Self {
        Self {
            journal: Journal::default(),
            chats: BTreeMap::new(),
            revoked: false,
            offline: false,
            webhook: String::new(),
            faults: Vec::new(),
            releases: 0,
            rivals: 0,
            polls: Vec::new(),
            beaten: BTreeSet::new(),
            not_before: BTreeMap::new(),
            told: BTreeMap::new(),
            on_acknowledge: None,
            callbacks: BTreeSet::new(),
            started: now(),
            queue: Vec::new(),
            archive: BTreeMap::new(),
            next_update: 730_000_001,
            allowed: None,
            next_poll: 1,
        }
    }

    pub(super) fn violation(&mut self, what: impl Into<String>) {
        self.journal.violations.push(what.into());
    }

    /// The chat, as it is or as it begins; a negative id is a supergroup unless `kind` says otherwise.
    pub(super) fn chat(&mut self, id: i64, kind: Option<&str>) -> &mut Chat {
        let kind = kind.unwrap_or(if id < 0 { "supergroup" } else { "private" });
        self.chats.entry(id).or_insert_with(|| Chat {
            about: match kind {
                "private" => json!({ "id": id, "type": kind, "first_name": format!("Person {id}"),
                                     "username": format!("person{id}") }),
                _ => json!({ "id": id, "type": kind, "title": format!("Group {id}") }),
            },
            // Ids that differ from chat to chat catch who mixes chats up.
            last_message: id.rem_euclid(7) * 100,
            messages: BTreeMap::new(),
            topics: BTreeSet::new(),
            falls_through: false,
            blocked: false,
            moved_to: None,
        })
    }

    // ---- updates

    /// People do something: the update goes into the queue.
    pub(super) fn deliver(&mut self, update: &Update) -> Said {
        if let Some(raw) = &update.raw {
            return self.push(raw.clone());
        }
        let topic = update.topic;
        let chat = self.chat(update.chat, Some(update.chat_kind));
        if let Some(topic) = topic {
            chat.about["is_forum"] = json!(true);
            chat.topics.insert(topic);
        }
        let mut message = update.body(chat.about.clone());
        let id = update.edit_of.unwrap_or_else(|| {
            chat.last_message += 1;
            chat.last_message
        });
        let first = chat.messages.get(&id).and_then(|before| before.get("date")).cloned();
        message.entry("date").or_insert_with(|| first.unwrap_or_else(|| json!(date())));
        if update.edit_of.is_some() {
            message.insert("edit_date".into(), json!(date()));
        }
        message.insert("message_id".into(), json!(id));
        let answered = match (update.reply_to, topic) {
            (Some(id), _) => chat.messages.get(&id).cloned().map(|mut answered| {
                // One level deep, as the real server has it.
                answered.as_object_mut().unwrap().remove("reply_to_message");
                answered
            }),
            // Inside a topic even a message that answers nothing "answers" the notice that opened the topic.
            (None, Some(topic)) => Some(json!({
                "message_id": topic, "date": 1_795_000_000, "chat": chat.about, "from": people::person(1),
                "message_thread_id": topic, "is_topic_message": true,
                "forum_topic_created": { "name": format!("Topic {topic}"), "icon_color": 7_322_096 },
            })),
            (None, None) => None,
        };
        if let Some(answered) = answered {
            message.insert("reply_to_message".into(), answered);
        }
        let message = Value::Object(message);
        chat.messages.insert(id, message.clone());
        self.push(json!({ update.kind: message }))
    }

    /// Puts an update into the queue, under the next id unless it has one.
    pub(super) fn push(&mut self, mut update: Value) -> Said {
        let id = update.get("update_id").and_then(Value::as_i64).unwrap_or(self.next_update);
        self.next_update = id + 1;
        update["update_id"] = json!(id);
        let message = update.as_object().into_iter().flatten().find_map(|(_, value)| value.get("message_id"));
        let message_id = message.and_then(Value::as_i64).unwrap_or(0);
        self.journal.updates.push((self.journal.calls.len(), update.clone()));
        self.archive.insert(id, update.clone());
        self.enqueue(id, update, false);
        Said { update_id: id, message_id }
    }

    fn enqueue(&mut self, id: i64, update: Value, again: bool) {
        self.queue.push(Queued { id, update, again });
        self.queue.sort_by_key(|queued| queued.id);
    }

    /// Gives an old update out once more.
    pub(super) fn redeliver(&mut self, id: i64) {
        let update = self.archive.get(&id).cloned().unwrap_or_else(|| panic!("there was no update {id}"));
        self.queue.retain(|queued| queued.id != id);
        self.enqueue(id, update, true);
    }

    /// The next update gets this id, as after a quiet week.
    pub(super) fn restart_ids(&mut self, at: i64) {
        self.next_update = at;
    }

    // ---- polls

    /// A poll begins; returns its ticket.
    pub(super) fn open_poll(&mut self) -> u64 {
        let ticket = self.next_poll;
        self.next_poll += 1;
        self.polls.push(ticket);
        ticket
    }

    pub(super) fn close_poll(&mut self, ticket: u64) {
        self.polls.retain(|open| *open != ticket);
        self.beaten.remove(&ticket);
    }

    /// Takes up a poll's offset and wishes: what lies before is confirmed and forgotten.
    pub(super) fn confirm(&mut self, offset: i64, allowed: Option<&Value>) {
        if let Some(kinds) = allowed.and_then(Value::as_array) {
            let kinds: Vec<String> = kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            self.allowed = (!kinds.is_empty()).then_some(kinds);
        }
        let first = if offset > 0 && offset <= self.next_update + FUTURE {
            Some(offset)
        } else if offset < 0 {
            let keep = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
            self.queue.len().checked_sub(keep).and_then(|at| self.queue.get(at)).map(|queued| queued.id)
        } else {
            None
        };
        let Some(first) = first else { return };
        let gone: Vec<i64> = self.queue.iter().filter(|q| q.id < first && !q.again).map(|q| q.id).collect();
        self.queue.retain(|queued| !gone.contains(&queued.id));
        for id in gone {
            self.journal.acknowledged.insert(id);
            let update = &self.archive[&id];
            if let Some(complaint) = self.on_acknowledge.as_ref().and_then(|ask| ask(update)) {
                self.violation(complaint);
            }
        }
    }

    /// What a poll would bring now.
    pub(super) fn ready(&mut self, limit: usize) -> Option<Vec<Value>> {
        if let Some(allowed) = &self.allowed {
            self.queue.retain(|queued| allowed.iter().any(|kind| queued.update.get(kind).is_some()));
        }
        let batch: Vec<Value> = self.queue.iter().take(limit).map(|queued| queued.update.clone()).collect();
        for queued in self.queue.iter_mut().take(limit) {
            queued.again = false;
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// How many updates wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn drop_waiting(&mut self) {
        self.queue.clear();
    }

    // ---- calls

    /// A call comes in; returns its place in the journal.
    pub(super) fn open_call(&mut self, method: &str, params: Map<String, Value>) -> usize {
        let seq = self.journal.calls.len();
        let at = now().duration_since(self.started);
        let (method, answer) = (method.to_owned(), Value::Null);
        self.journal.calls.push(Call { seq, at, method, params, status: None, answer, lost: false, fault: None });
        seq
    }

    /// The fault that is planned for this call, if one is.
    pub(super) fn fault_for(&mut self, seq: usize) -> Option<Fault> {
        let call = &self.journal.calls[seq];
        let formatted = call.params.contains_key("parse_mode") || call.params.contains_key("entities");
        let at = self.faults.iter_mut().position(|plan| {
            let mine = plan.method == "*" || plan.method.eq_ignore_ascii_case(&call.method);
            // Plain text has no entities that could be bad.
            if !mine || plan.fault == Fault::BadEntities && !formatted {
                return false;
            }
            let due = plan.skip == 0;
            plan.skip = plan.skip.saturating_sub(1);
            due
        })?;
        let fault = self.faults[at].fault;
        self.faults[at].times -= 1;
        if self.faults[at].times == 0 {
            self.faults.remove(at);
        }
        self.journal.calls[seq].fault = Some(fault);
        Some(fault)
    }
}
