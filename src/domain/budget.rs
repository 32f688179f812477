//! What a turn may spend. Time counts while the daemon runs the turn; what was spent is stored at every checkpoint.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A turn resumed after a crash gets at least this much time, or it could end without a word.
pub const RESUME_FLOOR: Duration = Duration::from_secs(30);

/// The limits of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Running time, in milliseconds.
    pub time_ms: u64,
    /// Model calls.
    pub rounds: u32,
    /// Input and output tokens together, as the providers report them.
    pub tokens: u64,
    /// In US dollars; 0 means no limit.
    pub cost_usd: f64,
}

/// What a turn has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Running time up to the last checkpoint, in milliseconds.
    pub time_ms: u64,
    /// Model calls that came to their end event.
    pub rounds: u32,
    /// Tokens read by the model.
    pub input_tokens: u64,
    /// Tokens written by the model.
    pub output_tokens: u64,
    /// In US dollars, by the configured prices.
    pub cost_usd: f64,
}

impl Spent {
    /// Input and output tokens together.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl Budget {
    /// The running time left. A resumed turn gets at least [`RESUME_FLOOR`], though never more than the whole budget.
    #[must_use]
    pub fn time_left(&self, spent: &Spent, resumed: bool) -> Duration {
        let left = Duration::from_millis(self.time_ms.saturating_sub(spent.time_ms));
        if resumed { left.max(RESUME_FLOOR.min(Duration::from_millis(self.time_ms))) } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_turn_has_what_was_left_but_at_least_thirty_seconds() {
        let budget = Budget { time_ms: 120_000, rounds: 40, tokens: 1, cost_usd: 0.0 };
        let spent = |time_ms| Spent { time_ms, ..Spent::default() };
        assert_eq!(budget.time_left(&spent(50_000), true), Duration::from_secs(70));
        assert_eq!(budget.time_left(&spent(119_000), true), RESUME_FLOOR);
        assert_eq!(budget.time_left(&spent(130_000), false), Duration::ZERO);
        let short = Budget { time_ms: 5_000, ..budget };
        assert_eq!(short.time_left(&spent(5_000), true), Duration::from_secs(5));
    }
}
