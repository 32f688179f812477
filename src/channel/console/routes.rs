//! The console's routes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::Stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::wire::{Attached, Cancel, Code, Link, Problem, Said, Say, is_session_name};
use super::{CHANNEL, Peer};
use crate::channel::pairing;
use crate::domain::{Block, ChannelKind, InboxId, OutboxId, SessionId, ThreadKey, TurnId};
use crate::policy::Mode;
use crate::session::status::{self, Doubt};
use crate::session::{SharedServices, closing, intake, take_in};
use crate::store::inbox::{self, Accepted, Arrival};
use crate::store::{StoreError, chain, outbox, overview, pins, timeline, turns};
use crate::turn::News;

/// Longest text a client may say.
const SAY_MAX_BYTES: usize = 64 << 10;
/// Largest body of a request.
const BODY_MAX_BYTES: usize = 256 << 10;
/// Rows of a list.
const LIST_MAX: i64 = 200;

#[derive(Clone)]
struct Shared {
    services: Arc<SharedServices>,
    token: Arc<str>,
}

type Answer = Result<Json<Value>, Failure>;

pub(super) fn router(services: Arc<SharedServices>, token: Arc<str>) -> Router {
    let shared = Shared { services, token };
    Router::new()
        .route("/v1/say", post(say))
        .route("/v1/events", get(events))
        .route("/v1/messages/{id}", get(message))
        .route("/v1/cancel", post(cancel))
        .route("/v1/status", get(show_status))
        .route("/v1/sessions", get(sessions))
        .route("/v1/sessions/{id}", get(session))
        .route("/v1/timeline/{id}", get(show_timeline))
        .route("/v1/turns", get(parked))
        .route("/v1/turns/{id}/{act}", post(act_on_turn))
        .route("/v1/replies", get(replies))
        .route("/v1/replies/{id}/{act}", post(act_on_reply))
        .route("/v1/link", post(link))
        .route("/v1/links", get(links))
        .route("/v1/reload", post(reload))
        .route("/v1/stop", post(stop))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), guard))
        .layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
        .with_state(shared)
}

/// Lets in the daemon's own user with the token, nobody else.
async fn guard(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let same_user = peer.uid == Some(rustix::process::getuid().as_raw());
    if !same_user || !is_equal(token.as_bytes(), shared.token.as_bytes()) {
        return Failure::new(StatusCode::UNAUTHORIZED, "this client may not use the console")
            .hint("run midwatch as the user of the daemon, with the same --home")
            .into_response();
    }
    as_json(next.run(request).await).await
}

/// The framework's own refusals (no such path, a body that is too large or no JSON) in the shape of ours.
async fn as_json(response: Response) -> Response {
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let body = axum::body::to_bytes(response.into_body(), BODY_MAX_BYTES).await.unwrap_or_default();
    let words = String::from_utf8_lossy(&body);
    let words = if words.is_empty() { status.canonical_reason().unwrap_or("refused") } else { &words };
    Failure::new(status, words).into_response()
}

/// Takes the same time wherever the first difference is.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// A failed request.
struct Failure {
    status: StatusCode,
    problem: Problem,
}

impl Failure {
    fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, problem: Problem { error: error.into(), hint: None } }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = Some(hint.into());
        self
    }

    fn bad(error: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(why) => Self::new(StatusCode::CONFLICT, why),
            error if error.is_outage() => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
                .hint("look at the disk; the daemon goes on by itself when the store takes writes again"),
            error => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

fn key_of(name: &str) -> Result<ThreadKey, Failure> {
    if !is_session_name(name) {
        return Err(
            Failure::bad(format!("`{}` is no session name", name.escape_debug())).hint("1 to 32 of a-z 0-9 - _")
        );
    }
    Ok(ThreadKey { kind: ChannelKind::Console, account: "local".to_owned(), chat: name.to_owned(), thread: None })
}

async fn say(State(shared): State<Shared>, Json(said): Json<Say>) -> Result<Json<Said>, Failure> {
    let services = &shared.services;
    if services.stop.listen().is_asked() {
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping"));
    }
    let thread = key_of(&said.session)?;
    if said.text.trim().is_empty() || said.text.len() > SAY_MAX_BYTES {
        return Err(Failure::bad(format!("a message has 1 to {SAY_MAX_BYTES} bytes")));
    }
    if !(8..=64).contains(&said.id.len()) || !said.id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(Failure::bad("a message's id has 8 to 64 of a-z A-Z 0-9 -"));
    }
    let command = intake::command(&said.text, None);
    let now = services.clock.now();
    let arrival = Arrival {
        channel: CHANNEL.to_owned(),
        update_key: said.id.clone(),
        message_key: said.id.clone(),
        thread,
        sender: "console".to_owned(),
        sender_name: "console".to_owned(),
        chat_name: String::new(),
        text: said.text,
        outside: Vec::new(),
        command: command.map(|command| command.word.to_owned()),
        urgent: command.is_some_and(|command| command.urgent),
        topic: None,
        raw: None,
        album: None,
        near_limit: false,
        reply_to: None,
        not_before: now,
        is_edit: false,
        taken: Ok(None),
    };
    let accepted = take_in(services, Mode::Console, vec![arrival], None, |_, _, _| Ok(())).await?;
    let message = match accepted.first() {
        Some(Accepted::New(id)) => Some(*id),
        _ => services.store.read("find a message", move |db| inbox::find(db, CHANNEL, &said.id)).await?,
    };
    crash_point!("console.stored");
    services.health.progress(CHANNEL, |channel| channel.last_accepted_at = Some(now));
    services.desk.notify_one();
    let message = message.ok_or_else(|| Failure::bad("that id belongs to a message of another session"))?;
    Ok(Json(Said { message }))
}

async fn message(State(shared): State<Shared>, Path(id): Path<String>) -> Result<Json<inbox::Fate>, Failure> {
    let id: InboxId = id.parse().map_err(Failure::bad)?;
    let fate = shared.services.store.read("read a message's fate", move |db| inbox::fate(db, id)).await?;
    fate.map(Json).ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, format!("{id} is unknown")))
}

#[derive(Deserialize)]
struct Named {
    session: String,
}

async fn events(
    State(shared): State<Shared>,
    Query(named): Query<Named>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Failure> {
    let session = SessionId::of_key(&key_of(&named.session)?.to_string());
    let news = shared.services.hub.watch(session);
    let running = shared.services.hub.running(session).map(|running| running.turn);
    let hello = sse::Event::default().event("attached").json_data(Attached { running }).ok();
    let stream = futures_util::stream::unfold((hello, news), |(hello, mut news)| async move {
        if let Some(hello) = hello {
            return Some((Ok(hello), (None, news)));
        }
        let next = match news.recv().await {
            Ok(next) => next,
            // Too slow for the words: the store has them.
            Err(broadcast::error::RecvError::Lagged(_)) => News::Changed,
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        // Our own plain data always serialises.
        let event = sse::Event::default().event("news").json_data(next).unwrap_or_default();
        Some((Ok(event), (None, news)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

async fn cancel(State(shared): State<Shared>, Json(cancel): Json<Cancel>) -> Answer {
    let session = SessionId::of_key(&key_of(&cancel.session)?.to_string());
    let running = shared.services.hub.running(session);
    if let Some(running) = &running {
        // Stored first: a crash before the turn has ended must not bring it back.
        let turn = running.turn;
        shared.services.store.write("stop a turn", move |db| turns::ask_cancel(db, turn)).await?;
        running.cancel.ask();
    }
    Ok(Json(json!({ "turn": running.map(|running| running.turn) })))
}

#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    text: bool,
}

async fn show_status(State(shared): State<Shared>, Query(form): Query<Form>) -> Answer {
    let status = status::status(&shared.services).await?;
    if form.text {
        return Ok(Json(json!({ "text": status.for_people() })));
    }
    Ok(Json(serde_json::to_value(status).map_err(Failure::bad)?))
}

async fn sessions(State(shared): State<Shared>) -> Answer {
    let list = shared.services.store.read("list sessions", |db| overview::sessions(db, LIST_MAX)).await?;
    Ok(Json(json!({ "sessions": list })))
}

async fn session(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    let (session, messages) = shared
        .services
        .store
        .read("read a session", move |db| {
            let session = overview::find_session(db, &id)?;
            Ok((session, chain::messages(db, session, 1, LIST_MAX)?))
        })
        .await?;
    let messages: Vec<_> = messages
        .into_iter()
        .map(|mut line| {
            // Sealed by the provider for the model alone.
            line.message.blocks.retain(|block| !matches!(block, Block::Reasoning(_)));
            json!({ "seq": line.seq, "turn": line.turn, "role": line.message.role, "blocks": line.message.blocks })
        })
        .collect();
    Ok(Json(json!({ "session": session, "messages": messages })))
}

async fn show_timeline(State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    let lines = shared
        .services
        .store
        .read("read the timeline", move |db| match id.parse::<TurnId>() {
            Ok(turn) => timeline::read(db, None, Some(turn), LIST_MAX),
            Err(_) => timeline::read(db, Some(overview::find_session(db, &id)?), None, LIST_MAX),
        })
        .await?;
    Ok(Json(json!({ "timeline": lines })))
}

async fn parked(State(shared): State<Shared>) -> Answer {
    let open = shared.services.store.read("list turns", |db| turns::list(db, None, true, LIST_MAX)).await?;
    let turns: Vec<_> = open
        .iter()
        .map(|turn| {
            json!({
                "id": turn.id, "session": turn.session, "state": turn.state, "link": turn.link,
                "started_at": turn.started_at.rfc3339(), "crashes": turn.crashes,
            })
        })
        .collect();
    Ok(Json(json!({ "turns": turns })))
}

async fn act_on_turn(State(shared): State<Shared>, Path((id, act)): Path<(String, String)>) -> Answer {
    let id: TurnId = id.parse().map_err(Failure::bad)?;
    let now = shared.services.clock.now();
    shared
        .services
        .store
        .write("act on a turn", move |db| match act.as_str() {
            "retry" => closing::retry(db, id, now),
            "drop" => closing::drop_turn(db, id, now),
            _ => Err(StoreError::Refused(format!("turns can be retried or dropped, not `{act}`"))),
        })
        .await?;
    shared.services.desk.notify_one();
    Ok(Json(json!({ "turn": id })))
}

async fn replies(State(shared): State<Shared>) -> Answer {
    let parts = shared.services.store.read("list replies", |db| outbox::in_doubt(db, LIST_MAX)).await?;
    let replies: Vec<_> = parts.iter().filter(|part| part.error.as_deref() != Some("dropped")).map(Doubt::of).collect();
    Ok(Json(json!({ "replies": replies })))
}

async fn act_on_reply(State(shared): State<Shared>, Path((id, act)): Path<(String, String)>) -> Answer {
    let id: OutboxId = id.parse().map_err(Failure::bad)?;
    let now = shared.services.clock.now();
    shared
        .services
        .store
        .write("act on a reply", move |db| {
            match act.as_str() {
                "resend" => outbox::resend(db, id)?,
                "drop" => outbox::drop_part(db, id, now)?,
                _ => return Err(StoreError::Refused(format!("replies can be resent or dropped, not `{act}`"))),
            }
            let entry = timeline::Entry {
                kind: "reply.settled",
                detail: json!({ "reply": id, "act": act }),
                ..Default::default()
            };
            timeline::append(db, &entry, now)
        })
        .await?;
    shared.services.wake_couriers();
    Ok(Json(json!({ "reply": id })))
}

async fn link(State(shared): State<Shared>, Json(wanted): Json<Link>) -> Result<Json<Code>, Failure> {
    let services = &shared.services;
    let channels: Vec<_> =
        services.health.all_keyed().into_iter().filter(|(_, channel)| channel.kind == ChannelKind::Telegram).collect();
    let fits = |name: &str| wanted.channel.as_ref().is_none_or(|wanted| wanted == name);
    let fitting: Vec<_> = channels.iter().filter(|(_, channel)| fits(&channel.name)).collect();
    let [(key, channel)] = fitting.as_slice() else {
        let names: Vec<_> = channels.iter().map(|(_, channel)| channel.name.as_str()).collect();
        return Err(match (names.is_empty(), &wanted.channel) {
            (true, _) => Failure::new(
                StatusCode::CONFLICT,
                "no Telegram account is configured or its token cannot be read",
            )
            .hint(
                "write channels/telegram.toml (`midwatch config example telegram` prints one), then `midwatch reload`",
            ),
            (false, Some(name)) => Failure::new(StatusCode::NOT_FOUND, format!("no Telegram account `{name}`"))
                .hint(format!("there are: {}", names.join(", "))),
            (false, None) => Failure::new(StatusCode::CONFLICT, "more than one Telegram account is configured")
                .hint(format!("name one with --channel: {}", names.join(", "))),
        });
    };
    let code = pairing::new_code(services.rng.as_ref());
    let now = services.clock.now();
    let until = now.after(pairing::VALID_FOR);
    let (digest, key) = (pairing::digest(&code), key.clone());
    services.store.write("open a pairing code", move |db| pins::open(db, &key, &digest, until, now)).await?;
    Ok(Json(Code { code, channel: channel.name.clone(), valid_until: until.rfc3339() }))
}

async fn links(State(shared): State<Shared>) -> Answer {
    let snapshot = shared.services.snapshot();
    let links: Vec<_> = snapshot
        .config
        .telegram
        .iter()
        .flat_map(|account| account.links.iter().map(move |link| (account, link)))
        .map(|(account, link)| {
            let rights = snapshot.links.get(&link.name);
            let allow: Vec<_> =
                rights.iter().flat_map(|rights| rights.grants.allowed()).map(|grant| grant.text.clone()).collect();
            json!({
                "name": link.name, "channel": account.name, "chat": link.chat, "senders": link.senders,
                "mention": link.mention.as_str(), "allow": allow,
            })
        })
        .collect();
    Ok(Json(json!({ "links": links })))
}

async fn reload(State(shared): State<Shared>) -> Response {
    match shared.services.reload() {
        Ok(later) => Json(json!({ "at_next_start": later })).into_response(),
        Err(faults) => {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            let problem = json!({ "error": "the configuration has faults; the old one stays", "faults": faults, "text": faults.to_string() });
            (status, Json(problem)).into_response()
        }
    }
}

async fn stop(State(shared): State<Shared>) -> Answer {
    shared.services.stop.ask();
    Ok(Json(json!({ "stopping": true })))
}
