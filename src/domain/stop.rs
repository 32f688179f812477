//! A request to stop is a value, not a message: whoever looks late still sees it.

use tokio::sync::watch;

/// The side that asks.
#[derive(Clone, Debug)]
pub struct StopHandle(watch::Sender<bool>);

/// The side that is asked. Cheap to clone; one per task.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// A fresh pair, not asked yet.
#[must_use]
pub fn channel() -> (StopHandle, Stop) {
    let (tx, rx) = watch::channel(false);
    (StopHandle(tx), Stop(rx))
}

impl StopHandle {
    /// Asks; asking twice is asking once.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Another receiver of the same request.
    #[must_use]
    pub fn listen(&self) -> Stop {
        Stop(self.0.subscribe())
    }
}

impl Stop {
    /// Whether a stop was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once a stop is asked for, also when the asking side is gone.
    pub async fn asked(&self) {
        let mut rx = self.0.clone();
        let _ = rx.wait_for(|asked| *asked).await;
    }
}
