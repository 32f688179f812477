//! Takes messages in as the Telegram channel does: a batch and its cursor in one commit, and only the next poll
//! confirms. Links, senders and commands are judged by the daemon's own rules.

use std::sync::Arc;
use std::time::Duration;

use midwatch::config::Config;
use midwatch::domain::{ChannelKind, Stop, ThreadKey, Timestamp};
use midwatch::policy::Mode;
use midwatch::session::intake::{self, Speaker};
use midwatch::session::{SharedServices, take_in};
use midwatch::store::inbox::{self, Accepted, Arrival};

use crate::messenger::{CHANNEL, Messenger, Said};
use crate::world::Life;

/// How long what belongs together may take to come together.
const QUIET_WINDOW: Duration = Duration::from_secs(1);

/// Polls until a stop is asked.
pub(crate) async fn keep(life: Arc<Life>, services: Arc<SharedServices>, messenger: Arc<Messenger>, stop: Stop) {
    let mut without_offset = false;
    loop {
        let round = one_round(&life, &services, &messenger, without_offset);
        let known_only = tokio::select! {
            biased;
            () = stop.asked() => return,
            known_only = round => known_only,
        };
        without_offset = known_only == Some(true);
        let wait = match known_only {
            Some(false) => continue,
            Some(true) => services.rng.jitter(Duration::from_secs(2)),
            None => services.rng.jitter(Duration::from_secs(1)),
        };
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// One poll; none when it failed, else whether it brought only what was known.
async fn one_round(
    life: &Life,
    services: &SharedServices,
    messenger: &Messenger,
    without_offset: bool,
) -> Option<bool> {
    let cursor = services.store.read("read a cursor", |db| inbox::cursor(db, CHANNEL)).await.unwrap();
    let offset = cursor.filter(|_| !without_offset).map(|last| last + 1);
    let batch = messenger.poll(life, &services.store, offset).await.ok()?;
    let Some(last) = batch.last().map(|said| said.update) else { return Some(false) };
    let now = services.clock.now();
    let snapshot = services.snapshot();
    let arrivals: Vec<Arrival> = batch.iter().map(|said| arrival(&snapshot.config, said, now)).collect();
    let cursor = Some((CHANNEL.to_owned(), last));
    let accepted = match take_in(services, Mode::Daemon, arrivals, cursor, |_, _, _| Ok(())).await {
        Ok(accepted) => accepted,
        Err(error) => {
            life.world.complain(format!("a batch could not be stored: {error}"));
            return None;
        }
    };
    for (said, accepted) in batch.iter().zip(&accepted) {
        life.tell(&format!("update {} (message {} of {}): {accepted:?}", said.update, said.message, said.chat));
    }
    life.reach("what follows a stored batch").await;
    let known_only = accepted.iter().all(|accepted| *accepted == Accepted::Known);
    if !known_only {
        services.desk.notify_one();
    }
    Some(known_only)
}

/// What the inbox gets, as the channel would say it.
fn arrival(config: &Config, said: &Said, now: Timestamp) -> Arrival {
    let speaker = Speaker { chat: said.chat, sender: Some(said.sender), is_bot: false, addressed: true };
    let taken = intake::admit(&config.telegram[0], &speaker).map(|link| Some(link.name.clone()));
    let command = intake::command(&said.text, None);
    let waits = (said.near_limit && command.is_none()) || said.album.is_some();
    Arrival {
        channel: CHANNEL.to_owned(),
        update_key: said.update.to_string(),
        message_key: said.message.to_string(),
        thread: ThreadKey {
            kind: ChannelKind::Telegram,
            account: "4242".to_owned(),
            chat: said.chat.to_string(),
            thread: None,
        },
        sender: said.sender.to_string(),
        sender_name: format!("Person {}", said.sender),
        chat_name: String::new(),
        text: said.text.clone(),
        outside: Vec::new(),
        command: command.map(|command| command.word.to_owned()),
        urgent: command.is_some_and(|command| command.urgent),
        topic: None,
        raw: None,
        album: said.album.clone(),
        near_limit: said.near_limit,
        reply_to: (said.chat < 0).then(|| said.message.to_string()),
        not_before: if waits { now.after(QUIET_WINDOW) } else { now },
        is_edit: said.is_edit,
        taken,
    }
}
