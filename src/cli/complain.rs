//! How a command fails: what, why, and what to do, with the exit code of the contract.

use std::process::ExitCode;

use super::out;
use crate::config::{Faults, HomeError};
use crate::daemon::{LockError, StartError};

/// The exit codes of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    /// The daemon does not run.
    NoDaemon = 69,
    /// Another daemon holds this home.
    Taken = 75,
    /// Bad configuration.
    Config = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failed command.
#[derive(Debug)]
pub(super) struct Complaint {
    pub exit: Exit,
    /// Whole text where it is more than one error.
    text: String,
    hint: Option<String>,
    faults: Option<Faults>,
}

impl Complaint {
    pub(super) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into(), hint: None, faults: None }
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self::new(Exit::Failed, text)
    }

    /// Whoever read our output has gone: there is nobody to tell, and nothing failed.
    pub(super) fn nobody_reads() -> Self {
        Self::new(Exit::Done, "")
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What failed, without the cure.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Standard error, and JSON on standard output where it was asked for.
    pub(super) fn print(&self, json: bool) {
        if self.exit == Exit::Done {
            return;
        }
        if json {
            let faults = self.faults.as_ref();
            // Whether it arrives or not, the command has failed, and standard error says why.
            let _ = out::line(serde_json::json!({ "error": self.text, "hint": self.hint, "faults": faults }));
        }
        match &self.faults {
            Some(faults) => out::note(faults.to_string().trim_end()),
            None => out::note(format_args!("error: {}", self.text)),
        }
        if let Some(hint) = &self.hint {
            out::note(format_args!("hint: {hint}"));
        }
    }
}

impl From<Faults> for Complaint {
    fn from(faults: Faults) -> Self {
        let text = "the configuration has faults".to_owned();
        Self { exit: Exit::Config, text, hint: None, faults: Some(faults) }
    }
}

impl From<HomeError> for Complaint {
    fn from(error: HomeError) -> Self {
        let hint = error.hint();
        Self { hint, ..Self::new(Exit::Config, error.to_string()) }
    }
}

impl From<LockError> for Complaint {
    fn from(error: LockError) -> Self {
        match &error {
            LockError::Taken { .. } => Self::new(Exit::Taken, error.to_string())
                .hint("one daemon serves one home; `midwatch stop` ends the other, --home names another folder"),
            LockError::Io { .. } => Self::failed(error.to_string()),
        }
    }
}

impl From<StartError> for Complaint {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Home(error) => error.into(),
            StartError::Tools(_) => {
                Self::new(Exit::Config, error.to_string()).hint("make the folder, or name another one")
            }
            other => Self::failed(other.to_string()),
        }
    }
}
