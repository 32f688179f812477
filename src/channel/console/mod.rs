//! The local console: HTTP and server-sent events on a Unix socket, for the people of this machine.
//!
//! Three locks: the socket's mode 0600 in a folder of mode 0700, the peer's uid, and the token of `run/token`, which a
//! sandboxed child cannot read. A client that goes away does not stop its turn; coming back attaches to it.
//!
//! What a console client is shown it reads from the store, so nothing of it can be lost on the way and there is no
//! outbox row for it.

mod routes;
pub mod wire;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::UnixListener;

use crate::domain::ChannelKind;
use crate::session::SharedServices;

/// The console's account in keys and rows.
pub const CHANNEL: &str = "console:local";

/// The socket cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the console socket {path}: {cause}")]
pub struct SocketError {
    path: String,
    cause: String,
}

/// The open console.
pub struct Console {
    listener: UnixListener,
    services: Arc<SharedServices>,
    token: Arc<str>,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    uid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self { uid: stream.io().peer_cred().ok().map(|credentials| credentials.uid()) }
    }
}

impl Console {
    /// Writes a fresh token and opens the socket; the caller holds the deployment's lock, so a socket that is there is
    /// a dead daemon's.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn open(services: Arc<SharedServices>) -> Result<Self, SocketError> {
        let path = services.home.socket_path();
        let failed = |error: std::io::Error| SocketError { path: path.display().to_string(), cause: error.to_string() };
        let token: String = (0..4).map(|_| format!("{:016x}", services.rng.next_u64())).collect();
        write_private(&services.home.token_path(), &token).map_err(failed)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        services.health.begin(CHANNEL, "console", ChannelKind::Console);
        services.health.progress(CHANNEL, |channel| channel.state = "up");
        Ok(Self { listener, services, token: token.into() })
    }

    /// Serves until it is dropped.
    ///
    /// # Errors
    /// When the socket itself fails.
    pub async fn serve(self) -> std::io::Result<()> {
        let router = routes::router(self.services, self.token);
        axum::serve(self.listener, router.into_make_service_with_connect_info::<Peer>()).await
    }
}

/// Writes a file only its owner may read, in one step.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt;
    let beside = path.with_extension("new");
    let _ = std::fs::remove_file(&beside);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}
