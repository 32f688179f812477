//! midwatch

#[macro_use]
pub mod domain;
pub mod store;
