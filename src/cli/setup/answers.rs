//! The answers: from flags, or asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Flags;
use super::plan::Old;
use crate::cli::complain::{Complaint, Exit};
use crate::cli::{ask, out, probe};
use crate::config::edit::{self, BotAnswers, Lies, ModelAnswers};
use crate::config::{ANTHROPIC_URL, Home, Provider, Secret, SecretValue};

/// Where a key that was typed is put, beneath the configuration's folder.
const MODEL_KEY: &str = "secrets/model.key";
/// The same for the bot's token.
const BOT_TOKEN: &str = "secrets/telegram.token";

/// How long a server is asked for the names of its models; without an answer a person types one anyway.
const NAMES_WAIT: Duration = Duration::from_secs(5);
const NAMES_SHOWN: usize = 20;

/// A secret as it was given.
#[derive(Debug)]
pub(super) enum Given {
    /// Where it lies.
    Named(Lies),
    /// Itself, and where it is to lie.
    Typed { value: SecretValue, file: &'static str },
}

impl Given {
    pub(super) fn lies(&self) -> Lies {
        match self {
            Self::Named(lies) => lies.clone(),
            Self::Typed { file, .. } => Lies::File(PathBuf::from(file)),
        }
    }

    /// The environment variable that the daemon will need.
    pub(super) fn env_name(&self) -> Option<&str> {
        match self {
            Self::Named(Lies::Env(name)) => Some(name),
            _ => None,
        }
    }
}

/// The bot as it was given.
#[derive(Debug)]
pub(super) struct GivenBot {
    pub token: Given,
    pub api_url: Option<String>,
}

impl GivenBot {
    pub(super) fn answers(&self) -> BotAnswers {
        BotAnswers { token: self.token.lies(), api_url: self.api_url.clone() }
    }
}

type GivenModel = (ModelAnswers, Option<Given>);

/// What is known beforehand about a provider.
struct About {
    words: &'static str,
    /// The server that is offered; none where the provider has one of its own.
    base_url: &'static str,
    model: Option<&'static str>,
    needs_key: bool,
}

fn about(provider: Provider) -> About {
    match provider.as_str() {
        "rehearsal" => {
            About { words: "built in, no language model, no key", base_url: "", model: None, needs_key: false }
        }
        "anthropic" => {
            About { words: "Anthropic's own protocol", base_url: ANTHROPIC_URL, model: None, needs_key: true }
        }
        _ => About {
            words: "any server that speaks OpenAI's chat completions: OpenAI, Ollama, llama.cpp, vLLM, …",
            base_url: "http://127.0.0.1:11434/v1",
            model: Some("qwen3:8b"),
            needs_key: false,
        },
    }
}

fn provider_of(word: &str) -> Option<Provider> {
    Provider::ALL.iter().copied().find(|provider| provider.as_str() == word)
}

fn missing(flag: &str) -> Complaint {
    Complaint::new(Exit::Usage, format!("{flag} is missing")).hint("`midwatch setup --help` lists the flags")
}

/// A path from the shell is relative to where the command was typed, not to the configuration.
fn written_path(home: &Home, path: &Path) -> Result<Lies, Complaint> {
    let whole = std::path::absolute(path).map_err(|error| Complaint::failed(format!("{}: {error}", path.display())))?;
    Ok(Lies::File(whole.strip_prefix(&home.config).map(Path::to_owned).unwrap_or(whole)))
}

fn key_of_flags(home: &Home, flags: &Flags) -> Result<Option<Given>, Complaint> {
    Ok(match (&flags.api_key_env, &flags.api_key_file) {
        (Some(name), _) => Some(Given::Named(Lies::Env(name.clone()))),
        (_, Some(path)) => Some(Given::Named(written_path(home, path)?)),
        _ => None,
    })
}

fn token_of_flags(home: &Home, flags: &Flags) -> Result<Option<Given>, Complaint> {
    Ok(match (&flags.telegram_token_env, &flags.telegram_token_file) {
        (Some(name), _) => Some(Given::Named(Lies::Env(name.clone()))),
        (_, Some(path)) => Some(Given::Named(written_path(home, path)?)),
        _ => None,
    })
}

/// The model with `--yes`: of the flags, or as it is configured where no flag speaks of it.
///
/// # Errors
/// Wrong usage with the flag that is missing.
pub(super) fn model_of_flags(home: &Home, old: &Old, flags: &Flags) -> Result<GivenModel, Complaint> {
    let flagged = [&flags.provider, &flags.model, &flags.base_url, &flags.api_key_env];
    if flagged.iter().all(|flag| flag.is_none())
        && flags.api_key_file.is_none()
        && let Some(answers) = old.model(home)
    {
        let key = answers.api_key.clone().map(Given::Named);
        return Ok((answers, key));
    }
    let provider = flags.provider.as_deref().and_then(provider_of).ok_or_else(|| missing("--provider"))?;
    let key = key_of_flags(home, flags)?;
    if provider == Provider::OpenAi {
        for (flag, value) in [("--model", &flags.model), ("--base-url", &flags.base_url)] {
            if value.is_none() {
                return Err(missing(flag));
            }
        }
    } else if provider != Provider::Rehearsal {
        if flags.model.is_none() {
            return Err(missing("--model"));
        }
        if key.is_none() && flags.base_url.is_none() {
            return Err(missing("--api-key-env or --api-key-file"));
        }
    }
    let api_key = key.as_ref().map(Given::lies);
    // Written down, for an old line would send the key to the server of another provider.
    let own = (provider == Provider::Anthropic).then(|| ANTHROPIC_URL.to_owned());
    let base_url = flags.base_url.clone().or(own);
    let answers = ModelAnswers { provider, model: flags.model.clone(), base_url, api_key };
    Ok((answers, key))
}

/// The bot with `--yes`: of the flags, or as it is configured where no flag speaks of it.
///
/// # Errors
/// Wrong usage with the flag that is missing.
pub(super) fn bot_of_flags(home: &Home, old: &Old, flags: &Flags) -> Result<Option<GivenBot>, Complaint> {
    if flags.no_telegram {
        return Ok(None);
    }
    let token = token_of_flags(home, flags)?;
    if token.is_none()
        && flags.telegram_api_url.is_none()
        && let Some(bot) = old.bot(home)
    {
        return Ok(Some(bot));
    }
    let token =
        token.ok_or_else(|| missing("--telegram-token-env or --telegram-token-file (or else --no-telegram)"))?;
    Ok(Some(GivenBot { token, api_url: flags.telegram_api_url.clone() }))
}

/// Asks about the model. Flags count as answers the first time; after that, `before` is offered again.
///
/// # Errors
/// When the input ends.
pub(super) async fn ask_model(
    home: &Home,
    old: &Old,
    flags: &Flags,
    before: Option<&ModelAnswers>,
) -> Result<GivenModel, Complaint> {
    let flag = |value: &Option<String>| value.clone().filter(|_| before.is_none());
    let configured = old.model(home);
    let was = before.or(configured.as_ref());
    let provider = match flag(&flags.provider).as_deref().and_then(provider_of) {
        Some(provider) => provider,
        None => {
            for provider in Provider::ALL {
                out::note(format_args!("   {}: {}", provider.as_str(), about(*provider).words));
            }
            let default = was.map_or(Provider::OpenAi, |model| model.provider).as_str();
            let words: Vec<_> = Provider::ALL.iter().map(|provider| provider.as_str()).collect();
            ask::until("   Provider", Some(default), |answer| {
                provider_of(answer).ok_or_else(|| format!("one of {}", words.join(", ")))
            })?
        }
    };
    if provider == Provider::Rehearsal {
        return Ok((ModelAnswers { provider, model: None, base_url: None, api_key: None }, None));
    }
    let about = about(provider);
    let was = was.filter(|model| model.provider == provider);
    let base_url = match flag(&flags.base_url) {
        Some(base_url) => base_url,
        None => {
            let default = was.and_then(|was| was.base_url.as_deref()).unwrap_or(about.base_url);
            ask::until("   The server", Some(default), |answer| {
                edit::check_server(answer).map(|()| answer.to_owned()).map_err(|why| format!("it {why}"))
            })?
        }
    };
    let key = match key_of_flags(home, flags)?.filter(|_| before.is_none()) {
        Some(key) => Some(key),
        None => {
            // A key stays with its server.
            let stays = configured.as_ref().filter(|configured| configured.base_url.as_ref() == Some(&base_url));
            match stays.and_then(|configured| configured.api_key.clone()).filter(|_| before.is_none()) {
                Some(key) => ask_secret("   The key", MODEL_KEY, Some("as it is now"))?.or(Some(Given::Named(key))),
                None if about.needs_key && base_url == about.base_url => ask_secret("   The key", MODEL_KEY, None)?,
                None => ask_secret("   The key", MODEL_KEY, Some("none is needed"))?,
            }
        }
    };
    let model = match flag(&flags.model) {
        Some(model) => model,
        None => {
            let names =
                if flags.no_verify { Vec::new() } else { known_names(home, provider, &base_url, key.as_ref()).await };
            let only = Some(&names).filter(|names| names.len() == 1).and_then(|names| names.first());
            let example = about.model.filter(|_| names.is_empty());
            let default = was.and_then(|was| was.model.as_deref()).or(only.map(String::as_str)).or(example);
            ask::until("   The model's name, as the server knows it", default, |answer| match answer {
                "" => Err("it cannot be empty".to_owned()),
                name => Ok(name.to_owned()),
            })?
        }
    };
    let api_key = key.as_ref().map(Given::lies);
    Ok((ModelAnswers { provider, model: Some(model), base_url: Some(base_url), api_key }, key))
}

/// The models that the server says it has, shown as far as a screen takes them.
async fn known_names(home: &Home, provider: Provider, base_url: &str, key: Option<&Given>) -> Vec<String> {
    let secret = key.map(|key| match key {
        Given::Named(lies) => lies.secret(&home.config),
        Given::Typed { value, .. } => Secret::held(value),
    });
    let names = probe::model_names(provider, base_url, secret.as_ref(), NAMES_WAIT).await;
    if !names.is_empty() {
        let more =
            if names.len() > NAMES_SHOWN { format!(" and {} more", names.len() - NAMES_SHOWN) } else { String::new() };
        let shown: Vec<_> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
        out::note(format_args!("   it has {}{more}", shown.join(", ")));
    }
    names
}

/// Asks about the bot; none when there is to be none.
///
/// # Errors
/// When the input ends.
pub(super) fn ask_bot(home: &Home, old: &Old, flags: &Flags, again: bool) -> Result<Option<GivenBot>, Complaint> {
    let configured = old.bot(home);
    let api_url = configured.as_ref().and_then(|bot| bot.api_url.clone());
    let api_url = flags.telegram_api_url.clone().or(api_url);
    if let Some(token) = token_of_flags(home, flags)?.filter(|_| !again) {
        return Ok(Some(GivenBot { token, api_url }));
    }
    out::note("   A bot comes from @BotFather in Telegram: /newbot, then copy the token it gives you.");
    let token = match configured.filter(|_| !again) {
        Some(bot) => ask_secret("   The bot's token", BOT_TOKEN, Some("as it is now"))?.or(Some(bot.token)),
        None => ask_secret("   The bot's token", BOT_TOKEN, Some("no Telegram"))?,
    };
    Ok(token.map(|token| GivenBot { token, api_url }))
}

/// A secret, or where it lies; `nothing` says what an empty answer means, where one is allowed.
fn ask_secret(question: &str, file: &'static str, nothing: Option<&str>) -> Result<Option<Given>, Complaint> {
    let empty = nothing.map(|nothing| format!("; empty: {nothing}")).unwrap_or_default();
    let question = format!("{question} (not shown while you type; or env:NAME, file:PATH{empty})");
    loop {
        let value = ask::hidden(&question)?;
        let text = value.expose();
        if let Some(name) = text.strip_prefix("env:") {
            return Ok(Some(Given::Named(Lies::Env(name.trim().to_owned()))));
        }
        if let Some(path) = text.strip_prefix("file:") {
            let whole = std::path::absolute(path.trim());
            let whole = whole.map_err(|error| Complaint::failed(format!("{}: {error}", path.trim())))?;
            return Ok(Some(Given::Named(Lies::File(whole))));
        }
        if let Some(name) = text.strip_prefix("credential:") {
            return Ok(Some(Given::Named(Lies::Credential(name.trim().to_owned()))));
        }
        if !text.is_empty() {
            return Ok(Some(Given::Typed { value, file }));
        }
        if nothing.is_some() {
            return Ok(None);
        }
        out::note("   it cannot be empty");
    }
}

/// The operator's ids.
///
/// # Errors
/// When the input ends.
pub(super) fn operator(flags: &Flags, telegram: bool) -> Result<Vec<u64>, Complaint> {
    if flags.yes || !telegram || !flags.operator.is_empty() {
        return Ok(flags.operator.clone());
    }
    out::note(
        "3. You\n   Your numeric id makes you the operator: you may stop every turn, and your private chat gets the read \
         tools\n   when you link it. You need not know it now: write anything to the bot once the daemon runs, and\n   \
         `midwatch status` shows it; then run this again.",
    );
    ask::until("   Your numeric id on Telegram", Some("later"), |answer| {
        if answer == "later" {
            return Ok(Vec::new());
        }
        match answer.parse::<i64>() {
            Ok(id) if id > 0 => Ok(vec![id.unsigned_abs()]),
            _ => Err("digits alone: a name can be released and taken by someone else".to_owned()),
        }
    })
}
