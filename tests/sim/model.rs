//! A language model in the process: mostly useful, at times absent, slow, wrong or of no use, as the seed says. It
//! refuses nothing by itself; what a real provider would refuse it complains of.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use midwatch::domain::{Block, CallId, Message, Role};
use midwatch::model::{
    Attempt, ErrorClass, Finish, ModelClient, ModelError, OnText, ProposedCall, Request, Usage as Tokens,
};
use midwatch::turn::validate::validate;
use serde_json::json;

use crate::words;
use crate::world::{Chance, Life, World};

/// The window that the configuration of a seed names, in tokens: a narrow one in every other.
pub(crate) fn window_tokens(seed: u64) -> usize {
    if seed.is_multiple_of(2) { 4_096 } else { 8_192 }
}

/// Longest answer that it names, in tokens.
pub(crate) fn answer_tokens(seed: u64) -> usize {
    window_tokens(seed) / 4
}

/// Turns that the configuration lets work at one time.
pub(crate) const TURNS_AT_ONCE: usize = 3;

/// What outlives a process: the provider.
#[derive(Debug)]
pub(crate) struct Provider {
    chance: Chance,
    storm: bool,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    answers: u32,
    /// The system prompt of each chat, which never changes.
    systems: BTreeMap<i64, String>,
    /// Attempts at work, by life and chat.
    at_work: Vec<(u32, i64)>,
}

impl Provider {
    pub(crate) fn new(world: &World, storm: bool) -> Arc<Self> {
        Arc::new(Self { chance: Chance::new(world.seed, "model"), storm, memory: Mutex::default() })
    }
}

/// The model as one life sees it.
pub(crate) struct SimModel {
    pub(crate) life: Arc<Life>,
    pub(crate) provider: Arc<Provider>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answers,
    AnswersSlowly,
    AnswersAtLength,
    Calls,
    /// Never says anything.
    Hangs,
    SaysNothing,
    Declines,
    IsCut,
    Fails(ErrorClass),
}

const FAIR: &[(u64, Fate)] = &[(75, Fate::Answers), (5, Fate::AnswersAtLength), (20, Fate::Calls)];
const STORM: &[(u64, Fate)] = &[
    (46, Fate::Answers),
    (4, Fate::AnswersSlowly),
    (3, Fate::AnswersAtLength),
    (22, Fate::Calls),
    (1, Fate::Hangs),
    (3, Fate::SaysNothing),
    (1, Fate::Declines),
    (1, Fate::IsCut),
    (6, Fate::Fails(ErrorClass::Overload)),
    (6, Fate::Fails(ErrorClass::Network)),
    (1, Fate::Fails(ErrorClass::Quota)),
    (1, Fate::Fails(ErrorClass::Auth)),
    (1, Fate::Fails(ErrorClass::Content)),
    (2, Fate::Fails(ErrorClass::ContextTooLong)),
    (1, Fate::Fails(ErrorClass::BadRequest)),
];

impl ModelClient for SimModel {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn attempt<'a>(&'a self, request: &'a Request, on_text: OnText<'a>) -> BoxFuture<'a, Result<Attempt, ModelError>> {
        Box::pin(async move {
            self.life.reach("the model").await;
            let asked = self.look_at(request);
            let _at_work = self.at_work(asked.0);
            let fate = self.fate();
            let chance = &self.provider.chance;
            let wait = match fate {
                Fate::AnswersSlowly => chance.millis(10_000, 90_000),
                Fate::Fails(_) => chance.millis(20, 4_000),
                _ => chance.millis(150, 5_000),
            };
            let (chat, message) = asked;
            let rounds = request.messages.len();
            self.life.tell(&format!(
                "the model is asked about ⟦{chat}/{message}⟧ with {rounds} messages: {fate:?} after {} ms",
                wait.as_millis()
            ));
            if fate == Fate::Hangs {
                std::future::pending::<()>().await;
            }
            self.life.sleep(wait).await;
            self.life.reach("the model's answer").await;
            let usage = self.usage();
            let (text, calls, finish) = match fate {
                Fate::Fails(class) => return Err(self.failure(class)),
                Fate::Calls => {
                    let calls = self.calls();
                    let text = if chance.is(50) { "Let me look.".to_owned() } else { String::new() };
                    (text, calls, Finish::Calls)
                }
                Fate::SaysNothing => (String::new(), Vec::new(), Finish::Stop),
                Fate::Declines => (String::new(), Vec::new(), Finish::Refused),
                Fate::IsCut => (self.answer(chat, message, fate), Vec::new(), Finish::Length),
                _ => (self.answer(chat, message, fate), Vec::new(), Finish::Stop),
            };
            on_text(&text);
            Ok(Attempt::new(text, calls, finish, usage))
        })
    }
}

impl SimModel {
    fn fate(&self) -> Fate {
        self.provider.chance.weighed(if self.provider.storm { STORM } else { FAIR })
    }

    fn usage(&self) -> Tokens {
        let chance = &self.provider.chance;
        Tokens {
            input_tokens: chance.between(100, 2_500),
            output_tokens: chance.between(1, 600),
            cached_tokens: chance.below(100),
        }
    }

    fn answer(&self, chat: i64, message: i64, fate: Fate) -> String {
        let mut memory = self.provider.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.answers += 1;
        // Half of the short answers own up to a failure, whether there was one or not.
        let owns_up =
            if fate == Fate::AnswersAtLength || self.provider.chance.is(50) { " Something was not found." } else { "" };
        let short = format!("Answer {} to ⟦{chat}/{message}⟧.{owns_up}", memory.answers);
        if fate == Fate::AnswersAtLength {
            let line =
                format!("- **{}** of `{chat}`, with *many* words and a [link](https://example.org)\n", memory.answers);
            format!("{short}\n\n{}", line.repeat(answer_tokens(self.life.world.seed) * 3 / line.len()))
        } else {
            short
        }
    }

    fn failure(&self, class: ErrorClass) -> ModelError {
        let chance = &self.provider.chance;
        let asks = matches!(class, ErrorClass::Overload | ErrorClass::Quota) && chance.is(50);
        let retry_after = asks.then(|| chance.millis(1_000, 30_000));
        ModelError { retry_after, ..ModelError::new(class, "simulated") }
    }

    fn calls(&self) -> Vec<ProposedCall> {
        let chance = &self.provider.chance;
        let object = |value: serde_json::Value| value.as_object().cloned().ok_or_else(String::new);
        let how_many = if self.provider.storm && chance.is(3) { 20 } else { chance.between(1, 3) };
        let one = || {
            let (name, arguments) = match chance.below(8) {
                0..=2 => ("read_file", object(json!({ "path": "notes/today.md" }))),
                3 => ("read_file", object(json!({ "path": format!("notes/{}.md", chance.below(9)) }))),
                4 => ("list_files", object(json!({ "depth": 1 + chance.below(3) }))),
                5 => ("run_command", object(json!({ "command": "rm -rf /" }))),
                6 => ("read_file", Err("{\"path\": \"notes/to".to_owned())),
                _ => ("no such tool!", object(json!({ "path": 7 }))),
            };
            ProposedCall { name: name.to_owned(), arguments }
        };
        (0..how_many).map(|_| one()).collect()
    }

    /// Checks a request; returns the chat and message it is about.
    fn look_at(&self, request: &Request) -> (i64, i64) {
        let world = &self.life.world;
        let complain = |what: String| world.complain(format!("a request {what}"));
        if let Err(broken) = validate(request) {
            complain(format!("does not pass its own check: {broken}"));
        }
        if let Some(refusal) = refusal(&request.messages) {
            complain(format!("would be refused: {refusal}"));
        }
        let words = request.messages.iter().flat_map(|message| &message.blocks).map(|block| match block {
            Block::Text { text, .. } | Block::ToolResult { text, .. } => text.as_str(),
            Block::ToolCall { .. } | Block::Reasoning(_) => "",
        });
        let words: Vec<&str> = words.collect();
        let marks: Vec<(i64, i64)> = words.iter().flat_map(|text| words::marks(text)).collect();
        let Some(asked) = marks.last().copied() else {
            complain("holds nobody's words".to_owned());
            return (0, 0);
        };
        if let Some(stranger) = marks.iter().find(|mark| mark.0 != asked.0) {
            complain(format!("of chat {} holds words of chat {}", asked.0, stranger.0));
        }
        // A real tokenizer makes about one token of four bytes.
        let tokens = words.iter().map(|text| text.len()).sum::<usize>() / 4 + request.max_output_tokens as usize;
        let window = window_tokens(world.seed);
        if tokens > window {
            complain(format!("of about {tokens} tokens does not fit the window of {window}"));
        }
        let mut memory = self.provider.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let system = memory.systems.entry(asked.0).or_insert_with(|| request.system.clone());
        if *system != request.system {
            complain(format!("of chat {} has another system prompt than before", asked.0));
        }
        asked
    }

    /// One attempt per chat, and not more in all than there may be turns.
    fn at_work(&self, chat: i64) -> AtWork {
        let mine = (self.life.number, chat);
        let mut memory = self.provider.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.at_work.contains(&mine) {
            self.life.world.complain(format!("two turns of chat {chat} are at work at one time"));
        }
        memory.at_work.push(mine);
        let together = memory.at_work.iter().filter(|work| work.0 == mine.0).count();
        if together > TURNS_AT_ONCE {
            self.life.world.complain(format!("{together} turns are at work, and {TURNS_AT_ONCE} may be"));
        }
        AtWork { provider: self.provider.clone(), mine }
    }
}

/// Ends with the attempt, however that ends.
struct AtWork {
    provider: Arc<Provider>,
    mine: (u32, i64),
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut memory = self.provider.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = memory.at_work.iter().position(|work| *work == self.mine) {
            memory.at_work.swap_remove(at);
        }
    }
}

/// What a provider would say to this history, in the words of its documentation and not of `turn::validate`.
pub(crate) fn refusal(messages: &[Message]) -> Option<String> {
    let mut known: Vec<CallId> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| messages.get(before));
        let asked: Vec<CallId> = before.into_iter().flat_map(Message::calls).collect();
        let answered: Vec<CallId> = message.results().collect();
        let what = match message.role {
            Role::Tool if asked.is_empty() => "results that nobody asked for",
            Role::Tool if asked != answered => "results that are not those of the calls before them",
            Role::User | Role::Assistant if !asked.is_empty() => "calls without results",
            Role::Assistant if at == 0 => "the model's words at the start",
            _ if before.is_some_and(|before| before.role == message.role) => "two messages of one side in a row",
            _ if message.blocks.is_empty() => "an empty message",
            _ if message.calls().any(|call| known.contains(&call)) => "a call's id for the second time",
            _ => {
                known.extend(message.calls());
                continue;
            }
        };
        return Some(format!("message {at} is {what}"));
    }
    let last = messages.last()?;
    (last.role == Role::Assistant).then(|| "it ends with the model's own words".to_owned())
}
