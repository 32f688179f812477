//! Chance as a seam: the operating system's in production, a seeded one in simulation.

use std::time::Duration;

/// Where random numbers come from.
pub trait Rng: Send + Sync {
    /// Sixty-four random bits.
    fn next_u64(&self) -> u64;

    /// A uniform number below `bound`; 0 when `bound` is 0. The bias of the modulo is below 2⁻³² for our small bounds.
    fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// `base` spread over 75 % to 125 %, so that many who wait do not come back in step.
    fn jitter(&self, base: Duration) -> Duration {
        base.mul_f64(0.75 + 0.5 * (self.below(1 << 20) as f64) / f64::from(1 << 20))
    }
}

/// The operating system's generator; fit for codes and tokens.
#[derive(Debug, Default)]
pub struct OsRng;

impl Rng for OsRng {
    #[expect(clippy::disallowed_methods, reason = "this is the shell that owns the system's generator")]
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        // Linux blocks only before the pool was first filled at boot and does not fail after; a token made of zeros
        // would be worse than a daemon that does not start.
        if let Err(error) = getrandom::fill(&mut bytes) {
            tracing::error!(%error, "The system gives no random numbers.");
            std::process::abort();
        }
        u64::from_le_bytes(bytes)
    }
}
