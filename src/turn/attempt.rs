//! Asks a model until it answers or one of its error classes says that asking again is of no use. The only place that
//! tries a model call again; everybody else reports.

use std::time::Duration;

use crate::domain::{Clock, Rng};
use crate::model::{Attempt, ErrorClass, ModelClient, ModelError, Request};

/// First wait after an overload or a broken connection; doubles with each.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// Longest wait that we choose ourselves.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Broken connections in a row that end the call.
const NETWORK_TRIES: u32 = 4;
/// Overloads that end the call, if the time budget has not done so before.
const OVERLOAD_TRIES: u32 = 60;

/// One model call with its waits; returns within `deadline` (monotonic), or a little after it when a wait ends there.
pub(super) async fn ask(
    model: &dyn ModelClient,
    request: &Request,
    (clock, rng): (&dyn Clock, &dyn Rng),
    deadline: Duration,
    on_text: &(dyn Fn(&str) + Send + Sync),
    on_failure: &(dyn Fn(&ModelError, Duration) + Send + Sync),
) -> Result<Attempt, ModelError> {
    let (mut network, mut overload) = (0, 0);
    loop {
        let error = match model.attempt(request, on_text).await {
            Ok(attempt) => return Ok(attempt),
            Err(error) => error,
        };
        let doubled = |tries: u32| rng.jitter(WAIT_FIRST.saturating_mul(1 << tries.min(6)).min(WAIT_MAX));
        let wait = match error.class {
            ErrorClass::Network if network + 1 < NETWORK_TRIES => {
                network += 1;
                doubled(network)
            }
            ErrorClass::Overload if overload + 1 < OVERLOAD_TRIES => {
                overload += 1;
                // A wait the provider asks for is kept, and never shortened to our own.
                error.retry_after.map_or_else(|| doubled(overload), |asked| rng.jitter(asked).max(asked))
            }
            ErrorClass::Quota => match error.retry_after {
                Some(asked) if overload + 1 < OVERLOAD_TRIES => {
                    overload += 1;
                    asked
                }
                _ => return Err(error),
            },
            _ => return Err(error),
        };
        if clock.monotonic().saturating_add(wait) >= deadline {
            return Err(error);
        }
        on_failure(&error, wait);
        tokio::time::sleep(wait).await;
    }
}
