//! The messenger and its servers: what people said, what is confirmed, and what stands in the chats.
//!
//! It outlives every process. Deliveries come again until they are confirmed, and now and then after that; a send can
//! be put off, refused, or done without an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use midwatch::reply::{Outgoing, Platform, SendError, courier};
use midwatch::store::Store;
use midwatch::store::outbox::Target;
use tokio::sync::Notify;

use crate::words;
use crate::world::{Chance, Life, World};

/// The channel as the store names it.
pub(crate) const CHANNEL: &str = "telegram:4242";
/// How long a poll is held when nobody speaks.
const POLL_HELD: Duration = Duration::from_secs(30);

/// What a person sent.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) update: i64,
    pub(crate) chat: i64,
    pub(crate) message: i64,
    pub(crate) sender: u64,
    pub(crate) text: String,
    pub(crate) is_edit: bool,
    /// Its length reaches the client's limit: another half may follow.
    pub(crate) near_limit: bool,
    pub(crate) album: Option<String>,
}

/// What stands in a chat.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The outbox row that was on its way.
    pub(crate) row: i64,
    pub(crate) chat: i64,
    pub(crate) text: String,
    pub(crate) labelled: bool,
    /// The messenger's number for it.
    pub(crate) message: i64,
}

/// The messenger.
#[derive(Debug)]
pub(crate) struct Messenger {
    world: Arc<World>,
    chance: Chance,
    /// Faults happen.
    storm: bool,
    desk: Mutex<Servers>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Servers {
    said: Vec<Said>,
    confirmed_below: i64,
    shown: Vec<Shown>,
    messages: i64,
    /// Rows that are to wait, and until when.
    put_off: BTreeMap<i64, Duration>,
}

impl Messenger {
    pub(crate) fn new(world: &Arc<World>, storm: bool) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            chance: Chance::new(world.seed, "messenger"),
            storm,
            desk: Mutex::new(Servers { messages: 100, ..Servers::default() }),
            changed: Notify::new(),
        })
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_wrong(&self, percent: u64) -> bool {
        self.storm && self.chance.is(percent)
    }

    /// A person says `words` in a chat; their mark is put in front. Returns the message's number.
    pub(crate) fn says(&self, chat: i64, sender: u64, words: &str, shape: Shape) -> i64 {
        let mut servers = self.servers();
        let message = match shape {
            Shape::EditOf(message) => message,
            _ => {
                servers.messages += 1;
                servers.messages
            }
        };
        let marked = words::marked(chat, message, words);
        let said = Said {
            update: servers.said.last().map_or(7_000, |last| last.update) + 1,
            chat,
            message,
            sender,
            text: if words.starts_with('/') { words.to_owned() } else { marked },
            is_edit: matches!(shape, Shape::EditOf(_)),
            near_limit: shape == Shape::FirstHalf,
            album: (shape == Shape::Album).then(|| format!("album {}", message / 10)),
        };
        let edit = if said.is_edit { " (edit)" } else { "" };
        self.world.tell(&format!("{sender} says in {chat}, message {message}{edit}: {}", words::start(words)));
        servers.said.push(said);
        drop(servers);
        self.changed.notify_waiters();
        message
    }

    /// A long poll: confirms what lies before `offset`, and gives what does not.
    ///
    /// # Errors
    /// No answer came; the confirmation may have come through.
    pub(crate) async fn poll(&self, life: &Life, store: &Store, offset: Option<i64>) -> Result<Vec<Said>, ()> {
        life.reach("a poll").await;
        if let Some(offset) = offset {
            self.confirm(store, offset).await;
        }
        if self.goes_wrong(10) {
            life.sleep(self.chance.millis(10, 20_000)).await;
            life.tell("a poll gets no answer");
            return Err(());
        }
        let held_until = self.world.age() + POLL_HELD;
        loop {
            let changed = self.changed.notified();
            let from = self.servers().confirmed_below.max(offset.unwrap_or(0));
            let mut fresh: Vec<Said> = self.servers().said.iter().filter(|said| said.update >= from).cloned().collect();
            if !fresh.is_empty() || self.world.age() >= held_until {
                if self.goes_wrong(15) {
                    let again: Vec<Said> =
                        self.servers().said.iter().rev().filter(|said| said.update < from).take(3).cloned().collect();
                    fresh.splice(0..0, again.into_iter().rev());
                }
                life.sleep(self.chance.millis(5, 150)).await;
                life.reach("a poll's answer").await;
                return Ok(fresh);
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.world.until(held_until) => {}
            }
        }
    }

    /// The daemon says that it holds everything before `offset`, which it had better do.
    async fn confirm(&self, store: &Store, offset: i64) {
        let newly: Vec<Said> = {
            let mut servers = self.servers();
            let before = std::mem::replace(&mut servers.confirmed_below, offset);
            if offset < before {
                servers.confirmed_below = before;
            }
            servers.said.iter().filter(|said| (before..offset).contains(&said.update)).cloned().collect()
        };
        for said in newly.into_iter().filter(|said| !said.is_edit) {
            let (chat, message) = (said.chat.to_string(), said.message.to_string());
            let held = store.read("look for a message", move |db| {
                let mut sql = db.prepare_cached("select 1 from inbox where chat = ?1 and message_key = ?2")?;
                Ok(sql.exists([chat, message])?)
            });
            if !held.await.unwrap() {
                self.world.complain(format!("confirmed before it was stored: message {}", said.message));
            }
        }
    }

    /// Everything that was said is confirmed.
    pub(crate) fn is_heard(&self) -> bool {
        let servers = self.servers();
        servers.said.last().is_none_or(|last| last.update < servers.confirmed_below)
    }

    pub(crate) fn said(&self) -> Vec<Said> {
        self.servers().said.clone()
    }

    /// What stands in the chats, in the order in which it came there.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        self.servers().shown.clone()
    }

    /// Asks for a pause before that row comes again.
    fn put_off(&self, row: i64, by: Duration) -> SendError {
        self.servers().put_off.insert(row, self.world.age() + by);
        SendError::Later(by)
    }

    /// A row comes: not before the pause it was asked for is over.
    fn receive(&self, row: i64) {
        let until = self.servers().put_off.remove(&row).unwrap_or_default();
        if self.world.age() < until && self.world.has_a_steady_wall() {
            self.world.complain(format!("reply-{row} comes {:?} too early", until - self.world.age()));
        }
    }

    fn show(&self, row: i64, target: &Target, text: &str) -> i64 {
        let chat = target.chat.parse().unwrap();
        for (of_chat, message) in words::marks(text) {
            if of_chat != chat {
                self.world.complain(format!("reply-{row} tells chat {chat} of message {message} of chat {of_chat}"));
            }
        }
        let mut servers = self.servers();
        servers.messages += 1;
        let message = servers.messages;
        let labelled = text.starts_with(courier::AGAIN);
        servers.shown.push(Shown { row, chat, text: text.to_owned(), labelled, message });
        drop(servers);
        let text = words::start(text);
        self.world.tell(&format!("chat {chat} shows reply-{row} as message {message}: {text}"));
        message
    }
}

/// How a message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Whole,
    /// Cut by the client at its limit.
    FirstHalf,
    /// One of several sent together.
    Album,
    /// Other words for that message.
    EditOf(i64),
}

/// The messenger as one life's courier sees it.
pub(crate) struct Line {
    pub(crate) life: Arc<Life>,
    pub(crate) messenger: Arc<Messenger>,
    pub(crate) store: Store,
}

/// What becomes of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Later,
    NotSent,
    Account,
    Formatting,
    Refused,
    /// It arrives and the answer is lost.
    AnswerLost,
    /// It is lost, and so is the answer.
    AllLost,
}

const FATES: &[(u64, Fate)] = &[
    (70, Fate::Arrives),
    (6, Fate::Later),
    (6, Fate::NotSent),
    (2, Fate::Account),
    (4, Fate::Formatting),
    (2, Fate::Refused),
    (5, Fate::AnswerLost),
    (5, Fate::AllLost),
];

impl Line {
    /// The row of the part that is being sent: the only one of its chat that is on its way.
    async fn row_on_its_way(&self, chat: &str) -> i64 {
        let asked = chat.to_owned();
        let rows = self.store.read("look for a send", move |db| {
            let mut sql = db.prepare_cached("select id from outbox where chat = ?1 and state = 'sending'")?;
            let rows: Vec<i64> = sql.query_map([asked], |row| row.get(0))?.collect::<Result<_, _>>()?;
            Ok(rows)
        });
        match rows.await.unwrap()[..] {
            [row] => row,
            ref rows => {
                self.messenger.world.complain(format!("a send into chat {chat}, where {rows:?} are on their way"));
                rows.first().copied().unwrap_or(0)
            }
        }
    }
}

impl Platform for Line {
    fn channel(&self) -> String {
        CHANNEL.to_owned()
    }

    fn send<'a>(&'a self, part: &'a Outgoing) -> BoxFuture<'a, Result<String, SendError>> {
        Box::pin(async move {
            self.life.reach("a send").await;
            let chance = &self.messenger.chance;
            let row = self.row_on_its_way(&part.target.chat).await;
            self.messenger.receive(row);
            let fate = if self.messenger.storm { chance.weighed(FATES) } else { Fate::Arrives };
            self.life.sleep(chance.millis(10, 900)).await;
            let told = format!("reply-{row}: {fate:?}");
            let show = || self.messenger.show(row, &part.target, &part.plain);
            let answer = match fate {
                Fate::Arrives => Ok(show().to_string()),
                Fate::Later => Err(self.messenger.put_off(row, chance.millis(500, 40_000))),
                Fate::NotSent => Err(SendError::NotSent("no connection".to_owned())),
                Fate::Account => Err(SendError::Account("the account is locked".to_owned())),
                Fate::Formatting if part.html.is_some() => Err(SendError::Formatting("can't parse".to_owned())),
                Fate::Formatting => Ok(show().to_string()),
                Fate::Refused => Err(SendError::Refused("the chat is gone".to_owned())),
                Fate::AnswerLost => {
                    show();
                    Err(SendError::Unknown("the answer was lost".to_owned()))
                }
                Fate::AllLost => Err(SendError::Unknown("no answer".to_owned())),
            };
            if fate != Fate::Arrives {
                self.life.tell(&told);
            }
            self.life.sleep(chance.millis(1, 300)).await;
            self.life.reach("a send's answer").await;
            answer
        })
    }

    fn typing<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
