//! Looks at what midwatch depends on from outside: the model, the bot, the clock. Each look has a deadline and changes
//! nothing; what it finds comes with a cure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Url;
use teloxide::payloads::{GetMe, GetWebhookInfo};

use crate::channel::telegram::AccountError;
use crate::channel::telegram::api::{Api, ApiError, account_of};
use crate::config::{self, Model, Provider, Secret, SecretError};
use crate::domain::{Clock as _, Message, Origin, Role, SystemClock, Timestamp};
use crate::model::{ErrorClass, ModelError, Request, anthropic};
use crate::session::Snapshot;

/// Enough for a model that thinks before it says one word.
const ANSWER_MAX_TOKENS: u32 = 512;

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// A clause without a full stop.
    pub what: String,
    pub cure: Option<String>,
}

impl Trouble {
    pub(super) fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what: what.into(), cure: Some(cure.into()) }
    }
}

impl From<SecretError> for Trouble {
    fn from(error: SecretError) -> Self {
        let mut what = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            what = format!("{what}: {source}");
        }
        let cure = error.hint().unwrap_or_else(|| "look at the path and at who may read it".to_owned());
        Self::new(what, cure)
    }
}

/// Asks the model for one word; true when it answered to the end, false when it was still answering at the deadline.
///
/// # Errors
/// What kept it from answering.
pub(super) async fn model(model: &Model, deadline: Duration) -> Result<bool, Trouble> {
    if let Some(key) = &model.api_key {
        key.resolve()?;
    }
    let client = Snapshot::client(model).map_err(|fault| Trouble { what: fault.message, cure: fault.hint })?;
    let request = Request {
        system: "Answer with the one word: ready".to_owned(),
        messages: vec![Message::text(Role::User, "Are you there?".to_owned(), Origin::Operator)],
        tools: Vec::new(),
        max_output_tokens: ANSWER_MAX_TOKENS.min(model.max_output_tokens),
        tool_use: false,
    };
    let began = AtomicBool::new(false);
    let on_text = |_: &str| began.store(true, Ordering::Relaxed);
    match tokio::time::timeout(deadline, client.attempt(&request, &on_text)).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) => Err(of_model(&error, model)),
        Err(_) if began.load(Ordering::Relaxed) => Ok(false),
        Err(_) => Err(Trouble::new(
            format!("the model did not begin to answer within {} s", deadline.as_secs()),
            "a local server may still be loading it: try again; otherwise look at the server's own log",
        )),
    }
}

fn of_model(error: &ModelError, model: &Model) -> Trouble {
    let base_url = &model.base_url;
    let path = if model.provider == Provider::Anthropic { "/v1/messages" } else { "/chat/completions" };
    let cure = match error.class {
        ErrorClass::Auth => "look at the key: is it whole, is it valid, and is it one of this server?".to_owned(),
        ErrorClass::BadRequest => format!("does the server at {base_url} know the model by this name?"),
        ErrorClass::Quota => "the account is used up: its page at the provider says what to do".to_owned(),
        ErrorClass::Overload => "the server is busy: try again later".to_owned(),
        ErrorClass::Network => {
            format!("does the server run, and is {base_url} its address, up to and without {path}?")
        }
        ErrorClass::Content => "the server refuses even an empty talk: look at its filter".to_owned(),
        ErrorClass::ContextTooLong => "the model takes too little at once to be of use: choose another".to_owned(),
    };
    Trouble::new(format!("the model did not answer: {error}"), cure)
}

/// What Telegram says about a bot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bot {
    /// Without `@`.
    pub name: String,
    /// Privacy mode is off: it gets every message of its groups.
    pub hears_all: bool,
    /// Scheme and host of a webhook; its path may hold a secret.
    pub webhook: Option<String>,
}

/// Asks who the bot is and whether a webhook takes its messages.
///
/// # Errors
/// What keeps the token from being used.
pub(super) async fn bot(account: &config::Telegram, deadline: Duration) -> Result<Bot, Trouble> {
    match account_of(&account.token) {
        Ok(_) => {}
        Err(AccountError::Token(error)) => return Err(error.into()),
        Err(error) => return Err(Trouble::new(error.to_string(), "copy it again from @BotFather: /mybots, API Token")),
    }
    let api =
        Api::new(&account.api_url, account.token.clone(), deadline).map_err(|what| Trouble { what, cure: None })?;
    let ask = async {
        let me = api.send(&GetMe::new()).await?;
        let webhook = api.send(&GetWebhookInfo::new()).await?;
        Ok::<_, ApiError>((me, webhook))
    };
    let asked = tokio::time::timeout(deadline, ask)
        .await
        .unwrap_or_else(|_| Err(ApiError::Lost(format!("nothing within {} s", deadline.as_secs()))));
    let (me, webhook) = asked.map_err(|error| of_bot(&error, &account.api_url))?;
    let url = webhook["url"].as_str().unwrap_or_default();
    Ok(Bot {
        name: me["username"].as_str().unwrap_or_default().to_owned(),
        hears_all: me["can_read_all_group_messages"].as_bool().unwrap_or_default(),
        webhook: (!url.is_empty()).then(|| origin(url)),
    })
}

impl Bot {
    /// What is wrong when a webhook is set: the messages go there, and none to us.
    pub(super) fn webhook_trouble(&self) -> Option<Trouble> {
        let webhook = self.webhook.as_ref()?;
        Some(Trouble::new(
            format!("a webhook ({webhook}) takes the messages of @{}", self.name),
            "use another bot, or delete the webhook: curl https://api.telegram.org/bot$TOKEN/deleteWebhook",
        ))
    }
}

fn of_bot(error: &ApiError, api_url: &str) -> Trouble {
    let cure = match error {
        ApiError::Unauthorized(_) => "copy the token again from @BotFather: /mybots, API Token".to_owned(),
        ApiError::Later(_) | ApiError::Server(_) => "try again later".to_owned(),
        ApiError::Token(_) => "look at where the token lies".to_owned(),
        ApiError::Conflict(_) | ApiError::Refused { .. } => format!("is {api_url} a Bot API server?"),
        ApiError::NotSent(_) | ApiError::Lost(_) => {
            format!("can this machine reach {api_url}? `curl -sS {api_url}` says more")
        }
    };
    Trouble::new(format!("Telegram did not answer for the bot: {error}"), cure)
}

fn origin(url: &str) -> String {
    Url::parse(url).map_or_else(|_| "an address that is no URL".to_owned(), |url| url.origin().ascii_serialization())
}

/// How far this machine's clock is ahead of the server's at `url`, in seconds; none when the server does not say.
pub(super) async fn clock_ahead_secs(url: &str, deadline: Duration) -> Option<i64> {
    // No token and no key: any answer carries the date.
    let response = client_for(url, deadline)?.get(url).send().await.ok()?;
    let Timestamp(now_ms) = SystemClock::new().now();
    let date = response.headers().get(reqwest::header::DATE)?.to_str().ok()?;
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    Some(now_ms / 1000 - theirs)
}

/// The names of the models that a server says it has, in its order; none when it does not say.
pub(super) async fn model_names(
    provider: Provider,
    base_url: &str,
    key: Option<&Secret>,
    deadline: Duration,
) -> Vec<String> {
    let base = match provider {
        Provider::Anthropic => anthropic::versioned(base_url),
        Provider::OpenAi | Provider::Rehearsal => base_url.trim_end_matches('/').to_owned(),
    };
    let Some(client) = client_for(&base, deadline) else { return Vec::new() };
    let list = json(client.get(format!("{base}/models")), provider, key).await.unwrap_or_default();
    let entries = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = entries.iter().filter_map(|entry| entry["id"].as_str());
    // A name goes to the terminal: no sign in it may move the cursor.
    names.filter(|name| !name.chars().any(char::is_control)).map(str::to_owned).collect()
}

/// How many tokens the server says that the model takes at once; none when it does not say.
pub(super) async fn window(model: &Model, deadline: Duration) -> Option<u64> {
    let base = model.base_url.as_str();
    let client = client_for(base, deadline)?;
    let look = |url: String| json(client.get(url), model.provider, model.api_key.as_ref());
    match model.provider {
        Provider::Rehearsal => return None,
        Provider::Anthropic => {
            let about = look(format!("{}/models/{}", anthropic::versioned(base), model.model)).await?;
            return about["max_input_tokens"].as_u64();
        }
        Provider::OpenAi => {}
    }
    let list = look(format!("{base}/models")).await?;
    let entries = list["data"].as_array()?;
    let entry = entries.iter().find(|entry| entry["id"] == model.model.as_str())?;
    // vLLM, OpenRouter and its like, Groq; then two servers that say it elsewhere.
    let said = ["max_model_len", "context_length", "context_window"].iter().find_map(|key| entry[key].as_u64());
    let origin = Url::parse(base).ok()?.origin().ascii_serialization();
    match entry["owned_by"].as_str() {
        _ if said.is_some() => said,
        Some("llamacpp") => {
            let props = look(format!("{origin}/props")).await?;
            props["default_generation_settings"]["n_ctx"].as_u64()
        }
        Some("library") => {
            let loaded = look(format!("{origin}/api/ps")).await?;
            let loaded = loaded["models"].as_array()?.iter().find(|entry| entry["model"] == model.model.as_str())?;
            loaded["context_length"].as_u64()
        }
        _ => None,
    }
}

/// Most bytes of a list of models; large brokers have long ones.
const LIST_MAX_BYTES: usize = 8 << 20;

async fn json(request: reqwest::RequestBuilder, provider: Provider, key: Option<&Secret>) -> Option<serde_json::Value> {
    let key = key.map(Secret::resolve).transpose().ok()?;
    let request = match (provider, &key) {
        (Provider::Anthropic, key) => {
            let request = request.header(anthropic::VERSION.0, anthropic::VERSION.1);
            key.iter().fold(request, |request, key| request.header(anthropic::KEY_HEADER, key.expose()))
        }
        (_, Some(key)) => request.bearer_auth(key.expose()),
        (_, None) => request,
    };
    let mut response = request.send().await.ok().filter(|response| response.status().is_success())?;
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.ok()? {
        if body.len() + piece.len() > LIST_MAX_BYTES {
            return None;
        }
        body.extend_from_slice(&piece);
    }
    serde_json::from_slice(&body).ok()
}

fn client_for(url: &str, deadline: Duration) -> Option<reqwest::Client> {
    let mut client = reqwest::Client::builder().timeout(deadline).redirect(reqwest::redirect::Policy::none());
    if url.starts_with("http://") {
        client = client.no_proxy(); // plain http is for this machine or its network, which no proxy knows
    }
    client.build().ok()
}
