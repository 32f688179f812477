//! Logs and what may stand in them.
