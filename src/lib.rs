//! midwatch

#[macro_use]
pub mod domain;
pub mod config;
pub mod record;
pub mod store;
pub mod reply;
pub mod policy;
pub mod model;
pub mod gate;
pub mod tool;
pub mod turn;
pub mod session;
pub mod channel;
pub mod daemon;
pub mod cli;
