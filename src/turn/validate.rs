//! The providers' rules for a history, checked on every request before it leaves: a refused history would be refused
//! for ever.

use std::collections::BTreeSet;

use crate::domain::{Block, Role};
use crate::model::Request;

/// Checks what OpenAI's and Anthropic's servers both ask for.
///
/// # Errors
/// The first broken rule, for the operator.
pub fn validate(request: &Request) -> Result<(), String> {
    let mut calls = BTreeSet::new();
    let mut waiting: Vec<_> = Vec::new();
    let mut last = None;
    for (at, message) in request.messages.iter().enumerate() {
        let broken = |rule: &str| Err(format!("message {at} of the request: {rule}"));
        if message.blocks.iter().all(|block| matches!(block, Block::Reasoning(_))) {
            return broken("is empty");
        }
        if last == Some(message.role) {
            return broken("follows one of the same side");
        }
        if (message.role == Role::Tool) == waiting.is_empty() {
            return broken("calls and results do not meet");
        }
        match message.role {
            Role::User if message.blocks.iter().any(|block| !matches!(block, Block::Text { .. })) => {
                return broken("a user message holds more than words");
            }
            Role::Assistant if last.is_none() => return broken("the model speaks first"),
            Role::Assistant if message.results().next().is_some() => return broken("a model's message holds a result"),
            Role::Tool => {
                if message.results().ne(waiting.drain(..)) || message.blocks.len() != message.results().count() {
                    return broken("results are not those of the calls before, in their order");
                }
            }
            Role::User | Role::Assistant => {}
        }
        if message.blocks.iter().any(|block| matches!(block, Block::Text { text, .. } if text.trim().is_empty())) {
            return broken("holds an empty text");
        }
        for call in message.calls() {
            if !calls.insert(call) {
                return broken("a call's id occurs twice");
            }
            waiting.push(call);
        }
        last = Some(message.role);
    }
    match last {
        Some(Role::User | Role::Tool) => Ok(()),
        Some(Role::Assistant) => Err("the request ends with the model's own words".to_owned()),
        None => Err("the request is empty".to_owned()),
    }
}
