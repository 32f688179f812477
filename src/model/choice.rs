//! A model with what is known of it besides its protocol: how much it takes, and what it costs.

use std::sync::Arc;

use super::{ModelClient, Usage};

/// A configured model. The first one answers; the others stand in for it, in order.
#[derive(Clone)]
pub struct Choice {
    /// Its client.
    pub client: Arc<dyn ModelClient>,
    /// Tokens it takes at once, question and answer together.
    pub window_tokens: u32,
    /// Longest answer, in tokens.
    pub max_output_tokens: u32,
    /// US dollars per million tokens: read, written, read from the cache.
    pub price: (f64, f64, f64),
}

impl Choice {
    /// What an answer cost, in US dollars.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub fn cost_usd(&self, usage: &Usage) -> f64 {
        let (read, written, cached) = self.price;
        let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens);
        let cost = fresh as f64 * read + usage.cached_tokens as f64 * cached + usage.output_tokens as f64 * written;
        cost / 1e6
    }
}
