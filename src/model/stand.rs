//! What the protocols' tests stand on: a server that gives every request the same answer, and its key; streams
//! without a connection; blocks of a history.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::failure::Teller;
use super::sse::{self, Limits};
use super::wire::{ApiKey, KeySource, Making, Settings, read_stream};
use super::{Attempt, ModelClient, ModelError, Request, ToolSchema};
use crate::domain::{Block, CallId, Message, Origin, Role, TurnId};

pub(super) const KEY: &str = "sk-test-0123456789";

/// A key, or why there is none.
pub(super) struct Key(pub(super) Result<&'static str, &'static str>);

impl ApiKey for Key {
    fn with(&self, use_it: &mut dyn FnMut(&str)) -> Result<(), String> {
        self.0.map(use_it).map_err(str::to_owned)
    }
}

/// What the server saw: path, headers, body.
pub(super) type Seen = Arc<Mutex<Vec<(String, HeaderMap, Value)>>>;

/// A server that gives every request the same answer.
pub(super) struct Server {
    pub(super) base_url: String,
    pub(super) seen: Seen,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start<A, F>(answer: F) -> Self
    where
        A: IntoResponse + Send,
        F: Fn() -> A + Clone + Send + Sync + 'static,
    {
        let seen = Seen::default();
        let log = Arc::clone(&seen);
        let app = axum::Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            log.lock().unwrap().push((uri.path().to_owned(), headers, body));
            std::future::ready(answer())
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { base_url, seen, task }
    }
}

/// Patient settings for a model named `m`.
pub(super) fn settings(base_url: &str) -> Settings {
    Settings {
        model: "m".into(),
        base_url: base_url.into(),
        request_timeout: Duration::from_secs(20),
        stall: Duration::from_secs(10),
        max_response_bytes: 1 << 20,
    }
}

/// A question with one tool.
pub(super) fn request() -> Request {
    let tool = |name: &str| ToolSchema {
        name: name.into(),
        description: "Does.".into(),
        parameters: json!({"type": "object"}),
    };
    Request {
        system: "You are midwatch.".into(),
        messages: vec![Message::text(Role::User, "hi", Origin::Cause)],
        tools: vec![tool("read_file")],
        max_output_tokens: 64,
        tool_use: true,
    }
}

pub(super) fn key() -> KeySource {
    Some(Arc::new(Key(Ok(KEY))))
}

/// One line for an outcome.
pub(super) fn summary(outcome: &Result<Attempt, ModelError>) -> String {
    match outcome {
        Ok(attempt) => format!("{:?} `{}` calls {}", attempt.finish, attempt.text(), attempt.calls().count()),
        Err(error) => error.to_string(),
    }
}

/// Asks twice, for `good` each time: with a key, listening to its words, and without one.
pub(super) async fn ask_both_ways(with_key: &impl ModelClient, without: &impl ModelClient, good: &Attempt) {
    let heard = Mutex::new(String::new());
    let attempt = with_key.attempt(&request(), &|piece| heard.lock().unwrap().push_str(piece)).await.unwrap();
    assert_eq!(attempt, *good);
    assert_eq!(*heard.lock().unwrap(), attempt.text(), "words are heard, thoughts are not");
    assert_eq!(with_key.name(), "m");
    without.attempt(&request(), &|_| {}).await.unwrap();
}

/// An answer of this status, content type (none where it is empty) and body.
pub(super) fn answering(status: u16, kind: &'static str, body: String) -> Response {
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    response.headers_mut().remove(CONTENT_TYPE);
    if !kind.is_empty() {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    response.headers_mut().insert("location", HeaderValue::from_static("/elsewhere"));
    response
}

/// How long the streams below may be without a piece of the answer.
pub(super) const STALL: Duration = Duration::from_secs(40);

/// The outcome of a stream without a connection.
pub(super) async fn read<B: AsRef<[u8]>>(
    making: impl Making,
    bytes: impl Stream<Item = Result<B, String>>,
) -> Result<Attempt, ModelError> {
    let events = sse::events(bytes, Limits { total_bytes: 1 << 20, event_bytes: 1 << 20 });
    read_stream(making, events, STALL, &Teller { key: None }, &|_| {}).await
}

/// The outcome of these bytes, in pieces of this size.
pub(super) async fn fold(making: impl Making, bytes: &[u8], piece: usize) -> Result<Attempt, ModelError> {
    let pieces: Vec<Result<Vec<u8>, String>> = bytes.chunks(piece).map(|piece| Ok(piece.to_vec())).collect();
    read(making, stream::iter(pieces)).await
}

/// Holds that these bytes make the same attempt in pieces of any size, with line ends of either kind.
pub(super) async fn is_the_same_in_pieces<M: Making>(making: impl Fn() -> M, bytes: &str, attempt: &Attempt) {
    for bytes in [bytes.to_owned(), bytes.replace('\n', "\r\n")] {
        for piece in [1, 2, 3, 7, bytes.len()] {
            assert_eq!(fold(making(), bytes.as_bytes(), piece).await.as_ref(), Ok(attempt), "in pieces of {piece}");
        }
    }
}

/// `bytes` with its first owl broken, so that they are no text.
pub(super) fn broken_owl(bytes: String) -> Vec<u8> {
    let mut bytes = bytes.into_bytes();
    let at = bytes.iter().position(|byte| *byte == 0xF0).unwrap();
    bytes[at + 1] = b'x';
    bytes
}

/// The same piece again and again.
pub(super) fn every(seconds: u64, piece: String) -> impl Stream<Item = Result<String, String>> {
    stream::repeat(piece).then(move |piece| async move {
        sleep(Duration::from_secs(seconds)).await;
        Ok(piece)
    })
}

pub(super) fn id(number: u32) -> CallId {
    CallId::new(TurnId::from_row(4), number)
}

pub(super) fn text(text: &str) -> Block {
    Block::Text { text: text.into(), origin: Origin::Cause }
}

pub(super) fn result(number: u32, text: &str, is_error: bool) -> Block {
    Block::ToolResult { call: id(number), text: text.into(), is_error, origin: Origin::Workspace }
}

pub(super) fn proposal(number: u32, name: &str, arguments: Value) -> Block {
    Block::ToolCall { call: id(number), name: name.into(), arguments }
}
