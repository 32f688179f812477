//! Keeps the tasks of every configured channel account, and follows reloads: a changed account starts anew, a removed
//! one ends, links alone change nothing here.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::supervisor::{Backoff, Rule, Task, supervise};
use crate::channel::telegram::Telegram;
use crate::config;
use crate::domain::ChannelKind;
use crate::domain::stop::{self, Stop, StopHandle};
use crate::session::SharedServices;

/// One account's tasks.
struct Account {
    /// What it was started with; links play no part.
    with: config::Telegram,
    /// Its key in the reports.
    key: String,
    /// Ends intake and looks.
    intake: StopHandle,
    /// Ends its courier, once that is flushed.
    courier: StopHandle,
    tasks: JoinSet<()>,
}

/// Keeps the accounts until `stop`, then waits until every courier has flushed.
pub(super) async fn keep(services: Arc<SharedServices>, backoff: Backoff, stop: Stop) {
    let mut snapshots = services.snapshots();
    let mut accounts: BTreeMap<String, Account> = BTreeMap::new();
    let stopping = services.stopping();
    let mut intake_closed = false;
    loop {
        let wanted = snapshots.borrow_and_update().config.telegram.clone();
        let gone: Vec<String> = accounts
            .iter()
            .filter(|(name, account)| {
                let same = wanted.iter().any(|new| new.name == **name && without_links(new) == account.with);
                // A reload is how the operator says that what stopped a channel is mended.
                !same || services.health.state(&account.key) == Some("stopped")
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some(account) = accounts.remove(&name) {
                end(account, &services).await;
            }
        }
        if intake_closed {
            accounts.values().for_each(|account| account.intake.ask());
        } else {
            for new in &wanted {
                if !accounts.contains_key(&new.name) {
                    accounts.insert(new.name.clone(), start(&services, backoff, new));
                }
            }
        }
        tokio::select! {
            biased;
            () = stop.asked() => break,
            () = stopping.asked(), if !intake_closed => intake_closed = true,
            changed = snapshots.changed() => if changed.is_err() { break },
        }
    }
    for account in accounts.values() {
        account.intake.ask();
        account.courier.ask();
    }
    for mut account in accounts.into_values() {
        while account.tasks.join_next().await.is_some() {}
    }
}

fn without_links(account: &config::Telegram) -> config::Telegram {
    config::Telegram { links: Vec::new(), ..account.clone() }
}

async fn end(mut account: Account, services: &SharedServices) {
    account.intake.ask();
    account.courier.ask();
    while account.tasks.join_next().await.is_some() {}
    services.health.forget(&account.key);
    tracing::info!(channel = account.with.name, "The channel ended.");
}

fn start(services: &Arc<SharedServices>, backoff: Backoff, wanted: &config::Telegram) -> Account {
    let telegram = match Telegram::new(services.clone(), wanted) {
        Ok(telegram) => Arc::new(telegram),
        Err(error) => {
            tracing::error!(channel = wanted.name, %error, "The channel cannot start.");
            let key = format!("telegram:({})", wanted.name);
            services.health.begin(&key, &wanted.name, ChannelKind::Telegram);
            services.health.progress(&key, |channel| {
                channel.state = "stopped";
                channel.error = Some(format!("{error}; then `midwatch reload`"));
            });
            let (intake, _) = stop::channel();
            let courier = intake.clone();
            return Account { with: without_links(wanted), key, intake, courier, tasks: JoinSet::new() };
        }
    };
    let key = telegram.channel().to_owned();
    let ((intake, intake_stop), (courier, courier_stop)) = (stop::channel(), stop::channel());
    let mut tasks = JoinSet::new();
    let mut spawn = |task: Task| {
        let (services, key) = (services.clone(), key.clone());
        tasks.spawn(async move {
            if supervise(task, backoff, services.clone()).await == super::Ended::GaveUp {
                services.health.progress(&key, |channel| {
                    channel.state = "stopped";
                    channel.error = Some("a task of this channel failed too often; the log says why, `midwatch reload` after a change or a restart tries again".to_owned());
                });
            }
        });
    };
    let (of_poll, of_courier, of_typing) = (telegram.clone(), telegram.clone(), telegram);
    let (poll_services, courier_services) = (services.clone(), services.clone());
    let (poll_name, courier_name) = (format!("{} poll", wanted.name), format!("{} courier", wanted.name));
    let of_pulse = poll_name.clone();
    spawn(Task::new(poll_name, Rule::Restart, intake_stop.clone(), move |stop| {
        let now = poll_services.clock.monotonic();
        let pulse = poll_services.pulses.start(&of_pulse, now, std::time::Duration::from_secs(900));
        let telegram = of_poll.clone();
        async move {
            telegram.poll(stop, pulse).await;
            Ok(())
        }
    }));
    let of_pulse = courier_name.clone();
    spawn(Task::new(courier_name, Rule::Restart, courier_stop, move |stop| {
        let now = courier_services.clock.monotonic();
        let pulse = courier_services.pulses.start(&of_pulse, now, std::time::Duration::from_secs(180));
        let telegram = of_courier.clone();
        async move {
            telegram.courier().run(stop, Some(pulse)).await;
            Ok(())
        }
    }));
    spawn(Task::new(format!("{} typing", wanted.name), Rule::Restart, intake_stop, move |stop| {
        let telegram = of_typing.clone();
        async move {
            telegram.show_typing(stop).await;
            Ok(())
        }
    }));
    Account { with: without_links(wanted), key, intake, courier, tasks }
}
