//! Secrets are handles: the configuration says where one lies, and only the sender of a request looks there.
//!
//! `{ env = "NAME" }`, `{ file = "PATH" }` or `{ credential = "NAME" }` (systemd). Neither a handle nor a value prints
//! what it holds, and an error names the source, never the content.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Fault, Place};

/// Keys and tokens are short; more than this is the wrong file.
pub const SECRET_MAX_BYTES: usize = 8 * 1024;

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Source {
    Env(String),
    File(PathBuf),
    Credential(String),
    /// Typed just now: it lies nowhere yet.
    Held(Arc<str>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the environment variable `{name}`"),
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Credential(name) => write!(f, "the systemd credential `{name}`"),
            Self::Held(_) => f.write_str("what was typed"),
        }
    }
}

/// Where a secret lies. Prints as `***`; two are equal when they name the same source.
#[derive(Clone)]
pub struct Secret {
    pub(super) source: Source,
    pub(super) place: Option<Place>,
}

/// A secret itself. Prints as `***`, cannot be cloned, and leaves only through [`SecretValue::expose`].
pub struct SecretValue(String);

/// Why a secret could not be had. Names the source, never the content.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not set.
    #[error("{from} is not set")]
    Unset {
        /// The source, in words.
        from: String,
    },
    /// systemd passed no credentials to this process.
    #[error("{from} is not there: `CREDENTIALS_DIRECTORY` is not set")]
    NoCredentials {
        /// The source, in words.
        from: String,
    },
    /// The file or credential cannot be read.
    #[error("cannot read {from}")]
    Read {
        /// The source, in words.
        from: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing in it.
    #[error("{from} is empty")]
    Empty {
        /// The source, in words.
        from: String,
    },
    /// More than [`SECRET_MAX_BYTES`].
    #[error("{from} holds more than {SECRET_MAX_BYTES} bytes, so it is no key or token")]
    TooLong {
        /// The source, in words.
        from: String,
    },
    /// More than one line, control characters, or not UTF-8.
    #[error("{from} does not hold one line of plain text")]
    NotOneLine {
        /// The source, in words.
        from: String,
    },
}

impl SecretError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Unset { .. } => "set it where the daemon starts, or give `{ file = \"…\" }` instead",
            Self::NoCredentials { .. } => "`LoadCredential=` of the systemd unit passes one",
            Self::Read { .. } => return None,
            Self::Empty { .. } | Self::TooLong { .. } | Self::NotOneLine { .. } => {
                "it has to hold the key or token alone, on one line"
            }
        };
        Some(hint.to_owned())
    }
}

impl Secret {
    /// The secret in the environment variable `name`.
    #[must_use]
    pub fn env(name: impl Into<String>) -> Self {
        Self { source: Source::Env(name.into()), place: None }
    }

    /// The secret in the file `path`, which should be absolute.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { source: Source::File(path.into()), place: None }
    }

    /// The credential `name` that systemd passes to the unit.
    #[must_use]
    pub fn credential(name: impl Into<String>) -> Self {
        Self { source: Source::Credential(name.into()), place: None }
    }

    /// A secret that somebody typed just now, to be tried out before it is put anywhere.
    #[must_use]
    pub fn held(text: &SecretValue) -> Self {
        Self { source: Source::Held(text.expose().into()), place: None }
    }

    /// Where it lies, in words for people: `the environment variable `OPENAI_API_KEY``.
    #[must_use]
    pub fn describe(&self) -> String {
        self.source.to_string()
    }

    /// Whether what is found depends on the process that looks: its environment, or its credentials.
    #[must_use]
    pub fn is_of_process(&self) -> bool {
        matches!(self.source, Source::Env(_) | Source::Credential(_))
    }

    /// Refers a path beneath the folder `from` to the folder `to` instead.
    pub fn rebase(&mut self, from: &Path, to: &Path) {
        if let Source::File(path) = &mut self.source
            && let Ok(rest) = path.strip_prefix(from)
        {
            *path = to.join(rest);
        }
    }

    /// Fetches the secret, without the line break at its end.
    ///
    /// # Errors
    /// Each [`SecretError`] names the source. Trying again helps only after someone changed it.
    pub fn resolve(&self) -> Result<SecretValue, SecretError> {
        self.resolve_with(|name| std::env::var_os(name))
    }

    /// [`resolve`](Self::resolve) with the environment as an argument, which a test cannot change safely.
    fn resolve_with(&self, env: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<SecretValue, SecretError> {
        let from = self.describe();
        let bytes = match &self.source {
            Source::Env(name) => match env(name) {
                Some(value) => value.into_encoded_bytes(),
                None => return Err(SecretError::Unset { from }),
            },
            Source::File(path) => read(path).map_err(|source| SecretError::Read { from: from.clone(), source })?,
            Source::Credential(name) => {
                let Some(folder) = env("CREDENTIALS_DIRECTORY") else {
                    return Err(SecretError::NoCredentials { from });
                };
                let path = Path::new(&folder).join(name);
                read(&path).map_err(|source| SecretError::Read { from: from.clone(), source })?
            }
            Source::Held(text) => text.as_bytes().to_vec(),
        };
        if bytes.len() > SECRET_MAX_BYTES {
            return Err(SecretError::TooLong { from });
        }
        let Ok(mut text) = String::from_utf8(bytes) else { return Err(SecretError::NotOneLine { from }) };
        text.truncate(text.trim_end_matches(['\n', '\r']).len());
        if text.trim().is_empty() {
            return Err(SecretError::Empty { from });
        }
        if text.chars().any(char::is_control) {
            return Err(SecretError::NotOneLine { from });
        }
        Ok(SecretValue(text))
    }

    /// What is wrong with the file of this secret, looked at from outside: it is not opened.
    #[must_use]
    pub fn check(&self) -> Option<Fault> {
        let Source::File(path) = &self.source else { return None };
        let fault = |message: String| match &self.place {
            Some(place) => Fault::at(place, message),
            None => Fault::in_file(path, message),
        };
        let meta = match std::fs::metadata(path) {
            Ok(meta) => meta,
            Err(err) => return Some(fault(format!("cannot look at the secret's file {}: {err}", path.display()))),
        };
        if !meta.is_file() {
            return Some(fault(format!("the secret's file {} is not a regular file", path.display())));
        }
        if meta.permissions().mode() & 0o077 != 0 {
            let open = fault(format!("the secret's file {} is open to others than its owner", path.display()));
            return Some(open.with_hint(format!("chmod 600 {}", path.display())));
        }
        None
    }
}

/// Reads a small regular file; one byte above the limit is enough to know that it is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(SECRET_MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl SecretValue {
    /// A secret that came some other way than through the configuration.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret in clear, for the one request that carries it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_handle_nor_a_value_prints_what_it_holds() {
        let value = SecretValue::new("123:ABC");
        let shown = format!("{value:?} {value} {:?} {}", Secret::env("TOKEN"), Secret::env("TOKEN"));
        assert_eq!(shown, "*** *** *** ***");
        assert_eq!(value.expose(), "123:ABC");
    }

    #[test]
    fn a_value_is_one_line_without_its_end() {
        for (name, content, expected) in [
            ("plain", "123:ABC", "123:ABC"),
            ("line break at the end", "123:ABC\r\n", "123:ABC"),
            ("empty", "\n", "the environment variable `T` is empty"),
            (
                "two lines",
                "Use this token:\n123:ABC\n",
                "the environment variable `T` does not hold one line of plain text",
            ),
            (
                "too long",
                &"x".repeat(SECRET_MAX_BYTES + 1),
                "the environment variable `T` holds more than 8192 bytes, so it is no key or token",
            ),
        ] {
            let got = Secret::env("T").resolve_with(|_| Some(content.into()));
            assert_eq!(got.map_or_else(|err| err.to_string(), |value| value.0), expected, "{name}");
        }
        let unset = Secret::env("T").resolve_with(|_| None).unwrap_err();
        assert_eq!(unset.to_string(), "the environment variable `T` is not set");
    }

    #[test]
    fn files_and_credentials_are_read_and_open_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "abc\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let secret = Secret::file(&path);
        assert_eq!(secret.resolve().unwrap().expose(), "abc");
        assert!(secret.check().unwrap().hint.unwrap().starts_with("chmod 600 "));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(secret.check(), None);
        let credential = Secret::credential("key");
        assert_eq!(credential.resolve_with(|_| Some(dir.path().into())).unwrap().expose(), "abc");
        assert!(matches!(credential.resolve_with(|_| None), Err(SecretError::NoCredentials { .. })));
        assert!(Secret::file(dir.path()).check().is_some());
        assert!(matches!(Secret::file(dir.path()).resolve(), Err(SecretError::Read { .. })));
    }
}
