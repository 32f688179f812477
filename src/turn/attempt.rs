//! Asks a model until it answers or one of its error classes says that asking again is of no use, and then the next
//! one, if there is one. The only place that tries a model call again; everybody else reports.
//!
//! ```text
//! first model ──answer──▶                     one complete answer is used, never a piece of one
//!      └─ busy, broken, locked out ─▶ next model ─ … ─▶ the last one waits as long as the budget does
//! ```

use std::time::Duration;

use super::compose;
use crate::domain::{Clock, Rng};
use crate::model::{Attempt, Choice, ErrorClass, ModelError, Request};

/// First wait after an overload or a broken connection; doubles with each.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// Longest wait that we choose ourselves.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Broken connections in a row that end the call.
const NETWORK_TRIES: u32 = 4;
/// Overloads that end the call, if the time budget has not done so before.
const OVERLOAD_TRIES: u32 = 60;
/// Tries of a model that another one can stand in for.
const TRIES_BEFORE_NEXT: u32 = 2;
/// Longest wait for a model that another one can stand in for.
const WAIT_BEFORE_NEXT: Duration = Duration::from_secs(5);

/// What follows a failed attempt.
pub(super) enum Then {
    /// The same model is asked again after this wait.
    Again(Duration),
    /// The model of this number is asked.
    Next(usize),
}

/// A complete answer, and the number of the model that gave it.
pub(super) type Answer = (Attempt, usize);

/// One model call with its waits, from model number `from` on; returns within `deadline` (monotonic), or a little
/// after it when a wait ends there.
///
/// # Errors
/// The last failure, with the number of the model that failed.
pub(super) async fn ask(
    (models, from): (&[Choice], usize),
    request: &Request,
    (clock, rng): (&dyn Clock, &dyn Rng),
    deadline: Duration,
    on_text: &(dyn Fn(&str) + Send + Sync),
    on_failure: &(dyn Fn(usize, &ModelError, Then) + Send + Sync),
) -> Result<Answer, (ModelError, usize)> {
    let mut at = from.min(models.len().saturating_sub(1));
    loop {
        let Some(model) = models.get(at) else {
            return Err((ModelError::new(ErrorClass::BadRequest, "no model is configured"), at));
        };
        let next = (at + 1..models.len()).find(|next| models.get(*next).is_some_and(|next| fits(request, next)));
        match ask_one(model, request, (clock, rng), deadline, on_text, next.is_some(), &|error, wait| {
            on_failure(at, error, Then::Again(wait));
        })
        .await
        {
            Ok(attempt) => return Ok((attempt, at)),
            Err(error) => match next {
                Some(next) if another_may_help(error.class) && clock.monotonic() < deadline => {
                    on_failure(at, &error, Then::Next(next));
                    at = next;
                }
                _ => return Err((error, at)),
            },
        }
    }
}

/// A smaller model is passed over by a request that was made for a larger one.
fn fits(request: &Request, model: &Choice) -> bool {
    let output = request.max_output_tokens.min(model.max_output_tokens) as usize;
    compose::tokens_of(request) + output <= model.window_tokens as usize
}

/// Whether the fault lies with the model or its provider. What is wrong with the request itself another model would
/// refuse as well, or worse, take.
fn another_may_help(class: ErrorClass) -> bool {
    match class {
        ErrorClass::Auth | ErrorClass::Quota | ErrorClass::Overload | ErrorClass::Network => true,
        ErrorClass::BadRequest | ErrorClass::Content | ErrorClass::ContextTooLong => false,
    }
}

async fn ask_one(
    model: &Choice,
    request: &Request,
    (clock, rng): (&dyn Clock, &dyn Rng),
    deadline: Duration,
    on_text: &(dyn Fn(&str) + Send + Sync),
    has_next: bool,
    on_again: &(dyn Fn(&ModelError, Duration) + Send + Sync),
) -> Result<Attempt, ModelError> {
    let own = Request { max_output_tokens: request.max_output_tokens.min(model.max_output_tokens), ..request.clone() };
    let tries_of = |tries: u32| if has_next { tries.min(TRIES_BEFORE_NEXT) } else { tries };
    let longest = if has_next { WAIT_BEFORE_NEXT } else { Duration::MAX };
    let (mut network, mut overload) = (0, 0);
    loop {
        let error = match model.client.attempt(&own, on_text).await {
            Ok(attempt) => return Ok(attempt),
            Err(error) => error,
        };
        let doubled = |tries: u32| rng.jitter(WAIT_FIRST.saturating_mul(1 << tries.min(6)).min(WAIT_MAX));
        let wait = match error.class {
            ErrorClass::Network if network + 1 < tries_of(NETWORK_TRIES) => {
                network += 1;
                doubled(network)
            }
            ErrorClass::Overload if overload + 1 < tries_of(OVERLOAD_TRIES) => {
                overload += 1;
                // A wait the provider asks for is kept, and never shortened to our own.
                error.retry_after.map_or_else(|| doubled(overload), |asked| rng.jitter(asked).max(asked))
            }
            ErrorClass::Quota => match error.retry_after {
                Some(asked) if overload + 1 < tries_of(OVERLOAD_TRIES) => {
                    overload += 1;
                    asked
                }
                _ => return Err(error),
            },
            _ => return Err(error),
        };
        if wait > longest || clock.monotonic().saturating_add(wait) >= deadline {
            return Err(error);
        }
        on_again(&error, wait);
        tokio::time::sleep(wait).await;
    }
}
