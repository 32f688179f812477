//! The agent's side of a thread: who may speak, one turn at a time, one chain for ever.
//!
//! ```text
//! channel ─arrivals─▶ [intake] ─▶ inbox ─▶ [desk] ─claims─▶ create_session ─▶ turn::drive ─▶ outbox
//!                                            │ urgent: /stop, /status
//!                                            └ after a start: resume, or park
//! ```
//!
//! [`SharedServices`] is the one place that makes sessions; no runner is built beside it.

pub mod closing;
pub mod commands;
pub mod desk;
pub mod health;
pub mod hub;
pub mod intake;
pub mod services;
pub mod snapshot;
pub mod status;

pub use desk::Desk;
pub use health::{ChannelHealth, Health};
pub use hub::Hub;
pub use services::{Session, SharedServices};
pub use snapshot::Snapshot;
