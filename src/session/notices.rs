//! Tells the operator in a chat what needs a person, each thing once: `[operator] notify`.
//!
//! ```text
//! every minute, and when a turn ended ─▶ what needs a person now ─▶ new? ─▶ one message, in the commit that notes it
//!                                                               └─▶ gone? ─▶ forgotten, so that it is told again
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::SharedServices;
use crate::domain::Stop;
use crate::store::outbox::{NewPart, Target};
use crate::store::{StoreError, notices, outbox, turns};

/// How often it is looked, where nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After the end of a turn, so that several ends are one look.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Between two messages; what comes up meanwhile is told together.
const GAP: Duration = Duration::from_secs(600);
/// Most needs that one message names.
const NAMED_MAX: usize = 10;
/// Most rows of a kind that are looked at.
const ROWS_MAX: i64 = 1_000;

/// Something that needs a person.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    /// The same for as long as it is the same need.
    key: String,
    /// One line, with the command that acts on it.
    told: String,
}

/// Looks and tells until a stop is asked.
pub async fn keep(services: Arc<SharedServices>, stop: Stop) {
    let mut running = services.hub.all_running();
    let mut last_told: Option<Duration> = None;
    loop {
        running.mark_unchanged();
        let now = services.clock.monotonic();
        let may_tell = last_told.is_none_or(|told| now.saturating_sub(told) >= GAP);
        match look(&services, may_tell).await {
            Ok(true) => last_told = Some(now),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "What needs a person could not be looked at."),
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            changed = running.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::select! {
                    biased;
                    () = stop.asked() => return,
                    () = tokio::time::sleep(LOOK_AFTER) => {}
                }
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Looks once; true when something was told.
async fn look(services: &SharedServices, may_tell: bool) -> Result<bool, StoreError> {
    let Some(target) = target(services) else { return Ok(false) };
    let (needs, is_whole) = needs(services).await?;
    let keys: Vec<String> = needs.iter().map(|need| need.key.clone()).collect();
    let untold = services.store.read("look what was told", move |db| notices::untold(db, &keys)).await?;
    let new: Vec<Need> = needs.iter().filter(|need| untold.contains(&need.key)).cloned().collect();
    let tells = may_tell && !new.is_empty();
    let all: Vec<String> = needs.into_iter().map(|need| need.key).collect();
    let part = NewPart { html: None, plain: text(&new) };
    let now = services.clock.now();
    let known = services.store.read("look what was told", notices::count).await?;
    if !tells && (!is_whole || known == all.len()) {
        return Ok(false);
    }
    let write = services.store.write("tell what needs a person", move |db| {
        if is_whole {
            notices::forget_others(db, &all)?;
        }
        if tells {
            let keys: Vec<String> = new.into_iter().map(|need| need.key).collect();
            notices::tell(db, &keys, &target, &part, now)?;
        }
        Ok(())
    });
    write.await?;
    if tells {
        services.wake_couriers();
    }
    Ok(tells)
}

/// The chat of the link that is told; none while there is no such link, or its account is not known yet.
fn target(services: &SharedServices) -> Option<Target> {
    let snapshot = services.snapshot();
    let name = &snapshot.config.operator.notify.as_ref()?.text;
    let (account, link) = snapshot
        .config
        .telegram
        .iter()
        .flat_map(|account| account.links.iter().map(move |link| (account, link)))
        .find(|(_, link)| link.name == *name)?;
    let channel = services.health.all_keyed().into_iter().find(|(_, channel)| channel.name == account.name)?.0;
    Some(Target { channel, chat: link.chat.to_string(), thread: None, reply_to: None })
}

/// All that needs a person, and whether that is all.
async fn needs(services: &SharedServices) -> Result<(Vec<Need>, bool), StoreError> {
    let (replies, open) = services
        .store
        .read("look what needs a person", |db| {
            Ok((outbox::in_doubt(db, ROWS_MAX)?, turns::list(db, None, true, ROWS_MAX)?))
        })
        .await?;
    let most = usize::try_from(ROWS_MAX).unwrap_or(usize::MAX);
    let is_whole = replies.len() < most && open.len() < most;
    let mut needs = Vec::new();
    for channel in services.health.all().iter().filter(|channel| channel.state == "stopped") {
        let error = channel.error.as_deref().unwrap_or("the log says why");
        needs.push(Need {
            key: format!("channel {}", channel.name),
            told: format!("The channel {} is stopped: {error}", channel.name),
        });
    }
    let snapshot = services.snapshot();
    let models = services.hub.models(snapshot.models.iter().map(|model| model.client.name()));
    for model in models.iter().filter(|model| model.needs_operator) {
        let told = format!("The model {} takes no requests: look at its key and account.", model.name);
        needs.push(Need { key: format!("model {}", model.name), told });
    }
    if !snapshot.config.workspace.is_dir() {
        let told = "The workspace is gone: put the directory of `[workspace] path` back.".to_owned();
        needs.push(Need { key: "workspace".to_owned(), told });
    }
    for turn in open.iter().filter(|turn| turn.state == "parked") {
        let told = format!("{0} was set aside: `midwatch turns retry|drop {0}`", turn.id);
        needs.push(Need { key: turn.id.to_string(), told });
    }
    let replies = replies.iter().filter(|part| !part.notice && part.error.as_deref() != Some("dropped"));
    for part in replies {
        let told = format!(
            "{0} to chat {1} is {2}: `midwatch replies resend|drop {0}`",
            part.id, part.target.chat, part.state
        );
        needs.push(Need { key: format!("{} {}", part.id, part.state), told });
    }
    Ok((needs, is_whole))
}

fn text(new: &[Need]) -> String {
    let mut lines = vec![if new.len() == 1 {
        "One thing needs you:".to_owned()
    } else {
        format!("{} things need you:", new.len())
    }];
    lines.extend(new.iter().take(NAMED_MAX).map(|need| format!("- {}", need.told)));
    if new.len() > NAMED_MAX {
        lines.push(format!("… and {} more: `midwatch status` on the machine lists them.", new.len() - NAMED_MAX));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_some_and_counts_all() {
        let need = |n: usize| Need { key: n.to_string(), told: format!("thing {n}") };
        assert_eq!(text(&[need(1)]), "One thing needs you:\n- thing 1");
        let many: Vec<_> = (0..14).map(need).collect();
        let shown = text(&many);
        assert!(shown.starts_with("14 things need you:\n- thing 0\n"), "{shown}");
        assert!(shown.ends_with("- thing 9\n… and 4 more: `midwatch status` on the machine lists them."), "{shown}");
    }
}
