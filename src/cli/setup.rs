//! `setup`: asks, tries each answer out, and writes the files at the very end.
//!
//! ```text
//! flags, questions ─▶ answers ─▶ the files as they would be (in memory) ─▶ the same parser as `serve`
//!                        ▲                                                      │
//!                        └─ again ◀── the model answers? the bot's token holds? ┘
//!                                                        └─▶ shown ─▶ written, all or none
//! ```
//! Nothing is written before all is answered, so whatever ends this leaves everything as it was. A secret that is typed
//! is held in memory, never shown, and put into a file of its own that only its owner reads.

mod answers;
mod plan;

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::client::Client;
use super::complain::{Complaint, Exit};
use super::probe::{self, Bot, Trouble};
use super::{ask, out};
use crate::config::edit::ModelAnswers;
use crate::config::{Config, Home, Provider, Secret, check_secrets};
use answers::{Given, GivenBot};
use plan::Plan;

/// A local server may have to load the model first.
const MODEL_WAIT: Duration = Duration::from_secs(60);
const TELEGRAM_WAIT: Duration = Duration::from_secs(10);

/// The flags of `setup`. Without `--yes` they are answers given beforehand.
#[derive(Debug, Default, Args)]
pub(super) struct Flags {
    /// Ask nothing: every answer comes from the flags.
    #[arg(long)]
    yes: bool,
    /// Who answers: "openai" is any server that speaks its chat completions.
    #[arg(long, value_parser = PossibleValuesParser::new(Provider::ALL.iter().map(|provider| provider.as_str())))]
    provider: Option<String>,
    /// The model's name, as the server knows it.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The server, such as http://127.0.0.1:11434/v1.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// The key lies in this environment variable.
    #[arg(long, value_name = "NAME", conflicts_with = "api_key_file")]
    api_key_env: Option<String>,
    /// The key lies in this file.
    #[arg(long, value_name = "PATH")]
    api_key_file: Option<std::path::PathBuf>,
    /// The bot's token lies in this environment variable.
    #[arg(long, value_name = "NAME", conflicts_with = "telegram_token_file")]
    telegram_token_env: Option<String>,
    /// The bot's token lies in this file.
    #[arg(long, value_name = "PATH")]
    telegram_token_file: Option<std::path::PathBuf>,
    /// Another Bot API server than Telegram's own.
    #[arg(long, value_name = "URL")]
    telegram_api_url: Option<String>,
    /// Your numeric id on Telegram; may be given more than once.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
    operator: Vec<u64>,
    /// No Telegram: the console alone.
    #[arg(long, conflicts_with_all = ["telegram_token_env", "telegram_token_file", "telegram_api_url"])]
    no_telegram: bool,
    /// Do not try the answers out.
    #[arg(long)]
    no_verify: bool,
    /// Change the files that are there: what was not asked for stays in them.
    #[arg(long)]
    overwrite: bool,
}

/// Sets a deployment up. `midwatch` is how this command was called, for the commands that come next.
pub(super) async fn run(home: &Home, flags: &Flags, midwatch: &str, json: bool) -> Result<Exit, Complaint> {
    let old = plan::Old::read(home)?;
    if !flags.yes {
        out::note(format_args!(
            "This sets midwatch up in {}. Nothing is written before the end; Ctrl-C leaves all as it is.\n",
            home.config.display()
        ));
    }
    let model = settle_model(home, &old, flags).await?;
    let bot = settle_bot(home, &old, flags, &model).await?;
    let operator = answers::operator(flags, bot.is_some())?;

    let plan = Plan::make(home, &old, &model, bot.as_ref(), &operator)?;
    let mut config = plan.parsed(home)?;
    hold(&mut config, &model, bot.as_ref());
    agree_to_changes(&plan, flags)?;
    let mut told = None;
    if flags.yes && !flags.no_verify {
        told = verify_all(&config).await?;
    }
    for fault in check_secrets(&config) {
        out::note(format_args!("warning: {}", fault.message));
        if let Some(hint) = &fault.hint {
            out::note(format_args!("hint: {hint}"));
        }
    }
    old.still_holds(home)?;
    plan.write(home)?;
    let runs = match Client::connect(home) {
        Ok(client) => client.get::<serde_json::Value>("/v1/status").await.is_ok(),
        Err(_) => false,
    };
    let next = next_commands(midwatch, bot.is_some(), runs);
    if json {
        let bot = told.as_ref().map(|bot: &Bot| &bot.name);
        let next: Vec<_> = next.into_iter().map(|(command, _)| command).collect();
        out::line(json!({ "written": plan.written(), "unchanged": plan.unchanged(), "bot": bot, "next": next }))?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for path in plan.written() {
        text.push_str(&format!("wrote {path}\n"));
    }
    for path in plan.unchanged() {
        text.push_str(&format!("kept {path}, which says this already\n"));
    }
    for name in needed_in_environment(&model, bot.as_ref()) {
        text.push_str(&format!("The daemon needs {name} in its environment.\n"));
    }
    text.push_str("\nNext:\n");
    let width = next.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    for (command, what) in &next {
        text.push_str(&format!("  {command:<width$}  {what}\n"));
    }
    out::text_as_is(text)?;
    Ok(Exit::Done)
}

/// The model, tried out where a person can answer again.
async fn settle_model(home: &Home, old: &plan::Old, flags: &Flags) -> Result<(ModelAnswers, Option<Given>), Complaint> {
    if flags.yes {
        return answers::model_of_flags(home, old, flags);
    }
    out::note("1. The model");
    let mut before: Option<ModelAnswers> = None;
    loop {
        let model = answers::ask_model(home, old, flags, before.as_ref()).await?;
        let trouble = match Plan::make(home, old, &model, None, &[])?.parsed(home) {
            Err(complaint) => {
                out::note(format_args!("   {}", complaint.text()));
                before = Some(model.0);
                continue;
            }
            Ok(_) if flags.no_verify || model.0.provider == Provider::Rehearsal => None,
            Ok(mut config) => {
                hold(&mut config, &model, None);
                out::note(format_args!("   asking it for one word, {} s at most …", MODEL_WAIT.as_secs()));
                probe::model(&config.model, MODEL_WAIT).await.err()
            }
        };
        match trouble {
            None => {
                out::note(if flags.no_verify { "   not tried out\n" } else { "   ok: it answers\n" });
                return Ok(model);
            }
            Some(trouble) if keeps(&trouble)? => return Ok(model),
            Some(_) => before = Some(model.0),
        }
    }
}

/// The bot, tried out where a person can answer again.
async fn settle_bot(
    home: &Home,
    old: &plan::Old,
    flags: &Flags,
    model: &(ModelAnswers, Option<Given>),
) -> Result<Option<GivenBot>, Complaint> {
    if flags.yes {
        return answers::bot_of_flags(home, old, flags);
    }
    if flags.no_telegram {
        return Ok(None);
    }
    out::note("2. Telegram");
    let mut asked_again = false;
    loop {
        let Some(bot) = answers::ask_bot(home, old, flags, asked_again)? else {
            out::note("   no Telegram: `midwatch chat` talks with it here\n");
            return Ok(None);
        };
        let trouble = match Plan::make(home, old, model, Some(&bot), &[])?.parsed(home) {
            Err(complaint) => {
                out::note(format_args!("   {}", complaint.text()));
                asked_again = true;
                continue;
            }
            Ok(_) if flags.no_verify => None,
            Ok(mut config) => {
                hold(&mut config, model, Some(&bot));
                match ask_telegram(&config).await {
                    Ok(found) => {
                        out::note(about(&found));
                        None
                    }
                    Err(trouble) => Some(trouble),
                }
            }
        };
        match trouble {
            None => return Ok(Some(bot)),
            Some(trouble) if keeps(&trouble)? => return Ok(Some(bot)),
            Some(_) => asked_again = true,
        }
    }
}

/// What is wrong is shown; whether the answer is kept all the same.
fn keeps(trouble: &Trouble) -> Result<bool, Complaint> {
    out::note(format_args!("   {}", trouble.what));
    if let Some(cure) = &trouble.cure {
        out::note(format_args!("   {cure}"));
    }
    ask::until("   Answer again, keep it as it is, or quit? (a/k/q)", Some("a"), |answer| match answer {
        "a" | "again" => Ok(Ok(false)),
        "k" | "keep" => Ok(Ok(true)),
        "q" | "quit" => Ok(Err(Complaint::failed("left; nothing was written"))),
        _ => Err("a, k or q".to_owned()),
    })?
}

async fn ask_telegram(config: &Config) -> Result<Bot, Trouble> {
    let Some(account) = config.telegram.iter().find(|account| account.name == "telegram") else {
        return Err(Trouble { what: "there is no channels/telegram.toml".to_owned(), cure: None });
    };
    let bot = probe::bot(account, TELEGRAM_WAIT).await?;
    bot.webhook_trouble().map_or(Ok(bot), Err)
}

fn about(bot: &Bot) -> String {
    let groups = if bot.hears_all {
        "in groups it gets every message (privacy mode is off)"
    } else {
        "in groups it gets its name, answers to it and commands (privacy mode is on, as midwatch expects)"
    };
    format!("   ok: the bot is @{}; {groups}\n", bot.name)
}

/// With `--yes`: both at once, and all that is wrong at once.
async fn verify_all(config: &Config) -> Result<Option<Bot>, Complaint> {
    let model = async {
        match config.model.provider {
            Provider::Rehearsal => Ok(()),
            _ => probe::model(&config.model, MODEL_WAIT).await.map(|_| ()),
        }
    };
    let bot = async {
        match config.telegram.iter().any(|account| account.name == "telegram") {
            true => ask_telegram(config).await.map(Some),
            false => Ok(None),
        }
    };
    let (model, bot) = tokio::join!(model, bot);
    let troubles: Vec<_> = model.err().into_iter().chain(bot.as_ref().err().cloned()).collect();
    if troubles.is_empty() {
        return Ok(bot.ok().flatten());
    }
    let what: Vec<_> = troubles.iter().map(|trouble| trouble.what.clone()).collect();
    let cures: Vec<_> = troubles.iter().filter_map(|trouble| trouble.cure.clone()).collect();
    let complaint = Complaint::failed(format!("{}; nothing was written", what.join("; and ")));
    Err(if cures.is_empty() { complaint } else { complaint.hint(cures.join("; and ")) })
}

/// Puts what was typed where the configuration will find it in a file.
fn hold(config: &mut Config, model: &(ModelAnswers, Option<Given>), bot: Option<&GivenBot>) {
    if let Some(Given::Typed { value, .. }) = &model.1 {
        config.model.api_key = Some(Secret::held(value));
    }
    if let Some(Given::Typed { value, .. }) = bot.map(|bot| &bot.token)
        && let Some(account) = config.telegram.iter_mut().find(|account| account.name == "telegram")
    {
        account.token = Secret::held(value);
    }
}

fn agree_to_changes(plan: &Plan, flags: &Flags) -> Result<(), Complaint> {
    let changes = plan.changes();
    if changes.is_empty() || flags.overwrite {
        return Ok(());
    }
    if flags.yes {
        return Err(Complaint::failed(format!("files that are there would change; nothing was written\n{changes}"))
            .hint("--overwrite changes these lines and keeps everything else"));
    }
    out::note(format_args!("These lines of files that are there change, all others stay:\n{changes}"));
    ask::until("Change them? (y/n)", Some("n"), |answer| match answer {
        "y" | "yes" => Ok(Ok(())),
        "n" | "no" => Ok(Err(Complaint::failed("left; nothing was written"))),
        _ => Err("y or n".to_owned()),
    })?
}

fn needed_in_environment(model: &(ModelAnswers, Option<Given>), bot: Option<&GivenBot>) -> Vec<String> {
    let given = model.1.iter().chain(bot.map(|bot| &bot.token));
    given.filter_map(Given::env_name).map(str::to_owned).collect()
}

fn next_commands(midwatch: &str, telegram: bool, runs: bool) -> Vec<(String, &'static str)> {
    let mut next = vec![if runs {
        (format!("{midwatch} reload"), "the running daemon reads the files")
    } else {
        (format!("{midwatch} serve"), "starts it here; systemd/midwatch.service makes it a service")
    }];
    if telegram {
        next.push((format!("{midwatch} link telegram"), "makes a code: send /link CODE to the bot"));
    } else {
        next.push((format!("{midwatch} chat"), "talks with it here"));
    }
    next.push((format!("{midwatch} doctor"), "looks whether all is well"));
    next
}
