//! What can only be seen over the network: the model, the bots, the time.

use futures_util::future::join_all;

use super::{Finding, LOOK_MAX, Level};
use crate::cli::probe::{self, Bot};
use crate::config::{Config, Mention, Model, Provider, Telegram};

/// A clock that is further off signs and reads times wrongly.
const SKEW_MAX_SECS: u64 = 60;

/// All looks at the same time.
pub(super) async fn look(config: Option<&Config>) -> Vec<Finding> {
    let Some(config) = config else { return Vec::new() };
    let bots = join_all(config.telegram.iter().map(bot));
    let others = join_all(config.fallback.iter().map(|other| model(config, other, "fallback")));
    let (main, others, bots, clock) = tokio::join!(model(config, &config.model, "model"), others, bots, clock(config));
    let others = others.into_iter().zip(&config.fallback).flat_map(|(findings, model)| {
        findings.into_iter().map(|finding| match finding.level {
            // The first model answers without it; somebody should know before it is needed.
            Level::Fault => {
                Finding { level: Level::Warn, what: format!("{}: {}", model.model, finding.what), ..finding }
            }
            _ => finding,
        })
    });
    main.into_iter().chain(others).chain(bots.into_iter().flatten()).chain(clock).collect()
}

async fn model(config: &Config, model: &Model, topic: &str) -> Vec<Finding> {
    if model.provider == Provider::Rehearsal {
        let what = "the rehearsal model answers, which is built in and no language model";
        return vec![Finding::warn(topic, what, "`midwatch setup` puts a real one in its place")];
    }
    if model.api_key.as_ref().is_some_and(|key| key.resolve().is_err()) {
        return Vec::new(); // told among the secrets; whether it matters depends on where the daemon runs
    }
    let mut findings = match probe::model(model, LOOK_MAX).await {
        Ok(true) => vec![Finding::ok(topic, format!("{} answers", model.model))],
        Ok(false) => vec![Finding::warn(
            topic,
            format!("{} answers, but one word took longer than {} s", model.model, LOOK_MAX.as_secs()),
            "a smaller model, or a faster machine",
        )],
        Err(trouble) => return vec![Finding::of(Level::Fault, topic, trouble)],
    };
    // After the answer: a local server knows its window only once the model is loaded.
    findings.extend(window(config, model).await);
    findings
}

/// Whether the configured window is one that the server has, and one that a turn can use.
async fn window(config: &Config, model: &Model) -> Option<Finding> {
    const TOPIC: &str = "window";
    let limits = &config.limits;
    let ours = u64::from(model.context_window);
    let theirs = probe::window(model, LOOK_MAX).await;
    if let Some(theirs) = theirs.filter(|theirs| *theirs < ours) {
        return Some(Finding::fault(
            TOPIC,
            format!(
                "the server takes {theirs} tokens at once, and context_window says {ours}: it would forget or refuse"
            ),
            format!(
                "write context_window = {theirs}, or let the server take more (Ollama: OLLAMA_CONTEXT_LENGTH={ours} ollama serve)"
            ),
        ));
    }
    if u64::from(model.max_output_tokens) * 2 > ours {
        let what = format!(
            "max_output_tokens ({}) leaves less than half of context_window ({ours}) to read",
            model.max_output_tokens
        );
        return Some(Finding::warn(
            TOPIC,
            what,
            "lower max_output_tokens, or raise context_window if the model has more",
        ));
    }
    if limits.turn_tokens < ours {
        let what = format!(
            "turn_tokens ({}) is less than one full window ({ours}): a long talk ends its turns early",
            limits.turn_tokens
        );
        return Some(Finding::warn(TOPIC, what, "raise turn_tokens, or lower context_window"));
    }
    Some(Finding::ok(
        TOPIC,
        match theirs {
            Some(theirs) => format!("{ours} tokens, of {theirs} that the server takes"),
            None => format!("{ours} tokens; the server does not say how many it takes"),
        },
    ))
}

async fn bot(account: &Telegram) -> Vec<Finding> {
    let topic = account.name.as_str();
    if account.token.resolve().is_err() {
        return Vec::new(); // as above
    }
    let bot = match probe::bot(account, LOOK_MAX).await {
        Ok(bot) => bot,
        Err(trouble) => return vec![Finding::of(Level::Fault, topic, trouble)],
    };
    let mut findings = vec![match bot.webhook_trouble() {
        Some(trouble) => Finding::of(Level::Fault, topic, trouble),
        None => Finding::ok(topic, format!("the token is that of @{}, and no webhook takes its messages", bot.name)),
    }];
    findings.extend(privacy(account, &bot));
    findings
}

/// A group that is to be heard whole, while Telegram passes on only what is meant for the bot.
fn privacy(account: &Telegram, bot: &Bot) -> Option<Finding> {
    if bot.hears_all {
        return None;
    }
    let deaf: Vec<_> = account.links.iter().filter(|link| link.chat < 0 && link.mention == Mention::Always).collect();
    let names: Vec<_> = deaf.iter().map(|link| link.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        Finding::warn(
            &account.name,
            format!(
                "mention = \"always\" in {}, but @{} gets only its name, answers to it and commands: privacy mode is on",
                names.join(", "),
                bot.name
            ),
            "@BotFather: /setprivacy, Disable, then take the bot out of the group and add it again; or make it an admin there",
        )
    })
}

/// Holds this machine's clock against a server's.
async fn clock(config: &Config) -> Option<Finding> {
    const TOPIC: &str = "clock";
    let url = match config.telegram.first() {
        Some(account) => account.api_url.as_str(),
        None if config.model.base_url.is_empty() => return None,
        None => config.model.base_url.as_str(),
    };
    let ahead = probe::clock_ahead_secs(url, LOOK_MAX).await?;
    let off = ahead.unsigned_abs();
    Some(if off > SKEW_MAX_SECS {
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        Finding::fault(TOPIC, format!("this machine is {off} s {way} the server at {url}"), "timedatectl set-ntp true")
    } else {
        Finding::ok(TOPIC, format!("within {SKEW_MAX_SECS} s of the server's"))
    })
}
