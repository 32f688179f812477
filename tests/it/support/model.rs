//! A language model of our own: a server that speaks OpenAI's chat completions and Anthropic's Messages, says what the
//! script says, and refuses every history that a real one would refuse.
//!
//! Answers come from a queue, then from a function, then from the echo: `echo: ` and the last words of the user.

mod check;
mod messages;
mod reply;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, DefaultBodyLimit, State as Shared};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Value, json};

use super::net::{Server, Watched, Wire};
pub(crate) use reply::Ending;
pub(crate) use reply::Reply;
use reply::What;

/// The key that the server wants to see.
pub(crate) const KEY: &str = "sk-midwatch-MODELKEY-SECRET";
/// What every request of the Messages protocol has to say.
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");
/// What the model is called in configurations.
pub(crate) const NAME: &str = "fake-model";

/// One request, in the order in which they came in.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Counted from 0.
    pub(crate) seq: usize,
    /// Since the fake started.
    pub(crate) at: Duration,
    pub(crate) protocol: Protocol,
    pub(crate) body: Value,
    /// By a rule of thumb: four characters each.
    pub(crate) tokens: u64,
    /// Why it was refused.
    pub(crate) refused: Option<String>,
    pub(crate) end: End,
}

/// In whose words a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// OpenAI's chat completions.
    Chat,
    /// Anthropic's Messages.
    Messages,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is still being answered.
    Open,
    /// All that the script wanted was sent.
    Answered,
    /// The caller went away before.
    Abandoned,
}

impl Request {
    pub(crate) fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn model(&self) -> &str {
        self.body["model"].as_str().unwrap_or_default()
    }

    pub(crate) fn streams(&self) -> bool {
        self.body["stream"] == json!(true)
    }

    /// The system prompt.
    pub(crate) fn system(&self) -> String {
        match self.protocol {
            Protocol::Chat => {
                self.messages().first().filter(|message| message["role"] == "system").map(text_of).unwrap_or_default()
            }
            Protocol::Messages => text_of(&json!({ "content": self.body["system"] })),
        }
    }

    /// Names of the tools offered.
    pub(crate) fn tools(&self) -> Vec<String> {
        let tools = self.body["tools"].as_array().into_iter().flatten();
        let named = tools.filter_map(|tool| tool["name"].as_str().or_else(|| tool["function"]["name"].as_str()));
        named.map(str::to_owned).collect()
    }

    /// The last user message, without the lines in which midwatch speaks to the model.
    pub(crate) fn last_user(&self) -> String {
        let users = self.messages().iter().rev().filter(|message| message["role"] == "user").map(text_of);
        let last = users.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let mut rest = last.as_str();
        while rest.starts_with("[midwatch:") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start_matches('\n');
        }
        rest.to_owned()
    }

    /// The results that stand at the end, in order: what the model is to look at now.
    pub(crate) fn results(&self) -> Vec<String> {
        if self.protocol == Protocol::Messages {
            return self.messages().last().map(messages::results_of).unwrap_or_default();
        }
        let tail = self.messages().iter().rev().take_while(|message| message["role"] == "tool");
        let mut results: Vec<String> = tail.map(text_of).collect();
        results.reverse();
        results
    }

    /// Whether any message holds `text`.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        let within = |message| messages::results_of(message).into_iter().chain([text_of(message)]);
        self.messages().iter().flat_map(within).any(|said| said.contains(text))
    }
}

/// The words of a message, however they are packed.
pub(crate) fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n\n")
        }
        _ => String::new(),
    }
}

type Script = Arc<dyn Fn(&Request) -> Reply + Send + Sync>;

struct State {
    started: Instant,
    requests: Vec<Request>,
    violations: Vec<String>,
    queue: VecDeque<Reply>,
    script: Option<Script>,
    /// Answers with reasoning, as they may come back, and the model that gave each.
    sealed: Vec<(String, Vec<Value>)>,
    window: u64,
    releases: u64,
    at_work: usize,
    most_at_work: usize,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Model")
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "what the model saw:")?;
        for request in &self.requests {
            let roles: Vec<&str> = request.messages().iter().filter_map(|m| m["role"].as_str()).collect();
            let last: String = request.messages().last().map(text_of).unwrap_or_default().chars().take(160).collect();
            let (seq, at, end) = (request.seq, request.at.as_millis(), request.end);
            writeln!(f, "{seq:4} {at:6} ms {end:?} {} … {last:?}", roles.join(","))?;
            if let Some(why) = &request.refused {
                writeln!(f, "            refused: {why}")?;
            }
        }
        for violation in &self.violations {
            writeln!(f, "violation: {violation}")?;
        }
        Ok(())
    }
}

/// The server. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Model {
    all: Arc<Watched<State>>,
    server: Server,
}

#[expect(clippy::disallowed_methods, reason = "the fake has a clock of its own")]
fn now() -> Instant {
    Instant::now()
}

impl Model {
    /// Starts the model on a free port; it echoes.
    pub(crate) async fn start() -> Self {
        let all = Watched::new(State {
            started: now(),
            requests: Vec::new(),
            violations: Vec::new(),
            queue: VecDeque::new(),
            script: None,
            sealed: Vec::new(),
            window: 128_000,
            releases: 0,
            at_work: 0,
            most_at_work: 0,
        });
        let app = Router::new().fallback(serve).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&all));
        Self { server: Server::start("model", app), all }
    }

    /// What belongs into `base_url`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.server.addr())
    }

    /// What belongs into `base_url` of provider "anthropic".
    pub(crate) fn root(&self) -> String {
        format!("http://{}", self.server.addr())
    }

    /// The next answer that is not spoken for yet.
    pub(crate) fn queue(&self, reply: Reply) {
        self.all.change(|state| state.queue.push_back(reply));
    }

    /// Answers whatever the queue does not.
    pub(crate) fn script(&self, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
        self.all.change(|state| state.script = Some(Arc::new(script)));
    }

    /// Requests of more tokens (four characters each) are refused as too long.
    pub(crate) fn window(&self, tokens: u64) {
        self.all.change(|state| state.window = tokens);
    }

    /// Lets go of all answers that are held or hang now.
    pub(crate) fn release(&self) {
        self.all.change(|state| state.releases += 1);
    }

    /// While offline every connection breaks.
    pub(crate) fn set_offline(&self, offline: bool) {
        self.server.set_offline(offline);
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.all.look(|state| state.requests.clone())
    }

    /// Waits for `n` requests, and returns all.
    pub(crate) async fn wait_requests(&self, n: usize) -> Vec<Request> {
        let enough = |all: &[Request]| (all.len() >= n).then(|| all.to_vec());
        self.wait_for(&format!("{n} requests to the model"), enough).await
    }

    /// Waits until `look` finds its value among the requests.
    pub(crate) async fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&[Request]) -> Option<T>) -> T {
        self.all.wait(what, |state| look(&state.requests)).await
    }

    /// Requests being answered now.
    pub(crate) fn at_work(&self) -> usize {
        self.all.look(|state| state.at_work)
    }

    /// The most requests that were being answered at one time.
    pub(crate) fn most_at_work(&self) -> usize {
        self.all.look(|state| state.most_at_work)
    }

    /// Why requests were refused as malformed.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.all.look(|state| state.violations.clone())
    }

    /// Panics with the journal when a request was malformed.
    pub(crate) fn assert_clean(&self) {
        self.all.look(|state| assert!(state.violations.is_empty(), "{state}"));
    }

    /// The journal in words, for a panic message.
    pub(crate) fn told(&self) -> String {
        self.all.look(|state| state.to_string())
    }
}

type All = Arc<Watched<State>>;

/// Counts a request out, and marks it abandoned unless it was answered.
struct Work {
    all: All,
    seq: usize,
}

impl Work {
    fn end(&self, end: End) {
        let seq = self.seq;
        self.all.change(|state| {
            if state.requests[seq].end == End::Open {
                state.requests[seq].end = end;
            }
        });
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.end(End::Abandoned);
        self.all.change(|state| state.at_work -= 1);
    }
}

async fn serve(
    Shared(all): Shared<All>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let protocol = match (method.as_str(), uri.path()) {
        ("POST", "/v1/chat/completions") => Protocol::Chat,
        ("POST", "/v1/messages") => Protocol::Messages,
        ("GET", "/v1/models") => {
            let list =
                json!({ "object": "list", "data": [{ "id": NAME, "object": "model", "created": 1, "owned_by": "x" }] });
            return typed(StatusCode::OK, list.to_string());
        }
        // What a server of Messages says of a model.
        ("GET", path) if path.strip_prefix("/v1/models/") == Some(NAME) => {
            let window = all.look(|state| state.window);
            return typed(StatusCode::OK, json!({ "id": NAME, "max_input_tokens": window }).to_string());
        }
        (method, path) => {
            all.change(|state| state.violations.push(format!("{method} {path}: no such endpoint")));
            let why = format!("Invalid URL ({method} {path})");
            return refusal(Protocol::Chat, 404, "invalid_request_error", &why, "unknown_url");
        }
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (key, says_version) = match protocol {
        Protocol::Chat => (header("authorization").strip_prefix("Bearer ").unwrap_or_default(), true),
        Protocol::Messages => (header("x-api-key"), header(VERSION.0) == VERSION.1),
    };
    let kind = header("content-type");
    let parsed = serde_json::from_slice::<Value>(&body);
    let sealed = all.look(|state| state.sealed.clone());
    let complaint = match &parsed {
        _ if !kind.starts_with("application/json") => Some(format!("a body of type `{kind}`")),
        _ if !says_version => Some(format!("{}: header is required", VERSION.0)),
        Err(error) => Some(format!("the body is no JSON: {error}")),
        Ok(body) if protocol == Protocol::Chat => check::request(body).err(),
        Ok(body) => messages::request(body, &sealed).err(),
    };
    let body = parsed.unwrap_or_default();
    let size = body["messages"].to_string().chars().count() + body["tools"].to_string().chars().count();
    let tokens = size as u64 / 4;
    let (seq, window, releases) = all.change(|state| {
        let seq = state.requests.len();
        let at = now().duration_since(state.started);
        state.violations.extend(complaint.iter().map(|why| format!("request {seq}: {why}")));
        let refused = complaint.clone();
        state.requests.push(Request { seq, at, protocol, body, tokens, refused, end: End::Open });
        state.at_work += 1;
        state.most_at_work = state.most_at_work.max(state.at_work);
        (seq, state.window, state.releases)
    });
    let work = Work { all: Arc::clone(&all), seq };
    if key != KEY {
        work.end(End::Answered);
        let kind = if protocol == Protocol::Chat { "invalid_request_error" } else { "authentication_error" };
        return refusal(protocol, 401, kind, "Incorrect API key provided.", "invalid_api_key");
    }
    if let Some(why) = complaint {
        work.end(End::Answered);
        return refusal(protocol, 400, "invalid_request_error", &why, "invalid_value");
    }
    if tokens > window {
        let why = match protocol {
            Protocol::Chat => format!(
                "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} \
                 tokens. Please reduce the length of the messages."
            ),
            Protocol::Messages => format!("prompt is too long: {tokens} tokens > {window} maximum"),
        };
        all.change(|state| state.requests[seq].refused = Some(why.clone()));
        work.end(End::Answered);
        return refusal(protocol, 400, "invalid_request_error", &why, "context_length_exceeded");
    }
    let (request, reply, script) =
        all.change(|state| (state.requests[seq].clone(), state.queue.pop_front(), state.script.clone()));
    let reply = reply.or_else(|| script.map(|script| script(&request)));
    let reply = reply.unwrap_or_else(|| Reply::text(&format!("echo: {}", request.last_user())));
    if let Some(sealed) = reply.sealed() {
        all.change(|state| state.sealed.push((request.model().to_owned(), sealed)));
    }
    if reply.held {
        // Counted from the moment the request was seen, so that a test that saw it can let it go at once.
        all.until(|state| (state.releases > releases).then_some(())).await;
    }
    say(work, wire, &request, reply).await
}

async fn say(work: Work, wire: Wire, request: &Request, reply: Reply) -> Response {
    match &reply.what {
        What::Say { .. } | What::Content(_) | What::Events(_) if request.streams() => {
            stream(work, wire, request, &reply)
        }
        What::Say { .. } | What::Content(_) | What::Events(_) => {
            if reply.cut_after.is_some() {
                wire.cut();
            }
            if reply.stall_after.is_some() {
                std::future::pending::<()>().await;
            }
            if let Some(pause) = reply.pause {
                tokio::time::sleep(pause).await;
            }
            work.end(End::Answered);
            typed(StatusCode::OK, reply.whole(request).to_string())
        }
        What::Status { code, body, headers } => {
            let kind = if body.starts_with('{') { "application/json" } else { "text/html" };
            let mut response =
                (StatusCode::from_u16(*code).unwrap(), [(header::CONTENT_TYPE, kind)], body.clone()).into_response();
            for (name, value) in headers {
                let name: header::HeaderName = name.parse().expect("a header name");
                response.headers_mut().insert(name, value.parse().expect("a header value"));
            }
            work.end(End::Answered);
            response
        }
        What::Raw { code, headers, pieces, ending } => {
            let pieces = pieces.iter().cloned().map(Bytes::from).collect();
            let mut response = pour(work, wire, pieces, reply.pause, *ending).into_response();
            *response.status_mut() = StatusCode::from_u16(*code).unwrap();
            for (name, value) in headers {
                let name: header::HeaderName = name.parse().expect("a header name");
                response.headers_mut().insert(name, value.parse().expect("a header value"));
            }
            response
        }
        What::Html => {
            work.end(End::Answered);
            Html("<html><body>Please log in to the network</body></html>").into_response()
        }
        What::Hangup => {
            work.end(End::Answered);
            wire.cut();
            StatusCode::OK.into_response()
        }
    }
}

/// A stream of events that goes as well or as badly as the script wants.
fn stream(work: Work, wire: Wire, request: &Request, reply: &Reply) -> Response {
    let chat = request.protocol == Protocol::Chat;
    let events = reply.stream(request);
    let end = reply.cut_after.or(reply.end_after).or(reply.stall_after);
    let framed = |event: Value| match event["type"].as_str() {
        Some(kind) if !chat => format!("event: {kind}\ndata: {event}\n\n"),
        _ => format!("data: {event}\n\n"),
    };
    let mut pieces: Vec<Bytes> =
        events.into_iter().take(end.unwrap_or(usize::MAX)).map(|event| framed(event).into()).collect();
    if end.is_none() && reply.done && chat {
        pieces.push(Bytes::from_static(b"data: [DONE]\n\n"));
    }
    let ending = match (reply.stall_after, reply.cut_after) {
        (Some(_), _) if reply.keepalive && chat => Ending::Repeat(": ping\n\n"),
        (Some(_), _) if reply.keepalive => Ending::Repeat("event: ping\ndata: {\"type\": \"ping\"}\n\n"),
        (Some(_), _) => Ending::Hang,
        (None, Some(_)) => Ending::Reset,
        (None, None) => Ending::Close,
    };
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (head, pour(work, wire, pieces, reply.pause, ending)).into_response()
}

/// Pieces of a body, and how it ends.
fn pour(work: Work, wire: Wire, pieces: Vec<Bytes>, pause: Option<Duration>, ending: Ending) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        let talk = async {
            for piece in pieces {
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
                if sender.send(piece).await.is_err() {
                    return;
                }
            }
            match ending {
                Ending::Close => work.end(End::Answered),
                Ending::Hang => std::future::pending().await,
                Ending::Repeat(text) => {
                    while sender.send(Bytes::from_static(text.as_bytes())).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                Ending::Reset => {
                    work.end(End::Answered);
                    // What was written has to be on its way before the connection breaks.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    wire.cut();
                }
            }
        };
        tokio::select! {
            biased;
            () = sender.closed() => {}
            () = talk => {}
        }
    });
    Body::from_stream(futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (Ok::<_, Infallible>(piece), receiver))
    }))
}

fn typed(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A refusal in the words of the protocol.
fn refusal(protocol: Protocol, status: u16, kind: &str, message: &str, code: &str) -> Response {
    let body = match protocol {
        Protocol::Chat => json!({ "error": { "message": message, "type": kind, "param": null, "code": code } }),
        Protocol::Messages => json!({ "type": "error", "error": { "type": kind, "message": message },
                                      "request_id": "req_1" }),
    };
    typed(StatusCode::from_u16(status).unwrap(), body.to_string())
}
