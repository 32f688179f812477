//! A Telegram bot account.
//!
//! ```text
//! poll ─▶ arrivals ─▶ inbox + cursor, one commit ─▶ the next poll acknowledges
//! outbox ─▶ courier ─▶ sendMessage                  a running turn ─▶ "typing" every five seconds
//! ```
//! Requests are teloxide's types; the transport is ours, so that every deadline, status and lost answer is seen here.

pub mod api;
mod hear;
pub mod poll;
mod send;

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use api::{Api, ApiError};
use teloxide::payloads::SendChatAction;
use teloxide::types::{ChatAction, ChatId, MessageId, ThreadId};

use crate::config::{self, SecretError};
use crate::domain::Stop;
use crate::reply::{Courier, Pace, Platform, Rates};
use crate::session::SharedServices;
use crate::store::outbox::Target;

/// Telegram's limits: 30 messages a second for a bot, about one a second into one chat, with short bursts allowed.
const RATES: Rates = Rates { account_per_sec: 30.0, chat_per_sec: 1.0, chat_burst: 5.0 };
/// For the bench, whose platform has no limits and which measures the daemon alone.
const NO_RATES: Rates = Rates { account_per_sec: 1e6, chat_per_sec: 1e6, chat_burst: 1e6 };
/// `off` in the environment asks for [`NO_RATES`]; docs/performance.md says what for.
const PACE: &str = "MIDWATCH_BENCH_PACE";
/// Telegram shows "typing" for about five seconds.
const TYPING_EVERY: Duration = Duration::from_secs(5);

/// One account at work.
pub struct Telegram {
    services: Arc<SharedServices>,
    /// The channel file's name.
    name: String,
    /// `telegram:ID`; the id is the public half of the token.
    channel: String,
    account: String,
    api: Api,
    pace: Arc<Pace>,
    poll_timeout: Duration,
}

/// The account cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The token is not there.
    #[error("the bot token cannot be read: {0}")]
    Token(#[from] SecretError),
    /// What is there is no token; nothing of it is shown.
    #[error(
        "what stands in the token's place is not a bot token: it looks like 123456:AbCd…, as BotFather gives it, and nothing else"
    )]
    NotAToken,
    /// The HTTP client cannot be made.
    #[error("{0}")]
    Client(String),
}

impl Telegram {
    /// Reads the token for the account's id and makes the clients; connects to nothing.
    ///
    /// # Errors
    /// [`AccountError`]: this channel cannot run until the operator acts.
    pub fn new(services: Arc<SharedServices>, config: &config::Telegram) -> Result<Self, AccountError> {
        let account = api::account_of(&config.token)?;
        let poll_timeout = Duration::from_secs(config.poll_timeout_secs);
        let api = Api::new(&config.api_url, config.token.clone(), poll_timeout).map_err(AccountError::Client)?;
        let channel = format!("telegram:{account}");
        services.health.begin(&channel, &config.name, crate::domain::ChannelKind::Telegram);
        Ok(Self {
            services,
            name: config.name.clone(),
            channel,
            account,
            api,
            pace: Arc::new(Pace::new(rates(&config.api_url, std::env::var_os(PACE).as_deref()))),
            poll_timeout,
        })
    }

    /// `telegram:ID`.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.channel
    }

    /// The courier that brings this account's answers out.
    #[must_use]
    pub fn courier(self: &Arc<Self>) -> Courier {
        Courier {
            store: self.services.store.clone(),
            platform: Arc::clone(self) as Arc<dyn Platform>,
            pace: self.pace.clone(),
            clock: self.services.clock.clone(),
            rng: self.services.rng.clone(),
            boot: self.services.boot,
            wake: self.services.outbox.subscribe(),
        }
    }

    /// Shows "typing" wherever a turn of this account is at work.
    pub async fn show_typing(&self, stop: Stop) {
        let mut running = self.services.hub.all_running();
        loop {
            let targets: Vec<Target> = running
                .borrow_and_update()
                .values()
                .filter_map(|running| running.target.clone())
                .filter(|target| target.channel == self.channel)
                .collect();
            for target in &targets {
                // Answers go before looks: where the rate is used up, nothing is shown.
                if self.pace.take(&target.chat, self.services.clock.monotonic()).is_ok() {
                    self.typing(target).await;
                }
            }
            let again = if targets.is_empty() { None } else { Some(tokio::time::sleep(TYPING_EVERY)) };
            tokio::select! {
                biased;
                () = stop.asked() => return,
                () = async { match again { Some(sleep) => sleep.await, None => std::future::pending().await } } => {}
                changed = running.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn type_once(&self, target: &Target) -> Result<(), ApiError> {
        let Ok(chat) = target.chat.parse() else { return Ok(()) };
        let mut action = SendChatAction::new(ChatId(chat), ChatAction::Typing);
        action.message_thread_id = thread_of(target);
        self.api.send(&action).await.map(|_| ())
    }
}

/// Telegram's limits, which nothing lifts but a bench whose platform is this machine itself.
fn rates(api_url: &str, asked: Option<&OsStr>) -> Rates {
    // Plain http keeps a secret only where it does not leave the machine.
    let is_here = api_url.starts_with("http://") && config::keeps_secrets(api_url);
    if is_here && asked.is_some_and(|asked| asked == "off") { NO_RATES } else { RATES }
}

fn thread_of(target: &Target) -> Option<ThreadId> {
    target.thread.as_ref().and_then(|thread| thread.parse().ok()).map(|id| ThreadId(MessageId(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_lifted_for_a_platform_on_this_machine_and_when_asked_alone() {
        let off = Some(OsStr::new("off"));
        for (url, asked, rates_then) in [
            ("http://127.0.0.1:8081", off, NO_RATES),
            ("http://[::1]:8081", off, NO_RATES),
            ("http://127.0.0.1:8081", None, RATES),
            ("http://127.0.0.1:8081", Some(OsStr::new("on")), RATES),
            ("http://127.0.0.1:8081", Some(OsStr::new("")), RATES),
            ("https://api.telegram.org", off, RATES),
            ("https://127.0.0.1:8081", off, RATES),
            ("http://127.0.0.1.example.org", off, RATES),
            ("http://192.0.2.7:8081", off, RATES),
            ("http://127.0.0.1@example.org", off, RATES),
            ("127.0.0.1", off, RATES),
        ] {
            assert_eq!(rates(url, asked), rates_then, "{url} {asked:?}");
        }
    }
}
