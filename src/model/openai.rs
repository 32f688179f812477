//! Any server that speaks chat completions: OpenAI, llama.cpp, ollama, vLLM and their like.
//!
//! ```text
//! Request ──body──▶ POST {base_url}/chat/completions ──wire──▶ events, or a whole completion ──answer──▶ Attempt
//! ```
//!
//! Complete is what has a `finish_reason`, then `[DONE]` or a clean end. The connection is [`crate::model::wire`]'s.

mod answer;
mod body;
#[cfg(test)]
mod tests;

use futures_util::future::BoxFuture;
use reqwest::header::AUTHORIZATION;

use crate::model::wire::{Dress, KeySource, Settings, Wire};
use crate::model::{Attempt, ModelClient, ModelError, OnText, Request};
use answer::Answer;

/// A model behind a server that speaks chat completions.
pub struct OpenAi {
    wire: Wire,
    limit_key: &'static str,
}

impl OpenAi {
    /// Makes the client; connects to nothing and asks for no key.
    ///
    /// # Errors
    /// [`crate::model::ErrorClass::BadRequest`] when `base_url` is none that requests can go to.
    pub fn new(settings: Settings, key: KeySource) -> Result<Self, ModelError> {
        let dress = Dress { key_header: AUTHORIZATION, key_prefix: "Bearer ", headers: &[] };
        let wire = Wire::new(settings, key, dress, |base| format!("{base}/chat/completions"))?;
        // Newer models of OpenAI refuse the old name; the compatible servers know only the old one.
        let is_vendor = wire.url.host_str() == Some("api.openai.com");
        let limit_key = if is_vendor { "max_completion_tokens" } else { "max_tokens" };
        Ok(Self { wire, limit_key })
    }
}

impl ModelClient for OpenAi {
    fn name(&self) -> &str {
        self.wire.model()
    }

    fn attempt<'a>(&'a self, request: &'a Request, on_text: OnText<'a>) -> BoxFuture<'a, Result<Attempt, ModelError>> {
        Box::pin(async move {
            let body = body::of(request, self.wire.model(), self.limit_key);
            self.wire.attempt(&body, Answer::default(), on_text).await
        })
    }
}
