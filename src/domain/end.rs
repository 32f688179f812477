//! How a turn can end: a closed set, each with the sentence a chat gets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! end_reasons {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $sentence:expr;)*) => {
        /// Why a turn ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum EndReason {
            $($(#[$doc])* $name,)*
        }

        impl EndReason {
            /// Every reason there is.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word in the store and in JSON.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What the chat is told; nothing where the answer speaks for itself.
            #[must_use]
            pub fn sentence(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => $sentence,)*
                }
            }
        }
    };
}

end_reasons! {
    /// The model answered and wished to stop.
    Natural = "natural", None;
    /// The model was made to answer in text because it would not stop calling tools.
    ForcedText = "forced_text", None;
    /// The most model calls a turn may make were made.
    RoundLimit = "round_limit", Some("I stopped here: this needed more steps than one turn may take. Write \"go on\" to continue.");
    /// The turn's time was up.
    TimeBudget = "time_budget", Some("I ran out of time for this one. Write \"go on\" to continue.");
    /// The turn's or the day's tokens were used up.
    TokenBudget = "token_budget", Some("I stopped here: the token limit is reached.");
    /// The turn's or the day's money was used up.
    CostBudget = "cost_budget", Some("I stopped here: the cost limit is reached.");
    /// Even the shortest window does not fit the model.
    ContextExhausted = "context_exhausted", Some("This conversation no longer fits the model. /new starts afresh; nothing is deleted.");
    /// The model declined to answer.
    ModelRefusal = "model_refusal", Some("The model declined to answer this.");
    /// The provider needs something done on our side: a key, a payment, a setting.
    ModelActionRequired = "model_action_required", Some("The model does not take our requests. The operator has to look at the key, the account or the model's name.");
    /// The same failing step was tried over and over.
    NoProgress = "no_progress", Some("I stopped here: the same step failed again and again.");
    /// The message could not be taken up.
    InputBlocked = "input_blocked", Some("I cannot work with that message.");
    /// Someone who may asked for a stop.
    Cancelled = "cancelled", Some("Stopped.");
    /// The turn waits for the operator.
    AwaitingOperator = "awaiting_operator", Some("This waits for the operator.");
    /// The answer did not pass its checks, and two repairs did not help.
    VerificationEscalated = "verification_escalated", Some("I could not get this answer right, so take it with care.");
    /// The process died twice while it worked on this turn.
    Parked = "parked", Some("I set this message aside: working on it failed twice. The operator can retry it.");
    /// Something broke that no other reason names.
    Failed = "failed", Some("Something went wrong on my side.");
}

impl EndReason {
    /// Whether the chat should also be told the turn's id, for someone to look it up.
    #[must_use]
    pub fn names_turn(self) -> bool {
        matches!(self, Self::Failed | Self::Parked | Self::ModelActionRequired | Self::NoProgress | Self::InputBlocked)
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EndReason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == text)
            .ok_or_else(|| format!("`{text}` is no end reason"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back() {
        for reason in EndReason::ALL {
            assert_eq!(reason.as_str().parse::<EndReason>().unwrap(), *reason);
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        assert_eq!(EndReason::ALL.len(), 16);
    }
}
