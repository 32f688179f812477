//! What the protocols of models share: HTTP, its limits and clocks, and the key that nobody is shown.
//!
//! ```text
//! body ──▶ POST
//!    other than 2xx          ──failure──▶ ModelError, by status and words
//!    text/event-stream       ──sse──▶ events ──Making──▶ Attempt   complete only with the protocol's own end
//!    application/json        ──Making──▶ Attempt                   a server that does not stream
//!    anything else           ──▶ ModelError: no answer
//! ```
//!
//! An attempt is complete only with the server's word that it is: a connection that just closes is a cut, whatever came
//! before. Two clocks run, `request_timeout` over all of it and, once the server answers, `stall` from one piece of the
//! answer to the next; comments, pings, empty deltas and usage alone do not wind the second one up again.
//! The key is asked for when a request is sent, travels in one header marked sensitive, and is blanked in what we tell.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url, redirect};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::failure::{self, Teller};
use super::sse::{self, Event, Limits, SseError};
use super::{Attempt, ErrorClass, ModelError, OnText};

/// What [`Settings::max_response_bytes`] is unless someone has a reason.
pub const MAX_RESPONSE_BYTES: usize = 32 << 20;

/// The most bytes of one event of a stream.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// How much of an error's body is read, and for how long: the class is known without it.
const ERROR_BODY_BYTES: usize = 64 << 10;
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the model is and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name the server knows it by: `qwen3:8b`.
    pub model: String,
    /// Up to and without the protocol's own path: `http://127.0.0.1:11434/v1`, `https://api.anthropic.com`.
    pub base_url: String,
    /// Longest time for one attempt, from connecting to its end.
    pub request_timeout: Duration,
    /// Longest time without a piece of the answer, counted from the answer's headers on.
    pub stall: Duration,
    /// Longest answer; [`MAX_RESPONSE_BYTES`] serves.
    pub max_response_bytes: usize,
}

/// A key that is looked up only when it is used, so that nobody has to hold it.
pub trait ApiKey: Send + Sync {
    /// Calls `use_it` once with the key.
    ///
    /// # Errors
    /// Why there is no key, in words that hold nothing of it.
    fn with(&self, use_it: &mut dyn FnMut(&str)) -> Result<(), String>;
}

/// A key, or none for servers that ask for none.
pub type KeySource = Option<Arc<dyn ApiKey>>;

/// How a protocol dresses its requests.
#[derive(Clone, Debug)]
pub(super) struct Dress {
    /// The header that carries the key.
    pub(super) key_header: HeaderName,
    /// What stands before the key in it.
    pub(super) key_prefix: &'static str,
    /// Headers that never change.
    pub(super) headers: &'static [(&'static str, &'static str)],
}

/// An answer in the making: what one protocol does with the pieces that come in.
pub(super) trait Making {
    /// What a complete answer ends with, for the error where it lacks: `a finish_reason`.
    const END: &'static str;

    /// Takes one event of a stream.
    fn take_event(&mut self, event: &Value, on_text: OnText<'_>) -> Result<Took, Fault>;

    /// Takes an answer that was not streamed.
    fn take_whole(&mut self, answer: &Value, on_text: OnText<'_>) -> Result<(), Fault>;

    /// The complete answer; nothing while the server has not said that it is one.
    fn finish(self) -> Option<Attempt>;
}

/// What an event brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// Nothing of the answer, as a keep-alive.
    Nothing,
    /// A piece of the answer.
    Piece,
    /// The end: what follows does not count.
    End,
}

/// A piece that makes the answer worthless.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// The server reports an error in its own words.
    Reported(Value),
    /// This is no answer of the protocol.
    Nonsense(String),
    /// The answer itself ends in a failure of this class.
    Failed(ErrorClass, String),
}

/// That what came is no answer of the protocol.
pub(super) fn nonsense<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Nonsense(what.into()))
}

/// One endpoint of a server, with the key that it wants to see.
pub(super) struct Wire {
    settings: Settings,
    pub(super) url: Url,
    dress: Dress,
    key: KeySource,
    client: Client,
}

impl Wire {
    /// Makes the client; connects to nothing and asks for no key. `path_of` makes the endpoint's path out of that of
    /// `base_url`, which has no slash at its end.
    ///
    /// # Errors
    /// [`ErrorClass::BadRequest`] when `base_url` is none that requests can go to.
    pub(super) fn new(
        settings: Settings,
        key: KeySource,
        dress: Dress,
        path_of: impl FnOnce(&str) -> String,
    ) -> Result<Self, ModelError> {
        let refuse = |why: &str| ModelError::new(ErrorClass::BadRequest, format!("base_url {why}"));
        let mut url = Url::parse(settings.base_url.trim()).map_err(|err| refuse(&format!("is no URL: {err}")))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(refuse("has to begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse("holds a user or password: a key belongs into api_key"));
        }
        let path = path_of(url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.set_fragment(None);
        let mut client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .user_agent(concat!("midwatch/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&url) {
            client = client.no_proxy(); // HTTP_PROXY is for the world; a proxy's loopback is not ours
        }
        let client = client
            .build()
            .map_err(|err| ModelError::new(ErrorClass::Network, format!("no HTTP client: {}", failure::causes(err))))?;
        Ok(Self { settings, url, dress, key, client })
    }

    /// The model's name.
    pub(super) fn model(&self) -> &str {
        &self.settings.model
    }

    /// One attempt: sends `body`, and hands what comes back to `making`.
    pub(super) async fn attempt(
        &self,
        body: &Value,
        making: impl Making,
        on_text: OnText<'_>,
    ) -> Result<Attempt, ModelError> {
        let limit = self.settings.request_timeout;
        timeout(limit, self.run(body, making, on_text)).await.unwrap_or_else(|_| {
            Err(ModelError::new(ErrorClass::Network, format!("no complete answer within {}", shown(limit))))
        })
    }

    async fn run(&self, body: &Value, making: impl Making, on_text: OnText<'_>) -> Result<Attempt, ModelError> {
        let teller = Teller { key: self.key_value()? };
        let mut post = self.client.post(self.url.clone()).header(ACCEPT, "text/event-stream, application/json");
        for (name, value) in self.dress.headers {
            post = post.header(*name, *value);
        }
        if let Some(key) = &teller.key {
            post = post.header(self.dress.key_header.clone(), key.clone());
        }
        let response = post.json(body).send().await.map_err(|err| teller.broken("no answer", err))?;
        let status = response.status();
        if !status.is_success() {
            let headers = response.headers().clone();
            return Err(teller.refused(status, &headers, &error_body(response).await));
        }
        let stall = self.settings.stall;
        match content_type(&response).as_str() {
            "text/event-stream" => {
                let total_bytes = self.settings.max_response_bytes;
                let limits = Limits { total_bytes, event_bytes: MAX_EVENT_BYTES.min(total_bytes) };
                let bytes = response.bytes_stream().map(|piece| piece.map_err(failure::causes));
                read_stream(making, sse::events(bytes, limits), stall, &teller, on_text).await
            }
            "application/json" => {
                let body = timeout(stall, whole_body(response, self.settings.max_response_bytes, &teller));
                let body = body.await.map_err(|_| stalled(stall))??;
                read_whole(making, &body, &teller, on_text)
            }
            "" => Err(teller.network(&format!("answered {} without a content type", status.as_u16()))),
            other => {
                let what = format!("answered {} with {other}, which is no completion", status.as_u16());
                Err(teller.network(&what))
            }
        }
    }

    /// The header's value with the key of this moment.
    pub(super) fn key_value(&self) -> Result<Option<HeaderValue>, ModelError> {
        let Some(key) = &self.key else { return Ok(None) };
        let mut header = Err("the key is empty");
        key.with(&mut |key| {
            let key = key.trim(); // a file ends with a line feed
            if !key.is_empty() {
                let value = format!("{}{key}", self.dress.key_prefix);
                header = HeaderValue::from_str(&value).map_err(|_| "the key holds odd characters");
            }
        })
        .map_err(|why| ModelError::new(ErrorClass::Auth, why))?;
        let mut header = header.map_err(|why| ModelError::new(ErrorClass::Auth, why))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

/// Reads events up to the answer's end, `[DONE]`, or a clean end of the stream.
pub(super) async fn read_stream<M: Making>(
    mut making: M,
    events: impl Stream<Item = Result<Event, SseError>>,
    stall: Duration,
    teller: &Teller,
    on_text: OnText<'_>,
) -> Result<Attempt, ModelError> {
    tokio::pin!(events);
    let quiet = sleep(stall);
    tokio::pin!(quiet);
    loop {
        let event = tokio::select! {
            biased; // the clock first: a flood of empty events must not outrun it
            () = &mut quiet => return Err(stalled(stall)),
            event = events.next() => event,
        };
        let Some(event) = event else { break };
        let event = event.map_err(|err| teller.network(&format!("the answer was cut: {err}")))?;
        let data = event.data.trim();
        if data == "[DONE]" {
            break;
        }
        if data.is_empty() {
            continue;
        }
        let event: Value =
            serde_json::from_str(data).map_err(|_| teller.network("the answer holds what is no JSON"))?;
        match making.take_event(&event, on_text).map_err(|fault| tell(fault, teller))? {
            Took::Nothing => {}
            Took::Piece => quiet.set(sleep(stall)),
            Took::End => break,
        }
    }
    making.finish().ok_or_else(|| teller.network(&format!("the answer was cut: it ended without {}", M::END)))
}

/// Reads an answer that came in one piece.
fn read_whole<M: Making>(
    mut making: M,
    body: &[u8],
    teller: &Teller,
    on_text: OnText<'_>,
) -> Result<Attempt, ModelError> {
    let text = std::str::from_utf8(body).map_err(|_| teller.network(&SseError::NotUtf8.to_string()))?;
    let answer: Value =
        serde_json::from_str(text).map_err(|_| teller.network("the answer is no JSON, though it claims to be"))?;
    making.take_whole(&answer, on_text).map_err(|fault| tell(fault, teller))?;
    making.finish().ok_or_else(|| teller.network(&format!("the answer was cut: it came without {}", M::END)))
}

fn tell(fault: Fault, teller: &Teller) -> ModelError {
    match fault {
        Fault::Reported(error) => teller.reported(&error),
        Fault::Nonsense(what) => teller.network(&what),
        Fault::Failed(class, what) => teller.error(class, &what),
    }
}

fn stalled(stall: Duration) -> ModelError {
    ModelError::new(ErrorClass::Network, format!("stalled: nothing of the answer for {}", shown(stall)))
}

fn shown(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{} s", time.as_secs()) } else { format!("{} ms", time.as_millis()) }
}

async fn whole_body(mut response: Response, limit: usize, teller: &Teller) -> Result<Vec<u8>, ModelError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|err| teller.broken("the answer was cut", err))? {
        if body.len() + piece.len() > limit {
            return Err(teller.network(&SseError::TooLong { limit }.to_string()));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// The beginning of an error's body; whatever goes wrong here, the status has spoken already.
async fn error_body(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(piece)) = response.chunk().await {
            body.extend_from_slice(&piece);
            if body.len() >= ERROR_BODY_BYTES {
                break;
            }
        }
    };
    let _ = timeout(ERROR_BODY_WAIT, read).await;
    body.truncate(ERROR_BODY_BYTES);
    body
}

fn content_type(response: &Response) -> String {
    let header = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let named = host == "localhost" || host.ends_with(".localhost");
    named || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
