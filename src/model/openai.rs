//! Any server that speaks chat completions: OpenAI, llama.cpp, ollama, vLLM and their like.
//!
//! ```text
//! Request ──body──▶ POST {base_url}/chat/completions
//!    other than 2xx          ──failure──▶ ModelError, by status and words
//!    text/event-stream       ──sse──▶ events ──answer──▶ Attempt   finish_reason seen, then `[DONE]` or a clean end
//!    application/json        ──answer──▶ Attempt                   a server that does not stream
//!    anything else           ──▶ ModelError: no completion
//! ```
//!
//! An attempt is complete only with the server's word that it is: a connection that just closes is a cut, whatever came
//! before. Two clocks run, `request_timeout` over all of it and, once the server answers, `stall` from one piece of the
//! answer to the next; comments, empty deltas and usage alone do not wind the second one up again.
//! The key is asked for when a request is sent, travels in one header marked sensitive, and is blanked in what we tell.

mod answer;
mod body;
mod failure;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Response, Url, redirect};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::model::sse::{self, Event, Limits, SseError};
use crate::model::{Attempt, ErrorClass, ModelClient, ModelError, OnText, Request};
use answer::{Answer, Fault};
use failure::Teller;

/// What [`OpenAiSettings::max_response_bytes`] is unless someone has a reason.
pub const MAX_RESPONSE_BYTES: usize = 32 << 20;

/// The most bytes of one event of a stream.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// How much of an error's body is read, and for how long: the class is known without it.
const ERROR_BODY_BYTES: usize = 64 << 10;
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the model is and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenAiSettings {
    /// The name the server knows it by: `qwen3:8b`.
    pub model: String,
    /// Up to and without `/chat/completions`: `http://127.0.0.1:11434/v1`.
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

/// A model behind a server that speaks chat completions.
pub struct OpenAi {
    settings: OpenAiSettings,
    url: Url,
    limit_key: &'static str,
    key: KeySource,
    client: Client,
}

impl OpenAi {
    /// Makes the client; connects to nothing and asks for no key.
    ///
    /// # Errors
    /// [`ErrorClass::BadRequest`] when `base_url` is none that requests can go to.
    pub fn new(settings: OpenAiSettings, key: KeySource) -> Result<Self, ModelError> {
        let refuse = |why: &str| ModelError::new(ErrorClass::BadRequest, format!("base_url {why}"));
        let mut url = Url::parse(settings.base_url.trim()).map_err(|err| refuse(&format!("is no URL: {err}")))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(refuse("has to begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse("holds a user or password: a key belongs into api_key"));
        }
        let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.set_fragment(None);
        // Newer models of OpenAI refuse the old name; the compatible servers know only the old one.
        let limit_key = if url.host_str() == Some("api.openai.com") { "max_completion_tokens" } else { "max_tokens" };
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
        Ok(Self { settings, url, limit_key, key, client })
    }

    async fn run(&self, request: &Request, on_text: OnText<'_>) -> Result<Attempt, ModelError> {
        let teller = Teller { authorization: self.authorization()? };
        let mut post = self
            .client
            .post(self.url.clone())
            .header(ACCEPT, "text/event-stream, application/json")
            .json(&body::of(request, &self.settings.model, self.limit_key));
        if let Some(authorization) = &teller.authorization {
            post = post.header(AUTHORIZATION, authorization.clone());
        }
        let response = post.send().await.map_err(|err| teller.broken("no answer", err))?;
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
                read_stream(sse::events(bytes, limits), stall, &teller, on_text).await
            }
            "application/json" => {
                let body = timeout(stall, whole_body(response, self.settings.max_response_bytes, &teller));
                let body = body.await.map_err(|_| stalled(stall))??;
                read_whole(&body, &teller, on_text)
            }
            "" => Err(teller.network(&format!("answered {} without a content type", status.as_u16()))),
            other => {
                let what = format!("answered {} with {other}, which is no completion", status.as_u16());
                Err(teller.network(&what))
            }
        }
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, ModelError> {
        let Some(key) = &self.key else { return Ok(None) };
        let mut header = Err("the key is empty");
        key.with(&mut |key| {
            let key = key.trim(); // a file ends with a line feed
            if !key.is_empty() {
                header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| "the key holds odd characters");
            }
        })
        .map_err(|why| ModelError::new(ErrorClass::Auth, why))?;
        let mut header = header.map_err(|why| ModelError::new(ErrorClass::Auth, why))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl ModelClient for OpenAi {
    fn name(&self) -> &str {
        &self.settings.model
    }

    fn attempt<'a>(&'a self, request: &'a Request, on_text: OnText<'a>) -> BoxFuture<'a, Result<Attempt, ModelError>> {
        Box::pin(async move {
            let limit = self.settings.request_timeout;
            timeout(limit, self.run(request, on_text)).await.unwrap_or_else(|_| {
                Err(ModelError::new(ErrorClass::Network, format!("no complete answer within {}", shown(limit))))
            })
        })
    }
}

/// Reads events up to `[DONE]` or a clean end after a `finish_reason`.
async fn read_stream(
    events: impl Stream<Item = Result<Event, SseError>>,
    stall: Duration,
    teller: &Teller,
    on_text: OnText<'_>,
) -> Result<Attempt, ModelError> {
    tokio::pin!(events);
    let quiet = sleep(stall);
    tokio::pin!(quiet);
    let mut answer = Answer::default();
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
        let chunk: Value =
            serde_json::from_str(data).map_err(|_| teller.network("the answer holds what is no JSON"))?;
        if answer.take_chunk(&chunk, on_text).map_err(|fault| tell(fault, teller))? {
            quiet.set(sleep(stall));
        }
    }
    answer.finish().ok_or_else(|| teller.network("the answer was cut: it ended without a finish_reason"))
}

/// Reads a completion that came in one piece.
fn read_whole(body: &[u8], teller: &Teller, on_text: OnText<'_>) -> Result<Attempt, ModelError> {
    let text = std::str::from_utf8(body).map_err(|_| teller.network(&SseError::NotUtf8.to_string()))?;
    let completion: Value =
        serde_json::from_str(text).map_err(|_| teller.network("the answer is no JSON, though it claims to be"))?;
    let mut answer = Answer::default();
    answer.take_whole(&completion, on_text).map_err(|fault| tell(fault, teller))?;
    answer.finish().ok_or_else(|| teller.network("the answer was cut: it has no finish_reason"))
}

fn tell(fault: Fault, teller: &Teller) -> ModelError {
    match fault {
        Fault::Reported(error) => teller.reported(&error),
        Fault::Nonsense(what) => teller.network(&what),
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

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let named = host == "localhost" || host.ends_with(".localhost");
    named || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
