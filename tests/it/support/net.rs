//! The ground of the fakes: a loopback server whose connections can be cut, and a state that can be waited for.
//!
//! A server runs on a thread and runtime of its own, so a test that blocks (a query, a child process) does not stop
//! the platform it plays against.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::PATIENCE;

/// A running server; dropped, it and its connections are gone.
#[derive(Debug)]
pub(crate) struct Server {
    addr: SocketAddr,
    offline: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `app` on a free port of the loopback.
    pub(crate) fn start(name: &str, app: Router) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let offline = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = oneshot::channel::<()>();
        let doors_offline = Arc::clone(&offline);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async move {
                    let listener = TcpListener::from_std(listener).unwrap();
                    let doors = Doors { listener, offline: doors_offline };
                    let serve = axum::serve(doors, app.into_make_service_with_connect_info::<Wire>());
                    tokio::select! {
                        biased;
                        _ = stopped => {}
                        _ = async { serve.await } => {}
                    }
                });
            })
            .unwrap();
        Self { addr, offline, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// While offline every connection, old or new, breaks without a byte of an answer.
    pub(crate) fn set_offline(&self, offline: bool) {
        self.offline.store(offline, Ordering::SeqCst);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection, as a handler sees it: it can be cut.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    cut: Arc<AtomicBool>,
    offline: Arc<AtomicBool>,
}

impl Wire {
    /// From now on not a byte goes over this connection; the next try to write one closes it.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.cut.load(Ordering::SeqCst) || self.offline.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl Connected<IncomingStream<'_, Doors>> for Wire {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Self {
        stream.io().wire.clone()
    }
}

/// Accepts connections and gives each its [`Wire`].
struct Doors {
    listener: TcpListener,
    offline: Arc<AtomicBool>,
}

impl Listener for Doors {
    type Io = Cuttable;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Cuttable, SocketAddr) {
        loop {
            // Running out of file descriptors is the only error seen here, and the next accept tells again.
            let Ok((stream, peer)) = self.listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            if !self.offline.load(Ordering::SeqCst) {
                let _ = stream.set_nodelay(true);
                let wire = Wire { cut: Arc::default(), offline: Arc::clone(&self.offline) };
                return (Cuttable { stream, wire }, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

struct Cuttable {
    stream: TcpStream,
    wire: Wire,
}

impl AsyncRead for Cuttable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Err(error) = self.wire.check() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Err(error) = self.wire.check() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A state that tells those who wait when it changed.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    state: Mutex<T>,
    version: watch::Sender<u64>,
}

impl<T> Watched<T> {
    pub(crate) fn new(state: T) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), version: watch::Sender::new(0) })
    }

    /// Reads, or changes what nobody waits for.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.lock())
    }

    /// Changes, and wakes all who wait.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.version.send_modify(|version| *version += 1);
        result
    }

    /// Waits until `look` gives a value, however long it takes.
    pub(crate) async fn until<R>(&self, mut look: impl FnMut(&mut T) -> Option<R>) -> R {
        let mut version = self.version.subscribe();
        loop {
            version.borrow_and_update();
            if let Some(value) = self.look(&mut look) {
                return value;
            }
            // The sender lives in `self`, so this cannot fail.
            let _ = version.changed().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Display> Watched<T> {
    /// Waits until `look` gives a value; after [`PATIENCE`] panics with `what` and the state.
    pub(crate) async fn wait<R>(&self, what: &str, look: impl FnMut(&mut T) -> Option<R>) -> R {
        match tokio::time::timeout(PATIENCE, self.until(look)).await {
            Ok(value) => value,
            Err(_) => panic!("waited {PATIENCE:?} in vain: {what}\n{}", self.look(|state| state.to_string())),
        }
    }
}
