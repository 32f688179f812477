//! A request to stop is a value, not a message: whoever looks late still sees it.
//!
//! Those who wait hear it in the order in which they began to wait. A `watch` channel would do but for that: it wakes
//! its waiters in a random order, and a simulation could not replay a stop that ends several turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Request {
    asked: AtomicBool,
    waiting: Notify,
}

impl Request {
    fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.waiting.notify_waiters();
    }
}

/// Asks when the last of the asking side is gone: nobody else ever could.
#[derive(Debug)]
struct Asking(Arc<Request>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.ask();
    }
}

/// The side that asks.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<Asking>);

/// The side that is asked. Cheap to clone; one per task.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Request>);

/// A fresh pair, not asked yet.
#[must_use]
pub fn channel() -> (StopHandle, Stop) {
    let request = Arc::new(Request::default());
    (StopHandle(Arc::new(Asking(request.clone()))), Stop(request))
}

impl StopHandle {
    /// Asks; asking twice is asking once.
    pub fn ask(&self) {
        self.0.0.ask();
    }

    /// Another receiver of the same request.
    #[must_use]
    pub fn listen(&self) -> Stop {
        Stop(self.0.0.clone())
    }
}

impl Stop {
    /// Whether a stop was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }

    /// Returns once a stop is asked for, also when the asking side is gone.
    pub async fn asked(&self) {
        // Made before the look, so that a request between the two is not missed.
        let heard = self.0.waiting.notified();
        if !self.is_asked() {
            heard.await;
        }
    }
}
