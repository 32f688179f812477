//! Time as a seam: a wall clock people read, and a monotonic one that budgets count on.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant of the wall clock: Unix time in milliseconds, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This instant moved by `by`; stays at the end of time instead of overflowing.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC with milliseconds, as all our JSON prints times.
    #[must_use]
    pub fn rfc3339(self) -> String {
        jiff::Timestamp::from_millisecond(self.0).map_or_else(|_| format!("@{}ms", self.0), |at| format!("{at:.3}"))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

/// Where time comes from. Waiting itself is tokio's, which a simulation can pause.
pub trait Clock: Send + Sync {
    /// The wall clock; may jump.
    fn now(&self) -> Timestamp;
    /// Counts up from an arbitrary start and never jumps: what budgets and deadlines are measured with.
    fn monotonic(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: tokio::time::Instant,
}

impl SystemClock {
    /// Starts the monotonic count at zero.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the shell that owns the monotonic clock")]
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the shell that owns the wall clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_in_utc_with_milliseconds() {
        assert_eq!(Timestamp(1_796_083_178_042).to_string(), "2026-11-30T23:59:38.042Z");
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
