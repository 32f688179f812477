//! Anthropic's own protocol, Messages, and the servers that speak it too.
//!
//! ```text
//! Request ──body──▶ POST {base_url}/v1/messages ──wire──▶ events, or a whole message ──answer──▶ Attempt
//! ```
//!
//! Complete is what has a `stop_reason` and then `message_stop`. The connection is [`crate::model::wire`]'s; what a
//! model thought goes back to it as it came (`docs/decisions/0010-reasoning-blocks.md`).

mod answer;
mod body;
#[cfg(test)]
mod tests;

use futures_util::future::BoxFuture;
use reqwest::header::HeaderName;

use crate::model::wire::{Dress, KeySource, Settings, Wire};
use crate::model::{Attempt, ModelClient, ModelError, OnText, Request};
use answer::Answer;

/// The header that carries the key.
pub const KEY_HEADER: &str = "x-api-key";

/// The header without which a request is refused: its name, and the version of the protocol.
pub const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// The protocol as [`crate::domain::Reasoning`] names it.
const PROVIDER: &str = "anthropic";

/// A model behind a server that speaks Messages.
pub struct Anthropic {
    wire: Wire,
}

impl Anthropic {
    /// Makes the client; connects to nothing and asks for no key.
    ///
    /// # Errors
    /// [`crate::model::ErrorClass::BadRequest`] when `base_url` is none that requests can go to.
    pub fn new(settings: Settings, key: KeySource) -> Result<Self, ModelError> {
        let key_header = HeaderName::from_static(KEY_HEADER);
        let dress = Dress { key_header, key_prefix: "", headers: &[VERSION] };
        Ok(Self { wire: Wire::new(settings, key, dress, |base| format!("{}/messages", versioned(base)))? })
    }
}

/// `base`, which names a server with or without the `/v1` of its paths, with it.
#[must_use]
pub fn versioned(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with("/v1") { base.to_owned() } else { format!("{base}/v1") }
}

impl ModelClient for Anthropic {
    fn name(&self) -> &str {
        self.wire.model()
    }

    fn attempt<'a>(&'a self, request: &'a Request, on_text: OnText<'a>) -> BoxFuture<'a, Result<Attempt, ModelError>> {
        Box::pin(async move {
            let model = self.wire.model();
            self.wire.attempt(&body::of(request, model), Answer::of(model), on_text).await
        })
    }
}
