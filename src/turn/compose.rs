//! Composes a request: the window of the history that fits the model, in the form every provider takes.
//!
//! Whole exchanges are left out, oldest first; one exchange is one turn's messages, so a call and its results go
//! together. When the turn alone is too long, its long results keep head and tail. Nothing is deleted from the store.

use std::collections::BTreeSet;

use crate::domain::{Block, CallId, Message, Origin, Role};
use crate::model::{Request, ToolSchema};
use crate::store::chain::Numbered;

use super::state::State;

/// Left free in every window for what the estimate does not see.
const MARGIN_TOKENS: usize = 64;
/// When the window has to move it moves to this share of the room, so that it need not move again at once.
const KEEP_PERCENT: usize = 70;
/// Longest results in a request, tried in this order, in bytes; none first.
const RESULT_CAPS: &[usize] = &[usize::MAX, 16 << 10, 4 << 10, 1 << 10, 256];

/// A request that fits, and the first message of its window.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The request.
    pub request: Request,
    /// Number of the first message in it.
    pub first_seq: i64,
}

/// Fits the history into the model's window; none when even this turn alone, with its results cut short, does not.
#[must_use]
pub fn fit(state: &State, tool_use: bool) -> Option<Fit> {
    let fixed = &state.fixed;
    // An answer that may take the whole window leaves no room for the question.
    let max_output_tokens = fixed.max_output_tokens.min(fixed.window_tokens / 2);
    let window = (fixed.window_tokens - max_output_tokens) as usize;
    let window = if state.saved.shrunk { window / 2 } else { window };
    let room = window.checked_sub(MARGIN_TOKENS + tokens_of_text(&fixed.system) + tokens_of_tools(&fixed.tools))?;
    let request = |messages| Request {
        system: fixed.system.clone(),
        messages,
        tools: fixed.tools.clone(),
        max_output_tokens,
        tool_use,
    };

    let kept: Vec<&Numbered> = state.history.iter().filter(|numbered| numbered.seq >= state.first_seq).collect();
    let sizes: Vec<usize> = kept.iter().map(|numbered| tokens(&numbered.message)).collect();
    let mut total: usize = sizes.iter().sum();
    let mut from = 0;
    if total > room {
        let aim = room * KEEP_PERCENT / 100;
        while total > aim {
            let oldest = kept.get(from)?.turn;
            if oldest == fixed.turn {
                break;
            }
            while kept.get(from).is_some_and(|numbered| numbered.turn == oldest) {
                total -= sizes.get(from).copied().unwrap_or_default();
                from += 1;
            }
        }
    }
    let window = kept.get(from..)?;
    let first_seq = window.first()?.seq;
    for cap in RESULT_CAPS {
        let messages = well_formed(window.iter().map(|numbered| shortened(&numbered.message, *cap)));
        if messages.iter().map(tokens).sum::<usize>() <= room {
            return Some(Fit { request: request(messages), first_seq });
        }
    }
    None
}

/// Makes a history that every provider takes: each call answered right after its message, nothing unasked, nothing
/// empty, no two messages of one side in a row.
pub fn well_formed(history: impl IntoIterator<Item = Message>) -> Vec<Message> {
    let history: Vec<Message> = history.into_iter().collect();
    let answers: Vec<Block> = history
        .iter()
        .filter(|message| message.role == Role::Tool)
        .flat_map(|message| &message.blocks)
        .filter(|block| matches!(block, Block::ToolResult { .. }))
        .cloned()
        .collect();
    let answer = |wanted: CallId| {
        let found = answers.iter().find(|block| matches!(block, Block::ToolResult { call, .. } if *call == wanted));
        found.map_or_else(
            || Block::ToolResult {
                call: wanted,
                text: "Interrupted: the outcome of this call is not known.".to_owned(),
                is_error: true,
                origin: Origin::Operator,
            },
            Clone::clone,
        )
    };
    let mut seen = BTreeSet::new();
    let mut made: Vec<Message> = Vec::new();
    for mut message in history {
        match message.role {
            // Results come with their calls, wherever they stood.
            Role::Tool => continue,
            Role::User => message.blocks.retain(is_words),
            Role::Assistant => message.blocks.retain(|block| match block {
                Block::ToolCall { call, .. } => seen.insert(*call),
                Block::Reasoning(_) => true,
                block => is_words(block),
            }),
        }
        // Reasoning alone is no message: whoever may not see it would get an empty one.
        let says_nothing = message.blocks.iter().all(|block| matches!(block, Block::Reasoning(_)));
        if says_nothing || (made.is_empty() && message.role != Role::User) {
            continue;
        }
        let results: Vec<Block> = message.calls().map(answer).collect();
        match made.last_mut() {
            Some(last) if last.role == message.role && last.calls().next().is_none() => {
                last.blocks.append(&mut message.blocks);
            }
            _ => made.push(message),
        }
        if !results.is_empty() {
            made.push(Message { role: Role::Tool, blocks: results });
        }
    }
    made
}

fn is_words(block: &Block) -> bool {
    matches!(block, Block::Text { text, .. } if !text.trim().is_empty())
}

/// The message with results of at most `cap` bytes each, head and tail kept.
fn shortened(message: &Message, cap: usize) -> Message {
    let mut message = message.clone();
    for block in &mut message.blocks {
        if let Block::ToolResult { text, .. } = block
            && text.len() > cap
        {
            *text = head_and_tail(text, cap);
        }
    }
    message
}

/// The first and the last of `text`, about `keep_bytes` in all, and how much was left out between.
#[must_use]
pub fn head_and_tail(text: &str, keep_bytes: usize) -> String {
    let head = text.floor_char_boundary(keep_bytes * 2 / 3);
    let tail = text.ceil_char_boundary(text.len().saturating_sub(keep_bytes / 3).max(head));
    let (first, rest) = text.split_at(head);
    let last = rest.get(tail - head..).unwrap_or_default();
    let left_out = text.len() - first.len() - last.len();
    format!("{first}\n… {left_out} bytes left out here to fit the model …\n{last}")
}

/// A careful guess: no tokenizer here is the model's own. Three bytes a token is less than English takes and about
/// what other scripts do.
fn tokens_of_text(text: &str) -> usize {
    text.len().div_ceil(3) + 4
}

fn tokens_of_tools(tools: &[ToolSchema]) -> usize {
    tools.iter().map(|tool| tokens_of_text(&tool.description) + tokens_of_text(&tool.parameters.to_string()) + 16).sum()
}

/// The estimate for a whole request without its answer.
pub(super) fn tokens_of(request: &Request) -> usize {
    let messages = request.messages.iter().map(tokens).sum::<usize>();
    MARGIN_TOKENS + tokens_of_text(&request.system) + tokens_of_tools(&request.tools) + messages
}

fn tokens(message: &Message) -> usize {
    let of_block = |block: &Block| match block {
        Block::Text { text, .. } => tokens_of_text(text),
        Block::ToolCall { name, arguments, .. } => tokens_of_text(name) + tokens_of_text(&arguments.to_string()) + 16,
        Block::ToolResult { text, .. } => tokens_of_text(text) + 12,
        Block::Reasoning(reasoning) => tokens_of_text(&reasoning.raw.to_string()),
    };
    message.blocks.iter().map(of_block).sum::<usize>() + 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Reasoning, TurnId};
    use crate::turn::validate::validate;

    fn piece() -> impl Strategy<Value = Message> {
        let call = |n: u32| CallId::new(TurnId::from_row(1), n);
        let text = prop_oneof![Just(String::new()), Just("  ".to_owned()), Just("words".to_owned())];
        let block = (0..4_u8, 1..6_u32, text).prop_map(move |(kind, n, text)| match kind {
            0 => Block::Text { text, origin: Origin::Cause },
            1 => Block::ToolCall { call: call(n), name: "read_file".into(), arguments: serde_json::json!({}) },
            2 => Block::Reasoning(Reasoning { provider: "p".into(), model: "m".into(), raw: n.into() }),
            _ => Block::ToolResult { call: call(n), text, is_error: false, origin: Origin::Workspace },
        });
        let role = prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::Tool)];
        (role, prop::collection::vec(block, 0..4)).prop_map(|(role, blocks)| Message { role, blocks })
    }

    proptest! {
        #[test]
        fn whatever_a_crash_left_every_provider_takes_it(history in prop::collection::vec(piece(), 0..12)) {
            let mut messages = well_formed(history);
            if messages.last().is_none_or(|last| last.role == Role::Assistant) {
                messages.push(Message::text(Role::User, "go on", Origin::Cause));
            }
            let request = Request { system: "s".into(), messages, tools: vec![], max_output_tokens: 1, tool_use: true };
            prop_assert_eq!(validate(&request), Ok(()));
        }
    }

    #[test]
    fn a_long_result_keeps_its_head_and_tail() {
        let text = "é".repeat(500) + "END";
        let short = head_and_tail(&text, 90);
        assert!(short.starts_with('é') && short.ends_with("END") && short.len() < 170, "{short}");
    }

    #[test]
    fn b068_no_result_without_its_call() {
        let call = CallId::new(TurnId::from_row(1), 1);
        let orphan = Block::ToolResult { call, text: "x".into(), is_error: false, origin: Origin::Workspace };
        let history = [
            Message::text(Role::User, "hi", Origin::Cause),
            Message { role: Role::Tool, blocks: vec![orphan] },
            Message::text(Role::User, "again", Origin::Cause),
        ];
        let made = well_formed(history);
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].plain_text(), "hi\n\nagain");
    }
}
