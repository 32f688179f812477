//! Looks at an answer before it goes out. The model's wish to stop is only a proposal.

use super::state::State;
use crate::domain::{Block, Role};

/// Most repairs asked of the model in one turn.
pub(super) const REPAIRS_MAX: u8 = 2;

/// Words by which an answer owns up to a failure; any of them will do.
const OWNS_UP: &[&str] = &[
    "error",
    "fail",
    "could not",
    "couldn't",
    "cannot",
    "can't",
    "unable",
    "refus",
    "denied",
    "not allowed",
    "not found",
    "no such",
    "not exist",
];

/// Checks `answer` by its structure; the complaint is for the model.
pub(super) fn complaint(state: &State, answer: &str) -> Option<String> {
    if answer.trim().is_empty() {
        return Some("Your answer was empty. Answer the last message in words.".to_owned());
    }
    // Only a batch that failed altogether: a model that tried again with success has nothing to own up to.
    let last = state.own().rev().find(|message| message.role == Role::Tool)?;
    let all_failed = last.blocks.iter().all(|block| matches!(block, Block::ToolResult { is_error: true, .. }));
    let answer = answer.to_lowercase();
    if all_failed && !OWNS_UP.iter().any(|words| answer.contains(words)) && !quotes(last, &answer) {
        return Some("A tool failed and your answer does not say so. Say plainly what failed, then answer.".to_owned());
    }
    None
}

/// Whether the answer repeats a word of the failure, in whatever language it is written.
fn quotes(last: &crate::domain::Message, answer: &str) -> bool {
    last.blocks.iter().any(|block| match block {
        Block::ToolResult { text, .. } => {
            let text = text.to_lowercase();
            let mut words =
                text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.chars().count() >= 6);
            words.any(|word| answer.contains(word))
        }
        _ => false,
    })
}
