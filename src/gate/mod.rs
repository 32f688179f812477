//! The one way from a proposal to an effect.
//!
//! ```text
//! Proposed ─scope─▶ ─middleware─▶ ─policy─▶ ─schema─▶ ─PreToolUse─▶ ─approval─▶ Cleared
//!          ─locks─▶ ─receipt─▶ Admitted ─dispatch─▶ Finished ─▶ tool result
//! ```
//!
//! A handler takes [`Admitted`], and only this room makes one. A refusal is an error result for the model: it says the
//! step, the rule and what the operator could do, and it means that no effect began. Steps that have nothing to decide
//! yet (middleware, hooks, approvals, locks, receipts: all for tools with effects) are here and pass.

pub mod handler;
pub mod plan;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;

pub use handler::{Declaration, Finished, Handler, ToolContext};
pub use plan::{BoundToolPlan, Catalogue};

use crate::domain::{CallId, Origin};
use crate::model::ProposedCall;
use crate::policy::Grants;

/// Most independent reads of one batch at a time.
const READS_AT_ONCE: usize = 4;

/// A call as the model proposed it: a wish, nothing more.
#[derive(Clone, Debug)]
pub struct Proposed {
    /// Ours.
    pub call: CallId,
    /// The model's words.
    pub wish: ProposedCall,
}

/// A call that passed every step which decides whether it may run.
#[derive(Debug)]
pub struct Cleared {
    call: CallId,
    handler: Arc<dyn Handler>,
    arguments: serde_json::Map<String, serde_json::Value>,
}

/// A call that may run now. Handlers take nothing else.
#[derive(Debug)]
pub struct Admitted(Cleared);

impl Admitted {
    /// Which call this is.
    #[must_use]
    pub fn call(&self) -> CallId {
        self.0.call
    }

    /// The arguments that were judged; what was judged is what runs.
    #[must_use]
    pub fn arguments(&self) -> &serde_json::Map<String, serde_json::Value> {
        &self.0.arguments
    }
}

/// The steps of the gate, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Is the tool in this session's plan?
    Scope,
    /// Did a trusted rewrite keep the classes?
    Middleware,
    /// Is it granted?
    Policy,
    /// Do the arguments fit?
    Schema,
    /// Do the operator's hooks agree?
    PreToolUse,
    /// Did a person agree, where one has to?
    Approval,
    /// Are its resources free?
    Locks,
    /// Is it known, or admitted now?
    Receipt,
}

impl Step {
    /// The word for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scope => "scope",
            Self::Middleware => "middleware",
            Self::Policy => "policy",
            Self::Schema => "schema",
            Self::PreToolUse => "pre_tool_use",
            Self::Approval => "approval",
            Self::Locks => "locks",
            Self::Receipt => "receipt",
        }
    }
}

/// What a step said of a call.
#[derive(Clone, Debug, Serialize)]
pub struct Passed {
    /// The step.
    pub step: Step,
    /// What it went by.
    pub said: String,
}

/// Why a call may not run.
#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    /// The step that refused.
    pub step: Step,
    /// By which rule.
    pub rule: String,
    /// What would change the answer.
    pub cure: Option<String>,
}

impl Refusal {
    /// What the model reads.
    #[must_use]
    pub fn text(&self, tool: &str) -> String {
        let cure = self.cure.as_ref().map(|cure| format!(" ({cure})")).unwrap_or_default();
        format!("Refused at the step {}: {}{cure}. Nothing was done by `{tool}`.", self.step.as_str(), self.rule)
    }
}

/// The whole way of one call, for the timeline and `why`.
#[derive(Clone, Debug, Serialize)]
pub struct Passage {
    /// Which call.
    #[serde(skip)]
    pub call: CallId,
    /// The tool's name as proposed.
    pub tool: String,
    /// The steps it passed.
    pub passed: Vec<Passed>,
    /// Where it ended, if it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// It ran, and the tool reported a failure.
    pub failed: bool,
}

/// What came of one call.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the model reads.
    pub text: String,
    /// It was refused or failed.
    pub is_error: bool,
    /// Whose words the text holds.
    pub origin: Origin,
    /// Its way.
    pub passage: Passage,
}

/// Takes a batch through the gate: independent reads side by side, results in the order of the calls.
///
/// The rights are the narrower of `plan` (fixed for the turn) and `grants` (of the present snapshot). Every handler is
/// told to end at `time_left`; one that does not is left to its blocking thread and answered for here.
pub async fn run_batch(
    plan: &BoundToolPlan,
    grants: &Grants,
    context: &ToolContext,
    batch: Vec<Proposed>,
    time_left: Duration,
) -> Vec<Outcome> {
    let passing = batch.into_iter().map(|proposed| one(plan, grants, context, proposed, time_left));
    futures_util::stream::iter(passing).buffered(READS_AT_ONCE).collect().await
}

async fn one(
    plan: &BoundToolPlan,
    grants: &Grants,
    context: &ToolContext,
    proposed: Proposed,
    time_left: Duration,
) -> Outcome {
    let tool: String = proposed.wish.name.chars().take(80).collect();
    let mut passage =
        Passage { call: proposed.call, tool: tool.clone(), passed: Vec::new(), refused: None, failed: false };
    let cleared = match steps::clear(plan, grants, context, proposed, &mut passage.passed) {
        Ok(cleared) => cleared,
        Err(refusal) => {
            let text = refusal.text(&tool);
            passage.refused = Some(refusal);
            return Outcome { text, is_error: true, origin: Origin::Operator, passage };
        }
    };
    let admitted = steps::admit(cleared, &mut passage.passed);
    let handler = admitted.0.handler.clone();
    let finished = match tokio::time::timeout(time_left, handler.run(&admitted, context)).await {
        Ok(finished) => finished,
        Err(_) => Finished::failed("The tool did not end before the turn's time was up."),
    };
    passage.failed = finished.is_error;
    Outcome { text: finished.text, is_error: finished.is_error, origin: finished.origin, passage }
}
