//! midwatch

pub mod domain;
