//! Commits and fsyncs of a turn, counted: commits in the write-ahead file, fsyncs by strace.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::people::Stage;
use crate::support::commits::Commits;
use crate::support::daemon::Daemon;
use crate::support::model::Reply;
use crate::support::oracle;
use crate::table::Table;

const TURNS: usize = 40;
const COMMITS_MAX: f64 = 4.0;
const COMMITS_MAX_WITH_TOOLS: f64 = 6.0;

pub(crate) async fn run(table: &mut Table) {
    let stage = Stage::new(1).await;
    let home = stage.home.path().join("data/workspace/notes.md");
    std::fs::write(home, "the boat leaves at nine\n").unwrap();
    let daemon = Daemon::start(&stage.home).await;
    stage.talk(&stage.chats, 5).await;
    for (name, with_tool, most) in
        [("a plain turn", false, COMMITS_MAX), ("a turn with one tool round", true, COMMITS_MAX_WITH_TOOLS)]
    {
        stage.model.script(move |request| {
            let call = || Reply::calls(vec![("read_file", json!({ "path": "notes.md" }))]);
            if with_tool && request.results().is_empty() { call() } else { Reply::text("The boat leaves at nine.") }
        });
        oracle::at_rest(&stage.home).await;
        let commits = Commits::from_now(&stage.home);
        let strace = Strace::attach(daemon.pid()).await;
        stage.talk(&stage.chats, TURNS).await;
        oracle::at_rest(&stage.home).await;
        let commits = commits.so_far() as f64 / TURNS as f64;
        table.aim(&format!("commits of {name}"), commits, most, "");
        let figure = format!("fsyncs of {name}");
        match strace {
            Some(strace) => table.aim(&figure, strace.detach().await as f64 / TURNS as f64, most, ""),
            None => table.tell(&figure, "not measured: there is no strace"),
        }
    }
    stage.assert_clean();
}

/// strace at work on the daemon; its lines are fsyncs.
struct Strace {
    child: tokio::process::Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Strace {
    /// None where there is no strace, or where it may not look.
    async fn attach(pid: u32) -> Option<Self> {
        let mut command = tokio::process::Command::new("strace");
        command.args(["-f", "-e", "trace=fsync,fdatasync", "-p", &pid.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().ok()?;
        let mut lines = BufReader::new(child.stderr.take()?).lines();
        while let Some(line) = lines.next_line().await.ok()? {
            // With more than one thread: `strace: Process 7 attached with 6 threads`, once all are.
            if line.contains("attached") {
                return Some(Self { child, lines });
            }
        }
        None
    }

    /// Lets go; returns how many calls there were.
    async fn detach(mut self) -> usize {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let mut calls = 0;
        while let Ok(Some(line)) = self.lines.next_line().await {
            // The second half of a call that another thread's line came into begins with `<...`.
            calls += usize::from(line.contains("sync(") && !line.contains("resumed"));
        }
        self.child.wait().await.unwrap();
        calls
    }
}
