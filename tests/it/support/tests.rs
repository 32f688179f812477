//! The fakes and the oracle, tested: a strict rule that never fires is worse than none.

mod messages;
mod model;
mod oracle;
mod telegram;
