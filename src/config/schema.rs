//! One definition a table: its keys, their types, defaults, ranges and documentation.
//!
//! ```text
//! table! { struct … } ──▶ the struct and its `Default`
//!                     ├─▶ `read`: a parsed table → the struct, every fault noted on the way
//!                     └─▶ `example`: the text that `midwatch config example` prints
//! ```
//!
//! A faulty key keeps its default while reading goes on, so that one run of `check` shows all there is to mend.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use crate::config::secret::{Secret, Source};
use crate::config::{Fault, Place, Placed};

/// A key as it stands in the file.
pub(super) type Key<'t> = Spanned<DeString<'t>>;
/// A value as it stands in the file.
pub(super) type Found<'t> = Spanned<DeValue<'t>>;

/// Reads one file and keeps what is wrong with it.
pub(super) struct Reader<'a> {
    /// The file as faults show it.
    file: PathBuf,
    text: &'a str,
    /// The folder that a relative path in the file refers to.
    pub(super) base: &'a Path,
    faults: Vec<Fault>,
    /// The file is no TOML: a key that seems missing may stand in a line that could not be read.
    broken: bool,
}

impl<'a> Reader<'a> {
    /// Parses `text`, as far as it can be parsed.
    pub(super) fn parse(file: &Path, base: &'a Path, text: &'a str) -> (Self, Spanned<DeTable<'a>>) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut reader = Self { file: file.to_owned(), text, base, faults: Vec::new(), broken: !errors.is_empty() };
        for error in errors {
            // The parser's own words are fixed sentences that quote nothing of the file.
            reader.fault(error.span().unwrap_or(0..0), format!("no valid TOML: {}", error.message()));
        }
        (reader, table)
    }

    /// The faults. A line that is no TOML has that one fault; whatever else it seemed to be is left out.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        let mut kept: Vec<Fault> = Vec::new();
        for fault in self.faults {
            let same_line = |other: &Fault| other.line == fault.line && other.message.starts_with("no valid TOML");
            if !kept.iter().any(same_line) {
                kept.push(fault);
            }
        }
        kept
    }

    pub(super) fn place(&self, at: &Range<usize>) -> Place {
        Place { file: self.file.clone(), line: self.position(at).0 }
    }

    fn position(&self, at: &Range<usize>) -> (usize, usize) {
        let before = self.text.get(..at.start.min(self.text.len())).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        (before.matches('\n').count() + 1, column + 1)
    }

    /// Notes a fault at `at`; the caller may add a hint to it.
    pub(super) fn fault(&mut self, at: Range<usize>, message: impl Into<String>) -> Noted<'_> {
        let (line, column) = self.position(&at);
        let fault = Fault { line: Some(line), column: Some(column), ..Fault::in_file(&self.file, message) };
        self.faults.push(fault);
        Noted(self.faults.last_mut())
    }

    /// Notes that a file lacks something, unless it may stand in a line that could not be read.
    pub(super) fn missing(&mut self, at: Option<Range<usize>>, message: &str, hint: &str) {
        if self.broken {
            return;
        }
        match at {
            Some(at) => self.fault(at, message).hint(hint),
            None => self.faults.push(Fault::in_file(&self.file, message).with_hint(hint)),
        }
    }

    /// Notes that no key of this name exists here.
    pub(super) fn unknown(&mut self, key: &Key<'_>, known: &[&str]) {
        let name = key.get_ref().as_ref();
        let hint = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the keys here are {}", listed(known)),
        };
        self.fault(key.span(), format!("unknown key `{}`", short(name))).hint(hint);
    }

    /// Notes that `what` is known, but nothing this version acts on.
    pub(super) fn not_run(&mut self, at: Range<usize>, what: &str, cure: &str) {
        self.fault(at, format!("{what} is not run by this version")).hint(cure);
    }

    /// The table under `key`.
    pub(super) fn table<'t, 'v>(&mut self, key: &str, value: &'v Found<'t>) -> Option<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(key, value, "a table");
        }
        table
    }

    /// Notes that the value has another type; names the type found, never the value.
    pub(super) fn wrong_type(&mut self, key: &str, value: &Found<'_>, expected: &str) {
        let found = match value.get_ref() {
            // Either a number that is too large, or one where none belongs: the expected type says it.
            DeValue::Integer(_) if expected.contains("number") => String::new(),
            DeValue::Integer(_) | DeValue::Float(_) => ", not a number".to_owned(),
            DeValue::String(_) => ", not a text in quotes".to_owned(),
            DeValue::Boolean(_) => ", not true or false".to_owned(),
            DeValue::Datetime(_) => ", not a date or time".to_owned(),
            DeValue::Array(_) => ", not a list".to_owned(),
            DeValue::Table(_) => ", not a table".to_owned(),
        };
        self.fault(value.span(), format!("`{key}` must be {expected}{found}"));
    }

    fn plain<T: DeserializeOwned>(&mut self, key: &str, value: &Found<'_>, expected: &str) -> Option<T> {
        // serde's message would quote the value, which may be a token in the wrong place; so only its verdict counts.
        let read = T::deserialize(ValueDeserializer::from(value.clone())).ok();
        if read.is_none() {
            self.wrong_type(key, value, expected);
        }
        read
    }

    /// Whether `value` lies in `range`; notes it when it does not.
    pub(super) fn within<T: PartialOrd + Display>(
        &mut self,
        key: &str,
        at: &Found<'_>,
        value: &T,
        range: &RangeInclusive<T>,
    ) -> bool {
        let inside = range.contains(value);
        if !inside {
            self.fault(at.span(), format!("`{key}` must lie between {} and {}", range.start(), range.end()));
        }
        inside
    }

    /// Whether `verdict` is fine; notes it when it is not.
    pub(super) fn holds(&mut self, key: &str, at: &Found<'_>, verdict: Result<(), String>) -> bool {
        match verdict {
            Ok(()) => true,
            Err(reason) => {
                self.fault(at.span(), format!("`{key}` {reason}"));
                false
            }
        }
    }

    /// The items of a list, each with its place; `None` when it is no list.
    fn items<'t, 'v>(&mut self, key: &str, value: &'v Found<'t>, expected: &str) -> Option<&'v [Found<'t>]> {
        let items = value.get_ref().as_array();
        if items.is_none() {
            self.wrong_type(key, value, expected);
        }
        items.map(|items| &**items)
    }
}

/// A fault just noted, which can still get its hint.
pub(super) struct Noted<'a>(Option<&'a mut Fault>);

impl Noted<'_> {
    pub(super) fn hint(self, hint: impl Into<String>) {
        if let Some(fault) = self.0 {
            fault.hint = Some(hint.into());
        }
    }
}

/// Where `key` stands in `table`.
pub(super) fn span_of(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    table.get_key_value(key).map(|(key, _)| key.span())
}

/// The name most like `wrong`, if one is like it at all: a third of its letters may differ.
pub(super) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let far = |name: &str| strsim::damerau_levenshtein(wrong, name);
    names.filter(|name| far(name) <= (name.len() / 3).max(1)).min_by_key(|name| far(name))
}

/// A name from the file for a message. What is long is cut: it may be a token in the wrong place.
pub(super) fn short(name: &str) -> String {
    if name.chars().count() <= 32 {
        name.to_owned()
    } else {
        format!("{}…", name.chars().take(6).collect::<String>())
    }
}

/// `a`, `b`, `c`: names as a message shows them.
pub(super) fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A value that can stand behind a key.
pub(super) trait Value: Sized {
    /// Reads it, or notes what is wrong with it.
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self>;

    /// The value as TOML; nothing when it is absent.
    fn show(&self) -> Option<String>;
}

/// A table of the files, as `table!` defines it.
pub(super) trait Table: Sized {
    /// The names that may stand in it.
    const KEYS: &[&str];

    /// Reads the table; a faulty key keeps its default.
    fn read(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Self;

    /// The table as `midwatch config example` prints it.
    fn example() -> String;
}

macro_rules! plain_values {
    ($($Type:ty, $expected:literal;)*) => {
        $(impl Value for $Type {
            fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
                reader.plain(key, value, $expected)
            }

            fn show(&self) -> Option<String> {
                Some(format!("{self:?}"))
            }
        })*
    };
}

plain_values! {
    bool, "true or false";
    u32, "a whole number above 0";
    u64, "a whole number above 0";
    f64, "a number";
    String, "a text in quotes";
}

impl<T: Value> Value for Option<T> {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        T::read(reader, key, value).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }
}

/// Notes that a name stands where only an id counts: names can be released, and taken by someone else.
fn no_username(reader: &mut Reader<'_>, key: &str, item: &Found<'_>) {
    reader.fault(item.span(), format!("`{key}` takes numeric ids, not names")).hint(
        "only numeric ids authorise, since a username can be released and taken by someone else; \
         `midwatch status` shows the ids of chats that wrote to the bot in the last day",
    );
}

/// A chat's id.
impl Value for i64 {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        if value.get_ref().is_str() {
            no_username(reader, key, value);
            return None;
        }
        reader.plain(key, value, "a whole number")
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Ids of people.
impl Value for Vec<u64> {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        let items = reader.items(key, value, "a list of numeric ids, such as [123456789]")?;
        let mut ids = Vec::new();
        for item in items {
            if item.get_ref().is_str() {
                no_username(reader, key, item);
            } else if let Some(id) = reader.plain::<i64>(key, item, "a list of whole numbers") {
                match u64::try_from(id) {
                    Ok(id) if id > 0 => ids.push(id),
                    _ => reader
                        .fault(item.span(), format!("`{key}` takes ids of people, which are above 0"))
                        .hint("a number below 0 is a group's id; a group cannot be a sender"),
                }
            }
        }
        Some(ids)
    }

    fn show(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }
}

/// Grants, each with its place: a higher room parses them.
impl Value for Placed {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        let text = reader.plain::<String>(key, value, "a text in quotes")?;
        Some(Self { text, place: reader.place(&value.span()) })
    }

    fn show(&self) -> Option<String> {
        Some(format!("{:?}", self.text))
    }
}

impl Value for Vec<Placed> {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        let items = reader.items(key, value, "a list of grants, such as [\"read_file\"]")?;
        let mut grants = Vec::new();
        for item in items {
            match item.get_ref().as_str() {
                Some(text) => grants.push(Placed { text: text.to_owned(), place: reader.place(&item.span()) }),
                None => reader.wrong_type(key, item, "a list of texts in quotes"),
            }
        }
        Some(grants)
    }

    fn show(&self) -> Option<String> {
        let texts: Vec<_> = self.iter().map(|grant| &grant.text).collect();
        Some(format!("{texts:?}"))
    }
}

/// How a secret is given; said wherever one is given another way.
const SECRET_HINT: &str = "write { env = \"NAME\" }, { file = \"PATH\" } or { credential = \"NAME\" }; a secret that stood in \
                           this file in clear should be renewed";

impl Value for Secret {
    fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
        let place = Some(reader.place(&value.span()));
        let Some(table) = value.get_ref().as_table() else {
            reader
                .fault(value.span(), format!("`{key}` must say where the secret lies, not hold it"))
                .hint(SECRET_HINT);
            return None;
        };
        let mut entries = table.iter();
        let (Some((kind, given)), None) = (entries.next(), entries.next()) else {
            reader.fault(value.span(), format!("`{key}` must name exactly one source")).hint(SECRET_HINT);
            return None;
        };
        let text = given.get_ref().as_str().unwrap_or_default();
        let plain = |more: &[char]| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(&c));
        // A token pasted where a name belongs must not come back in the message that the name is not known.
        let fits = !text.is_empty() && text.len() <= 64 && !text.starts_with("sk-");
        let (source, complaint) = match kind.get_ref().as_ref() {
            "env" => {
                let fits = fits && plain(&['_']) && !text.starts_with(|c: char| c.is_ascii_digit());
                (fits.then(|| Source::Env(text.to_owned())), "the name of an environment variable")
            }
            "credential" => {
                let fits = fits && plain(&['_', '-', '.']) && !text.starts_with('.');
                (fits.then(|| Source::Credential(text.to_owned())), "the name of a systemd credential")
            }
            "file" => {
                let fits = !text.is_empty() && !text.starts_with(['~', '$']) && !looks_secret(text);
                (fits.then(|| Source::File(reader.base.join(text))), "a file's path; `~` and `$` are not expanded")
            }
            _ => {
                reader.fault(kind.span(), format!("`{key}` names no known kind of source")).hint(SECRET_HINT);
                return None;
            }
        };
        if source.is_none() {
            reader.fault(given.span(), format!("`{key}.{}` must be {complaint}", kind.get_ref())).hint(SECRET_HINT);
        }
        source.map(|source| Self { source, place })
    }

    fn show(&self) -> Option<String> {
        Some(match &self.source {
            Source::Env(name) => format!("{{ env = {name:?} }}"),
            Source::File(path) => format!("{{ file = {:?} }}", path.display().to_string()),
            Source::Credential(name) => format!("{{ credential = {name:?} }}"),
            Source::Held(_) => return None,
        })
    }
}

/// A bot's token or an API key where a path belongs.
fn looks_secret(text: &str) -> bool {
    let bot_token =
        text.split_once(':').is_some_and(|(id, _)| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()));
    bot_token || text.starts_with("sk-")
}

/// Defines a table of the configuration.
///
/// A key is `name: Type = default`, then, where they apply, `in` a range, `if` a check of the value, and `like` a
/// sample that the example shows (commented out) for a key without a default. `not run` names keys that are known but
/// refused, with the cure; `besides` names those the caller reads itself.
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $Name:ident = $header:literal {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $Type:ty = $default:expr
                    $(, in $range:expr)? $(, if $check:expr)? $(, like $sample:literal)?;
            )*
            $(not run $late:ident, $cure:literal;)*
            $(besides $other:ident;)*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $Name {
            $($(#[doc = $doc])+ $vis $key: $Type,)*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl Table for $Name {
            const KEYS: &[&str] = &[$(stringify!($key),)* $(stringify!($late),)* $(stringify!($other),)*];

            fn read(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Self {
                let mut read = Self::default();
                for (key, value) in table {
                    match key.get_ref().as_ref() {
                        $(name if name == stringify!($key) => {
                            if let Some(found) = <$Type as Value>::read(reader, name, value)
                                $(&& reader.within(name, value, &found, &$range))?
                                $(&& reader.holds(name, value, $check(&found)))?
                            {
                                read.$key = found;
                            }
                        })*
                        $(name if name == stringify!($late) => {
                            reader.not_run(key.span(), &format!("`{name}`"), $cure);
                        })*
                        $(stringify!($other) => {})*
                        _ => reader.unknown(key, Self::KEYS),
                    }
                }
                read
            }

            fn example() -> String {
                let mut text = String::new();
                $(text.push_str(concat!("#", $about, "\n"));)+
                text.push_str($header);
                let shown = Self::default();
                $(
                    $(text.push_str(concat!("#", $doc, "\n"));)+
                    // A sample stands for a default that would not be accepted if it were written down.
                    let sample = concat!($("# ", stringify!($key), " = ", $sample, "\n")?);
                    match Value::show(&shown.$key) {
                        Some(value) if sample.is_empty() => {
                            text.push_str(&format!("{} = {value}\n", stringify!($key)));
                        }
                        _ => text.push_str(sample),
                    }
                )*
                text
            }
        }
    };
}

/// Defines a choice between words. Those after `not run` are known but refused, with the cure.
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        pub enum $Name:ident { $($(#[doc = $doc:literal])+ $Word:ident = $word:literal,)+ }
        $(not run { $($late:literal, $cure:literal;)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Name { $($(#[doc = $doc])+ $Word,)+ }

        impl $Name {
            /// Every word that this version runs.
            pub const ALL: &[Self] = &[$(Self::$Word,)+];

            /// The word in the files.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$Word => $word,)+ }
            }
        }

        impl Value for $Name {
            fn read(reader: &mut Reader<'_>, key: &str, value: &Found<'_>) -> Option<Self> {
                let Some(word) = value.get_ref().as_str() else {
                    reader.wrong_type(key, value, "a word in quotes");
                    return None;
                };
                match word {
                    $($word => return Some(Self::$Word),)+
                    $($($late => reader.not_run(value.span(), concat!("`", $late, "`"), $cure),)+)?
                    _ => {
                        let known = [$($word,)+];
                        let hint = nearest(word, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
                        let noted = reader.fault(value.span(), format!("`{key}` must be one of {}", listed(&known)));
                        if let Some(hint) = hint {
                            noted.hint(hint);
                        }
                    }
                }
                None
            }

            fn show(&self) -> Option<String> {
                Some(format!("{:?}", self.as_str()))
            }
        }
    };
}
