//! A Telegram of our own: the Bot API on the loopback, strict about what it is asked, with people who write in chats,
//! faults on request, and a journal of everything.
//!
//! ```text
//! says / deliver ─▶ queue ─▶ getUpdates (held, confirmed by offset) ─▶ the bot
//! sent / next_sent ◀─ chats ◀─ sendMessage, editMessageText ◀───────── the bot
//! ```
//!
//! It keeps the real server's ways where a client can get them wrong: a later offset forgets for good, an offset from
//! another id range is ignored, the older of two polls loses, topics are no reply threads, HTML is parsed to the byte.

mod api;
pub(crate) mod html;
mod methods;
mod params;
pub(crate) mod people;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use serde_json::{Value, json};

use super::net::{Server, Watched};
pub(crate) use people::Update;
pub(crate) use state::{Call, Journal, Sent};
use state::{Planned, State};

/// The bot's token.
pub(crate) const TOKEN: &str = "4242:TESTTOKEN-SECRET";
/// The bot's id, as in the token.
pub(crate) const BOT_ID: i64 = 4242;
/// The bot's name without `@`.
pub(crate) const BOT_NAME: &str = "midwatch_bot";

/// What can go wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// This status; from 500 on with a proxy's HTML page. Nothing is done.
    Status(u16),
    /// 429 with so many seconds to wait; coming back earlier is a violation. Nothing is done.
    RetryAfter(u64),
    /// The connection breaks and nothing is done.
    DropBefore,
    /// The work is done and the connection breaks: the answer is lost.
    DropAfter,
    /// Nothing is done and nothing answered until [`Telegram::release`]; then all goes its way.
    Hang,
    /// The work is done; the answer comes with [`Telegram::release`].
    HangAfter,
    /// 200 with an HTML page that is no answer at all. Nothing is done.
    Garbage,
    /// 400 "can't parse entities"; plain text is not met by it.
    BadEntities,
}

/// What became of something people did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) update_id: i64,
    pub(crate) message_id: i64,
}

/// The platform. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Telegram {
    all: Arc<Watched<State>>,
    server: Server,
}

/// Lets the configuration of a test make its chats known, as the people in them did by adding the bot.
#[derive(Clone, Debug)]
pub(crate) struct Chats(Arc<Watched<State>>);

impl Chats {
    /// The bot can write in this chat from now on.
    pub(crate) fn open(&self, chat: i64) {
        self.0.change(|state| {
            state.chat(chat, None);
        });
    }
}

impl Telegram {
    /// Starts the platform on a free port.
    pub(crate) async fn start() -> Self {
        let all = Watched::new(State::new());
        let app = Router::new().fallback(api::serve).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&all));
        Self { server: Server::start("telegram", app), all }
    }

    /// What belongs into `api_url`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.server.addr())
    }

    pub(crate) fn chats(&self) -> Chats {
        Chats(Arc::clone(&self.all))
    }

    // ---- people

    /// `user` writes in `chat`: a private one, or a supergroup where the id is negative.
    pub(crate) fn says(&self, chat: i64, user: i64, text: &str) -> Said {
        let mut update = if chat < 0 { Update::group(chat, user, text) } else { Update::private(user, text) };
        update.chat = chat;
        self.deliver(update)
    }

    /// Something happens in a chat.
    pub(crate) fn deliver(&self, update: Update) -> Said {
        self.all.change(|state| state.deliver(&update))
    }

    /// `user` presses a button of a message; the button has to be there.
    pub(crate) fn presses(&self, chat: i64, user: i64, message_id: i64, data: &str) -> Said {
        self.all.change(|state| {
            let message = state.chat(chat, None).messages.get(&message_id).cloned();
            let message = message.unwrap_or_else(|| panic!("no message {message_id} in chat {chat}"));
            let rows = message["reply_markup"]["inline_keyboard"].as_array().into_iter().flatten();
            let there = rows.filter_map(|row| row.as_array()).flatten().any(|b| b["callback_data"] == json!(data));
            assert!(there, "message {message_id} has no button {data}: {message}");
            let id = format!("40000000{}", state.journal.updates.len());
            state.callbacks.insert(id.clone());
            state.push(json!({ "callback_query": { "id": id, "from": people::person(user), "message": message,
                                                   "chat_instance": "77", "data": data } }))
        })
    }

    /// The group becomes a supergroup: both notices arrive, and the old id takes no more messages.
    pub(crate) fn migrates(&self, old: i64, new: i64, user: i64) -> (Said, Said) {
        let out = Update::basic_group(old, user, "").service("migrate_to_chat_id", new);
        let into = Update::group(new, user, "").service("migrate_from_chat_id", old);
        let said = (self.deliver(out), self.deliver(into));
        self.all.change(|state| state.chat(old, None).moved_to = Some(new));
        said
    }

    /// Hands an old update out once more, even if it was confirmed.
    pub(crate) fn redeliver(&self, update_id: i64) {
        self.all.change(|state| state.redeliver(update_id));
    }

    /// The next update gets this id, as after a quiet week, when ids start somewhere else.
    pub(crate) fn restart_ids(&self, at: i64) {
        self.all.change(|state| state.restart_ids(at));
    }

    // ---- the platform's moods

    /// The next `times` calls of `method` (`*` for any) meet `fault`.
    pub(crate) fn fault(&self, method: &str, fault: Fault, times: usize) {
        self.fault_after(method, 0, fault, times);
    }

    /// As [`Telegram::fault`], after `skip` calls of the method that go well.
    pub(crate) fn fault_after(&self, method: &str, skip: usize, fault: Fault, times: usize) {
        if times > 0 {
            self.all.change(|state| state.faults.push(Planned { method: method.to_owned(), fault, skip, times }));
        }
    }

    /// Takes back all faults that were not met yet.
    pub(crate) fn no_more_faults(&self) {
        self.all.change(|state| state.faults.clear());
    }

    /// Lets go of every call that hangs.
    pub(crate) fn release(&self) {
        self.all.change(|state| state.releases += 1);
    }

    /// The token is void: 401 from now on, also for the poll that is held.
    pub(crate) fn revoke(&self) {
        self.all.change(|state| state.revoked = true);
    }

    /// The token is good again.
    pub(crate) fn restore_token(&self) {
        self.all.change(|state| state.revoked = false);
    }

    /// Someone set a webhook: 409 for each poll until it is deleted.
    pub(crate) fn set_webhook(&self, url: &str) {
        self.all.change(|state| url.clone_into(&mut state.webhook));
    }

    /// Someone else polls with the same token: the poll that is held gets a 409, and it is not our bot's fault.
    pub(crate) fn rival_polls(&self) {
        self.all.change(|state| state.rivals += 1);
    }

    /// The person blocks the bot, or the group throws it out.
    pub(crate) fn block(&self, chat: i64) {
        self.all.change(|state| state.chat(chat, None).blocked = true);
    }

    pub(crate) fn unblock(&self, chat: i64) {
        self.all.change(|state| state.chat(chat, None).blocked = false);
    }

    /// The topic is gone: sends to it are refused, or with `falls_through` land in the main chat, as some do.
    pub(crate) fn delete_topic(&self, chat: i64, thread: i64, falls_through: bool) {
        self.all.change(|state| {
            let chat = state.chat(chat, None);
            chat.topics.remove(&thread);
            chat.falls_through = falls_through;
        });
    }

    /// A message is deleted by its people.
    pub(crate) fn delete_message(&self, chat: i64, message_id: i64) {
        self.all.change(|state| state.chat(chat, None).messages.remove(&message_id));
    }

    /// While offline every connection breaks, the one of a held poll too; what hangs breaks when it is released.
    pub(crate) fn set_offline(&self, offline: bool) {
        self.server.set_offline(offline);
        self.all.change(|state| state.offline = offline);
    }

    // ---- watching

    /// The next message of the bot in `chat` that was not handed out yet.
    pub(crate) async fn next_sent(&self, chat: i64) -> Sent {
        let next = |state: &mut State| {
            let told = state.told.get(&chat).copied().unwrap_or(0);
            let sent = state.journal.sent(chat).get(told).map(|sent| (*sent).clone())?;
            state.told.insert(chat, told + 1);
            Some(sent)
        };
        self.all.wait(&format!("the next message of the bot in chat {chat}"), next).await
    }

    /// All messages of the bot in `chat`, as they read now.
    pub(crate) fn sent(&self, chat: i64) -> Vec<Sent> {
        self.all.look(|state| state.journal.sent(chat).into_iter().cloned().collect())
    }

    /// Waits until the bot has sent `n` messages in `chat`, and returns them all.
    pub(crate) async fn wait_sent(&self, chat: i64, n: usize) -> Vec<Sent> {
        let what = format!("{n} messages of the bot in chat {chat}");
        let enough = |state: &mut State| {
            let sent = state.journal.sent(chat);
            (sent.len() >= n).then(|| sent.into_iter().cloned().collect())
        };
        self.all.wait(&what, enough).await
    }

    /// Waits until `look` finds its value in the journal.
    pub(crate) async fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&Journal) -> Option<T>) -> T {
        self.all.wait(what, |state| look(&state.journal)).await
    }

    /// All that was seen so far.
    pub(crate) fn journal(&self) -> Journal {
        self.all.look(|state| state.journal.clone())
    }

    /// The calls of one method so far.
    pub(crate) fn calls(&self, method: &str) -> Vec<Call> {
        self.all.look(|state| state.journal.calls(method).into_iter().cloned().collect())
    }

    /// How many polls came in.
    pub(crate) fn polls(&self) -> usize {
        self.all.look(|state| state.journal.calls("getUpdates").len())
    }

    /// Waits for one more poll than there were: the bot came round.
    pub(crate) async fn wait_poll(&self) {
        let before = self.polls();
        let more = |journal: &Journal| (journal.calls("getUpdates").len() > before).then_some(());
        self.wait_for("another poll", more).await;
    }

    /// The highest update that the bot has confirmed.
    pub(crate) fn acknowledged_up_to(&self) -> Option<i64> {
        self.all.look(|state| state.journal.acknowledged.last().copied())
    }

    /// Waits until the bot has confirmed an update.
    pub(crate) async fn wait_acknowledged(&self, update_id: i64) {
        let there = |journal: &Journal| journal.acknowledged.contains(&update_id).then_some(());
        self.wait_for(&format!("update {update_id} confirmed"), there).await;
    }

    /// Asks `check` about each update at the moment of its confirmation; what it answers is a violation. This is how a
    /// test holds the bot to "stored before it is confirmed".
    pub(crate) fn on_acknowledge(&self, check: impl Fn(&Value) -> Option<String> + Send + 'static) {
        self.all.change(|state| state.on_acknowledge = Some(Box::new(check)));
    }

    /// What the bot did that the documentation forbids.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.all.look(|state| state.journal.violations.clone())
    }

    /// Panics with the journal when there are violations.
    pub(crate) fn assert_clean(&self) {
        self.all.look(|state| assert!(state.journal.violations.is_empty(), "{state}"));
    }
}
