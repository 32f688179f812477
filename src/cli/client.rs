//! The thin client of the console's socket.

use std::path::PathBuf;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::complain::{Complaint, Exit};
use crate::channel::console::wire::{Attached, Problem};
use crate::config::Home;
use crate::model::sse;
use crate::turn::News;

/// Limits of an event stream from our own daemon.
const STREAM_MAX: sse::Limits = sse::Limits { total_bytes: usize::MAX, event_bytes: 4 << 20 };

pub(super) struct Client {
    http: reqwest::Client,
    token: PathBuf,
    home: String,
}

/// A piece of the event stream.
pub(super) enum Heard {
    Attached(Attached),
    News(News),
}

impl Client {
    /// Connects to nothing yet; the first request tells whether the daemon runs.
    pub(super) fn connect(home: &Home) -> Result<Self, Complaint> {
        let http = reqwest::Client::builder()
            .unix_socket(home.socket_path())
            .no_proxy()
            .build()
            .map_err(|error| Complaint::failed(format!("no client can be made: {error}")))?;
        Ok(Self { http, token: home.token_path(), home: home.data.display().to_string() })
    }

    fn no_daemon(&self) -> Complaint {
        Complaint::new(Exit::NoDaemon, format!("no midwatch runs for {}", self.home))
            .hint("`midwatch serve` starts it; --home names another deployment")
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, Complaint> {
        // The token is read anew each time: a restarted daemon has another one.
        let token = std::fs::read_to_string(&self.token).map_err(|_| self.no_daemon())?;
        let sent = request.bearer_auth(token.trim()).send().await;
        let response = sent.map_err(|error| if error.is_connect() { self.no_daemon() } else { lost(&error) })?;
        let status = response.status();
        if status.is_success() || status == StatusCode::UNPROCESSABLE_ENTITY {
            return Ok(response);
        }
        let body = response.text().await.unwrap_or_default();
        let problem = serde_json::from_str::<Problem>(&body).unwrap_or_else(|_| Problem {
            error: format!("the daemon answered {status}: {}", body.chars().take(200).collect::<String>()),
            hint: None,
        });
        let complaint = Complaint::failed(problem.error);
        Err(match problem.hint {
            Some(hint) => complaint.hint(hint),
            None => complaint,
        })
    }

    fn url(path: &str) -> String {
        format!("http://midwatch{path}")
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Complaint> {
        let response = self.send(self.http.get(Self::url(path))).await?;
        response.json().await.map_err(|error| lost(&error))
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Complaint> {
        let response = self.send(self.http.post(Self::url(path)).json(body)).await?;
        response.json().await.map_err(|error| lost(&error))
    }

    /// Watches a session; the stream ends when the daemon goes away.
    pub(super) async fn watch(&self, session: &str) -> Result<BoxStream<'static, Heard>, Complaint> {
        let response = self.send(self.http.get(Self::url(&format!("/v1/events?session={session}")))).await?;
        let bytes = response.bytes_stream().map(|chunk| chunk.map_err(|error| error.to_string()));
        let heard = sse::events(bytes, STREAM_MAX).filter_map(|event| async move {
            let event = event.ok()?;
            if event.name.as_deref() == Some("attached") {
                serde_json::from_str(&event.data).ok().map(Heard::Attached)
            } else {
                // News of a newer daemon that we do not know is no reason to stop listening.
                serde_json::from_str(&event.data).ok().map(Heard::News)
            }
        });
        Ok(Box::pin(heard))
    }
}

fn lost(error: &reqwest::Error) -> Complaint {
    Complaint::failed(format!("the daemon's answer was lost: {error}"))
}
