//! How the daemon is, for `status`, `/status` and the log: everything that needs a person stands here.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::{ChannelHealth, ModelHealth, SharedServices};
use crate::domain::{ChannelKind, Timestamp};
use crate::store::overview::{self, Stranger};
use crate::store::{StoreError, outbox, turns};

/// Strangers are shown for a day.
const STRANGERS_FOR: Duration = Duration::from_secs(86_400);
/// Rows of each list.
const LIST_MAX: i64 = 20;

/// `status --json`. Fields are added, never renamed.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Of midwatch.
    pub version: &'static str,
    /// Of the daemon's process.
    pub pid: u32,
    /// The data folder.
    pub home: String,
    /// When it was started.
    pub started_at: String,
    /// It takes work.
    pub ready: bool,
    /// It was asked to stop.
    pub stopping: bool,
    /// The store takes writes.
    pub store_ok: bool,
    /// The workspace's directory is there.
    pub workspace_ok: bool,
    /// Each channel's progress.
    pub channels: Vec<ChannelHealth>,
    /// The models, in the order in which they are asked.
    pub models: Vec<ModelHealth>,
    /// Turns at work.
    pub turns_running: i64,
    /// Messages.
    pub inbox: Inbox,
    /// Replies.
    pub outbox: Outbox,
    /// Always 0 in this version: no tool has an effect.
    pub effects_uncertain: i64,
    /// Turns set aside.
    pub turns_parked: i64,
    /// Always 0 in this version.
    pub approvals_waiting: i64,
    /// Always empty in this version.
    pub jobs: [(); 0],
    /// Always off in this version.
    pub computer_use: ComputerUse,
    /// What today's turns spent; the day is UTC.
    pub usage_today: Usage,
    /// Parked turns.
    pub parked: Vec<Parked>,
    /// Uncertain and dead replies.
    pub replies: Vec<Doubt>,
    /// Chats that wrote in the last day and were not answered.
    pub unlinked: Vec<Stranger>,
    /// Loops that have not come round in time.
    pub late: Vec<String>,
}

/// Messages by state.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Inbox {
    /// Waiting.
    pub new: i64,
    /// Worked on.
    pub running: i64,
    /// Ended without an answer.
    pub dead: i64,
}

/// Replies by state.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Outbox {
    /// Waiting or on their way.
    pub pending: i64,
    /// Perhaps arrived.
    pub uncertain: i64,
    /// Not to be sent.
    pub dead: i64,
}

/// The desktop switch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ComputerUse {
    /// On.
    pub enabled: bool,
    /// Until when.
    pub until: Option<()>,
}

/// What was spent.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Usage {
    /// Turns opened.
    pub turns: u64,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// US dollars.
    pub cost_usd: f64,
}

/// A turn that was set aside.
#[derive(Clone, Debug, Serialize)]
pub struct Parked {
    /// Its id.
    pub id: String,
    /// Its session.
    pub session: String,
    /// When it began.
    pub started_at: String,
    /// How often the process died over it.
    pub crashes: u32,
}

/// A reply that needs a person.
#[derive(Clone, Debug, Serialize)]
pub struct Doubt {
    /// Its id.
    pub id: String,
    /// Its account.
    pub channel: String,
    /// Its chat.
    pub chat: String,
    /// uncertain or dead.
    pub state: String,
    /// Why.
    pub error: Option<String>,
    /// When it was written.
    pub created_at: String,
}

impl Doubt {
    /// A row as people see it.
    #[must_use]
    pub fn of(part: &outbox::Part) -> Self {
        Self {
            id: part.id.to_string(),
            channel: part.target.channel.clone(),
            chat: part.target.chat.clone(),
            state: part.state.clone(),
            error: part.error.clone(),
            created_at: part.created_at.rfc3339(),
        }
    }
}

/// Looks at everything once.
///
/// # Errors
/// The store's.
pub async fn status(services: &SharedServices) -> Result<Status, StoreError> {
    let since = Timestamp(services.clock.now().0 - i64::try_from(STRANGERS_FOR.as_millis()).unwrap_or_default());
    let (counts, unlinked, parked, replies) = services
        .store
        .read("look at everything", move |db| {
            let parked = turns::list(db, None, true, 200)?.into_iter().filter(|turn| turn.state == "parked");
            let parked = parked.take(20).collect::<Vec<_>>();
            let replies: Vec<_> = outbox::in_doubt(db, 200)?
                .into_iter()
                .filter(|part| part.error.as_deref() != Some("dropped"))
                .take(20)
                .collect();
            Ok((overview::counts(db)?, overview::strangers(db, since, 10 * LIST_MAX)?, parked, replies))
        })
        .await?;
    let (turns, spent) = services.spent_today().await?;
    let snapshot = services.snapshot();
    let is_answered = |stranger: &Stranger| {
        let links = snapshot.config.telegram.iter().flat_map(|account| &account.links);
        let mut of_chat = links.filter(|link| link.chat.to_string() == stranger.chat);
        of_chat.any(|link| link.senders.iter().any(|sender| sender.to_string() == stranger.sender))
    };
    // Who was linked meanwhile needs nobody any more.
    let unlinked: Vec<_> =
        unlinked.into_iter().filter(|stranger| !is_answered(stranger)).take(LIST_MAX as usize).collect();
    let stopping = services.stop.listen().is_asked();
    let store_ok = !services.store.has_outage();
    Ok(Status {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        home: services.home.data.display().to_string(),
        started_at: services.started_at.rfc3339(),
        ready: !stopping && store_ok,
        stopping,
        store_ok,
        workspace_ok: snapshot.config.workspace.is_dir(),
        channels: services.health.all(),
        models: services.hub.models(snapshot.models.iter().map(|model| model.client.name())),
        turns_running: counts.turns_running,
        inbox: Inbox { new: counts.inbox_new, running: counts.inbox_running, dead: counts.inbox_dead },
        outbox: Outbox { pending: counts.outbox_pending, uncertain: counts.outbox_uncertain, dead: counts.outbox_dead },
        effects_uncertain: 0,
        turns_parked: counts.turns_parked,
        approvals_waiting: 0,
        jobs: [],
        computer_use: ComputerUse { enabled: false, until: None },
        usage_today: Usage {
            turns,
            input_tokens: spent.input_tokens,
            output_tokens: spent.output_tokens,
            cost_usd: spent.cost_usd,
        },
        parked: parked
            .iter()
            .map(|turn| Parked {
                id: turn.id.to_string(),
                session: turn.session.to_string(),
                started_at: turn.started_at.rfc3339(),
                crashes: turn.crashes,
            })
            .collect(),
        replies: replies.iter().map(Doubt::of).collect(),
        unlinked,
        late: services.pulses.late(services.clock.monotonic()),
    })
}

impl Status {
    /// How many things wait for a person.
    #[must_use]
    pub fn needs_a_person(&self) -> i64 {
        let stopped = self.channels.iter().filter(|channel| channel.state == "stopped").count();
        self.outbox.uncertain
            + self.outbox.dead
            + self.turns_parked
            + i64::try_from(stopped).unwrap_or_default()
            + i64::try_from(self.models.iter().filter(|model| model.needs_operator).count()).unwrap_or_default()
            + i64::from(!self.store_ok)
            + i64::from(!self.workspace_ok)
    }

    /// For people: what it does, then what needs them, each with the command that acts on it.
    #[must_use]
    pub fn for_people(&self) -> String {
        let mut text = String::new();
        let state = match (self.ready, self.stopping) {
            (_, true) => "stopping",
            (true, _) => "ready",
            _ => "not taking work",
        };
        let _ = writeln!(text, "midwatch {} is {state} (pid {}, since {})", self.version, self.pid, self.started_at);
        for channel in &self.channels {
            let at = |at: Option<Timestamp>| at.map_or_else(|| "never".to_owned(), Timestamp::rfc3339);
            let (accepted, handled) = (at(channel.last_accepted_at), at(channel.last_handled_at));
            // The console is not polled: its clients come by themselves.
            let polled = match channel.kind {
                ChannelKind::Console => String::new(),
                ChannelKind::Telegram => format!("last poll {}, ", at(channel.last_poll_at)),
            };
            let _ = writeln!(
                text,
                "{}: {}; {polled}last accepted {accepted}, last handled {handled}",
                channel.name, channel.state
            );
            if let Some(error) = &channel.error {
                let _ = writeln!(text, "  {error}");
            }
        }
        for model in &self.models {
            let answered = model.last_answered_at.as_deref().unwrap_or("not since the start");
            let _ = writeln!(text, "model {}: last answered {answered}", model.name);
            if let Some(error) = &model.error {
                let cure = if model.needs_operator { "; look at its key and account" } else { "" };
                let _ = writeln!(text, "  {error}{cure}");
            }
        }
        let _ = writeln!(
            text,
            "turns: {} running; inbox: {} new, {} dead; replies: {} pending",
            self.turns_running, self.inbox.new, self.inbox.dead, self.outbox.pending
        );
        let usage = &self.usage_today;
        let _ = writeln!(
            text,
            "today: {} turns, {} tokens in, {} out, {:.2} USD",
            usage.turns, usage.input_tokens, usage.output_tokens, usage.cost_usd
        );
        self.list_needs(&mut text);
        text
    }

    fn list_needs(&self, text: &mut String) {
        if !self.store_ok {
            let _ = writeln!(text, "\nThe store does not take writes: look at the disk of {}.", self.home);
        }
        if !self.workspace_ok {
            let _ = writeln!(text, "\nThe workspace is gone: put the directory of `[workspace] path` back.");
        }
        for late in &self.late {
            let _ = writeln!(text, "\n{late} has not come round in time.");
        }
        if !self.parked.is_empty() {
            let _ = writeln!(text, "\nSet aside ({}): midwatch turns retry|drop ID", self.turns_parked);
            for turn in &self.parked {
                let _ = writeln!(
                    text,
                    "  {} of {}, the process died {} times over it",
                    turn.id, turn.started_at, turn.crashes
                );
            }
        }
        if !self.replies.is_empty() {
            let total = self.outbox.uncertain + self.outbox.dead;
            let _ = writeln!(text, "\nReplies in doubt ({total}): midwatch replies resend|drop ID");
            for reply in &self.replies {
                let why = reply.error.as_deref().unwrap_or("no reason kept");
                let _ = writeln!(text, "  {} to {} {}: {}, {why}", reply.id, reply.channel, reply.chat, reply.state);
            }
        }
        if !self.unlinked.is_empty() {
            let _ = writeln!(
                text,
                "\nNot answered in the last day: `midwatch link telegram` links a chat, or add the sender to its link"
            );
            for chat in &self.unlinked {
                let name: String = chat.name.chars().filter(|c| !c.is_control()).take(60).collect();
                let _ = writeln!(
                    text,
                    "  chat {} ({name}), sender {}: {}, {} messages, last {}",
                    chat.chat, chat.sender, chat.reason, chat.messages, chat.last_at
                );
            }
        }
    }
}
