//! Owns tasks: each has a name, a rule, a growing wait between its failures and a limit to them.
//!
//! A task gets up again, and stops when asked. A panic costs one attempt. A task that ends unasked has failed, however
//! politely it did so; only a time of real work makes its failures forgotten.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::domain::Stop;
use crate::session::SharedServices;

/// Failures in a row after which a task is given up.
const FAILURES_MAX: u32 = 12;

/// What becomes of a task that cannot be kept up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The daemon stops with a failure, so that the service manager starts it afresh.
    Critical,
    /// The task alone is given up, and the log says so.
    Restart,
}

/// How a task ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// It failed too often.
    GaveUp,
}

/// The wait between failures.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first.
    pub first: Duration,
    /// The longest; also how long a task must have worked for its failures to be forgotten.
    pub max: Duration,
}

impl Backoff {
    /// How long to wait after so many failures in a row, before the jitter.
    #[must_use]
    pub fn wait(&self, failures: u32) -> Duration {
        self.first.saturating_mul(1_u32.checked_shl(failures.min(20)).unwrap_or(u32::MAX)).min(self.max)
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A task to be kept up.
pub struct Task {
    name: String,
    rule: Rule,
    stop: Stop,
    make: Box<dyn FnMut(Stop) -> Attempt + Send>,
}

impl Task {
    /// A task called `name` that each attempt makes anew; `stop` ends it.
    pub fn new<F>(
        name: impl Into<String>,
        rule: Rule,
        stop: Stop,
        mut make: impl FnMut(Stop) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let make = Box::new(move |stop| Box::pin(make(stop)) as Attempt);
        Self { name: name.into(), rule, stop, make }
    }
}

/// Keeps `task` up until its stop is asked or it has failed too often in a row.
pub async fn supervise(mut task: Task, backoff: Backoff, services: Arc<SharedServices>) -> Ended {
    let mut failures = 0;
    loop {
        let started = services.clock.monotonic();
        // Dropped with us, the set takes the attempt along.
        let mut attempt = JoinSet::new();
        attempt.spawn((task.make)(task.stop.clone()));
        match attempt.join_next().await {
            _ if task.stop.is_asked() => return Ended::Asked,
            Some(Ok(Err(error))) => tracing::warn!(task = task.name, failures, error, "Task failed."),
            Some(Err(panic)) => tracing::error!(task = task.name, failures, %panic, "Task panicked."),
            _ => tracing::warn!(task = task.name, failures, "Task ended unasked."),
        }
        if services.clock.monotonic().saturating_sub(started) > backoff.max {
            failures = 0;
        }
        failures += 1;
        if failures >= FAILURES_MAX {
            tracing::error!(task = task.name, failures, "Task is given up.");
            if task.rule == Rule::Critical {
                services.stop.ask();
            }
            return Ended::GaveUp;
        }
        let wait = services.rng.jitter(backoff.wait(failures - 1));
        tokio::select! {
            biased;
            () = task.stop.asked() => return Ended::Asked,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let backoff = Backoff { first: Duration::from_millis(250), max: Duration::from_secs(60) };
        let waits: Vec<_> = [0, 1, 2, 7, 8, 9, 4_000].map(|failures| backoff.wait(failures).as_millis()).into();
        assert_eq!(waits, [250, 500, 1_000, 32_000, 60_000, 60_000, 60_000]);
    }
}
