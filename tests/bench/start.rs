//! From exec to `READY=1`, and the binary's size.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::big;
use crate::people::Stage;
use crate::proc::MIB;
use crate::support::home::Home;
use crate::support::{PATIENCE, model, telegram};
use crate::table::{Table, median, ms, quantile};

/// The binary that is measured.
const BINARY: &str = env!("CARGO_BIN_EXE_midwatch");
/// Starts of one home.
const STARTS: usize = 21;
const READY_MS_MAX: f64 = 50.0;
const BINARY_MIB_MAX: f64 = 20.0;

pub(crate) fn size(table: &mut Table) {
    let bytes = std::fs::metadata(BINARY).unwrap().len();
    table.aim("size of the stripped binary", bytes as f64 / MIB, BINARY_MIB_MAX, "MiB");
}

pub(crate) async fn run(table: &mut Table) {
    for (name, is_big) in [("an empty home", false), (big::NAME, true)] {
        let stage = Stage::new(1).await;
        if is_big {
            big::fill(&stage).await;
        }
        stage.home.write();
        let times: Vec<Duration> = (0..STARTS).map(|_| exec_to_ready(&stage.home)).collect();
        table.aim(&format!("exec → READY, {name}, median"), ms(median(&times)), READY_MS_MAX, "ms");
        table.tell(
            &format!("exec → READY, {name}, slowest of {STARTS}"),
            format!("{:.1} ms", ms(quantile(&times, 1.0))),
        );
    }
}

/// Starts the daemon as systemd would, hears it, and stops it again.
fn exec_to_ready(home: &Home) -> Duration {
    let address = home.path().join("start.sock");
    let _ = std::fs::remove_file(&address);
    let socket = UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("--home").arg(home.path()).arg("serve");
    command.env_clear().env("HOME", home.path()).env("NOTIFY_SOCKET", &address);
    command.env("TELEGRAM_BOT_TOKEN", telegram::TOKEN).env("OPENAI_API_KEY", model::KEY);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().unwrap();
    let mut buffer = [0; 4096];
    let ready = loop {
        let length = socket.recv(&mut buffer).expect("READY=1 over NOTIFY_SOCKET");
        if buffer[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
            break began.elapsed();
        }
    };
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success(), "a stop is clean");
    ready
}
