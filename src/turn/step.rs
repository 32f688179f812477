//! The turn as a pure function: `step(state, event) -> (state, effect)`.

use super::compose::fit;
use super::state::{Conclusion, Doing, Effect, Event, State};
use super::validate::validate;
use super::verify;
use crate::domain::{Block, EndReason, Message, Origin, Role};
use crate::gate::{Outcome, Proposed};
use crate::model::{Attempt, ErrorClass, Finish, ModelError, Part};
use crate::store::chain::Kind;

/// Equal failing calls that end a turn.
const FAILURES_MAX: u32 = 3;
/// Equal successful calls that end a turn.
const SUCCESSES_MAX: u32 = 6;
/// Most calls of one batch; more are answered unheard.
const BATCH_MAX: usize = 16;
/// The model is warned when this share of its time is gone.
const WARN_PERCENT: u64 = 80;

/// One step. Reads no clock: what the turn has spent so far stands in `state.saved.spent`.
#[must_use]
pub fn step(mut state: State, event: Event) -> (State, Effect) {
    let effect = match (event, state.doing.clone()) {
        (Event::Halt(reason), _) => conclude(&mut state, reason, String::new(), None),
        (Event::Begin, _) => prepare(&mut state),
        (Event::Committed, Doing::Committing(Kind::Proposed)) => run(&mut state),
        (Event::Committed, Doing::Committing(_)) => observe(&mut state),
        (Event::Answered(attempt, cost_usd), Doing::Calling { tool_use }) => {
            answered(&mut state, attempt, cost_usd, tool_use)
        }
        (Event::Failed(error), _) => failed(&mut state, &error),
        (Event::Ran(outcomes), Doing::Running) => ran(&mut state, outcomes),
        (event, doing) => {
            let detail = format!("the driver said {event:?} while it was {doing:?}");
            conclude(&mut state, EndReason::Failed, String::new(), Some(detail))
        }
    };
    (state, effect)
}

/// Takes up what a crash left: a batch of this turn that was proposed and never answered is run now. All tools of this
/// version read, and a read may be repeated.
fn prepare(state: &mut State) -> Effect {
    if state.saved.cognitive.goal.is_empty() {
        let cause = state.own().find(|message| message.role == Role::User).map(Message::plain_text);
        state.saved.cognitive.goal = cause.unwrap_or_default().chars().take(200).collect();
    }
    let answered: Vec<_> = state.own().flat_map(Message::results).collect();
    let open = state.own().flat_map(|message| &message.blocks).filter_map(|block| match block {
        Block::ToolCall { call, name, arguments } if !answered.contains(call) => Some(Proposed {
            call: *call,
            wish: crate::model::ProposedCall {
                name: name.clone(),
                arguments: match arguments {
                    serde_json::Value::Object(map) => Ok(map.clone()),
                    other => Err(other.to_string()),
                },
            },
        }),
        _ => None,
    });
    state.open = open.collect();
    if state.open.is_empty() { compose(state) } else { run(state) }
}

fn run(state: &mut State) -> Effect {
    state.doing = Doing::Running;
    Effect::Run(state.open.clone())
}

fn commit(state: &mut State, kind: Kind, messages: Vec<Message>) -> Effect {
    state.push(&messages);
    state.doing = Doing::Committing(kind);
    Effect::Commit { kind, messages }
}

/// Looks at what came of a batch and at what is left, then goes round again.
fn observe(state: &mut State) -> Effect {
    let guards = &state.saved.guards;
    let worst = |counts: &std::collections::BTreeMap<String, u32>| counts.values().max().copied().unwrap_or_default();
    if worst(&guards.failures) >= FAILURES_MAX || worst(&guards.successes) >= SUCCESSES_MAX {
        let detail = format!("equal calls: {:?}", state.saved.guards);
        return conclude(state, EndReason::NoProgress, String::new(), Some(detail));
    }
    compose(state)
}

fn compose(state: &mut State) -> Effect {
    let budget = state.fixed.budget;
    let spent = state.saved.spent;
    if let Some(reason) = state.fixed.day_over {
        return conclude(state, reason, String::new(), Some("the limit of the day".to_owned()));
    }
    if spent.tokens() >= budget.tokens {
        return conclude(state, EndReason::TokenBudget, String::new(), None);
    }
    if budget.cost_usd > 0.0 && spent.cost_usd >= budget.cost_usd {
        return conclude(state, EndReason::CostBudget, String::new(), None);
    }
    if spent.rounds >= budget.rounds {
        return conclude(state, EndReason::RoundLimit, String::new(), None);
    }
    // The last round has to end in words.
    let tool_use = spent.rounds + 1 < budget.rounds || budget.rounds == 1;
    let Some(fit) = fit(state, tool_use) else {
        if state.saved.verify_attempts > 0 {
            // There is an answer; only its repair does not fit. It is worth more than none.
            let answer = state.own().rev().find(|message| message.role == Role::Assistant).map(Message::plain_text);
            let detail = Some("the repair does not fit the window".to_owned());
            return conclude(state, EndReason::VerificationEscalated, answer.unwrap_or_default(), detail);
        }
        return conclude(state, EndReason::ContextExhausted, String::new(), None);
    };
    if let Err(broken) = validate(&fit.request) {
        return conclude(state, EndReason::Failed, String::new(), Some(broken));
    }
    if fit.first_seq > state.first_seq {
        state.first_seq = fit.first_seq;
        state.saved.compacted = true;
        return commit(state, Kind::Compacted, Vec::new());
    }
    state.doing = Doing::Calling { tool_use };
    Effect::Call(fit.request)
}

fn answered(state: &mut State, attempt: Attempt, cost_usd: f64, tool_use: bool) -> Effect {
    let usage = attempt.usage;
    let spent = &mut state.saved.spent;
    spent.rounds += 1;
    spent.input_tokens += usage.input_tokens;
    spent.output_tokens += usage.output_tokens;
    spent.cost_usd += cost_usd;

    let mut text = attempt.text();
    if attempt.finish == Finish::Refused {
        return conclude(state, EndReason::ModelRefusal, text, None);
    }
    if attempt.calls().next().is_some() {
        if !tool_use {
            return conclude(state, EndReason::RoundLimit, text, None);
        }
        return propose(state, attempt);
    }
    if let Some(complaint) = verify::complaint(state, &text) {
        if state.saved.verify_attempts < verify::REPAIRS_MAX {
            state.saved.verify_attempts += 1;
            let mut messages = Vec::new();
            if !text.trim().is_empty() {
                let blocks = thoughts_before(&attempt.parts).chain([Block::Text { text, origin: Origin::Agent }]);
                messages.push(Message { role: Role::Assistant, blocks: blocks.collect() });
            }
            messages.push(Message::text(Role::User, format!("[midwatch: {complaint}]"), Origin::Operator));
            return commit(state, Kind::Completed, messages);
        }
        return conclude(state, EndReason::VerificationEscalated, text, Some(complaint));
    }
    if attempt.finish == Finish::Length {
        text.push_str("\n\n(The answer reached the model's output limit and ends here.)");
    }
    let reason = if tool_use { EndReason::Natural } else { EndReason::ForcedText };
    conclude_after(state, thoughts_before(&attempt.parts).collect(), reason, text, None)
}

/// What the model thought, where all of it came before its words. An answer in words becomes one text, beside which
/// thoughts from between its pieces would stand in another order than the model's; then none is kept.
fn thoughts_before(parts: &[Part]) -> impl Iterator<Item = Block> {
    let is_thought = |part: &&Part| matches!(part, Part::Reasoning(_));
    let first = parts.iter().take_while(is_thought).count();
    let kept = if parts.iter().filter(is_thought).count() == first { first } else { 0 };
    parts.iter().take(kept).filter_map(|part| match part {
        Part::Reasoning(reasoning) => Some(Block::Reasoning(reasoning.clone())),
        Part::Text(_) | Part::Call(_) => None,
    })
}

/// Takes the model's calls down. Not one of them runs before this stands in the store.
fn propose(state: &mut State, attempt: Attempt) -> Effect {
    let mut blocks = Vec::new();
    let mut open = Vec::new();
    for part in attempt.parts {
        let wish = match part {
            Part::Text(text) if text.trim().is_empty() => continue,
            Part::Text(text) => {
                blocks.push(Block::Text { text, origin: Origin::Agent });
                continue;
            }
            Part::Reasoning(reasoning) => {
                blocks.push(Block::Reasoning(reasoning));
                continue;
            }
            Part::Call(_) if open.len() == BATCH_MAX => break,
            Part::Call(wish) => wish,
        };
        let call = state.next_call();
        let arguments = match &wish.arguments {
            Ok(map) => serde_json::Value::Object(map.clone()),
            Err(raw) => serde_json::Value::String(raw.chars().take(2_000).collect()),
        };
        blocks.push(Block::ToolCall { call, name: provider_name(&wish.name), arguments });
        open.push(Proposed { call, wish });
    }
    state.open = open;
    commit(state, Kind::Proposed, vec![Message { role: Role::Assistant, blocks }])
}

/// A name that goes back to the provider has to be one it takes; the gate sees the one the model wrote.
fn provider_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(64).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

fn ran(state: &mut State, outcomes: Vec<Outcome>) -> Effect {
    let open = std::mem::take(&mut state.open);
    let mut blocks = Vec::new();
    for (proposed, outcome) in open.iter().zip(outcomes) {
        let arguments = match &proposed.wish.arguments {
            Ok(map) => serde_json::Value::Object(map.clone()).to_string(),
            Err(_) => "cut".to_owned(),
        };
        let signature: String = format!("{} {arguments}", proposed.wish.name).chars().take(300).collect();
        let guards = &mut state.saved.guards;
        if outcome.is_error {
            *guards.failures.entry(signature.clone()).or_default() += 1;
            let failed = &mut state.saved.cognitive.failed;
            if !failed.contains(&signature) && failed.len() < 20 {
                failed.push(signature);
            }
        } else {
            guards.failures.remove(&signature);
            *guards.successes.entry(signature).or_default() += 1;
        }
        blocks.push(Block::ToolResult {
            call: proposed.call,
            text: if outcome.text.is_empty() { "(nothing)".to_owned() } else { outcome.text },
            is_error: outcome.is_error,
            origin: outcome.origin,
        });
    }
    let mut messages = vec![Message { role: Role::Tool, blocks }];
    let budget_ms = state.fixed.budget.time_ms;
    let gone_ms = state.saved.spent.time_ms;
    if !state.saved.warned && gone_ms * 100 >= budget_ms * WARN_PERCENT {
        state.saved.warned = true;
        let left = budget_ms.saturating_sub(gone_ms) / 1000;
        let warning = format!("[midwatch: {left} s are left for this turn. Answer now with what you have.]");
        messages.push(Message::text(Role::User, warning, Origin::Operator));
    }
    commit(state, Kind::Completed, messages)
}

/// The one rule of each error class, once the driver's waiting and trying again is over.
fn failed(state: &mut State, error: &ModelError) -> Effect {
    let detail = Some(error.to_string());
    match error.class {
        ErrorClass::ContextTooLong if !state.saved.shrunk => {
            state.saved.shrunk = true;
            compose(state)
        }
        ErrorClass::ContextTooLong => conclude(state, EndReason::ContextExhausted, String::new(), detail),
        ErrorClass::Auth | ErrorClass::Quota => conclude(state, EndReason::ModelActionRequired, String::new(), detail),
        ErrorClass::Content => conclude(state, EndReason::ModelRefusal, String::new(), detail),
        ErrorClass::Overload | ErrorClass::Network => {
            let told = "The model cannot be reached right now. Please try again later.".to_owned();
            conclude(state, EndReason::Failed, told, detail)
        }
        ErrorClass::BadRequest => conclude(state, EndReason::Failed, String::new(), detail),
    }
}

/// Ends the turn: closes an open batch, and writes down what the chat is shown.
fn conclude(state: &mut State, reason: EndReason, words: String, detail: Option<String>) -> Effect {
    conclude_after(state, Vec::new(), reason, words, detail)
}

/// As [`conclude`], with what the model thought before its words.
fn conclude_after(
    state: &mut State,
    thoughts: Vec<Block>,
    reason: EndReason,
    words: String,
    detail: Option<String>,
) -> Effect {
    let mut messages = Vec::new();
    if !state.open.is_empty() {
        let blocks = std::mem::take(&mut state.open).into_iter().map(|proposed| Block::ToolResult {
            call: proposed.call,
            text: format!("Not finished: the turn ended first ({reason}). No effect began."),
            is_error: true,
            origin: Origin::Operator,
        });
        messages.push(Message { role: Role::Tool, blocks: blocks.collect() });
    }
    let shown = shown(state, reason, words);
    let said = Block::Text { text: shown.clone(), origin: Origin::Agent };
    messages.push(Message { role: Role::Assistant, blocks: thoughts.into_iter().chain([said]).collect() });
    state.push(&messages);
    state.doing = Doing::Concluding;
    let tells_window = state.saved.compacted && !state.fixed.window_told;
    Effect::Conclude(Conclusion { reason, messages, shown, detail, tells_window })
}

fn shown(state: &State, reason: EndReason, words: String) -> String {
    let words = words.trim().to_owned();
    let mut parts = Vec::new();
    let says_it_all = reason == EndReason::Failed && !words.is_empty();
    if !words.is_empty() {
        parts.push(words);
    }
    if let Some(sentence) = reason.sentence().filter(|_| !says_it_all) {
        parts.push(sentence.to_owned());
    }
    if reason.names_turn() {
        parts.push(format!("({})", state.fixed.turn));
    }
    if parts.is_empty() {
        parts.push("(no answer)".to_owned());
    }
    parts.join("\n\n")
}

#[cfg(test)]
mod tests;
