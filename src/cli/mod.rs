//! The commands, one file each: data on standard output, everything else on standard error.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic when nobody reads; `out` does not")]

mod ask;
mod chat;
mod client;
mod complain;
mod doctor;
mod list;
mod out;
mod probe;
mod serve;
mod setup;
mod try_out;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use complain::{Complaint, Exit};

use crate::config::Home;

/// A personal agent that keeps watch while its owner sleeps.
#[derive(Debug, Parser)]
#[command(name = "midwatch", version, max_term_width = 100)]
struct Cli {
    /// Everything of this deployment under one folder: config/, data/, state/, run/.
    #[arg(long, global = true, value_name = "DIR", env = "MIDWATCH_HOME")]
    home: Option<PathBuf>,
    /// Another folder for the configuration.
    #[arg(long, global = true, value_name = "DIR")]
    config: Option<PathBuf>,
    /// Answer as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The first minute: a throw-away home, this terminal as the channel, no key needed.
    Try,
    /// Set it up: the model, the bot, you. Tries each answer out and writes the files at the end.
    Setup(Box<setup::Flags>),
    /// Show a commented configuration with every key and its default.
    Config {
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Run the daemon in the foreground.
    Serve,
    /// Parse the whole configuration, list every fault, start nothing.
    Check,
    /// Look at everything this deployment stands on; each finding with its fix. Changes nothing.
    Doctor,
    /// Say one thing to the running daemon and print its answer.
    Say {
        /// What to say.
        text: String,
        #[command(flatten)]
        session: Session,
    },
    /// Talk with the running daemon; Ctrl-C stops the turn, a second one leaves.
    Chat {
        #[command(flatten)]
        session: Session,
    },
    /// How the daemon is, and everything that needs a person.
    Status,
    /// Turns that are open or set aside; retry or drop one that is set aside.
    Turns {
        #[command(subcommand)]
        act: Option<TurnCommand>,
    },
    /// Replies that are in doubt or cannot be sent; resend or drop one.
    Replies {
        #[command(subcommand)]
        act: Option<ReplyCommand>,
    },
    /// Make a one-time code that links a chat.
    Link {
        #[command(subcommand)]
        platform: LinkCommand,
    },
    /// Who is linked, with which rights.
    Links,
    /// The sessions; `show` prints what was said in one.
    Sessions {
        #[command(subcommand)]
        act: Option<SessionCommand>,
    },
    /// What happened in a session or in a turn.
    Timeline {
        /// A session (id, its first characters, or a console session's name) or a turn (turn-17).
        id: String,
    },
    /// Make the running daemon read its files again.
    Reload,
    /// Stop the running daemon.
    Stop,
}

#[derive(Debug, Args)]
struct Session {
    /// Which console session.
    #[arg(long, value_name = "NAME", default_value = "main")]
    session: String,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print an example.
    Example {
        /// `telegram` for channels/telegram.toml; nothing for midwatch.toml.
        #[arg(value_parser = ["telegram"])]
        of: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum TurnCommand {
    /// Put its messages back into the queue.
    Retry {
        /// turn-17
        id: String,
    },
    /// Give it up.
    Drop {
        /// turn-17
        id: String,
    },
}

#[derive(Debug, Subcommand)]
enum ReplyCommand {
    /// Send it again; a reader who may have it already is told so.
    Resend {
        /// reply-17
        id: String,
    },
    /// Give it up.
    Drop {
        /// reply-17
        id: String,
    },
}

#[derive(Debug, Subcommand)]
enum LinkCommand {
    /// A chat of a Telegram account.
    Telegram {
        /// The channel file's name, where there is more than one.
        #[arg(long, value_name = "NAME")]
        channel: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum SessionCommand {
    /// Print what was said.
    Show {
        /// Its id, the first characters of it, or a console session's name.
        id: String,
    },
}

/// Parses the arguments, does the command, and says how it went.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; everything else is wrong usage.
            let code = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            return match error.print() {
                // Wrong usage stays wrong, whether somebody reads what was wrong or not.
                Err(failed) if code == Exit::Done => fail(&out::cannot_print(&failed), false),
                _ => code.into(),
            };
        }
    };
    match command(&cli) {
        Ok(exit) => exit.into(),
        Err(complaint) => fail(&complaint, cli.json),
    }
}

fn fail(complaint: &Complaint, json: bool) -> ExitCode {
    complaint.print(json);
    complaint.exit.into()
}

fn command(cli: &Cli) -> Result<Exit, Complaint> {
    if let Command::Config { what: ConfigCommand::Example { of } } = &cli.command {
        let text = of.as_ref().map_or_else(crate::config::example, |_| crate::config::telegram_example());
        out::text_as_is(text)?;
        return Ok(Exit::Done);
    }
    if matches!(cli.command, Command::Try) {
        return runtime()?.block_on(try_out::run());
    }
    let home = Home::find(cli.home.clone(), cli.config.clone())?;
    match &cli.command {
        Command::Serve => return serve::run(home, runtime()?),
        Command::Check => return serve::check(&home, cli.json),
        Command::Doctor => {
            return runtime()?.block_on(doctor::run(&home, cli.home.is_none(), cli.json));
        }
        Command::Setup(flags) => {
            return runtime()?.block_on(setup::run(&home, flags, &called(cli), cli.json));
        }
        _ => {}
    }
    runtime()?.block_on(async {
        let client = client::Client::connect(&home)?;
        match &cli.command {
            Command::Say { text, session } => chat::say(&client, &session.session, text, cli.json).await,
            Command::Chat { session } => chat::chat(&client, &session.session).await,
            other => list::run(&client, other, cli.json).await,
        }
    })
}

/// How a next command of this deployment is typed.
fn called(cli: &Cli) -> String {
    let mut called = "midwatch".to_owned();
    // What the environment says holds for the next command too.
    let from_environment = std::env::var_os("MIDWATCH_HOME").is_some();
    let flags = [("--home", cli.home.as_ref().filter(|_| !from_environment)), ("--config", cli.config.as_ref())];
    for (flag, folder) in flags {
        if let Some(folder) = folder {
            called.push_str(&format!(" {flag} {}", folder.display()));
        }
    }
    called
}

fn runtime() -> Result<tokio::runtime::Runtime, Complaint> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("the runtime cannot start: {error}")))
}
