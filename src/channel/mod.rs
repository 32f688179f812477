//! Where the world comes in. Platform words stop here: what leaves this room are arrivals for the inbox, and what
//! enters it are parts of the outbox.

pub mod console;
pub mod pairing;
pub mod telegram;
