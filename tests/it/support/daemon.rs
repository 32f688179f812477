//! The real binary: started as systemd would start it, watched as systemd would watch it, and killed as nobody should.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use super::home::Home;
use super::{PATIENCE, eventually};

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_midwatch");

/// How a process ended: an exit code or a signal, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl Exit {
    /// As under `kill -9`, which is how a crash point ends too.
    pub(crate) fn killed(self) -> bool {
        self.signal == Some(Signal::KILL.as_raw())
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal() }
    }
}

/// A running daemon. Dropped, it is killed; if the test is failing then, the end of its log is printed.
#[derive(Debug)]
pub(crate) struct Daemon {
    dir: Arc<TempDir>,
    env: BTreeMap<String, String>,
    child: Child,
    ended: Option<Exit>,
    notify: Notify,
}

impl Daemon {
    /// Starts the daemon in `home` and returns at `READY=1`.
    pub(crate) async fn start(home: &Home) -> Self {
        Self::start_with_env(home, &[]).await
    }

    /// As [`Daemon::start`] with more in its environment. Where that names a crash point, a daemon that dies there
    /// before it is ready is returned dead.
    pub(crate) async fn start_with_env(home: &Home, env: &[(&str, &str)]) -> Self {
        let mut daemon = Self::spawn(home, env);
        daemon.ready().await;
        daemon
    }

    /// Starts the daemon and waits for nothing.
    pub(crate) fn spawn(home: &Home, env: &[(&str, &str)]) -> Self {
        home.write();
        let dir = home.dir();
        let mut all = home.environment();
        all.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let notify = Notify::bind(dir.path());
        let child = launch(dir.path(), &all);
        Self { dir, env: all, child, ended: None, notify }
    }

    /// Waits for `READY=1`.
    pub(crate) async fn ready(&mut self) {
        let may_die = self.env.contains_key("MIDWATCH_CRASH_AT");
        let log = self.log_path();
        let outcome = tokio::time::timeout(PATIENCE, async {
            let mut pause = Duration::from_millis(2);
            loop {
                if self.notify.said("READY=1") {
                    return Ok(());
                }
                if let Some(exit) = self.try_exit() {
                    return if may_die && exit.killed() { Ok(()) } else { Err(exit) };
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
        });
        match outcome.await {
            Ok(Ok(())) => {}
            Ok(Err(exit)) => panic!("the daemon ended before it was ready: {exit:?}\n{}", tail(&log)),
            Err(_) => panic!("the daemon was not ready after {PATIENCE:?}\n{}", tail(&log)),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as a power cut would, and waits until it is gone.
    pub(crate) async fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.wait_exit().await;
    }

    /// SIGTERM, and the exit code; none when a signal ended it.
    pub(crate) async fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait_exit().await.code
    }

    /// Sends a signal; nothing happens when the daemon is gone.
    pub(crate) fn signal(&mut self, signal: Signal) {
        // A child that was waited for has given its pid back: someone else may have it now.
        if self.try_exit().is_none() {
            let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
        }
    }

    /// How it ended, if it did.
    pub(crate) fn try_exit(&mut self) -> Option<Exit> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap().map(Exit::from);
        }
        self.ended
    }

    /// Waits for its end.
    pub(crate) async fn wait_exit(&mut self) -> Exit {
        let what = format!("the end of the daemon {}; its log: {}", self.pid(), self.log_path().display());
        eventually(&what, || self.try_exit()).await
    }

    /// Starts it again in the same home, with the environment of the first start but without crash points. The
    /// configuration stays as it lies there. What runs is killed first.
    pub(crate) async fn restart(&mut self) {
        self.restart_with_env(&[]).await;
    }

    /// As [`Daemon::restart`], with more in its environment.
    pub(crate) async fn restart_with_env(&mut self, env: &[(&str, &str)]) {
        self.kill9().await;
        self.env.remove("MIDWATCH_CRASH_AT");
        self.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self.notify.clear();
        self.child = launch(self.dir.path(), &self.env);
        self.ended = None;
        self.ready().await;
    }

    /// What it told systemd since it was started, line by line.
    pub(crate) fn notify_lines(&self) -> Vec<String> {
        self.notify.lines()
    }

    /// Waits for a line that begins like this, and returns it.
    pub(crate) async fn wait_notify(&self, line: &str) -> String {
        let found = || self.notify.lines().into_iter().find(|said| said.starts_with(line));
        eventually(&format!("{line} over NOTIFY_SOCKET"), found).await
    }

    /// What it wrote to its standard error, over all starts.
    pub(crate) fn stderr(&self) -> String {
        read(&self.log_path())
    }

    /// What it wrote to its standard output, over all starts.
    pub(crate) fn stdout(&self) -> String {
        read(&self.dir.path().join("stdout.log"))
    }

    /// Everything it wrote for operators: standard output and error, and the files of `state/logs`.
    pub(crate) fn all_logs(&self) -> String {
        let mut all = self.stdout() + &self.stderr();
        let logs = std::fs::read_dir(self.dir.path().join("state/logs"));
        for entry in logs.into_iter().flatten().flatten() {
            all.push_str(&read(&entry.path()));
        }
        all
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("stderr.log")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.try_exit().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's last lines:\n{}", tail(&self.log_path()));
        }
    }
}

fn launch(home: &Path, env: &BTreeMap<String, String>) -> Child {
    let log = |name: &str| File::options().create(true).append(true).open(home.join(name)).unwrap();
    bare(Command::new(BINARY), home, env)
        .args(["--home", home.to_str().unwrap(), "serve"])
        .env("NOTIFY_SOCKET", home.join("notify.sock"))
        .stdin(Stdio::null())
        .stdout(log("stdout.log"))
        .stderr(log("stderr.log"))
        .spawn()
        .unwrap_or_else(|error| panic!("{BINARY}: {error}"))
}

/// Nothing of the machine's own environment reaches the binary but `PATH`.
fn bare(mut command: Command, home: &Path, env: &BTreeMap<String, String>) -> Command {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home).envs(env);
    command
}

fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn tail(path: &Path) -> String {
    let text = read(path);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// What a run of the command line gave.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs the command line in `home`: `cli(&home, &["status", "--json"])`.
pub(crate) async fn cli(home: &Home, args: &[&str]) -> Output {
    cli_with_input(home, args, "").await
}

/// As [`cli`], with something on standard input.
pub(crate) async fn cli_with_input(home: &Home, args: &[&str], input: &str) -> Output {
    home.write();
    let mut command = bare(Command::new(BINARY), home.path(), &home.environment());
    command.arg("--home").arg(home.path()).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut command = tokio::process::Command::from(command);
    let mut child = command.kill_on_drop(true).spawn().unwrap_or_else(|error| panic!("{BINARY}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let run = async {
        // A command that reads nothing may close its input before it is written: no failure.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await.unwrap()
    };
    let done = tokio::time::timeout(PATIENCE, run).await;
    let done = done.unwrap_or_else(|_| panic!("`midwatch {}` did not end in {PATIENCE:?}", args.join(" ")));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the command line speaks UTF-8");
    Output { code: done.status.code(), stdout: text(done.stdout), stderr: text(done.stderr) }
}

/// Reads `NOTIFY_SOCKET` at once, always: a full socket would hold the daemon up.
#[derive(Debug)]
struct Notify {
    lines: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Notify {
    fn bind(home: &Path) -> Self {
        let path = home.join("notify.sock");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (lines, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (written, ending) = (Arc::clone(&lines), Arc::clone(&over));
        let read = move || {
            let mut buffer = [0; 8192];
            while !ending.load(Ordering::SeqCst) {
                match socket.recv(&mut buffer) {
                    Ok(length) => {
                        let text = String::from_utf8_lossy(&buffer[..length]);
                        let mut lines = written.lock().unwrap_or_else(PoisonError::into_inner);
                        lines.extend(text.lines().map(str::to_owned));
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("notify".into()).spawn(read).unwrap();
        Self { lines, over, thread: Some(thread) }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn said(&self, line: &str) -> bool {
        self.lines().iter().any(|said| said == line)
    }

    fn clear(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Notify {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
