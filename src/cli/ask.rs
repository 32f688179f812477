//! Questions to the person at the terminal, or to a script that writes the answers down one a line.
//!
//! A secret is not shown while it is typed. Its line is read key by key, so that Ctrl-C reaches us and not the kernel
//! while the terminal is silent: it speaks again before the process ends.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use super::complain::{Complaint, Exit};
use super::out;
use crate::config::SecretValue;

/// No answer is longer; what is longer is a file in the wrong place.
const LINE_MAX_BYTES: u64 = 16 * 1024;
/// How often a question is put again before we give up: a script that answers nonsense must end.
const TRIES_MAX: u32 = 20;

/// One line, or `default` where the line is empty.
///
/// # Errors
/// Wrong usage when the input ends before the answer.
pub(super) fn line(question: &str, default: Option<&str>) -> Result<String, Complaint> {
    let shown = default.map(|default| format!(" [{default}]")).unwrap_or_default();
    prompt(&format!("{question}{shown}: "));
    let mut line = String::new();
    let read = io::stdin().lock().take(LINE_MAX_BYTES).read_line(&mut line);
    match read {
        Ok(0) => Err(ended()),
        Ok(_) => {
            let line = line.trim();
            Ok(if line.is_empty() { default.unwrap_or_default().to_owned() } else { line.to_owned() })
        }
        Err(error) => Err(unreadable(&error)),
    }
}

/// Asks until `accept` takes the answer; what it says otherwise is shown.
///
/// # Errors
/// As [`line()`], and when no answer was any good.
pub(super) fn until<T>(
    question: &str,
    default: Option<&str>,
    accept: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Complaint> {
    for _ in 0..TRIES_MAX {
        match accept(&line(question, default)?) {
            Ok(answer) => return Ok(answer),
            Err(why) => out::note(format_args!("   {why}")),
        }
    }
    Err(Complaint::new(Exit::Usage, format!("none of {TRIES_MAX} answers was one to: {question}")))
}

/// A line that is not shown while it is typed.
///
/// # Errors
/// As [`line()`].
pub(super) fn hidden(question: &str) -> Result<SecretValue, Complaint> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return line(question, None).map(SecretValue::new);
    }
    let silent = Silent::begin().map_err(|error| unreadable(&error))?;
    prompt(&format!("{question}: "));
    let typed = keys(&mut stdin.lock());
    drop(silent);
    out::note("");
    match typed {
        Ok(Typed::Line(text)) => Ok(SecretValue::new(text)),
        Ok(Typed::End) => Err(ended()),
        Ok(Typed::Interrupted) => {
            // As if the terminal had sent it: a shell sees a command that Ctrl-C ended.
            let _ = kill_process(getpid(), Signal::INT);
            Err(Complaint::failed("interrupted"))
        }
        Err(error) => Err(unreadable(&error)),
    }
}

fn prompt(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

fn ended() -> Complaint {
    Complaint::new(Exit::Usage, "the input ended before all was answered; nothing was written")
        .hint("`midwatch setup --yes` takes the answers as flags, `midwatch setup --help` lists them")
}

fn unreadable(error: &io::Error) -> Complaint {
    Complaint::failed(format!("the input cannot be read: {error}"))
}

/// The terminal does not show what is typed for as long as this lives.
struct Silent(Termios);

impl Silent {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        // What was typed before the question was shown to everybody: it is no secret's beginning.
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

enum Typed {
    Line(String),
    End,
    Interrupted,
}

/// Keys up to the end of the line, as a terminal would edit them.
fn keys(input: &mut impl io::BufRead) -> io::Result<Typed> {
    let mut line: Vec<u8> = Vec::new();
    for byte in input.bytes().take(LINE_MAX_BYTES as usize) {
        match byte? {
            b'\r' | b'\n' => return Ok(Typed::Line(String::from_utf8_lossy(&line).trim().to_owned())),
            0x03 => return Ok(Typed::Interrupted),
            0x04 if line.is_empty() => return Ok(Typed::End),
            0x08 | 0x7f => {
                line.pop();
            }
            0x15 => line.clear(),
            // Marks that some terminals put around what is pasted, and other keys without a letter.
            byte if byte < 0x20 => {}
            byte => line.push(byte),
        }
    }
    Ok(Typed::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_a_terminal_edits_them() {
        let typed = |keys_typed: &[u8]| match keys(&mut &keys_typed[..]).unwrap() {
            Typed::Line(line) => line,
            Typed::End => "END".to_owned(),
            Typed::Interrupted => "INTERRUPTED".to_owned(),
        };
        for (name, bytes, expected) in [
            ("a line", &b"123:abc\r"[..], "123:abc"),
            ("backspace", b"123:abd\x7fc\n", "123:abc"),
            ("backspace at the beginning", b"\x7f\x7fa\n", "a"),
            ("Ctrl-U", b"wrong\x15right\n", "right"),
            ("Ctrl-C", b"123:ab\x03", "INTERRUPTED"),
            ("Ctrl-D", b"\x04", "END"),
            ("the terminal closes", b"123", "END"),
            ("blanks around what was pasted", b" 123:abc \n", "123:abc"),
        ] {
            assert_eq!(typed(bytes), expected, "{name}");
        }
    }
}
