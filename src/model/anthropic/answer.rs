//! The pieces of a message put together: the blocks of a stream, or one whole message.
//!
//! Nothing here panics on what a server sends, and nothing is guessed that would make a cut answer look whole: the end
//! is a `stop_reason` and then `message_stop`. Blocks keep the order of their indexes, and what was thought keeps its
//! words and its seal.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::PROVIDER;
use crate::domain::Reasoning;
use crate::model::wire::{Fault, Making, Took, nonsense};
use crate::model::{Attempt, ErrorClass, Finish, OnText, Part, ProposedCall, Usage};

/// The most blocks one answer may have.
const BLOCKS_MAX: usize = 256;

/// An answer in the making.
#[derive(Debug)]
pub(super) struct Answer {
    model: String,
    /// By the server's index.
    blocks: BTreeMap<u64, Draft>,
    reason: Option<Reason>,
    stopped: bool,
    counts: Counts,
}

/// A block in the making.
#[derive(Debug)]
enum Draft {
    Text(String),
    Call {
        name: String,
        /// As the head of the block brought it; with us it is empty, and the pieces follow.
        whole: Value,
        pieces: String,
    },
    /// What was thought, in the provider's own form.
    Reasoning(Value),
    /// A kind that this version does not know, and did not ask for.
    Unknown,
}

/// Why the server says it stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    Done,
    Length,
    Refused,
}

/// Tokens as they are counted here: what was read comes in three numbers that do not overlap.
#[derive(Debug, Default)]
struct Counts {
    fresh: u64,
    cache_read: u64,
    cache_written: u64,
    written: u64,
}

impl Answer {
    /// An answer of this model.
    pub(super) fn of(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            blocks: BTreeMap::new(),
            reason: None,
            stopped: false,
            counts: Counts::default(),
        }
    }

    /// Begins a block; true when its head alone says something.
    fn begin(&mut self, index: u64, block: &Value, on_text: OnText<'_>) -> Result<bool, Fault> {
        if self.blocks.len() == BLOCKS_MAX {
            return nonsense(format!("the answer has more than {BLOCKS_MAX} blocks"));
        }
        if self.blocks.contains_key(&index) {
            return nonsense(format!("block {index} of the answer begins twice"));
        }
        let (draft, says) = match word(block, "type") {
            "text" => {
                let text = word(block, "text");
                on_text_of(text, on_text);
                (Draft::Text(text.to_owned()), !text.is_empty())
            }
            "tool_use" => {
                let whole = block.get("input").cloned().unwrap_or_default();
                (Draft::Call { name: word(block, "name").to_owned(), whole, pieces: String::new() }, true)
            }
            "thinking" | "redacted_thinking" => {
                let says = ["thinking", "data"].iter().any(|key| !word(block, key).is_empty());
                (Draft::Reasoning(block.clone()), says)
            }
            _ => (Draft::Unknown, false),
        };
        self.blocks.insert(index, draft);
        Ok(says)
    }

    /// Goes on with a block; true when something came with it.
    fn go_on(&mut self, index: u64, delta: &Value, on_text: OnText<'_>) -> Result<bool, Fault> {
        let Some(draft) = self.blocks.get_mut(&index) else {
            return nonsense(format!("block {index} of the answer never began"));
        };
        let kind = word(delta, "type");
        let (key, says) = match kind {
            "text_delta" => ("text", true),
            "input_json_delta" => ("partial_json", true),
            "thinking_delta" => ("thinking", true),
            "signature_delta" => ("signature", true),
            _ => ("", false),
        };
        let piece = word(delta, key);
        match (draft, kind) {
            (Draft::Text(text), "text_delta") => {
                text.push_str(piece);
                on_text_of(piece, on_text);
            }
            (Draft::Call { pieces, .. }, "input_json_delta") => pieces.push_str(piece),
            (Draft::Reasoning(raw), "thinking_delta" | "signature_delta") => match raw.get_mut(key) {
                Some(Value::String(all)) => all.push_str(piece),
                _ => raw[key] = json!(piece),
            },
            (Draft::Unknown, _) => return Ok(false),
            (_, kind) if says => return nonsense(format!("block {index} of the answer goes on with a {kind}")),
            _ => return Ok(false), // a kind of piece that is newer than we are, as citations once were
        }
        Ok(!piece.is_empty())
    }

    /// Takes what says how the message ends.
    fn take_reason(&mut self, holder: &Value) -> Result<bool, Fault> {
        let reason = word(holder, "stop_reason");
        if reason.is_empty() {
            return Ok(false);
        }
        self.reason = Some(read_reason(reason)?);
        Ok(true)
    }
}

impl Making for Answer {
    const END: &'static str = "a message_stop";

    fn take_event(&mut self, event: &Value, on_text: OnText<'_>) -> Result<Took, Fault> {
        check_error(event)?;
        let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        let part = |key: &str| event.get(key).unwrap_or(&Value::Null);
        let says = match word(event, "type") {
            "message_start" => {
                self.counts.take(&part("message")["usage"]);
                false
            }
            "content_block_start" => self.begin(index, part("content_block"), on_text)?,
            "content_block_delta" => self.go_on(index, part("delta"), on_text)?,
            "message_delta" => {
                self.counts.take(part("usage"));
                self.take_reason(part("delta"))?
            }
            "message_stop" => {
                self.stopped = true;
                return Ok(Took::End);
            }
            "" => return nonsense("the answer holds JSON that is no event of a message"),
            _ => false, // pings, ends of blocks, and events that are newer than we are
        };
        Ok(if says { Took::Piece } else { Took::Nothing })
    }

    fn take_whole(&mut self, message: &Value, on_text: OnText<'_>) -> Result<(), Fault> {
        check_error(message)?;
        let Some(content) = message.get("content").and_then(Value::as_array) else {
            return nonsense("the message has no content");
        };
        for (index, block) in (0..).zip(content) {
            self.begin(index, block, on_text)?;
        }
        self.counts.take(&message["usage"]);
        self.stopped = self.take_reason(message)?;
        Ok(())
    }

    fn finish(self) -> Option<Attempt> {
        let reason = self.reason.filter(|_| self.stopped)?;
        let usage = self.counts.usage();
        let at_limit = reason == Reason::Length;
        let model = self.model;
        let parts = self.blocks.into_values().filter_map(|draft| match draft {
            Draft::Text(text) => (!text.is_empty()).then_some(Part::Text(text)),
            Draft::Call { name, whole, pieces } => {
                // An empty head says nothing yet: what was cut before its first piece is not without arguments.
                let says_nothing = whole.is_null() || whole.as_object().is_some_and(Map::is_empty);
                let arguments = if says_nothing || !pieces.is_empty() { pieces } else { whole.to_string() };
                Some(Part::Call(ProposedCall::of_text(name, arguments, at_limit)))
            }
            // Without its seal a thought would be refused on the way back in; some servers give none.
            Draft::Reasoning(raw) => {
                let is_sealed = ["signature", "data"].iter().any(|key| !word(&raw, key).is_empty());
                is_sealed
                    .then(|| Part::Reasoning(Reasoning { provider: PROVIDER.to_owned(), model: model.clone(), raw }))
            }
            Draft::Unknown => None,
        });
        let mut parts: Vec<Part> = parts.collect();
        if reason == Reason::Refused {
            // Calls beside a refusal are dropped: what a filter cut is not what the model meant to do.
            parts.retain(|part| matches!(part, Part::Text(_)));
        }
        let has_calls = parts.iter().any(|part| matches!(part, Part::Call(_)));
        let finish = match reason {
            Reason::Refused => Finish::Refused,
            Reason::Length => Finish::Length,
            Reason::Done if has_calls => Finish::Calls,
            Reason::Done => Finish::Stop,
        };
        Some(Attempt { parts, finish, usage })
    }
}

impl Counts {
    /// Takes a `usage`: a later one repeats, or corrects, what it names.
    fn take(&mut self, usage: &Value) {
        for (key, count) in [
            ("input_tokens", &mut self.fresh),
            ("cache_read_input_tokens", &mut self.cache_read),
            ("cache_creation_input_tokens", &mut self.cache_written),
            ("output_tokens", &mut self.written),
        ] {
            if let Some(number) = usage.get(key).and_then(Value::as_u64) {
                *count = number;
            }
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            input_tokens: self.fresh.saturating_add(self.cache_read).saturating_add(self.cache_written),
            output_tokens: self.written,
            cached_tokens: self.cache_read,
        }
    }
}

fn on_text_of(piece: &str, on_text: OnText<'_>) {
    if !piece.is_empty() {
        on_text(piece);
    }
}

fn word<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// `{"type": "error", "error": …}`, as an event or as the whole answer; other servers leave the type out.
fn check_error(event: &Value) -> Result<(), Fault> {
    match event.get("error") {
        None | Some(Value::Null) if word(event, "type") == "error" => Err(Fault::Reported(event.clone())),
        None | Some(Value::Null) => Ok(()),
        Some(error) => Err(Fault::Reported(error.clone())),
    }
}

/// Known words only: behind an unknown one may stand a server that broke off.
fn read_reason(reason: &str) -> Result<Reason, Fault> {
    match reason {
        "end_turn" | "stop_sequence" | "tool_use" => Ok(Reason::Done),
        "max_tokens" => Ok(Reason::Length),
        "refusal" => Ok(Reason::Refused),
        // With a shorter history there is room for the whole answer.
        "model_context_window_exceeded" => {
            Err(Fault::Failed(ErrorClass::ContextTooLong, "the answer ended at the end of the context window".into()))
        }
        "pause_turn" => nonsense("the answer pauses for a tool of the server's, and none was offered"),
        other => nonsense(format!("the answer ends for the reason `{other}`")),
    }
}
