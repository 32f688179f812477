//! The long poll: one in flight, acknowledged only after its updates stand in the store.
//!
//! The cursor follows the last batch, downwards too: after a quiet week Telegram's numbers start anew. A batch that
//! brings only known rows is waited out, and the next poll asks without an offset.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use teloxide::payloads::{GetMe, GetUpdates, SetMyCommands};
use teloxide::types::{AllowedUpdate, BotCommand};

use super::Telegram;
use super::api::ApiError;
use super::hear::{Ear, Heard};
use crate::channel::pairing;
use crate::domain::{Pulse, Stop};
use crate::policy::Mode;
use crate::session::{commands, intake, take_in};
use crate::store::inbox::{self, Accepted};
use crate::store::pins::{self, Claim};
use crate::store::{StoreError, timeline};

/// Updates asked for at once; Telegram's most.
const BATCH: u8 = 100;
/// First and longest wait after trouble.
const WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Another poller has the updates: trying often would only take them from it.
const CONFLICT_WAIT: Duration = Duration::from_secs(30);
/// After an account error that only the operator can mend, the channel looks again this seldom.
const STOPPED_WAIT: Duration = Duration::from_secs(600);

/// What the loop does after a failure.
struct Trouble {
    state: &'static str,
    wait: Duration,
    told: String,
}

impl Telegram {
    /// Polls until a stop is asked.
    ///
    /// # Errors
    /// None in this version: an outage is no failure of the task, and what the operator has to mend stands in the
    /// channel's report.
    pub async fn poll(self: Arc<Self>, stop: Stop, pulse: Pulse) {
        let mut username = String::new();
        let mut failures = 0_u32;
        let mut without_offset = false;
        let mut claims = true;
        loop {
            pulse.beat(
                self.services.clock.monotonic(),
                self.api.poll_deadline() + STOPPED_WAIT + Duration::from_secs(60),
            );
            let claims = &mut claims;
            let round = async {
                if username.is_empty() {
                    username = self.who_am_i().await?;
                    self.show_menu().await;
                    self.well();
                    tracing::info!(channel = self.name, username, "The account answers.");
                }
                if *claims && let Some(file) = self.config_file() {
                    pairing::finish_claims(&self.services, &self.channel, &file).await.map_err(Failed::Store)?;
                    *claims = false;
                }
                self.one_round(&username, without_offset, claims).await
            };
            let outcome = tokio::select! {
                biased;
                () = stop.asked() => return,
                outcome = round => outcome,
            };
            let wait = match outcome {
                Ok(Round { known_only }) => {
                    self.well();
                    failures = 0;
                    // Asked without an offset nothing is acknowledged, so the next poll has to have one again.
                    without_offset = known_only && !without_offset;
                    if known_only { self.services.rng.jitter(Duration::from_secs(2)) } else { continue }
                }
                Err(failed) => {
                    failures = failures.saturating_add(1);
                    let trouble = self.trouble(&failed, failures);
                    self.tell(&trouble);
                    trouble.wait
                }
            };
            tokio::select! {
                biased;
                () = stop.asked() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn who_am_i(&self) -> Result<String, Failed> {
        let me = self.api.send(&GetMe::new()).await.map_err(Failed::Api)?;
        // A bot always has a user name; without one no mention could mean us.
        Ok(me["username"].as_str().unwrap_or("?").to_owned())
    }

    /// Puts our commands into the platform's menu; without it they can still be typed.
    async fn show_menu(&self) {
        let menu = commands::MENU.iter().map(|(word, told)| BotCommand::new(*word, *told));
        if let Err(error) = self.api.send(&SetMyCommands::new(menu)).await {
            tracing::debug!(channel = self.name, %error, "The menu of commands could not be set.");
        }
    }

    fn config_file(&self) -> Option<std::path::PathBuf> {
        let snapshot = self.services.snapshot();
        snapshot.config.telegram.iter().find(|account| account.name == self.name).map(|account| account.file.clone())
    }

    async fn one_round(&self, username: &str, without_offset: bool, claims: &mut bool) -> Result<Round, Failed> {
        let channel = self.channel.clone();
        let cursor = self.services.store.read("read a cursor", move |db| inbox::cursor(db, &channel)).await;
        let cursor = cursor.map_err(Failed::Store)?;
        let mut ask = GetUpdates::new();
        ask.limit = Some(BATCH);
        ask.timeout = u32::try_from(self.poll_timeout.as_secs()).ok();
        ask.allowed_updates = Some(vec![AllowedUpdate::Message, AllowedUpdate::EditedMessage]);
        if !without_offset {
            ask.offset = cursor.and_then(|last| i32::try_from(last + 1).ok());
        }
        let answer = self.api.poll(&ask).await.map_err(Failed::Api)?;
        let now = self.services.clock.now();
        self.services.health.progress(&self.channel, |channel| channel.last_poll_at = Some(now));
        let Value::Array(updates) = answer else {
            return Err(Failed::Api(ApiError::Lost("an answer to getUpdates that is no list".to_owned())));
        };
        crash_point!("telegram.polled");
        let Some(last) = updates.iter().filter_map(|update| update["update_id"].as_i64()).next_back() else {
            return Ok(Round { known_only: false });
        };
        let accepted = self.accept(username, &updates, last, claims).await.map_err(Failed::Store)?;
        crash_point!("telegram.stored");
        let known_only = !accepted.is_empty() && accepted.iter().all(|accepted| *accepted == Accepted::Known);
        if accepted.iter().any(|accepted| !matches!(accepted, Accepted::Known | Accepted::Late)) {
            self.services.health.progress(&self.channel, |channel| channel.last_accepted_at = Some(now));
            self.services.desk.notify_one();
        }
        Ok(Round { known_only })
    }

    /// Stores a batch with its cursor, and with it what pairing codes it brings; `claims` says that there may be some
    /// to finish.
    async fn accept(
        &self,
        username: &str,
        updates: &[Value],
        last: i64,
        claims: &mut bool,
    ) -> Result<Vec<Accepted>, StoreError> {
        let snapshot = self.services.snapshot();
        let Some(config) = snapshot.config.telegram.iter().find(|account| account.name == self.name) else {
            // Taken out by a reload: the daemon ends this task; until then nothing is acknowledged.
            return Err(StoreError::Refused(format!("channel {} is no longer configured", self.name)));
        };
        let now = self.services.clock.now();
        let ear = Ear { channel: &self.channel, account: &self.account, username, config, now };
        let heard: Vec<Heard> = updates.iter().filter_map(|update| ear.hear(update)).collect();
        let unparsed = heard.iter().filter(|heard| heard.unparsed).count() as u64;
        if unparsed > 0 {
            tracing::warn!(channel = self.name, unparsed, "Updates came that no type fits.");
            self.services.health.progress(&self.channel, |channel| channel.unparsed += unparsed);
        }
        let pairs: Vec<_> = heard.iter().filter_map(|heard| self.pair_of(heard)).collect();
        *claims |= !pairs.is_empty();
        let arrivals: Vec<_> = heard.into_iter().map(|heard| heard.arrival).collect();
        let channel = self.channel.clone();
        let cursor = Some((channel.clone(), last));
        let accepted = take_in(&self.services, Mode::Daemon, arrivals, cursor, move |db, arrivals, accepted| {
            for (at, digest, pair) in pairs {
                let pair = serde_json::to_value(pair)?;
                let known = arrivals.iter().position(|arrival| arrival.message_key == at);
                let known = known.and_then(|at| accepted.get(at)).is_none_or(|what| *what == Accepted::Known);
                if known {
                    continue;
                }
                let claim = pins::claim(db, &channel, &digest, &pair, now)?;
                if let Claim::Wrong(left) = claim {
                    let detail = serde_json::json!({ "chat": pair["chat"], "tries_left": left });
                    let entry = timeline::Entry { kind: "link.wrong_code", detail, ..Default::default() };
                    timeline::append(db, &entry, now)?;
                }
            }
            Ok(())
        })
        .await?;
        crash_point!("telegram.claimed");
        Ok(accepted)
    }

    /// The pairing code in a message of a chat that is not linked.
    fn pair_of(&self, heard: &Heard) -> Option<(String, String, pairing::Pair)> {
        let arrival = &heard.arrival;
        if arrival.taken != Err(intake::NOT_LINKED) || heard.is_bot || arrival.is_edit || !arrival.outside.is_empty() {
            return None;
        }
        let code = pairing::code_in(&arrival.text)?;
        let title = if arrival.chat_name.is_empty() { &arrival.sender_name } else { &arrival.chat_name };
        let pair = pairing::Pair {
            channel: self.channel.clone(),
            chat: heard.chat,
            topic: arrival.topic.clone(),
            sender: heard.sender?,
            title: title.clone(),
            private: heard.private,
        };
        Some((arrival.message_key.clone(), pairing::digest(code), pair))
    }

    fn well(&self) {
        self.services.health.progress(&self.channel, |channel| {
            if channel.state != "up" {
                tracing::info!(channel = self.name, "The channel is up.");
            }
            channel.state = "up";
            channel.error = None;
        });
    }

    /// The one rule of each failure.
    fn trouble(&self, failed: &Failed, failures: u32) -> Trouble {
        let grown = WAITS.0.saturating_mul(1 << failures.min(7)).min(WAITS.1);
        let (state, wait, told) = match failed {
            Failed::Store(error) => ("retrying", grown, format!("messages cannot be stored, so none is taken: {error}")),
            Failed::Api(ApiError::Later(wait)) => ("retrying", *wait, "Telegram asked for a pause".to_owned()),
            Failed::Api(ApiError::Conflict(words)) if words.to_lowercase().contains("webhook") => (
                "stopped",
                STOPPED_WAIT,
                format!("a webhook is set for this bot ({words}); delete it, or use another bot, then `midwatch reload`"),
            ),
            Failed::Api(ApiError::Conflict(_)) => (
                "retrying",
                CONFLICT_WAIT,
                "another program polls with this bot's token and takes its messages; stop it, or give one of the two another bot".to_owned(),
            ),
            Failed::Api(ApiError::Unauthorized(words)) => (
                "stopped",
                STOPPED_WAIT,
                format!("Telegram does not take the bot token ({words}); put a valid one in its place, then `midwatch reload`"),
            ),
            Failed::Api(error) => ("retrying", grown, error.to_string()),
        };
        Trouble { state, wait: self.services.rng.jitter(wait).max(wait.min(Duration::from_secs(1))), told }
    }

    /// One line in the log for each change; the report always holds the newest.
    fn tell(&self, trouble: &Trouble) {
        self.services.health.progress(&self.channel, |channel| {
            if channel.error.as_ref() != Some(&trouble.told) {
                tracing::warn!(
                    channel = self.name,
                    state = trouble.state,
                    error = trouble.told,
                    "The channel is in trouble."
                );
            }
            channel.state = trouble.state;
            channel.error = Some(trouble.told.clone());
        });
    }
}

struct Round {
    known_only: bool,
}

enum Failed {
    Api(ApiError),
    Store(StoreError),
}
