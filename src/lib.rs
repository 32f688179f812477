//! midwatch: a personal agent that keeps watch while its owner sleeps.
//!
//! One daemon; people talk to it in chats and on a local console. What it promises is in the README, how it is built
//! in `docs/design.md`. This page is the map: which rooms there are, and how a message walks through them.
//!
//! # The way of a message
//!
//! ```text
//! channel::telegram::poll   getUpdates ─▶ who wrote, where (hear) ─▶ one commit: inbox rows + cursor
//!                           only then does the next getUpdates acknowledge            channel::console: POST /v1/say
//! session::intake           linked? sender listed? addressed?  otherwise ignored, its words not kept
//! session::door             create_session(mode, link): plan, grants, budget; where the session is free the commit that
//!                           stores the message opens its turn: lease, first message, checkpoint `opened`
//! session::desk             sets opened turns to work, and opens those of messages that had to wait, oldest first
//! turn::drive + turn::step  prepare ▸ compose ▸ call ▸ act ▸ observe ▸ conclude
//!     model                   one attempt, complete only with its end event
//!     gate ▸ tool             Proposed ─▶ Cleared ─▶ Admitted ─▶ the handler; checkpoints before and after
//! turn::drive::conclude     one commit: end, last messages, checkpoint, reply parts, inbox row done
//! reply::courier            part `sending` in the store ─▶ channel::telegram::send ─▶ sent, later, uncertain or dead
//! ```
//!
//! # Invariants
//!
//! - Nobody is answered, and nothing acknowledged, before the commit that holds it ([`store`]).
//! - A handler takes a [`gate::Admitted`], and only the gate makes one.
//! - [`session::SharedServices::create_session`] is the only maker of sessions.
//! - A commit of a checkpoint names its parent: a chain cannot fork.
//! - A reply that may stand in a chat is never sent again by the daemon's own decision.
//! - Time and chance come from [`domain::Clock`] and [`domain::Rng`]; secrets resolve at the sender ([`config::Secret`]).
//!
//! # Rooms
//!
//! In the order a message meets them, a floor a block. **A room uses only rooms on floors below its own**;
//! `tests/it/rooms.rs` reads this file and every `crate::` path and names who looks up.

#[macro_use]
mod macros;

pub mod cli;

pub mod daemon;

pub mod channel;

pub mod session;

pub mod turn;

pub mod tool;

pub mod gate;

pub mod model;
pub mod policy;

pub mod reply;

pub mod store;

pub mod record;

pub mod config;

pub mod domain;
