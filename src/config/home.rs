//! The folders of a deployment: configuration, data, state, and what lives only while the daemon runs.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The kernel takes 107 bytes for a Unix socket's path; a little less leaves room for other systems' limits.
pub const SOCKET_PATH_MAX_BYTES: usize = 100;

/// Where everything lies. All paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The operator's files: `midwatch.toml`, `channels/`, `schedules/`.
    pub config: PathBuf,
    /// The store, the prompt files, the workspace.
    pub data: PathBuf,
    /// Logs.
    pub state: PathBuf,
    /// Socket and token.
    pub run: PathBuf,
}

/// Why the folders could not be found or made.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The system names no home directory for this user.
    #[error("this user has no home directory")]
    Nowhere,
    /// The current folder, to which a relative path refers, is gone.
    #[error("cannot make {path} absolute")]
    Absolute {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel would refuse the socket.
    #[error("the socket's path {path} is longer than {SOCKET_PATH_MAX_BYTES} bytes")]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// Something else has the store's name.
    #[error("{path} should be the store's file, and is {found}")]
    Store {
        /// The path.
        path: PathBuf,
        /// What is there, in words: `a folder`.
        found: &'static str,
    },
    /// A folder cannot be made.
    #[error("cannot make the folder {path}")]
    Create {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HomeError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Nowhere => Some("`--home DIR` puts everything under one folder".to_owned()),
            Self::SocketPath { .. } => Some("choose a shorter `--home DIR`".to_owned()),
            Self::Store { .. } => Some("move it away, or name another deployment with `--home DIR`".to_owned()),
            Self::Absolute { .. } | Self::Create { .. } => None,
        }
    }
}

impl Home {
    /// Finds the folders, making none: all under `home` where given, else where the system keeps such things.
    /// `config` replaces the configuration's folder alone.
    ///
    /// # Errors
    /// [`HomeError::SocketPath`] when the socket could not be bound there; the others when there is no place at all.
    pub fn find(home: Option<PathBuf>, config: Option<PathBuf>) -> Result<Self, HomeError> {
        let mut found = match home {
            Some(home) => Self::under(&absolute(home)?),
            None => Self::of_user()?,
        };
        if let Some(config) = config {
            found.config = absolute(config)?;
        }
        let path = found.socket_path();
        if path.as_os_str().as_bytes().len() > SOCKET_PATH_MAX_BYTES {
            return Err(HomeError::SocketPath { path });
        }
        Ok(found)
    }

    fn under(home: &Path) -> Self {
        Self { config: home.join("config"), data: home.join("data"), state: home.join("state"), run: home.join("run") }
    }

    fn of_user() -> Result<Self, HomeError> {
        let dirs = directories::ProjectDirs::from("", "", "midwatch").ok_or(HomeError::Nowhere)?;
        let data = dirs.data_dir().to_owned();
        let state = dirs.state_dir().map_or_else(|| data.join("state"), Path::to_owned);
        let run = dirs.runtime_dir().map_or_else(|| state.join("run"), Path::to_owned);
        Ok(Self { config: dirs.config_dir().to_owned(), data, state, run })
    }

    /// Makes the folders the daemon writes to, for this user alone. The configuration's folder is the operator's to make.
    ///
    /// # Errors
    /// [`HomeError::Create`] names the folder that could not be made; [`HomeError::Store`] when something else than a
    /// file lies where the store belongs.
    pub fn create(&self) -> Result<(), HomeError> {
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        for path in
            [&self.data, &self.prompt_dir(), &self.default_workspace(), &self.state, &self.logs_dir(), &self.run]
        {
            make.create(path).map_err(|source| HomeError::Create { path: path.clone(), source })?;
        }
        // One that was there before may be open to others, and it holds the console's token.
        std::fs::set_permissions(&self.run, Permissions::from_mode(0o700))
            .map_err(|source| HomeError::Create { path: self.run.clone(), source })?;
        self.check_store()
    }

    /// Whether the store's place is free or holds a file.
    ///
    /// # Errors
    /// [`HomeError::Store`]. What cannot be looked at is left to whoever opens it.
    pub fn check_store(&self) -> Result<(), HomeError> {
        let path = self.db_path();
        let found = match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => "a folder",
            Ok(meta) if !meta.is_file() => "no file but a device, socket or pipe",
            _ => return Ok(()),
        };
        Err(HomeError::Store { path, found })
    }

    /// The main file of the configuration.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.config.join("midwatch.toml")
    }

    /// One file a messenger account.
    #[must_use]
    pub fn channels_dir(&self) -> PathBuf {
        self.config.join("channels")
    }

    /// One file a job.
    #[must_use]
    pub fn schedules_dir(&self) -> PathBuf {
        self.config.join("schedules")
    }

    /// The store.
    #[must_use]
    pub fn db_path(&self) -> PathBuf {
        self.data.join("midwatch.db")
    }

    /// Locked by the daemon that owns the data.
    #[must_use]
    pub fn lock_path(&self) -> PathBuf {
        self.data.join("midwatch.lock")
    }

    /// The console's socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.run.join("midwatch.sock")
    }

    /// The console's token.
    #[must_use]
    pub fn token_path(&self) -> PathBuf {
        self.run.join("token")
    }

    /// The daemon's own logs.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// The operator's prompt files.
    #[must_use]
    pub fn prompt_dir(&self) -> PathBuf {
        self.data.join("prompt")
    }

    /// The workspace where `[workspace] path` names no other.
    #[must_use]
    pub fn default_workspace(&self) -> PathBuf {
        self.data.join("workspace")
    }
}

fn absolute(path: PathBuf) -> Result<PathBuf, HomeError> {
    std::path::absolute(&path).map_err(|source| HomeError::Absolute { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folder_holds_all_of_them_but_a_configuration_given_apart() {
        let home = Home::find(Some("/srv/mw".into()), Some("/etc/midwatch".into())).unwrap();
        assert_eq!(home.config_file(), Path::new("/etc/midwatch/midwatch.toml"));
        assert_eq!(home.db_path(), Path::new("/srv/mw/data/midwatch.db"));
        assert_eq!(home.logs_dir(), Path::new("/srv/mw/state/logs"));
        assert_eq!(home.socket_path(), Path::new("/srv/mw/run/midwatch.sock"));
        assert!(Home::find(Some("relative".into()), None).unwrap().data.is_absolute());
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_with_the_cure() {
        let fits = SOCKET_PATH_MAX_BYTES - "/".len() - "/run/midwatch.sock".len();
        assert!(Home::find(Some(format!("/{}", "x".repeat(fits)).into()), None).is_ok());
        let err = Home::find(Some(format!("/{}", "x".repeat(fits + 1)).into()), None).unwrap_err();
        assert!(matches!(err, HomeError::SocketPath { .. }));
        assert_eq!(err.hint().unwrap(), "choose a shorter `--home DIR`");
    }

    #[test]
    fn the_folders_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path().join("mw")), None).unwrap();
        std::fs::create_dir_all(&home.run).unwrap();
        std::fs::set_permissions(&home.run, Permissions::from_mode(0o755)).unwrap();
        home.create().unwrap();
        home.create().unwrap();
        for path in [&home.data, &home.run, &home.prompt_dir(), &home.default_workspace(), &home.logs_dir()] {
            let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o700, "{}", path.display());
        }
        assert!(!home.config.exists());
    }
}
