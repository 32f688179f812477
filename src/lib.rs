//! midwatch

#[macro_use]
pub mod domain;
pub mod channel;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod gate;
pub mod model;
pub mod policy;
pub mod record;
pub mod reply;
pub mod session;
pub mod store;
pub mod tool;
pub mod turn;
