//! What the tests stand on: the real daemon in a home of its own, a Telegram and a model that are strict about
//! everything they are sent, and an oracle of the promises.
//!
//! ```text
//! Telegram (fake, loopback) ◀──▶ midwatch serve (the real binary) ◀──▶ Model (fake, loopback)
//!          │ journal                     │ midwatch.db                        │ journal
//!          └───────────────▶ oracle ◀────┴────────────────────────────────────┘
//! ```
//!
//! Nothing here waits for a while; everything waits for a value, for at most [`PATIENCE`], and then says what it saw.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a harness offers more than today's tests use, and a broken harness may only panic"
)]

pub(crate) mod commits;
pub(crate) mod daemon;
pub(crate) mod home;
pub(crate) mod model;
pub(crate) mod net;
pub(crate) mod oracle;
pub(crate) mod telegram;
#[cfg(test)]
mod tests;

use std::time::Duration;

/// Longest wait for any value. Generous, because a loaded machine is slow and a failing test may be.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Looks until `look` gives a value, with growing pauses; panics with `what` when [`PATIENCE`] is over.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut pause = Duration::from_millis(2);
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(value) = look() {
                return value;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    });
    found.await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// What nobody may ever read in a log, an error, a chat or the store.
pub(crate) fn known_secrets() -> [&'static str; 3] {
    // The second half of the token alone is as bad as the whole, and survives a redaction that looks for the whole.
    [telegram::TOKEN, "TESTTOKEN-SECRET", model::KEY]
}

/// Panics when `text` (of a log, a page, the store) holds a secret.
pub(crate) fn assert_no_secrets(what: &str, text: &str) {
    for secret in known_secrets() {
        if let Some(at) = text.find(secret) {
            let around: String = text[..at].chars().rev().take(120).collect::<Vec<_>>().into_iter().rev().collect();
            panic!("{what} holds a secret after: {around}");
        }
    }
}
