//! What a command prints. Data goes to standard output, everything else to standard error, and nothing here panics.
//!
//! A reader that went away (`midwatch status | head -1`) has what it wanted: the command ends as if it were done. A
//! full disk has not, and is told.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use super::complain::Complaint;

/// Prints a line of data.
///
/// # Errors
/// A [`Complaint`] that ends the command: quietly when nobody reads any more, with the reason otherwise.
pub(super) fn line(text: impl Display) -> Result<(), Complaint> {
    text_as_is(format_args!("{text}\n"))
}

/// Prints data that is no whole line, and does not hold it back.
///
/// # Errors
/// As [`line()`].
pub(super) fn text_as_is(text: impl Display) -> Result<(), Complaint> {
    // Into one piece first: a reader sees whole lines even when they are made of many parts.
    let text = text.to_string();
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| cannot_print(&error))
}

/// Tells the person at the terminal something. Where nobody can read it, it is lost: the exit code speaks too.
pub(super) fn note(text: impl Display) {
    let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// What a failed write to standard output means.
pub(super) fn cannot_print(error: &io::Error) -> Complaint {
    match error.kind() {
        ErrorKind::BrokenPipe => Complaint::nobody_reads(),
        _ => Complaint::failed(format!("cannot write to standard output: {error}")),
    }
}
