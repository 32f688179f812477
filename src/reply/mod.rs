//! From an answer to parts that stand in a chat.
//!
//! ```text
//! Markdown ─render─▶ ─split─▶ parts ─▶ outbox rows, in the commit that ends the turn ─▶ courier ─▶ platform
//! ```

pub mod courier;
mod html;
pub mod pace;
mod render;
mod split;

pub use courier::{Courier, Outgoing, Platform, SendError};
pub use pace::{Pace, Rates};
pub use split::{Part, telegram_parts};

use crate::store::outbox::NewPart;

/// The outbox rows of an answer in Markdown.
#[must_use]
pub fn parts(markdown: &str) -> Vec<NewPart> {
    let parts = telegram_parts(markdown);
    if parts.is_empty() {
        // Markdown can be all marks and no words; whoever waits still gets an end.
        return plain("(an answer without words)");
    }
    parts.into_iter().map(|part| NewPart { html: Some(part.html), plain: part.plain }).collect()
}

/// The outbox row of a short text of our own, without formatting.
#[must_use]
pub fn plain(text: &str) -> Vec<NewPart> {
    vec![NewPart { html: None, plain: text.to_owned() }]
}
