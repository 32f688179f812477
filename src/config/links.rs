//! Pairing writes a `[[link]]` table into a channel file, at its end, so that nothing the operator wrote is touched.

use std::io;
use std::path::{Path, PathBuf};

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use crate::config::tables::is_name;
use crate::config::{Draft, Mention, load};

/// A link to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLink {
    /// Its name, free among all links ([`free_name`]).
    pub name: String,
    /// The chat's id.
    pub chat: i64,
    /// Who may speak.
    pub senders: Vec<u64>,
    /// When a message is meant for the agent, where the default is not wanted.
    pub mention: Option<Mention>,
    /// Grants.
    pub allow: Vec<String>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The link stands at the end of the file.
    Written,
    /// The chat had a link already; the file is as it was.
    Already {
        /// That link's name.
        name: String,
    },
}

/// Why nothing was written. The file is as it was, but for [`AppendError::Write`] when only the last flush failed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The file cannot be read.
    #[error("cannot read {file}: {reason}")]
    Read {
        /// The file.
        file: PathBuf,
        /// Why, in words.
        reason: String,
    },
    /// The file is no TOML, or would be none afterwards.
    #[error("{file} is not in a state to add a link to")]
    Unfit {
        /// The file.
        file: PathBuf,
    },
    /// Another link has the name.
    #[error("{file} has a link `{name}` for another chat")]
    NameTaken {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// The name is none a link can have, or the chat is 0.
    #[error("no link can have the name `{name}` and the chat {chat}")]
    Invalid {
        /// The name.
        name: String,
        /// The chat.
        chat: i64,
    },
    /// The file cannot be written.
    #[error("cannot write {file}")]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl AppendError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unfit { .. } => {
                Some("`midwatch check` says what is wrong; links must be headed `[[link]]`".to_owned())
            }
            Self::NameTaken { .. } => Some("choose another name".to_owned()),
            Self::Invalid { .. } => Some("a name is 1 to 32 of a-z, 0-9, - and _".to_owned()),
            Self::Read { .. } | Self::Write { .. } => None,
        }
    }
}

/// Appends `link` to the channel file `file`: all of it or nothing, durable on return, the file's mode kept.
///
/// # Errors
/// See [`AppendError`]. Calling again is safe: a chat that has a link gets no second one.
pub fn append_link(file: &Path, link: &NewLink) -> Result<Appended, AppendError> {
    if !is_name(&link.name) || link.chat == 0 {
        return Err(AppendError::Invalid { name: link.name.clone(), chat: link.chat });
    }
    // Through a symbolic link to the file that it names, or the rename would put a copy in the link's place.
    let unreadable = |reason: String| AppendError::Read { file: file.to_owned(), reason };
    let target = file.canonicalize().map_err(|err| unreadable(err.to_string()))?;
    let text = load::read(&target).map_err(|err| unreadable(err.message))?;
    let unfit = || AppendError::Unfit { file: file.to_owned() };
    let document: DocumentMut = text.parse().map_err(|_| unfit())?;
    let tables = match document.get("link") {
        None => &ArrayOfTables::new(),
        Some(item) => item.as_array_of_tables().ok_or_else(unfit)?,
    };
    let name_of = |table: &Table| table.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
    if let Some(table) = tables.iter().find(|table| table.get("chat").and_then(Item::as_integer) == Some(link.chat)) {
        return Ok(Appended::Already { name: name_of(table) });
    }
    if tables.iter().any(|table| name_of(table) == link.name) {
        return Err(AppendError::NameTaken { file: file.to_owned(), name: link.name.clone() });
    }
    // The old text stays byte for byte; the new table is only put after it.
    let gap = if text.is_empty() || text.ends_with('\n') { "\n" } else { "\n\n" };
    let text = format!("{text}{gap}{}", rendered(link));
    text.parse::<DocumentMut>().map_err(|_| unfit())?;
    Draft::like(&target, text.as_bytes())
        .and_then(Draft::put)
        .map_err(|source| AppendError::Write { file: file.to_owned(), source })?;
    Ok(Appended::Written)
}

fn rendered(link: &NewLink) -> String {
    let mut table = Table::new();
    table.insert("name", value(link.name.as_str()));
    table.insert("chat", value(link.chat));
    // An id above i64 exists on no platform; TOML could not hold it either.
    table.insert("senders", value(link.senders.iter().filter_map(|id| i64::try_from(*id).ok()).collect::<Array>()));
    if let Some(mention) = link.mention {
        table.insert("mention", value(mention.as_str()));
    }
    table.insert("allow", value(link.allow.iter().map(String::as_str).collect::<Array>()));
    let mut tables = ArrayOfTables::new();
    tables.push(table);
    let mut document = DocumentMut::new();
    document.insert("link", Item::ArrayOfTables(tables));
    document.to_string()
}

/// A link name like `wanted`, which may be a chat's title, that is not among `existing`: `home`, else `home-2` and so on.
#[must_use]
pub fn free_name(existing: &[impl AsRef<str>], wanted: &str) -> String {
    let mut base = String::new();
    for c in wanted.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() || c == '_' {
            base.push(c);
        } else if !base.is_empty() && !base.ends_with('-') {
            base.push('-');
        }
    }
    // Leaves room for a number within the 32 that a name may have.
    base.truncate(24);
    let base = base.trim_end_matches('-');
    let base = if base.is_empty() { "chat" } else { base };
    let taken = |name: &str| existing.iter().any(|existing| existing.as_ref() == name);
    let numbered = (2_u32..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.to_owned()).chain(numbered).find(|name| !taken(name)).unwrap_or_else(|| base.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn link(name: &str, chat: i64) -> NewLink {
        let allow = vec!["read_file".to_owned(), "write_file(a\"b)".to_owned()];
        NewLink { name: name.to_owned(), chat, senders: vec![5], mention: Some(Mention::Always), allow }
    }

    #[test]
    fn a_link_is_put_at_the_end_and_nothing_else_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("telegram.toml");
        let before =
            "# mine\nkind   = 'telegram' # odd spacing\n\n[[link]]\nname = \"home\"\nchat = 5\n# the last word";
        std::fs::write(&file, before).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let other_way = dir.path().join("linked.toml");
        std::os::unix::fs::symlink(&file, &other_way).unwrap();

        assert_eq!(append_link(&other_way, &link("group", -100)).unwrap(), Appended::Written);
        let after = std::fs::read_to_string(&file).unwrap();
        assert!(after.starts_with(before));
        insta::assert_snapshot!(after[before.len()..], @r#"


[[link]]
name = "group"
chat = -100
senders = [5]
mention = "always"
allow = ["read_file", 'write_file(a"b)']
"#);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(std::fs::symlink_metadata(&other_way).unwrap().is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");

        let again = append_link(&file, &link("other", -100)).unwrap();
        assert_eq!(again, Appended::Already { name: "group".to_owned() });
        assert!(matches!(append_link(&file, &link("home", 7)), Err(AppendError::NameTaken { .. })));
        assert!(matches!(append_link(&file, &link("Home", 7)), Err(AppendError::Invalid { .. })));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), after);
    }

    #[test]
    fn a_file_that_is_not_fit_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("telegram.toml");
        assert!(matches!(append_link(&file, &link("a", 1)), Err(AppendError::Read { .. })));
        for text in ["kind = ", "link = [{ name = \"a\", chat = 1 }]\n", "[link]\n"] {
            std::fs::write(&file, text).unwrap();
            assert!(matches!(append_link(&file, &link("b", 2)), Err(AppendError::Unfit { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn a_title_becomes_a_name_that_is_free() {
        for (existing, wanted, expected) in [
            (&["home"][..], "Home", "home-2"),
            (&["home", "home-2"], "home", "home-3"),
            (&[], "Family & Friends!", "family-friends"),
            (&[], "Семья", "chat"),
            (&["chat"], "", "chat-2"),
            (&[], "A very long title of a group of people", "a-very-long-title-of-a-g"),
        ] {
            let name = free_name(existing, wanted);
            assert_eq!(name, expected);
            assert!(is_name(&name));
        }
    }
}
