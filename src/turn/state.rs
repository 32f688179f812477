//! What a turn knows between two steps, and the words in which step and driver talk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::{Budget, CallId, EndReason, Message, Spent, TurnId};
use crate::gate::{Outcome, Proposed};
use crate::model::{Attempt, ModelError, Request, ToolSchema};
use crate::store::chain::{Kind, Numbered};

/// What does not change during a turn.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// The turn.
    pub turn: TurnId,
    /// The system prompt.
    pub system: String,
    /// What the model may propose.
    pub tools: Vec<ToolSchema>,
    /// Names the tools in every checkpoint.
    pub plan_hash: String,
    /// What the turn may spend.
    pub budget: Budget,
    /// Tokens the model takes at once, question and answer together.
    pub window_tokens: u32,
    /// Longest answer, in tokens.
    pub max_output_tokens: u32,
    /// The day's tokens are used up, or its money.
    pub day_over: Option<EndReason>,
    /// The thread was told before that its window no longer holds everything.
    pub window_told: bool,
}

/// What a checkpoint keeps of a turn besides its messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    /// Calls proposed so far; the next one gets the next number.
    pub calls: u32,
    /// Counts of equal calls.
    pub guards: Guards,
    /// Repairs asked of the model after a failed check.
    pub verify_attempts: u8,
    /// The model was told that its time runs short.
    pub warned: bool,
    /// The window was cut to half because the provider found it too long.
    pub shrunk: bool,
    /// The window moved during this turn.
    pub compacted: bool,
    /// Which tools it had.
    pub plan_hash: String,
    /// What it is about and what did not work.
    pub cognitive: Cognitive,
    /// What it had spent at the checkpoint.
    pub spent: Spent,
}

/// What the model has come to, beyond its words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cognitive {
    /// The first words of the cause.
    pub goal: String,
    /// Steps planned; filled by a planning tool, which this version does not have.
    pub plan: Vec<String>,
    /// Calls that failed, shortest form.
    pub failed: Vec<String>,
}

/// Counts that end a turn which goes in circles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guards {
    /// Equal failing calls, by tool and arguments.
    pub failures: BTreeMap<String, u32>,
    /// Equal successful calls, by tool and arguments.
    pub successes: BTreeMap<String, u32>,
}

/// Where a turn stands.
#[derive(Clone, Debug)]
pub struct State {
    /// What does not change.
    pub fixed: Arc<Fixed>,
    /// The history from `first_seq` on, this turn's messages last.
    pub history: Vec<Numbered>,
    /// First message in the window.
    pub first_seq: i64,
    /// Number of the last message.
    pub last_seq: i64,
    /// What checkpoints keep.
    pub saved: Saved,
    /// The batch that was proposed and has no results yet.
    pub open: Vec<Proposed>,
    /// What the driver is doing.
    pub doing: Doing,
}

/// What the driver was last told to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Doing {
    /// Nothing yet.
    Nothing,
    /// Commits a checkpoint of this kind.
    Committing(Kind),
    /// Asks the model; `tool_use` as in the request.
    Calling {
        /// Whether calls were allowed.
        tool_use: bool,
    },
    /// Runs the open batch.
    Running,
    /// Ends the turn.
    Concluding,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The turn begins, or goes on after a restart.
    Begin,
    /// The checkpoint stands.
    Committed,
    /// A model answered, at this price in US dollars.
    Answered(Attempt, f64),
    /// The model did not, and trying again is over.
    Failed(ModelError),
    /// The batch ran; outcomes in the order of the calls.
    Ran(Vec<Outcome>),
    /// It has to end now: cancelled, or out of time.
    Halt(EndReason),
}

/// What the driver has to do next.
#[derive(Debug)]
pub enum Effect {
    /// Commit these messages and a checkpoint.
    Commit {
        /// Why.
        kind: Kind,
        /// Messages that come with it.
        messages: Vec<Message>,
    },
    /// One model call.
    Call(Request),
    /// Take the open batch through the gate.
    Run(Vec<Proposed>),
    /// End the turn in one commit.
    Conclude(Conclusion),
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// Why.
    pub reason: EndReason,
    /// Messages that close the history: results of an open batch, then what the chat is shown.
    pub messages: Vec<Message>,
    /// What the chat is shown, as Markdown.
    pub shown: String,
    /// For the operator.
    pub detail: Option<String>,
    /// The thread is told now that its window no longer holds everything.
    pub tells_window: bool,
}

impl State {
    /// A turn about to begin; `history` ends with its cause, or with whatever a crash left of it.
    #[must_use]
    pub fn new(fixed: Arc<Fixed>, history: Vec<Numbered>, first_seq: i64, last_seq: i64, saved: Saved) -> Self {
        Self { fixed, history, first_seq, last_seq, saved, open: Vec::new(), doing: Doing::Nothing }
    }

    /// Takes messages into the history, numbered as the store will number them.
    pub(super) fn push(&mut self, messages: &[Message]) {
        for message in messages {
            self.last_seq += 1;
            self.history.push(Numbered { seq: self.last_seq, turn: self.fixed.turn, message: message.clone() });
        }
    }

    /// The number of the next call.
    pub(super) fn next_call(&mut self) -> CallId {
        self.saved.calls += 1;
        CallId::new(self.fixed.turn, self.saved.calls)
    }

    /// This turn's messages.
    pub(super) fn own(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.history.iter().filter(|numbered| numbered.turn == self.fixed.turn).map(|numbered| &numbered.message)
    }
}
