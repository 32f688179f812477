//! One call of the Bot API and what can come of it. Never tries again by itself.

use std::time::Duration;

use reqwest::Client;
use serde::Serialize;
use serde_json::Value;
use teloxide::requests::Payload;

use super::AccountError;
use crate::config::{Secret, SecretValue};

/// Added to a poll's own time before the connection is taken for dead.
const POLL_GRACE: Duration = Duration::from_secs(15);
/// Longest wait for the answer to anything but a poll.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// An idle connection is not used again after this: one that the server is just closing would lose the answer to a
/// send, and so leave a reply uncertain.
const IDLE_MAX: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer read: a poll of a hundred long messages with everything they quote stays far below.
const ANSWER_MAX_BYTES: usize = 16 << 20;
/// Longest wait we believe a server that asks for one.
const LATER_MAX: Duration = Duration::from_secs(3_600);

/// Why a call did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Asked to wait; nothing was done.
    #[error("the server asks to wait {} s", .0.as_secs())]
    Later(Duration),
    /// Another poller, or a webhook, has the updates.
    #[error("{0}")]
    Conflict(String),
    /// The token is not valid (any more).
    #[error("the server does not take the token: {0}")]
    Unauthorized(String),
    /// Refused for good.
    #[error("{code}: {description}")]
    Refused {
        /// The error code.
        code: u16,
        /// The server's words.
        description: String,
    },
    /// The server or something before it is in trouble; what became of the call is not known.
    #[error("the server answered {0}")]
    Server(u16),
    /// No connection came about: surely nothing was done.
    #[error("no connection: {0}")]
    NotSent(String),
    /// The connection or its answer was lost: what became of the call is not known.
    #[error("no answer: {0}")]
    Lost(String),
    /// The token cannot be read now.
    #[error("{0}")]
    Token(String),
}

/// The two clients of an account: a held poll must not stand in the way of an answer.
pub struct Api {
    base: String,
    token: Secret,
    polling: Client,
    sending: Client,
    poll_timeout: Duration,
}

/// The account's id: the public half of the token.
///
/// # Errors
/// [`AccountError`], when there is no token or what is there is none.
pub fn account_of(token: &Secret) -> Result<String, AccountError> {
    let token = token.resolve()?;
    let (id, secret) = token.expose().split_once(':').ok_or(AccountError::NotAToken)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_token = (1..=20).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_digit())
        && (8..=128).contains(&secret.len())
        && secret.chars().all(fits);
    if is_token { Ok(id.to_owned()) } else { Err(AccountError::NotAToken) }
}

impl Api {
    /// Makes the clients; connects to nothing.
    ///
    /// # Errors
    /// When the TLS library cannot be set up, in its words.
    pub fn new(base: &str, token: Secret, poll_timeout: Duration) -> Result<Self, String> {
        let client = |timeout: Duration| {
            let mut client = Client::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(timeout)
                .pool_idle_timeout(IDLE_MAX)
                .redirect(reqwest::redirect::Policy::none())
                .user_agent(concat!("midwatch/", env!("CARGO_PKG_VERSION")));
            if base.starts_with("http://") {
                // Plain http is for this machine only, which no proxy knows.
                client = client.no_proxy();
            }
            client.build().map_err(|error| error.to_string())
        };
        Ok(Self {
            base: base.trim_end_matches('/').to_owned(),
            token,
            polling: client(poll_timeout + POLL_GRACE)?,
            sending: client(CALL_TIMEOUT)?,
            poll_timeout,
        })
    }

    /// How long a poll may take before it is given up.
    #[must_use]
    pub fn poll_deadline(&self) -> Duration {
        self.poll_timeout + POLL_GRACE
    }

    /// A call on the connection for polls.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn poll<P: Payload + Serialize>(&self, payload: &P) -> Result<Value, ApiError> {
        self.call(&self.polling, payload).await
    }

    /// A call on the connection for everything else.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn send<P: Payload + Serialize>(&self, payload: &P) -> Result<Value, ApiError> {
        self.call(&self.sending, payload).await
    }

    async fn call<P: Payload + Serialize>(&self, client: &Client, payload: &P) -> Result<Value, ApiError> {
        let token = self.token.resolve().map_err(|error| ApiError::Token(error.to_string()))?;
        let url = self.url(&token, P::NAME);
        drop(token);
        let response = client.post(url).json(payload).send().await.map_err(failed)?;
        let status = response.status();
        let body = read(response).await?;
        let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
            return Err(if status.is_success() || status.is_redirection() {
                ApiError::Lost(format!("{} with something that is no answer of a Bot API", status.as_u16()))
            } else if status.is_server_error() {
                ApiError::Server(status.as_u16())
            } else {
                of_code(status.as_u16(), "an answer that is none of a Bot API", &Value::Null)
            });
        };
        if answer["ok"].as_bool() == Some(true) {
            return Ok(answer.get("result").cloned().unwrap_or(Value::Null));
        }
        let code = answer["error_code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(status.as_u16());
        let description = answer["description"].as_str().unwrap_or("no description");
        Err(of_code(code, description, &answer["parameters"]))
    }

    /// The token stands in the path, so the URL never leaves this module: not in an error, not in a log.
    fn url(&self, token: &SecretValue, method: &str) -> String {
        format!("{}/bot{}/{method}", self.base, token.expose())
    }
}

fn of_code(code: u16, description: &str, parameters: &Value) -> ApiError {
    let description: String = description.chars().filter(|c| !c.is_control()).take(300).collect();
    match code {
        401 => ApiError::Unauthorized(description),
        404 => ApiError::Unauthorized(format!("{description}; a wrong token or api_url looks like this")),
        409 => ApiError::Conflict(description),
        429 => {
            let asked = Duration::from_secs(parameters["retry_after"].as_u64().unwrap_or(30).max(1));
            ApiError::Later(asked.min(LATER_MAX))
        }
        500.. => ApiError::Server(code),
        _ => ApiError::Refused { code, description },
    }
}

fn failed(error: reqwest::Error) -> ApiError {
    let error = error.without_url();
    // The whole chain: reqwest's own words are only "error sending request".
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    if error.is_connect() || error.is_builder() { ApiError::NotSent(words) } else { ApiError::Lost(words) }
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > ANSWER_MAX_BYTES {
            return Err(ApiError::Lost(format!("an answer over {} MiB", ANSWER_MAX_BYTES >> 20)));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
