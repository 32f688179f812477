//! One turn: from its cause to its end, in six phases.
//!
//! ```text
//! prepare ▸ compose ▸ call ▸ act ▸ observe ─┐
//!              ▲                            │  calls: round again
//!              └────────────────────────────┤
//!                                           └▸ conclude   (one commit: end, answer, outbox, inbox)
//! ```
//!
//! [`step()`] is pure: state and event in, state and effect out. [`drive`] does the effects under the turn's deadline
//! and feeds the results back; retries of a model live there and nowhere else.

mod attempt;
pub mod compose;
pub mod drive;
pub mod news;
pub mod prompt;
pub mod state;
pub mod step;
pub mod validate;
mod verify;

pub use drive::{Driver, Ended};
pub use news::{Audience, News};
pub use state::{Conclusion, Effect, Event, Fixed, Saved, State};
pub use step::step;
