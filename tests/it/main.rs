//! The real daemon against strict local counterparts: one binary, a module a theme.

mod anthropic;
mod cli_output;
mod console;
mod crash;
mod doctor;
mod faults;
mod figures;
mod life;
mod notices;
mod pairing;
mod reports;
mod rooms;
mod setup;
mod spine;
mod support;
