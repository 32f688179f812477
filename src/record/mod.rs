//! What is written down for people beside the store: the log.
//!
//! A fixed sentence and values as fields; never a secret, and what people wrote only at `debug`.

pub mod logs;
