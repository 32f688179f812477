//! Language models: one trait, its providers, and what can go wrong with them.
//!
//! ```text
//! Request ──attempt──▶ Attempt     complete: the provider's end event was seen
//!                 └──▶ ModelError  one class, one rule each; nothing of the attempt counts
//! ```
//!
//! A provider makes one attempt and reports. Retries, waits and fallback are the turn's, in one place (`turn::attempt`).

pub mod anthropic;
pub mod choice;
mod failure;
pub mod openai;
pub mod rehearsal;
mod sendable;
pub mod sse;
#[cfg(test)]
mod stand;
pub mod wire;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use choice::Choice;

use crate::domain::{Message, Reasoning};

/// One model call, in our own words; a provider turns it into its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Who midwatch is and where it speaks; the same bytes for every round of a turn, so that caches hold.
    pub system: String,
    /// The window of the history; passed [`crate::turn::validate`] before it comes here.
    pub messages: Vec<Message>,
    /// What the model may propose.
    pub tools: Vec<ToolSchema>,
    /// Most tokens the answer may have.
    pub max_output_tokens: u32,
    /// Whether calls are allowed now; without, the model has to answer in text.
    pub tool_use: bool,
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSchema {
    /// `[a-z0-9_]{1,64}`.
    pub name: String,
    /// One or two sentences.
    pub description: String,
    /// A JSON Schema of an object.
    pub parameters: Value,
}

/// A complete answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attempt {
    /// What the model said, in its order.
    pub parts: Vec<Part>,
    /// Why the model stopped.
    pub finish: Finish,
    /// What it cost; zeros where the server does not say.
    pub usage: Usage,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Words.
    Text(String),
    /// A call that the model proposes.
    Call(ProposedCall),
    /// What it thought, for its own eyes.
    Reasoning(Reasoning),
}

impl Attempt {
    /// An answer of words and then calls.
    #[must_use]
    pub fn new(text: String, calls: Vec<ProposedCall>, finish: Finish, usage: Usage) -> Self {
        let words = (!text.is_empty()).then_some(Part::Text(text));
        Self { parts: words.into_iter().chain(calls.into_iter().map(Part::Call)).collect(), finish, usage }
    }

    /// The words; empty when there are only calls. Where something stood between them they are paragraphs.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut apart = false;
        for part in &self.parts {
            match part {
                Part::Text(words) => {
                    if apart && !text.is_empty() && !words.is_empty() {
                        text.push_str("\n\n");
                    }
                    text.push_str(words);
                    apart = false;
                }
                Part::Call(_) | Part::Reasoning(_) => apart = true,
            }
        }
        text
    }

    /// The calls, in the order proposed.
    pub fn calls(&self) -> impl Iterator<Item = &ProposedCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            Part::Text(_) | Part::Reasoning(_) => None,
        })
    }
}

/// A call as the model wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProposedCall {
    /// As written; may be no tool of ours.
    pub name: String,
    /// The arguments as an object, or the raw text where it does not parse to one (cut, or not JSON).
    pub arguments: Result<Map<String, Value>, String>,
}

impl ProposedCall {
    /// A call whose arguments came as text; `at_limit` when the answer ended at its longest.
    fn of_text(name: String, arguments: String, at_limit: bool) -> Self {
        let arguments = match object(&arguments) {
            Some(object) => Ok(object),
            // Calls without arguments come with no text at all; but where the limit cut, nothing is not the same as
            // `{}`.
            None if arguments.trim().is_empty() && !at_limit => Ok(Map::new()),
            None => Err(arguments),
        };
        Self { name, arguments }
    }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was done.
    #[default]
    Stop,
    /// It waits for the results of its calls.
    Calls,
    /// It ran into `max_output_tokens`.
    Length,
    /// A filter, or the model itself, declined.
    Refused,
}

/// Tokens, as the provider reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Read, cached ones included.
    pub input_tokens: u64,
    /// Written.
    pub output_tokens: u64,
    /// Of the input, read from the provider's cache.
    pub cached_tokens: u64,
}

/// What kind of failure; each kind has one rule in the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The key is missing, wrong or has no right: the operator has to act.
    Auth,
    /// The request itself is refused: the same one is never sent again.
    BadRequest,
    /// Used up: waits when the provider says how long within the budget, else ends.
    Quota,
    /// The provider is busy (429 without quota, 503, 529): waits within the budget.
    Overload,
    /// No connection, a cut stream, a stall, an answer that is none: tried again a few times.
    Network,
    /// A content filter refused the request or the answer.
    Content,
    /// The request is longer than the model's window.
    ContextTooLong,
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auth => "auth",
            Self::BadRequest => "bad_request",
            Self::Quota => "quota",
            Self::Overload => "overload",
            Self::Network => "network",
            Self::Content => "content",
            Self::ContextTooLong => "context_too_long",
        })
    }
}

/// A failed attempt. The text is for logs and the operator, never for a chat, and holds no key and no URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {message}")]
pub struct ModelError {
    /// What kind.
    pub class: ErrorClass,
    /// What the provider or the connection said, at most 500 characters.
    pub message: String,
    /// The wait the provider asked for.
    pub retry_after: Option<Duration>,
}

impl ModelError {
    /// An error without a wait; `message` is cut to 500 characters.
    #[must_use]
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self { class, message: message.chars().take(500).collect(), retry_after: None }
    }
}

/// Hears the words as they arrive, for people who watch; nothing heard is final before the attempt is complete.
pub type OnText<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// A provider.
pub trait ModelClient: Send + Sync {
    /// The model's name as configured, for the timeline.
    fn name(&self) -> &str;

    /// One attempt, complete only with the provider's end event. Dropping the future ends the attempt.
    ///
    /// # Errors
    /// One [`ModelError`] of the class that says what to do next.
    fn attempt<'a>(&'a self, request: &'a Request, on_text: OnText<'a>) -> BoxFuture<'a, Result<Attempt, ModelError>>;
}
