//! `say` and `chat`: a talk over the socket. The daemon keeps the message and its answer; this end only shows them, so
//! it may go away and come back.

use std::io::IsTerminal as _;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::client::{Client, Heard};
use super::complain::{Complaint, Exit};
use super::out;
use crate::channel::console::wire::{Cancel, Said, Say, is_session_name};
use crate::daemon::random_word;
use crate::domain::InboxId;
use crate::store::inbox::Fate;
use crate::turn::News;

/// The store is asked this often even if no news come.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How long a daemon that went away is waited for.
const AWAY_MAX: u32 = 60;
const AWAY_STEP: Duration = Duration::from_millis(500);

/// Says one thing and prints the answer.
pub(super) async fn say(client: &Client, session: &str, text: &str, json: bool) -> Result<Exit, Complaint> {
    if text.trim().is_empty() {
        return Err(Complaint::new(Exit::Usage, "there is nothing to say").hint("midwatch say \"hello\""));
    }
    let show = match json {
        true => Show::Nothing,
        false if std::io::stdout().is_terminal() => Show::AsItComes,
        false => Show::Answer,
    };
    let fate = exchange(client, session, text, show).await?;
    if json {
        out::line(json!({ "turn": fate.turn, "reason": fate.reason, "answer": fate.answer }))?;
    }
    tell_why(client, &fate).await;
    Ok(exit_of(&fate))
}

/// Talks until the input ends.
pub(super) async fn chat(client: &Client, session: &str) -> Result<Exit, Complaint> {
    let attended = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let show = if attended { Show::AsItComes } else { Show::Answer };
    attach(client, session, show).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut worst = Exit::Done;
    loop {
        if attended {
            out::text_as_is("> ")?;
        }
        let line = tokio::select! {
            line = lines.next_line() => line,
            _ = tokio::signal::ctrl_c(), if attended => return Ok(Exit::Done),
        };
        let line = line.map_err(|error| Complaint::failed(format!("the input cannot be read: {error}")))?;
        let Some(line) = line else {
            return Ok(worst);
        };
        if line.trim().is_empty() {
            continue;
        }
        let fate = exchange(client, session, &line, show).await?;
        tell_why(client, &fate).await;
        if exit_of(&fate) == Exit::Failed {
            worst = if attended { Exit::Done } else { Exit::Failed };
        }
    }
}

fn exit_of(fate: &Fate) -> Exit {
    match fate.reason.as_deref() {
        None | Some("natural" | "forced_text") if fate.state == "done" => Exit::Done,
        _ => Exit::Failed,
    }
}

/// Says on standard error what the chat's sentence leaves out: what the model or its connection said.
async fn tell_why(client: &Client, fate: &Fate) {
    let Some(turn) = fate.turn.filter(|_| exit_of(fate) == Exit::Failed) else { return };
    // For `chat` and `try` the daemon may be on its way out; the sentence was said, and this is only more of it.
    let Ok(answer) = client.get::<Value>(&format!("/v1/timeline/{turn}")).await else { return };
    let lines = answer["timeline"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ended = lines.iter().rev().find(|line| line["kind"] == "turn.ended");
    if let Some(why) = ended.and_then(|line| line["detail"]["detail"].as_str()) {
        out::note(format_args!("{turn} failed: {why}"));
    }
}

/// Shows the end of a turn that is at work already.
async fn attach(client: &Client, session: &str, show: Show) -> Result<(), Complaint> {
    if !is_session_name(session) {
        return Err(
            Complaint::new(Exit::Usage, format!("`{session}` is no session name")).hint("1 to 32 of a-z 0-9 - _")
        );
    }
    let mut news = client.watch(session).await?;
    let Some(Heard::Attached(attached)) = news.next().await else { return Ok(()) };
    let Some(running) = attached.running else { return Ok(()) };
    out::note(format_args!("({running} is at work here; this is how it goes on)"));
    let mut screen = Screen { show, streamed: String::new() };
    loop {
        tokio::select! {
            heard = news.next() => match heard {
                Some(Heard::News(News::Ended { turn, text, .. })) if turn == running => {
                    return screen.end(&text);
                }
                Some(Heard::News(news)) => screen.show(&news)?,
                Some(Heard::Attached(_)) => {}
                None => return Ok(()),
            },
            _ = tokio::signal::ctrl_c(), if show == Show::AsItComes => cancel(client, session).await?,
        }
    }
}

async fn cancel(client: &Client, session: &str) -> Result<(), Complaint> {
    let cancel = Cancel { session: session.to_owned() };
    client.post::<serde_json::Value>("/v1/cancel", &cancel).await.map(|_| ())
}

/// Says `text` and follows it to its end, through a restart of the daemon if need be.
async fn exchange(client: &Client, session: &str, text: &str, show: Show) -> Result<Fate, Complaint> {
    if !is_session_name(session) {
        return Err(
            Complaint::new(Exit::Usage, format!("`{session}` is no session name")).hint("1 to 32 of a-z 0-9 - _")
        );
    }
    let said = Say { id: random_word(), session: session.to_owned(), text: text.to_owned() };
    let mut news = client.watch(session).await?;
    let Said { message } = client.post("/v1/say", &said).await?;
    let mut screen = Screen { show, streamed: String::new() };
    let mut asked_to_stop = false;
    loop {
        let look = tokio::select! {
            heard = news.next() => match heard {
                Some(Heard::News(News::Ended { .. } | News::Changed)) => true,
                Some(Heard::News(news)) => {
                    screen.show(&news)?;
                    false
                }
                Some(Heard::Attached(_)) => true,
                None => {
                    news = again(client, session, message).await?;
                    true
                }
            },
            () = tokio::time::sleep(ASK_EVERY) => true,
            _ = tokio::signal::ctrl_c(), if show == Show::AsItComes => {
                if asked_to_stop {
                    return Err(Complaint::failed(format!("left; {message} goes on without you")));
                }
                asked_to_stop = true;
                cancel(client, session).await?;
                false
            }
        };
        if look {
            // A daemon that goes away between two requests is met by the next turn of the loop.
            let Ok(fate) = client.get::<Fate>(&format!("/v1/messages/{message}")).await else { continue };
            match fate.state.as_str() {
                "done" => {
                    screen.end(fate.answer.as_deref().unwrap_or_default())?;
                    return Ok(fate);
                }
                "dead" => {
                    screen.end(
                        fate.answer.as_deref().unwrap_or("This message was set aside; `midwatch status` shows why."),
                    )?;
                    return Ok(fate);
                }
                _ => {}
            }
        }
    }
}

/// Waits for a daemon that went away.
async fn again(client: &Client, session: &str, message: InboxId) -> Result<BoxStream<'static, Heard>, Complaint> {
    out::note("(the daemon went away; waiting for it to come back)");
    let mut last = None;
    for _ in 0..AWAY_MAX {
        tokio::time::sleep(AWAY_STEP).await;
        match client.watch(session).await {
            Ok(news) => return Ok(news),
            Err(complaint) => last = Some(complaint),
        }
    }
    let hint = format!(
        "{message} is stored and is answered after the daemon's next start; `midwatch sessions show {session}` shows it"
    );
    Err(last.unwrap_or_else(|| Complaint::failed("the daemon did not come back")).hint(hint))
}

/// What is shown of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    /// Words as they come, to somebody who watches.
    AsItComes,
    /// The whole answer, once.
    Answer,
    /// Nothing: the caller prints it in another form.
    Nothing,
}

struct Screen {
    show: Show,
    streamed: String,
}

impl Screen {
    fn show(&mut self, news: &News) -> Result<(), Complaint> {
        if self.show != Show::AsItComes {
            return Ok(());
        }
        match news {
            News::Text { text } => {
                out::text_as_is(text)?;
                self.streamed.push_str(text);
            }
            News::Restarted if !self.streamed.is_empty() => {
                out::line("\n(that attempt broke off; trying again)")?;
                self.streamed.clear();
            }
            News::Call { call, tool } => {
                out::note(format_args!("· {tool} ({call})"));
                self.streamed.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, answer: &str) -> Result<(), Complaint> {
        if self.show == Show::Nothing {
            return Ok(());
        }
        let streamed = std::mem::take(&mut self.streamed);
        if streamed.trim().is_empty() {
            out::line(answer)
        } else if let Some(rest) = answer.trim().strip_prefix(streamed.trim()) {
            out::line(rest)
        } else {
            out::line(format_args!("\n{answer}"))
        }
    }
}
