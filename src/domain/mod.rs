//! The words every room shares, and the seams through which time and chance come in. Nothing here does I/O.

pub mod budget;
pub mod clock;
pub mod crash;
pub mod end;
pub mod ids;
pub mod message;
pub mod pulse;
pub mod rng;
pub mod stop;
pub mod thread;

pub use budget::{Budget, Spent};
pub use clock::{Clock, SystemClock, Timestamp};
pub use end::EndReason;
pub use ids::{BootId, CallId, CheckpointId, InboxId, MessageId, OutboxId, SessionId, TurnId};
pub use message::{Block, Message, Origin, Reasoning, Role};
pub use pulse::{Pulse, Pulses};
pub use rng::{OsRng, Rng};
pub use stop::{Stop, StopHandle};
pub use thread::{ChannelKind, ThreadKey};
