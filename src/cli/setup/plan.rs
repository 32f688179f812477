//! The files as they will be, held against what is there, and written all at once.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::answers::{Given, GivenBot};
use crate::cli::complain::{Complaint, Exit};
use crate::config::edit::{self, Edited, Lies, ModelAnswers};
use crate::config::{Config, Draft, Home, read_all};

/// Files with a secret in them or beside them are their owner's alone.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// A configuration is small; what is larger is something else.
const OLD_MAX_BYTES: u64 = 1 << 20;

/// The files that are there.
pub(super) struct Old {
    main: Option<String>,
    telegram: Option<String>,
    config: Option<Config>,
}

impl Old {
    /// Reads what is there; a missing file is none.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub(super) fn read(home: &Home) -> Result<Self, Complaint> {
        let (main, telegram) = (text_of(&home.config_file())?, text_of(&telegram_path(home))?);
        let config = main.as_ref().and_then(|_| read_all(home).0);
        Ok(Self { main, telegram, config })
    }

    /// Whether the files are still as they were read: the daemon adds a link to one while this talks.
    ///
    /// # Errors
    /// They are not, or cannot be read any more.
    pub(super) fn still_holds(&self, home: &Home) -> Result<(), Complaint> {
        for (path, old) in [(home.config_file(), &self.main), (telegram_path(home), &self.telegram)] {
            if text_of(&path)? != *old {
                return Err(Complaint::failed(format!(
                    "{} was changed meanwhile; nothing was written",
                    path.display()
                ))
                .hint("run `midwatch setup` again"));
            }
        }
        Ok(())
    }

    /// The model that is configured now.
    pub(super) fn model(&self, home: &Home) -> Option<ModelAnswers> {
        let model = &self.config.as_ref()?.model;
        let filled = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Some(ModelAnswers {
            provider: model.provider,
            model: filled(&model.model),
            base_url: filled(&model.base_url),
            api_key: model.api_key.as_ref().and_then(|key| Lies::of(key, &home.config)),
        })
    }

    /// The bot that is configured now.
    pub(super) fn bot(&self, home: &Home) -> Option<GivenBot> {
        let account = self.config.as_ref()?.telegram.iter().find(|account| account.name == "telegram")?;
        let token = Given::Named(Lies::of(&account.token, &home.config)?);
        let api_url = Some(account.api_url.clone()).filter(|url| url != "https://api.telegram.org");
        Some(GivenBot { token, api_url })
    }
}

fn telegram_path(home: &Home) -> PathBuf {
    home.channels_dir().join("telegram.toml")
}

fn text_of(path: &Path) -> Result<Option<String>, Complaint> {
    let cannot = |why: String| Complaint::new(Exit::Config, format!("cannot read {}: {why}", path.display()));
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(error.to_string())),
        Ok(meta) if !meta.is_file() => return Err(cannot("it is no file".to_owned())),
        Ok(meta) if meta.len() > OLD_MAX_BYTES => return Err(cannot("it is too large for a configuration".to_owned())),
        Ok(_) => {}
    }
    std::fs::read_to_string(path).map(Some).map_err(|error| cannot(error.to_string()))
}

/// One file.
struct Planned {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Something is there already.
    is_there: bool,
    /// What becomes different in it.
    changes: Vec<String>,
}

impl Planned {
    fn of_text(path: PathBuf, is_there: bool, edited: Edited) -> Self {
        Self { path, bytes: edited.text.into_bytes(), is_there, changes: edited.changes }
    }

    fn of_secret(path: PathBuf, secret: &str) -> Result<Self, Complaint> {
        let there = text_of(&path)?;
        let is_same = there.as_ref().is_some_and(|there| there.trim() == secret);
        let changes = if is_same { Vec::new() } else { vec!["another secret".to_owned()] };
        Ok(Self { path, bytes: format!("{secret}\n").into_bytes(), is_there: there.is_some(), changes })
    }

    fn is_new_or_changed(&self) -> bool {
        !self.is_there || !self.changes.is_empty()
    }
}

/// All files, in the order in which they are put into their places: what is named before what names it.
pub(super) struct Plan {
    files: Vec<Planned>,
    main: String,
    telegram: Option<String>,
}

impl Plan {
    /// Works the answers into the files.
    ///
    /// # Errors
    /// A file that is there cannot be edited.
    pub(super) fn make(
        home: &Home,
        old: &Old,
        (model, key): &(ModelAnswers, Option<Given>),
        bot: Option<&GivenBot>,
        operator: &[u64],
    ) -> Result<Self, Complaint> {
        let unfit = |path: &Path| {
            Complaint::new(Exit::Config, format!("{} is not in a state to be edited", path.display()))
                .hint("`midwatch check` says what is wrong with it")
        };
        let mut files = Vec::new();
        for given in key.iter().chain(bot.map(|bot| &bot.token)) {
            if let Given::Typed { value, file } = given {
                files.push(Planned::of_secret(home.config.join(file), value.expose())?);
            }
        }
        let mut telegram = old.telegram.clone();
        if let Some(bot) = bot {
            let path = telegram_path(home);
            let edited = edit::telegram_file(old.telegram.as_deref(), &bot.answers()).map_err(|_| unfit(&path))?;
            telegram = Some(edited.text.clone());
            files.push(Planned::of_text(path, old.telegram.is_some(), edited));
        }
        let path = home.config_file();
        let edited = edit::main_file(old.main.as_deref(), model, operator).map_err(|_| unfit(&path))?;
        let main = edited.text.clone();
        files.push(Planned::of_text(path, old.main.is_some(), edited));
        Ok(Self { files, main, telegram })
    }

    /// Reads the files as they will be, with the parser that `serve` uses.
    ///
    /// # Errors
    /// An answer that the parser does not take: wrong usage.
    pub(super) fn parsed(&self, home: &Home) -> Result<Config, Complaint> {
        let io = |error: io::Error| Complaint::failed(format!("the answers cannot be tried out: {error}"));
        // The texts name secrets and hold none, so a copy of them may lie in the system's folder for a moment.
        let folder = tempfile::Builder::new().prefix("midwatch-").tempdir().map_err(io)?;
        let staged = Home { config: folder.path().to_owned(), ..home.clone() };
        std::fs::create_dir(staged.channels_dir()).map_err(io)?;
        for entry in std::fs::read_dir(home.channels_dir()).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.extension().is_some_and(|extension| extension == "toml")
                && let Ok(Some(text)) = text_of(&path)
            {
                std::fs::write(staged.channels_dir().join(name), text).map_err(io)?;
            }
        }
        std::fs::write(staged.config_file(), &self.main).map_err(io)?;
        if let Some(telegram) = &self.telegram {
            std::fs::write(telegram_path(&staged), telegram).map_err(io)?;
        }
        let (config, faults) = read_all(&staged);
        match (config, faults.first()) {
            (Some(mut config), None) => {
                // A path beneath the configuration's folder means the real one.
                let models = std::iter::once(&mut config.model).chain(&mut config.fallback);
                let keys = models.filter_map(|model| model.api_key.as_mut());
                for secret in keys.chain(config.telegram.iter_mut().map(|account| &mut account.token)) {
                    secret.rebase(&staged.config, &home.config);
                }
                Ok(config)
            }
            (_, fault) => {
                let what = fault.map_or_else(
                    || "the files cannot be read".to_owned(),
                    |fault| format!("{}: {}", fault.file.display(), fault.message),
                );
                let complaint = Complaint::new(Exit::Usage, format!("{what}; nothing was written"));
                Err(match fault.and_then(|fault| fault.hint.clone()) {
                    Some(hint) => complaint.hint(hint),
                    None => complaint,
                })
            }
        }
    }

    /// What becomes different in files that are there, for people; empty when nothing does.
    pub(super) fn changes(&self) -> String {
        let mut text = String::new();
        for file in self.files.iter().filter(|file| file.is_there && !file.changes.is_empty()) {
            text.push_str(&format!("{}\n", file.path.display()));
            for change in &file.changes {
                text.push_str(&format!("  {change}\n"));
            }
        }
        text.trim_end().to_owned()
    }

    /// Writes every file that is new or different, all or none.
    ///
    /// # Errors
    /// What could not be written.
    pub(super) fn write(&self, home: &Home) -> Result<(), Complaint> {
        // From here it takes a moment; a Ctrl-C in it must not leave half of the files.
        let ignored = Arc::new(AtomicBool::new(false));
        let guard = signal_hook::flag::register(signal_hook::consts::SIGINT, ignored);
        let written = self.put(home);
        if let Ok(id) = guard {
            signal_hook::low_level::unregister(id);
        }
        written
    }

    fn put(&self, home: &Home) -> Result<(), Complaint> {
        let mut folders = DirBuilder::new();
        folders.recursive(true).mode(FOLDER_MODE);
        let mut drafts = Vec::new();
        for file in self.files.iter().filter(|file| file.is_new_or_changed()) {
            let cannot = |error: io::Error| {
                Complaint::failed(format!("cannot write {}: {error}", file.path.display()))
                    .hint("look at the folder's owner and at the disk; the files are as they were")
            };
            let folder = file.path.parent().unwrap_or(&home.config);
            folders.create(folder).map_err(cannot)?;
            // Through a symbolic link to the file that it names, or the rename would put a copy in the link's place.
            let target = if file.is_there { file.path.canonicalize().map_err(cannot)? } else { file.path.clone() };
            let is_secret = folder.ends_with("secrets");
            if is_secret {
                std::fs::set_permissions(folder, std::fs::Permissions::from_mode(FOLDER_MODE)).map_err(cannot)?;
            }
            let draft = match file.is_there && !is_secret {
                true => Draft::like(&target, &file.bytes),
                false => Draft::new(&target, &file.bytes, FILE_MODE),
            };
            drafts.push((draft.map_err(cannot)?, &file.path));
        }
        for (draft, path) in drafts {
            draft.put().map_err(|error| {
                Complaint::failed(format!("cannot put {} in its place: {error}", path.display()))
                    .hint("run `midwatch setup` again: what is written already is kept")
            })?;
        }
        Ok(())
    }

    /// The files that were written.
    pub(super) fn written(&self) -> Vec<String> {
        self.shown(Planned::is_new_or_changed)
    }

    /// The files that said it already.
    pub(super) fn unchanged(&self) -> Vec<String> {
        self.shown(|file| !file.is_new_or_changed())
    }

    fn shown(&self, which: impl Fn(&Planned) -> bool) -> Vec<String> {
        self.files.iter().filter(|file| which(file)).map(|file| file.path.display().to_string()).collect()
    }
}
