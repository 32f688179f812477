//! The pieces of a chat completion put together: deltas of a stream, or one whole message.
//!
//! Nothing here panics on what a server sends, and nothing is guessed that would make a cut answer look whole: the end
//! is the server's own `finish_reason`, and arguments are an object or stay the raw text they are.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::model::wire::{Fault, Making, Took, nonsense};
use crate::model::{Attempt, Finish, OnText, ProposedCall, Usage, object};

/// The most calls one answer may propose.
const CALLS_MAX: usize = 64;

/// Why the server says it stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    Done,
    Length,
    Filtered,
}

/// An answer in the making.
#[derive(Debug, Default)]
pub(super) struct Answer {
    text: String,
    refusal: String,
    calls: Vec<Draft>,
    /// Where the call with this index of the server's stands in `calls`.
    by_index: BTreeMap<u64, usize>,
    reason: Option<Reason>,
    usage: Usage,
}

/// A call in the making.
#[derive(Debug, Default)]
struct Draft {
    id: String,
    name: String,
    arguments: String,
}

impl Draft {
    fn is_whole(&self) -> bool {
        // The look at the last byte spares parsing a long text again for each of its pieces.
        self.arguments.trim_end().ends_with('}') && object(&self.arguments).is_some()
    }
}

impl Making for Answer {
    const END: &'static str = "a finish_reason";

    fn take_event(&mut self, chunk: &Value, on_text: OnText<'_>) -> Result<Took, Fault> {
        let progress = self.take(chunk, "delta", on_text)?;
        Ok(if progress { Took::Piece } else { Took::Nothing })
    }

    fn take_whole(&mut self, completion: &Value, on_text: OnText<'_>) -> Result<(), Fault> {
        self.take(completion, "message", on_text)?;
        let choice = completion.get("choices").and_then(|choices| choices.get(0));
        match choice.map(|choice| choice.get("message").unwrap_or(&Value::Null)) {
            None => nonsense("the completion has no choices"),
            Some(Value::Null) => nonsense("the completion has no message"),
            Some(_) => Ok(()),
        }
    }

    fn finish(self) -> Option<Attempt> {
        let reason = self.reason?;
        let Self { mut text, refusal, calls, usage, .. } = self;
        if reason == Reason::Filtered || !refusal.is_empty() {
            if !text.is_empty() && !refusal.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&refusal);
            // Calls beside a refusal are dropped: what a filter cut is not what the model meant to do.
            return Some(Attempt::new(text, Vec::new(), Finish::Refused, usage));
        }
        let calls: Vec<ProposedCall> = calls
            .into_iter()
            .filter(|draft| !draft.name.is_empty() || !draft.arguments.is_empty())
            .map(|draft| ProposedCall::of_text(draft.name, draft.arguments, reason == Reason::Length))
            .collect();
        let finish = match reason {
            Reason::Length => Finish::Length,
            _ if calls.is_empty() => Finish::Stop,
            _ => Finish::Calls,
        };
        Some(Attempt::new(text, calls, finish, usage))
    }
}

impl Answer {
    fn take(&mut self, piece: &Value, key: &'static str, on_text: OnText<'_>) -> Result<bool, Fault> {
        check_error(piece)?;
        if !piece.is_object() {
            return nonsense("the answer holds JSON that is no completion");
        }
        if piece.get("object").and_then(Value::as_str) == Some("error") {
            return Err(Fault::Reported(piece.clone()));
        }
        if let Some(usage) = piece.get("usage").filter(|usage| usage.is_object()) {
            self.usage = read_usage(usage); // some servers count along with each chunk: the last one is right
        }
        let mut progress = false;
        for choice in list(piece, "choices") {
            check_error(choice)?;
            if choice.get("index").and_then(Value::as_u64).unwrap_or(0) != 0 {
                continue; // we asked for one answer
            }
            if let Some(part) = choice.get(key) {
                progress |= self.take_part(part, key == "message", on_text)?;
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str).filter(|r| !r.is_empty()) {
                let reason = read_reason(reason)?;
                self.reason = self.reason.or(Some(reason)); // the first says why; a later "stop" only closes
                progress = true;
            }
        }
        Ok(progress)
    }

    fn take_part(&mut self, part: &Value, whole: bool, on_text: OnText<'_>) -> Result<bool, Fault> {
        let mut progress = false;
        for (key, text) in [("content", &mut self.text), ("refusal", &mut self.refusal)] {
            let mut hear = |piece: &str| {
                if !piece.is_empty() {
                    text.push_str(piece);
                    on_text(piece);
                    progress = true;
                }
            };
            match part.get(key) {
                Some(Value::String(piece)) => hear(piece),
                Some(Value::Array(_)) => {
                    list(part, key).filter_map(|item| item.get("text")?.as_str()).for_each(&mut hear);
                }
                _ => {}
            }
        }
        // Thinking aloud is no part of the answer, but a model that thinks is not stalled.
        for key in ["reasoning_content", "reasoning"] {
            progress |= part.get(key).and_then(Value::as_str).is_some_and(|thought| !thought.is_empty());
        }
        for delta in list(part, "tool_calls") {
            progress |= self.take_call(delta, whole)?;
        }
        Ok(progress)
    }

    fn take_call(&mut self, delta: &Value, whole: bool) -> Result<bool, Fault> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let function = delta.get("function");
        let (id, name) = (text(delta.get("id")), text(function.and_then(|function| function.get("name"))));
        let (arguments, is_whole) = match function.and_then(|function| function.get("arguments")) {
            None | Some(Value::Null) => (String::new(), false),
            Some(Value::String(piece)) => (piece.clone(), false),
            Some(value) => (value.to_string(), true), // an object instead of its text
        };
        let index = delta.get("index").and_then(Value::as_u64);
        let at = if whole { None } else { self.place(index, &id, &name, &arguments) };
        let at = match at {
            Some(at) => at,
            None if self.calls.len() == CALLS_MAX => {
                return nonsense(format!("the answer proposes more than {CALLS_MAX} calls"));
            }
            None => {
                self.calls.push(Draft::default());
                self.calls.len() - 1
            }
        };
        if let Some(index) = index {
            self.by_index.insert(index, at);
        }
        let Some(draft) = self.calls.get_mut(at) else { return Ok(false) };
        if draft.id.is_empty() {
            draft.id = id;
        }
        // A name comes whole, whole again with each piece, grown with each piece, or in pieces.
        if name.starts_with(&draft.name) {
            draft.name.clone_from(&name);
        } else {
            draft.name.push_str(&name);
        }
        if is_whole {
            draft.arguments.clone_from(&arguments);
        } else {
            draft.arguments.push_str(&arguments);
        }
        Ok(!name.is_empty() || !arguments.is_empty())
    }

    /// Which call a delta goes on with; none when it begins one.
    ///
    /// The index decides where it can. Some servers leave it out, and some say 0 for every call; then an id that is
    /// new, or arguments beyond an object that is complete already, begin the next call, provided it has a name.
    fn place(&self, index: Option<u64>, id: &str, name: &str, arguments: &str) -> Option<usize> {
        let last = self.calls.len().checked_sub(1);
        let at = match index {
            Some(index) => *self.by_index.get(&index)?,
            None => match self.calls.iter().position(|draft| !id.is_empty() && draft.id == id) {
                Some(known) => return Some(known),
                None => last?,
            },
        };
        let draft = self.calls.get(at)?;
        let other_id = !id.is_empty() && !draft.id.is_empty() && draft.id != id;
        let could_be_done = draft.arguments.trim().is_empty() || draft.is_whole();
        let without_index = index.is_none();
        let begins = !name.is_empty()
            && ((other_id && (could_be_done || without_index))
                || (name != draft.name && could_be_done && without_index)
                || (!arguments.trim().is_empty() && draft.is_whole()));
        (!begins).then_some(at)
    }
}

fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// `{"error": …}` in a chunk, a choice, or an array around it; `"error": null` is no error.
fn check_error(piece: &Value) -> Result<(), Fault> {
    let inner = piece.as_array().and_then(|list| list.first()).unwrap_or(piece);
    match inner.get("error") {
        None | Some(Value::Null) => Ok(()),
        Some(error) => Err(Fault::Reported(error.clone())),
    }
}

/// Known words only: behind an unknown one may stand a server that broke off.
fn read_reason(reason: &str) -> Result<Reason, Fault> {
    match reason {
        "stop" | "tool_calls" | "function_call" | "end_turn" | "stop_sequence" | "eos" | "eos_token" => {
            Ok(Reason::Done)
        }
        "length" | "max_tokens" | "model_length" => Ok(Reason::Length),
        "content_filter" | "refusal" | "safety" | "sensitive" => Ok(Reason::Filtered),
        other => nonsense(format!("the answer ends for the reason `{other}`")),
    }
}

fn read_usage(usage: &Value) -> Usage {
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    Usage {
        input_tokens: number("/prompt_tokens").unwrap_or(0),
        output_tokens: number("/completion_tokens").unwrap_or(0),
        cached_tokens: number("/prompt_tokens_details/cached_tokens")
            .or_else(|| number("/prompt_cache_hit_tokens"))
            .unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What comes of these deltas (of the first choice) and this reason.
    fn made(deltas: &[Value], reason: &str) -> Attempt {
        let mut answer = Answer::default();
        for delta in deltas {
            answer.take_event(&json!({"choices": [{"index": 0, "delta": delta}]}), &|_| {}).unwrap();
        }
        answer.take_event(&json!({"choices": [{"delta": {}, "finish_reason": reason}]}), &|_| {}).unwrap();
        answer.finish().unwrap()
    }

    fn calls(deltas: &[Value], reason: &str) -> Vec<(String, String)> {
        let text = |call: &ProposedCall| {
            let arguments = call.arguments.clone().map_or_else(|raw| raw, |object| Value::from(object).to_string());
            (call.name.clone(), arguments)
        };
        made(deltas, reason).calls().map(text).collect()
    }

    fn part(index: Value, id: Value, name: Value, arguments: Value) -> Value {
        json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
    }

    #[test]
    fn calls_come_together_however_a_server_cuts_them() {
        let none = || Value::Null;
        for (name, deltas, expected) in [
            (
                "in pieces",
                vec![
                    part(json!(0), json!("a"), json!("read"), json!("")),
                    part(json!(0), none(), none(), json!("{\"p\":")),
                    part(json!(0), none(), none(), json!("1}")),
                ],
                vec![("read", r#"{"p":1}"#)],
            ),
            (
                "interleaved",
                vec![
                    part(json!(0), json!("a"), json!("read"), json!("{\"p\"")),
                    part(json!(1), json!("b"), json!("list"), json!("{\"q\"")),
                    part(json!(0), none(), none(), json!(":1}")),
                    part(json!(1), none(), none(), json!(":2}")),
                ],
                vec![("read", r#"{"p":1}"#), ("list", r#"{"q":2}"#)],
            ),
            (
                "without an index",
                vec![
                    part(none(), json!("a"), json!("read"), json!("{\"p\"")),
                    part(none(), none(), none(), json!(":1}")),
                    part(none(), json!("b"), json!("read"), json!("{\"p\":2}")),
                ],
                vec![("read", r#"{"p":1}"#), ("read", r#"{"p":2}"#)],
            ),
            (
                "interleaved, without an index",
                vec![
                    part(none(), json!("a"), json!("read"), json!("{\"p\"")),
                    part(none(), json!("b"), json!("list"), json!("{\"q\"")),
                    part(none(), json!("a"), none(), json!(":1}")),
                    part(none(), none(), none(), json!(":2}")),
                ],
                vec![("read", r#"{"p":1}"#), ("list", r#"{"q":2}"#)],
            ),
            (
                "without index and id",
                vec![
                    part(none(), none(), json!("read"), json!("{\"p\"")),
                    part(none(), none(), json!("read"), json!(":1}")),
                    part(none(), none(), json!("read"), json!("{\"p\":2}")),
                    part(none(), none(), json!("time"), json!("")),
                    part(none(), none(), json!("list"), json!("{}")),
                ],
                vec![("read", r#"{"p":1}"#), ("read", r#"{"p":2}"#), ("time", "{}"), ("list", "{}")],
            ),
            (
                "the name with each piece",
                vec![
                    part(json!(0), json!("a"), json!("read"), json!("{\"p\":")),
                    part(json!(0), json!("a"), json!("read"), json!("1}")),
                    part(json!(0), json!("a"), json!("read"), json!("")),
                ],
                vec![("read", r#"{"p":1}"#)],
            ),
            (
                "the name in pieces",
                vec![
                    part(json!(0), json!("a"), json!("read_"), json!("")),
                    part(json!(0), none(), json!("file"), json!("{}")),
                ],
                vec![("read_file", "{}")],
            ),
            (
                "a new id with each piece",
                vec![
                    part(json!(0), json!("a"), json!("read"), json!("{\"p\":")),
                    part(json!(0), json!("b"), none(), json!("1}")),
                ],
                vec![("read", r#"{"p":1}"#)],
            ),
            (
                "index 0 for every call",
                vec![
                    part(json!(0), json!("a"), json!("read"), json!("{\"p\":1}")),
                    part(json!(0), json!("b"), json!("read"), json!("{\"p\":2}")),
                    part(json!(0), none(), json!("read"), json!("{\"p\":3}")),
                ],
                vec![("read", r#"{"p":1}"#), ("read", r#"{"p":2}"#), ("read", r#"{"p":3}"#)],
            ),
            (
                "an object instead of its text",
                vec![part(json!(0), json!("a"), json!("read"), json!({"p": 1}))],
                vec![("read", r#"{"p":1}"#)],
            ),
            ("no arguments", vec![part(json!(0), json!("a"), json!("time"), none())], vec![("time", "{}")]),
            (
                "cut, though it claims otherwise",
                vec![part(json!(0), none(), json!("w"), json!("{\"p"))],
                vec![("w", "{\"p")],
            ),
            ("no object", vec![part(json!(0), none(), json!("w"), json!("[1]"))], vec![("w", "[1]")]),
            ("more than an object", vec![part(json!(0), none(), json!("w"), json!("{}{}"))], vec![("w", "{}{}")]),
            ("nothing at all", vec![json!({"tool_calls": [{}, null, 5]}), json!({"tool_calls": null})], vec![]),
            ("odd types", vec![part(json!(-1), json!(5), json!(7), json!(true))], vec![("", "true")]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(n, a)| (n.to_owned(), a.to_owned())).collect();
            assert_eq!(calls(&deltas, "tool_calls"), expected, "{name}");
        }
    }

    #[test]
    fn the_end_is_what_the_server_says_and_what_is_there() {
        let text = || json!({"content": "a"});
        let call = || part(json!(0), json!("a"), json!("w"), json!("{\"p"));
        let bare = || part(json!(0), json!("a"), json!("w"), json!(""));
        let refusal = || json!({"refusal": "no"});
        for (name, deltas, reason, finish, expected_text, expected_calls) in [
            ("stop", vec![text()], "stop", Finish::Stop, "a", 0),
            ("stop with calls", vec![text(), call()], "stop", Finish::Calls, "a", 1),
            ("calls without calls", vec![text()], "tool_calls", Finish::Stop, "a", 0),
            ("length", vec![text()], "length", Finish::Length, "a", 0),
            ("length in a call", vec![call()], "length", Finish::Length, "", 1),
            ("a filter", vec![text(), call()], "content_filter", Finish::Refused, "a", 0),
            ("a refusal", vec![refusal()], "stop", Finish::Refused, "no", 0),
            ("a refusal after words", vec![text(), refusal()], "stop", Finish::Refused, "a\n\nno", 0),
            (
                "content in parts",
                vec![json!({"content": [{"type": "text", "text": "p"}]})],
                "stop",
                Finish::Stop,
                "p",
                0,
            ),
            ("only thoughts", vec![json!({"content": null, "reasoning_content": "hm"})], "stop", Finish::Stop, "", 0),
        ] {
            let attempt = made(&deltas, reason);
            assert_eq!(
                (attempt.finish, &*attempt.text(), attempt.calls().count()),
                (finish, expected_text, expected_calls),
                "{name}"
            );
        }
        // B115: cut at the limit, nothing is not the same as no arguments.
        assert_eq!(made(&[bare()], "length").calls().next().unwrap().arguments, Err(String::new()));
        assert_eq!(made(&[call()], "length").calls().next().unwrap().arguments, Err("{\"p".into()));
        assert_eq!(made(&[call()], "tool_calls").calls().next().unwrap().arguments, Err("{\"p".into()));
    }

    #[test]
    fn what_counts_as_progress() {
        for (name, chunk, expected) in [
            ("words", json!({"choices": [{"delta": {"content": "a"}}]}), true),
            ("thoughts", json!({"choices": [{"delta": {"reasoning_content": "a"}}]}), true),
            ("a call", part_chunk(part(json!(0), Value::Null, Value::Null, json!("{"))), true),
            ("an end", json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}), true),
            ("a role", json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), false),
            ("null", json!({"choices": [{"delta": null, "finish_reason": ""}]}), false),
            ("no choice", json!({"choices": [], "usage": {"prompt_tokens": 1}}), false),
            ("no choices", json!({"type": "ping", "error": null}), false),
            ("another answer", json!({"choices": [{"index": 1, "delta": {"content": "b"}}]}), false),
            ("an empty call", part_chunk(part(json!(0), Value::Null, Value::Null, json!(""))), false),
        ] {
            assert_eq!(
                Answer::default().take_event(&chunk, &|_| {}),
                Ok(if expected { Took::Piece } else { Took::Nothing }),
                "{name}"
            );
        }
    }

    fn part_chunk(delta: Value) -> Value {
        json!({"choices": [{"delta": delta}]})
    }

    #[test]
    fn what_makes_an_answer_worthless() {
        for (name, chunk, reported) in [
            ("an error", json!({"error": {"message": "m"}}), true),
            ("an error as text", json!({"error": "m"}), true),
            ("an error in an array", json!([{"error": {"message": "m"}}]), true),
            ("an error in a choice", json!({"choices": [{"error": {"code": 502}}]}), true),
            ("an error object", json!({"object": "error", "message": "m"}), true),
            ("no object", json!(5), false),
            ("an unknown end", json!({"choices": [{"finish_reason": "network_error"}]}), false),
        ] {
            let fault = Answer::default().take_event(&chunk, &|_| {}).unwrap_err();
            assert_eq!(matches!(fault, Fault::Reported(_)), reported, "{name}");
        }
        let many: Vec<Value> = (0..=CALLS_MAX).map(|i| json!({"index": i, "function": {"name": "a"}})).collect();
        let fault = Answer::default().take_event(&part_chunk(json!({"tool_calls": many})), &|_| {}).unwrap_err();
        assert_eq!(fault, Fault::Nonsense("the answer proposes more than 64 calls".into()));
    }

    #[test]
    fn a_whole_completion_is_taken_alike() {
        let take = |completion: Value| {
            let mut answer = Answer::default();
            answer.take_whole(&completion, &|_| {}).map(|()| answer.finish())
        };
        let call = |arguments: Value| json!({"function": {"name": "read", "arguments": arguments}});
        let message =
            json!({"content": null, "tool_calls": [call(json!("{}")), call(json!({"p": 1})), call(json!(""))]});
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}});
        let whole = json!({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage});
        let attempt = take(whole).unwrap().unwrap();
        assert_eq!((attempt.calls().count(), attempt.finish), (3, Finish::Calls));
        assert_eq!(attempt.usage, Usage { input_tokens: 9, output_tokens: 4, cached_tokens: 5 });
        assert_eq!(take(json!({"choices": [{"message": {"content": "half"}}]})), Ok(None), "no reason, no end");
        for empty in [
            json!({"choices": []}),
            json!({}),
            json!({"choices": [{"message": null, "finish_reason": "stop"}]}),
            json!({"choices": [{"finish_reason": "stop"}]}),
            json!({"choices": null}),
            json!({"choices": [null]}),
        ] {
            assert!(matches!(take(empty.clone()), Err(Fault::Nonsense(_))), "{empty}");
        }
    }
}
