//! People who write and wait for their answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::home::Home;
use crate::support::model::Model;
use crate::support::telegram::Telegram;

/// The first chat; a private one has the number of its person.
const FIRST_CHAT: i64 = 1_000;

/// A platform, a model that answers at once, and a home that links `chats` private chats.
pub(crate) struct Stage {
    pub(crate) telegram: Telegram,
    pub(crate) model: Model,
    pub(crate) home: Home,
    pub(crate) chats: Vec<i64>,
}

impl Stage {
    /// All tools granted, no platform limits, and a day's tokens that last.
    pub(crate) async fn new(chats: usize) -> Self {
        let (telegram, model) = (Telegram::start().await, Model::start().await);
        let chats: Vec<i64> = (FIRST_CHAT..).take(chats).collect();
        let mut home = Home::new()
            .model(&model)
            .telegram(&telegram)
            .env("MIDWATCH_BENCH_PACE", "off")
            .limit("day_tokens", 1_000_000_000_000);
        for chat in &chats {
            let name = format!("chat-{chat}");
            home = home.link(&name, *chat, &[*chat]).grant(&name, &["read_file", "list_files", "search_files"]);
        }
        Self { telegram, model, home, chats }
    }

    /// Everybody in `chats` writes, and writes again as soon as the answer is there, until `turns` answers have come;
    /// returns the time from each message to its answer.
    pub(crate) async fn talk(&self, chats: &[i64], turns: usize) -> Vec<Duration> {
        let mut talk = Talk::new(self).await;
        chats.iter().take(turns).for_each(|chat| talk.write(*chat));
        while talk.times.len() < turns {
            for chat in talk.answers().await {
                if talk.asked < turns {
                    talk.write(chat);
                }
            }
        }
        talk.times
    }

    /// A message every `every`, in one chat after the other, whether or not there were answers yet.
    pub(crate) async fn trickle(&self, turns: usize, every: Duration) -> Vec<Duration> {
        let mut talk = Talk::new(self).await;
        let mut clock = tokio::time::interval(every);
        while talk.times.len() < turns {
            tokio::select! {
                _ = clock.tick(), if talk.asked < turns => talk.write(self.chats[talk.asked % self.chats.len()]),
                _ = talk.answers() => {}
            }
        }
        talk.times
    }

    /// Panics when the daemon broke a rule of the platform or the model: its figures would mean nothing.
    pub(crate) fn assert_clean(&self) {
        self.telegram.assert_clean();
        self.model.assert_clean();
    }
}

/// One conversation with all chats at a time. A single waiter, so that many chats do not cost many wake-ups here.
struct Talk<'a> {
    telegram: &'a Telegram,
    /// Messages of the bot that were seen.
    seen: usize,
    asked: usize,
    waiting: BTreeMap<i64, Instant>,
    times: Vec<Duration>,
}

impl<'a> Talk<'a> {
    async fn new(stage: &'a Stage) -> Self {
        let telegram = &stage.telegram;
        let seen = telegram.wait_for("the journal", |journal| Some(journal.sent.len())).await;
        Self { telegram, seen, asked: 0, waiting: BTreeMap::new(), times: Vec::new() }
    }

    fn write(&mut self, chat: i64) {
        self.asked += 1;
        self.waiting.insert(chat, Instant::now());
        self.telegram.says(chat, chat, "hello, is all well?");
    }

    /// Waits for answers; returns whose they are.
    async fn answers(&mut self) -> Vec<i64> {
        let seen = self.seen;
        let new = self.telegram.wait_for("an answer", |journal| {
            (journal.sent.len() > seen).then(|| journal.sent[seen..].iter().map(|sent| sent.chat).collect::<Vec<_>>())
        });
        let new = new.await;
        let now = Instant::now();
        self.seen += new.len();
        for chat in &new {
            let asked =
                self.waiting.remove(chat).unwrap_or_else(|| panic!("an answer in {chat} that nobody waits for"));
            self.times.push(now.duration_since(asked));
        }
        new
    }
}
