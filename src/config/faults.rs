//! What is wrong with the files, each fault with its place and, where there is one, its cure.
//!
//! A message never holds a value that could be a secret: what is echoed are names of keys, links and files.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A line of a file, to which a later complaint can point.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// The file, relative to the configuration's folder where it lies in it.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// One thing that is wrong. Prints as `error: file:line: message`, and a line `hint: …` where there is a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The file, relative to the configuration's folder where it lies in it.
    #[serde(serialize_with = "lossy")]
    pub file: PathBuf,
    /// The line, counted from 1; none when the whole file or folder is meant.
    pub line: Option<usize>,
    /// The column in characters, counted from 1, where it is known.
    pub column: Option<usize>,
    /// What is wrong, without a full stop.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault of a whole file.
    #[must_use]
    pub fn in_file(file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        let file = file.as_ref().to_owned();
        Self { file, line: None, column: None, message: message.into(), hint: None }
    }

    /// A fault of one line.
    #[must_use]
    pub fn at(place: &Place, message: impl Into<String>) -> Self {
        Self { line: Some(place.line), ..Self::in_file(&place.file, message) }
    }

    /// The same with a hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// A path that is not UTF-8 must not make the report of the other faults fail.
fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\nhint: {hint}"))
    }
}

/// All faults of one reading, by file and line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Sorts `faults`; equal ones count once.
    #[must_use]
    pub fn new(mut faults: Vec<Fault>) -> Self {
        faults.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        faults.dedup();
        Self(faults)
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The faults, by file and line.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.0.iter()
    }

    /// The faults, by file and line, for a caller that has more to add.
    #[must_use]
    pub fn into_vec(self) -> Vec<Fault> {
        self.0
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.0.iter().enumerate() {
            let gap = if number == 0 { "" } else { "\n" };
            write!(f, "{gap}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_by_file_and_line_and_as_json() {
        let place = |file: &str, line| Place { file: file.into(), line };
        let faults = Faults::new(vec![
            Fault::at(&place("midwatch.toml", 9), "late"),
            Fault::at(&place("channels/telegram.toml", 4), "unknown key `chta`").with_hint("did you mean `chat`?"),
            Fault::at(&place("midwatch.toml", 9), "late"),
            Fault::in_file("midwatch.toml", "there is no `[model]` table"),
        ]);
        insta::assert_snapshot!(faults, @"
error: channels/telegram.toml:4: unknown key `chta`
hint: did you mean `chat`?
error: midwatch.toml: there is no `[model]` table
error: midwatch.toml:9: late
");
        insta::assert_snapshot!(serde_json::to_string(&faults.into_vec()[0]).unwrap(), @r#"{"file":"channels/telegram.toml","line":4,"column":null,"message":"unknown key `chta`","hint":"did you mean `chat`?"}"#);
    }
}
