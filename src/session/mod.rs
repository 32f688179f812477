//! The agent's side of a thread: who may speak, one turn at a time, one chain for ever.
//!
//! ```text
//! channel ─arrivals─▶ [intake] ─▶ [door] ─▶ inbox ─▶ [desk] ─claims─▶ create_session ─▶ turn::drive ─▶ outbox
//!                                   └ a free session: opened at once ─▶ ┘
//!                                            │ urgent: /stop, /status
//!                                            └ after a start: resume, or park
//! ```
//!
//! [`SharedServices`] is the one place that makes sessions; no runner is built beside it.

pub mod closing;
pub mod commands;
pub mod desk;
pub mod door;
pub mod health;
pub mod hub;
pub mod intake;
pub mod notices;
pub mod services;
pub mod snapshot;
pub mod status;

pub use desk::Desk;
pub use door::{Door, take_in};
pub use health::{ChannelHealth, Health};
pub use hub::{Hub, ModelHealth};
pub use services::{Session, SharedServices};
pub use snapshot::Snapshot;
