//! Kind 9: two writers, stale locks, errors of the store.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{ANN, kept, stage, texts};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{self, Reply};
use crate::support::telegram;
use crate::support::{PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn b071_messages_during_a_turn_wait_their_turn() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::text("echo: slow").held());
    telegram.says(ANN, ANN, "slow");
    model.wait_requests(1).await;
    // Ten within a moment, while the first is at work.
    let said: Vec<_> = (0..10).map(|n| telegram.says(ANN, ANN, &format!("m{n}"))).collect();
    telegram.wait_acknowledged(said[9].update_id).await;
    model.release();
    telegram.wait_sent(ANN, 11).await;
    kept(&home, &telegram, &model).await;
    let expected: Vec<String> =
        std::iter::once("echo: slow".to_owned()).chain((0..10).map(|n| format!("echo: m{n}"))).collect();
    assert_eq!(texts(&telegram, ANN), expected);
    assert_eq!(model.most_at_work(), 1, "one turn at a time in a session");
    let lengths: Vec<usize> = model.requests().iter().map(|request| request.messages().len()).collect();
    let grown: Vec<usize> = (0..11).map(|n| 2 + 2 * n).collect();
    assert_eq!(lengths, grown, "each turn begins where the one before it ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn b075_no_file_of_a_dead_process_blocks_anything() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    model.queue(Reply::hang());
    telegram.says(ANN, ANN, "hi");
    model.wait_requests(1).await;
    let second = cli(&home, &["serve"]).await;
    assert_eq!(second.code, Some(75), "{second:?}");
    assert!(second.stderr.contains(&format!("pid {}", daemon.pid())), "{}", second.stderr);
    daemon.kill9().await;

    // The lock file names a process that lives and has nothing to do with us: a pid that was given out again.
    let lock = home.path().join("data/midwatch.lock");
    assert!(lock.exists());
    std::fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
    daemon.restart().await;
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi");
    telegram.says(ANN, ANN, "and on");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and on");
    kept(&home, &telegram, &model).await;
}

fn wal_bytes(home: &Home) -> u64 {
    std::fs::metadata(home.path().join("data/midwatch.db-wal")).map_or(0, |meta| meta.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn b077_a_reader_that_never_ends_neither_slows_nor_bloats_three_hundred_turns() {
    let (telegram, model, home) = stage().await;
    let mut home = home.limit("concurrent_turns", 8);
    for chat in 1_000..1_060 {
        home = home.link(&format!("chat-{chat}"), chat, &[chat]);
    }
    let mut daemon = Daemon::start(&home).await;
    let reader = home.store();
    reader.execute_batch("begin; select count(*) from turns").unwrap();
    for round in 0..5 {
        (1_000..1_060).for_each(|chat| _ = telegram.says(chat, chat, &format!("message {round}")));
    }
    let ended = || (home.count("select count(*) from turns where state = 'done'") == 300).then_some(());
    eventually("three hundred turns", ended).await;
    let slowest = home.count("select max(ended_at_ms - started_at_ms) from turns");
    assert!(slowest < 5_000, "the slowest turn took {slowest} ms");
    assert!(wal_bytes(&home) < 70 << 20, "{}", wal_bytes(&home));
    reader.execute_batch("rollback").unwrap();
    drop(reader);
    kept(&home, &telegram, &model).await;
    assert_eq!(daemon.stop().await, Some(0));
    assert_eq!(wal_bytes(&home), 0, "a clean stop leaves nothing behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn b077_a_write_ahead_file_that_cannot_be_cut_does_not_hold_up_the_writer() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let reader = home.store();
    reader.execute_batch("begin; select count(*) from turns").unwrap();
    // Seven answers of ten megabytes: more than the file may have before the writer wants to cut it.
    model.script(|request| match request.last_user().as_str() {
        "a long one" => Reply::text(&format!(" {}", "x".repeat(1 << 20)).repeat(10)).usage(10, 10, 0),
        words => Reply::text(&format!("echo: {words}")),
    });
    let sessions: Vec<String> = (0..7).map(|n| format!("s{n}")).collect();
    let says = sessions.iter().map(|session| async {
        let said = cli(&home, &["say", "--session", session, "a long one"]).await;
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    });
    futures_util::future::join_all(says).await;
    assert!(wal_bytes(&home) > 64 << 20, "{}", wal_bytes(&home));
    for n in 0..3 {
        telegram.says(ANN, ANN, &format!("m{n}"));
        telegram.next_sent(ANN).await;
    }
    let slowest = home.count("select max(ended_at_ms - started_at_ms) from turns where link = 'home'");
    assert!(slowest < 3_000, "the slowest turn took {slowest} ms");
    reader.execute_batch("rollback").unwrap();
    drop(reader);
    telegram.says(ANN, ANN, "and on");
    telegram.next_sent(ANN).await;
    let cut = || (wal_bytes(&home) < 64 << 20).then_some(());
    eventually("the file is cut as soon as it can be", cut).await;
    kept(&home, &telegram, &model).await;
}

/// The daemon behind a shell that lets writes beyond the limit of a file fail as a full disk does, instead of killing.
struct Small {
    child: Child,
}

impl Small {
    fn start(home: &Home) -> Self {
        home.write();
        let script = "trap '' XFSZ; exec \"$0\" --home \"$1\" serve";
        let child = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_midwatch")])
            .arg(home.path())
            .envs([("TELEGRAM_BOT_TOKEN", telegram::TOKEN), ("OPENAI_API_KEY", model::KEY)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// From now on no file can be written beyond its first bytes; `None` lifts it.
    fn limit(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b078_a_full_disk_takes_no_work_loses_none_and_ends_by_itself() {
    let (telegram, model, home) = stage().await;
    let daemon = Small::start(&home);
    telegram.says(ANN, ANN, "before");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: before");

    // Full while nothing runs: what cannot be stored is not acknowledged, and the operator is told.
    daemon.limit(Some(1));
    let said = telegram.says(ANN, ANN, "while it is full");
    let told = status_where(&home, |status| status["ready"] == false).await;
    assert!(!telegram.journal().acknowledged.contains(&said.update_id));
    assert!(told["channels"].to_string().contains("messages cannot be stored, so none is taken"), "{told}");
    daemon.limit(None);
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: while it is full");
    telegram.wait_acknowledged(said.update_id).await;

    // Full in the middle of a turn: its end waits for the disk, and comes once.
    model.queue(Reply::text("echo: in the middle").held());
    let asked = model.requests().len();
    telegram.says(ANN, ANN, "in the middle");
    model.wait_requests(asked + 1).await;
    daemon.limit(Some(1));
    model.release();
    status_where(&home, |status| status["ready"] == false).await;
    daemon.limit(None);
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: in the middle");
    status_where(&home, |status| status["ready"] == true).await;
    kept(&home, &telegram, &model).await;
    assert_eq!(telegram.sent(ANN).len(), 3);
    let check: String = home.store().query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

/// Asks for the status until it is as wanted.
async fn status_where(home: &Home, fits: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let look = async {
        loop {
            let status = cli(home, &["status", "--json"]).await;
            if status.code == Some(0) && fits(&status.json()) {
                return status.json();
            }
        }
    };
    tokio::time::timeout(PATIENCE, look).await.expect("the status that was waited for")
}
