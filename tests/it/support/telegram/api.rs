//! The bot's side: one HTTP request in, one answer out, with the faults that were planned for it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, State as Shared};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::super::net::{Watched, Wire};
use super::methods::{self, Refusal};
use super::state::{State, now};
use super::{Fault, TOKEN, params};

type All = Arc<Watched<State>>;

/// Two polls at once are a mistake only when the older one still lives after this: a killed client's connection takes
/// a moment to be noticed.
const POLL_OVERLAP: Duration = Duration::from_millis(150);

/// Serves `/bot<token>/<method>`.
pub(super) async fn serve(
    Shared(all): Shared<All>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (given, texts, complaint) = decode(&uri, &headers, &body);
    let path = uri.path().strip_prefix("/bot").and_then(|path| path.split_once('/'));
    let (token, name) = path.unwrap_or(("", uri.path()));
    let method = params::method(name);
    let (clean, wrong) = match method {
        Some(method) => params::normalise(method, given, texts),
        None => (given, vec![format!("no such method: {name}")]),
    };
    let (seq, revoked, fault, before) = all.change(|state| {
        wrong.into_iter().chain(complaint).for_each(|what| state.violation(what));
        let seq = state.open_call(method.unwrap_or(name), clean.clone());
        (seq, state.revoked, state.fault_for(seq), (state.releases, state.rivals))
    });
    let known = token.replace("%3A", ":").replace("%3a", ":") == TOKEN;
    let refusal = match method {
        _ if !known || revoked => Some(Refusal::new(401, "Unauthorized")),
        None => Some(Refusal::new(404, "Not Found")),
        Some(_) => None,
    };
    if let Some(refusal) = refusal {
        return answer(&all, seq, Err(refusal));
    }
    let method = method.unwrap_or_default();
    if let Err(refusal) = all.change(|state| methods::too_early(state, method, &clean)) {
        return answer(&all, seq, Err(refusal));
    }
    match fault {
        Some(Fault::DropBefore) => {
            wire.cut();
            return StatusCode::OK.into_response();
        }
        Some(Fault::Hang) => released(&all, before.0).await,
        Some(Fault::Status(status)) if status >= 500 => {
            all.change(|state| state.journal.calls[seq].status = Some(status));
            let page = "<html><head><title>Bad Gateway</title></head><body>nginx</body></html>";
            return (StatusCode::from_u16(status).unwrap(), Html(page)).into_response();
        }
        Some(Fault::Status(status)) => {
            let reason = StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()).unwrap_or("Error");
            return answer(&all, seq, Err(Refusal::new(status, reason)));
        }
        Some(Fault::Garbage) => {
            all.change(|state| state.journal.calls[seq].status = Some(200));
            return Html("<html><body>Welcome to the hotel's network</body></html>").into_response();
        }
        Some(Fault::RetryAfter(secs)) => {
            let chat = methods::chat_id(&clean).unwrap_or(0);
            let until = now() + Duration::from_secs(secs);
            all.change(|state| state.not_before.insert((method.to_owned(), chat), until));
            return answer(&all, seq, Err(Refusal::flood(secs)));
        }
        Some(Fault::BadEntities) => {
            let text = "Bad Request: can't parse entities: Unsupported start tag \"planned\" at byte offset 0";
            return answer(&all, seq, Err(Refusal::new(400, text)));
        }
        Some(Fault::DropAfter | Fault::HangAfter) | None => {}
    }
    let result = match method {
        "getUpdates" => get_updates(&all, &clean, before.1).await,
        _ => all.change(|state| methods::call(state, seq, method, &clean)),
    };
    match fault {
        Some(Fault::DropAfter) => {
            all.change(|state| state.journal.calls[seq].lost = true);
            let response = answer(&all, seq, result);
            wire.cut();
            response
        }
        Some(Fault::HangAfter) => {
            all.change(|state| state.journal.calls[seq].lost = true);
            released(&all, before.0).await;
            all.change(|state| state.journal.calls[seq].lost = false);
            answer(&all, seq, result)
        }
        _ => answer(&all, seq, result),
    }
}

/// Returns when the test lets go of what hangs; counted from the moment the call was seen, so that a test that saw it
/// can let it go at once.
async fn released(all: &All, before: u64) {
    all.until(|state| (state.releases > before).then_some(())).await;
}

fn answer(all: &All, seq: usize, result: Result<Value, Refusal>) -> Response {
    let (status, body) = match result {
        Ok(result) => (200, json!({ "ok": true, "result": result })),
        Err(refusal) => (refusal.code, refusal.json()),
    };
    all.change(|state| {
        let call = &mut state.journal.calls[seq];
        call.status = Some(status);
        call.answer = body.clone();
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::from_u16(status).unwrap(), json, body.to_string()).into_response()
}

/// Takes a poll off the books however it ends, also when its client goes away.
struct Poll<'a> {
    all: &'a All,
    ticket: u64,
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        self.all.change(|state| state.close_poll(self.ticket));
    }
}

/// A poll; `rivals` is how many other programs had polled when the call was seen.
async fn get_updates(all: &All, params: &Map<String, Value>, rivals: u64) -> Result<Value, Refusal> {
    let number = |name: &str| params.get(name).and_then(Value::as_i64).unwrap_or(0);
    let webhook = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the \
                   webhook first";
    if !all.look(|state| state.webhook.is_empty()) {
        return Err(Refusal::new(409, webhook));
    }
    let ticket = all.change(State::open_poll);
    let poll = Poll { all, ticket };
    let alone = all.until(|state| (state.polls.first() == Some(&ticket)).then_some(()));
    if tokio::time::timeout(POLL_OVERLAP, alone).await.is_err() {
        all.change(|state| {
            let older: Vec<u64> = state.polls.iter().copied().filter(|open| *open < ticket).collect();
            if older.iter().any(|open| !state.beaten.contains(open)) {
                state.violation("two polls at once");
            }
            state.beaten.extend(older);
        });
    }
    all.change(|state| {
        if number("timeout") > 50 {
            state.violation("getUpdates: timeout over 50 s");
        }
        state.confirm(number("offset"), params.get("allowed_updates"));
    });
    let limit = if params.contains_key("limit") { number("limit").clamp(1, 100) } else { 100 };
    let held = Duration::from_secs(u64::try_from(number("timeout").clamp(0, 50)).unwrap_or(0));
    let step = all.until(|state| {
        if state.offline {
            return Some(Ok(Vec::new()));
        }
        if state.revoked {
            return Some(Err(Refusal::new(401, "Unauthorized")));
        }
        if state.beaten.contains(&ticket) || state.rivals > rivals {
            let text = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is \
                        running";
            return Some(Err(Refusal::new(409, text)));
        }
        if !state.webhook.is_empty() {
            return Some(Err(Refusal::new(409, webhook)));
        }
        state.ready(usize::try_from(limit).unwrap_or(100)).map(Ok)
    });
    let batch = tokio::time::timeout(held, step).await.unwrap_or_else(|_| Ok(Vec::new()));
    drop(poll);
    batch.map(Value::Array)
}

/// The parameters, whether all of them are strings, and what was wrong with the way they came.
fn decode(uri: &Uri, headers: &HeaderMap, body: &[u8]) -> (Map<String, Value>, bool, Option<String>) {
    let mut given = form(uri.query().unwrap_or_default());
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/json") {
        return match serde_json::from_slice(body) {
            Ok(Value::Object(map)) if given.is_empty() => (map, false, None),
            Ok(Value::Object(_)) => (given, true, Some("parameters in both the query and a JSON body".into())),
            Ok(Value::Null) => (given, true, None),
            _ => (given, true, Some("the JSON body is no object".into())),
        };
    }
    if kind.starts_with("application/x-www-form-urlencoded") {
        given.extend(form(&String::from_utf8_lossy(body)));
        return (given, true, None);
    }
    let complaint = (!body.is_empty()).then(|| format!("a body of type `{kind}`"));
    (given, true, complaint)
}

fn form(text: &str) -> Map<String, Value> {
    let url = reqwest::Url::parse(&format!("http://form/?{text}")).expect("a query parses");
    url.query_pairs().map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect()
}
