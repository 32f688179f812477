//! One rate gate for everything that calls a platform: so many calls a second per account, so many per chat, and after
//! a 429 none before the time the platform named.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Chats remembered; the longest idle ones are forgotten, whose allowance is full again anyway.
const CHATS_MAX: usize = 4_096;

/// How fast a platform may be called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Calls a second, over all chats.
    pub account_per_sec: f64,
    /// Calls a second into one chat.
    pub chat_per_sec: f64,
    /// Calls into one chat that may come at once before the rate holds.
    pub chat_burst: f64,
}

/// The gate. Pure but for its lock: time is an argument.
#[derive(Debug)]
pub struct Pace {
    rates: Rates,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    account: Bucket,
    chats: BTreeMap<String, Bucket>,
    /// Nothing before this monotonic instant.
    closed_until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Duration,
}

impl Bucket {
    fn refill(&mut self, now: Duration, per_sec: f64, burst: f64) {
        self.tokens = (self.tokens + now.saturating_sub(self.at).as_secs_f64() * per_sec).min(burst);
        self.at = now;
    }

    fn wait(&self, per_sec: f64) -> Duration {
        if self.tokens >= 1.0 { Duration::ZERO } else { Duration::from_secs_f64((1.0 - self.tokens) / per_sec) }
    }
}

impl Pace {
    /// A gate at full allowance.
    #[must_use]
    pub fn new(rates: Rates) -> Self {
        let account = Bucket { tokens: rates.account_per_sec.max(1.0), at: Duration::ZERO };
        Self { rates, inner: Mutex::new(Inner { account, chats: BTreeMap::new(), closed_until: Duration::ZERO }) }
    }

    /// Takes one call into `chat` at monotonic `now`, or says how long to wait before asking again.
    ///
    /// # Errors
    /// The wait; nothing was taken.
    pub fn take(&self, chat: &str, now: Duration) -> Result<(), Duration> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = self.rates;
        if inner.closed_until > now {
            return Err(inner.closed_until - now);
        }
        if inner.chats.len() >= CHATS_MAX && !inner.chats.contains_key(chat) {
            let idle = inner.chats.iter().min_by_key(|(_, bucket)| bucket.at).map(|(chat, _)| chat.clone());
            idle.map(|chat| inner.chats.remove(&chat));
        }
        inner.account.refill(now, rates.account_per_sec, rates.account_per_sec.max(1.0));
        let full = Bucket { tokens: rates.chat_burst, at: now };
        let account = inner.account.wait(rates.account_per_sec);
        let bucket = inner.chats.entry(chat.to_owned()).or_insert(full);
        bucket.refill(now, rates.chat_per_sec, rates.chat_burst);
        let wait = bucket.wait(rates.chat_per_sec).max(account);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        bucket.tokens -= 1.0;
        inner.account.tokens -= 1.0;
        Ok(())
    }

    /// The platform asked for silence until monotonic `until`.
    pub fn close_until(&self, until: Duration) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.closed_until = inner.closed_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_has_a_burst_and_then_its_rate_and_all_chats_share_the_account() {
        let pace = Pace::new(Rates { account_per_sec: 4.0, chat_per_sec: 1.0, chat_burst: 2.0 });
        let at = Duration::from_secs;
        assert_eq!([pace.take("a", at(1)), pace.take("a", at(1))], [Ok(()), Ok(())]);
        assert_eq!(pace.take("a", at(1)), Err(at(1)));
        assert_eq!([pace.take("b", at(1)), pace.take("c", at(1))], [Ok(()), Ok(())]);
        assert_eq!(pace.take("d", at(1)), Err(Duration::from_millis(250)));
        assert_eq!(pace.take("a", at(2)), Ok(()));
        pace.close_until(at(9));
        assert_eq!(pace.take("d", at(3)), Err(at(6)));
    }
}
