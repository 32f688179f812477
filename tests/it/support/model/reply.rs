//! What the model is to say, and everything a server can do wrong while it says it.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Protocol, Request};

/// One scripted answer: something to say, and how the saying goes.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(super) what: What,
    /// Waits for [`super::Model::release`] before the first byte.
    pub(super) held: bool,
    /// A pause before each event.
    pub(super) pause: Option<Duration>,
    /// After so many events the connection breaks.
    pub(super) cut_after: Option<usize>,
    /// After so many events the answer ends as if it were whole, without an end event.
    pub(super) end_after: Option<usize>,
    /// After so many events nothing comes any more, or only comments where `keepalive` says so.
    pub(super) stall_after: Option<usize>,
    pub(super) keepalive: bool,
    pub(super) done: bool,
    pub(super) finish: Option<String>,
    pub(super) half_arguments: bool,
    pub(super) usage: Option<(u64, u64, u64)>,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Say {
        text: String,
        calls: Vec<(String, String)>,
    },
    Status {
        code: u16,
        body: String,
        headers: Vec<(String, String)>,
    },
    /// The blocks of a message, in their order; spoken in the Messages protocol alone.
    Content(Vec<Value>),
    /// Ready-made events of a stream, or the body where none was asked for.
    Events(Vec<Value>),
    /// An answer byte by byte.
    Raw {
        code: u16,
        headers: Vec<(String, String)>,
        pieces: Vec<Vec<u8>>,
        ending: Ending,
    },
    Html,
    Hangup,
}

/// How an answer ends, when all its pieces are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As an answer should.
    Close,
    /// The connection breaks.
    Reset,
    /// Nothing comes any more, and the connection stays.
    Hang,
    /// Only this comes any more, twenty times a second.
    Repeat(&'static str),
}

impl Reply {
    fn new(what: What) -> Self {
        Self {
            what,
            held: false,
            pause: None,
            cut_after: None,
            end_after: None,
            stall_after: None,
            keepalive: false,
            done: true,
            finish: None,
            half_arguments: false,
            usage: None,
        }
    }

    /// Words.
    pub(crate) fn text(text: &str) -> Self {
        Self::text_and_calls(text, Vec::new())
    }

    /// Tool calls: name and arguments.
    pub(crate) fn calls(calls: Vec<(&str, Value)>) -> Self {
        Self::text_and_calls("", calls)
    }

    /// Words, then tool calls.
    pub(crate) fn text_and_calls(text: &str, calls: Vec<(&str, Value)>) -> Self {
        let calls = calls.into_iter().map(|(name, arguments)| (name.to_owned(), arguments.to_string())).collect();
        Self::new(What::Say { text: text.to_owned(), calls })
    }

    /// One call whose arguments are this very text, JSON or not.
    pub(crate) fn raw_call(name: &str, arguments: &str) -> Self {
        let calls = vec![(name.to_owned(), arguments.to_owned())];
        Self::new(What::Say { text: String::new(), calls })
    }

    /// The blocks of a message, as the Messages protocol has them: `{"type": "thinking", …}`.
    pub(crate) fn content(blocks: Vec<Value>) -> Self {
        Self::new(What::Content(blocks))
    }

    /// An answer byte by byte.
    pub(crate) fn raw(code: u16, headers: Vec<(String, String)>, pieces: Vec<Vec<u8>>, ending: Ending) -> Self {
        Self::new(What::Raw { code, headers, pieces, ending })
    }

    /// A status with a body and headers, such as `("retry-after", "2")`.
    pub(crate) fn status(code: u16, body: &str, headers: &[(&str, &str)]) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self::new(What::Status { code, body: body.to_owned(), headers })
    }

    /// A status with the error body that the API has for it.
    pub(crate) fn error(code: u16, kind: &str, message: &str) -> Self {
        let body = json!({ "error": { "message": message, "type": kind, "param": null, "code": null } });
        Self::status(code, &body.to_string(), &[])
    }

    /// Events (or a body) as they are.
    pub(crate) fn events(events: Vec<Value>) -> Self {
        Self::new(What::Events(events))
    }

    /// `choices: []` where an answer should be.
    pub(crate) fn empty_choices() -> Self {
        let chunk = json!({ "id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "fake",
                            "choices": [] });
        Self::events(vec![chunk])
    }

    /// 200 with an HTML page, as captive portals give.
    pub(crate) fn html200() -> Self {
        Self::new(What::Html)
    }

    /// The connection breaks without an answer.
    pub(crate) fn hangup() -> Self {
        Self::new(What::Hangup)
    }

    /// Nothing at all until [`super::Model::release`], then a broken connection.
    pub(crate) fn hang() -> Self {
        Self::hangup().held()
    }

    /// The head of an answer, and then nothing.
    pub(crate) fn stall() -> Self {
        Self::text("never said").stall_after(0)
    }

    /// The head of an answer, and then only comments that keep the connection warm.
    pub(crate) fn keepalive_only() -> Self {
        Self::text("never said").stall_after(0).keepalive()
    }

    /// Answers only after [`super::Model::release`].
    pub(crate) fn held(mut self) -> Self {
        self.held = true;
        self
    }

    /// Pauses before each event.
    pub(crate) fn slow(mut self, pause: Duration) -> Self {
        self.pause = Some(pause);
        self
    }

    /// The connection breaks after `events` events.
    pub(crate) fn cut_after(mut self, events: usize) -> Self {
        self.cut_after = Some(events);
        self
    }

    /// The answer ends cleanly after `events` events, before its end event.
    pub(crate) fn end_after(mut self, events: usize) -> Self {
        self.end_after = Some(events);
        self
    }

    /// Nothing comes after `events` events, and the connection stays.
    pub(crate) fn stall_after(mut self, events: usize) -> Self {
        self.stall_after = Some(events);
        self
    }

    /// While it stalls, comments come.
    pub(crate) fn keepalive(mut self) -> Self {
        self.keepalive = true;
        self
    }

    /// Everything but the closing `[DONE]`.
    pub(crate) fn no_done(mut self) -> Self {
        self.done = false;
        self
    }

    /// This reason to stop instead of the true one.
    pub(crate) fn finish(mut self, reason: &str) -> Self {
        self.finish = Some(reason.to_owned());
        self
    }

    /// The arguments of the last call stop in the middle; `reason` is `length`, or falsely `tool_calls`.
    pub(crate) fn cut_arguments(mut self, reason: &str) -> Self {
        self.half_arguments = true;
        self.finish(reason)
    }

    /// These tokens instead of an estimate: read, written, and of the read ones cached.
    pub(crate) fn usage(mut self, read: u64, written: u64, cached: u64) -> Self {
        self.usage = Some((read, written, cached));
        self
    }

    pub(super) fn reason(&self) -> String {
        match (&self.finish, &self.what) {
            (Some(reason), _) => reason.clone(),
            (None, What::Say { calls, .. }) if !calls.is_empty() => "tool_calls".into(),
            (None, What::Content(blocks)) if blocks.iter().any(|block| block["type"] == "tool_use") => {
                "tool_calls".into()
            }
            _ => "stop".into(),
        }
    }

    /// Tokens read, written, and of the read ones cached.
    pub(super) fn tokens(&self, request: &Request) -> (u64, u64, u64) {
        self.usage.unwrap_or_else(|| match &self.what {
            What::Say { text, calls } => {
                let length = text.len() + calls.iter().map(|(name, args)| name.len() + args.len()).sum::<usize>();
                (request.tokens, length as u64 / 4 + 1, 0)
            }
            _ => (request.tokens, 1, 0),
        })
    }

    fn usage_json(&self, request: &Request) -> Value {
        let (read, written, cached) = self.tokens(request);
        json!({ "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
                "prompt_tokens_details": { "cached_tokens": cached } })
    }

    /// The calls with the ids the server gives them, cut where the script says so.
    pub(super) fn numbered(&self, request: &Request) -> Vec<(String, String, String)> {
        let What::Say { calls, .. } = &self.what else { return Vec::new() };
        let last = calls.len().saturating_sub(1);
        let numbered = calls.iter().enumerate().map(|(i, (name, arguments))| {
            let mut arguments = arguments.clone();
            if self.half_arguments && i == last {
                let half = arguments.char_indices().nth(arguments.chars().count() / 2).map_or(0, |(at, _)| at);
                arguments.truncate(half);
            }
            (format!("call_{}_{i}", request.seq), name.clone(), arguments)
        });
        numbered.collect()
    }

    /// The events of a stream, `[DONE]` excluded.
    pub(super) fn stream(&self, request: &Request) -> Vec<Value> {
        if request.protocol == Protocol::Messages {
            return self.message_events(request);
        }
        let text = match &self.what {
            What::Say { text, .. } => text,
            What::Events(events) => return events.clone(),
            _ => return Vec::new(),
        };
        let chunk = |choices: Value| {
            json!({ "id": format!("chatcmpl-{}", request.seq), "object": "chat.completion.chunk",
                    "created": 1_796_000_000, "model": request.model(), "system_fingerprint": "fp_1", "choices": choices })
        };
        let delta = |delta: Value, finish: Value| {
            chunk(json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]))
        };
        let mut events = vec![delta(json!({ "role": "assistant", "content": "", "refusal": null }), Value::Null)];
        events.extend(words(text).into_iter().map(|word| delta(json!({ "content": word }), Value::Null)));
        for (i, (id, name, arguments)) in self.numbered(request).iter().enumerate() {
            let head =
                json!({ "index": i, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
            events.push(delta(json!({ "tool_calls": [head] }), Value::Null));
            for piece in pieces(arguments) {
                let piece = json!({ "index": i, "function": { "arguments": piece } });
                events.push(delta(json!({ "tool_calls": [piece] }), Value::Null));
            }
        }
        events.push(delta(json!({}), json!(self.reason())));
        if request.body["stream_options"]["include_usage"] == json!(true) {
            let mut last = chunk(json!([]));
            last["usage"] = self.usage_json(request);
            events.push(last);
        }
        events
    }

    /// The body where no stream was asked for.
    pub(super) fn whole(&self, request: &Request) -> Value {
        if request.protocol == Protocol::Messages {
            return self.whole_message(request);
        }
        let text = match &self.what {
            What::Say { text, .. } => text,
            What::Events(events) => return events.first().cloned().unwrap_or_default(),
            _ => return Value::Null,
        };
        let calls = self.numbered(request).into_iter().map(|(id, name, arguments)| {
            json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
        });
        let calls: Vec<Value> = calls.collect();
        let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
            if text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        json!({ "id": format!("chatcmpl-{}", request.seq), "object": "chat.completion", "created": 1_796_000_000,
                "model": request.model(), "usage": self.usage_json(request), "choices": [
                    { "index": 0, "message": message, "logprobs": null, "finish_reason": self.reason() }] })
    }
}

/// Words with the space before them, as tokens are.
pub(super) fn words(text: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let skip = c.len_utf8();
        let end = rest[skip..].find(char::is_whitespace).map_or(rest.len(), |at| skip + at);
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    words
}

/// Pieces of nine letters, as arguments come in.
pub(super) fn pieces(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(9).map(|piece| piece.iter().collect()).collect()
}
