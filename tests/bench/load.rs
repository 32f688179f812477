//! Many sessions at a time: turns a second, and whether anything grows that should not.

use std::path::Path;
use std::time::Instant;

use crate::people::Stage;
use crate::proc;
use crate::proc::MIB;
use crate::support::daemon::Daemon;
use crate::support::oracle;
use crate::table::Table;

const SESSIONS: usize = 64;
const WARM_UP: usize = 128;
/// Answers from one look to the next.
const SLICE: usize = 1_280;
const SLICES: usize = 4;

/// What is to stay bounded.
struct Look {
    turns: usize,
    per_sec: f64,
    rss_mib: f64,
    open_files: usize,
    wal_mib: f64,
    logs_mib: f64,
}

pub(crate) async fn run(table: &mut Table) {
    let mut stage = Stage::new(SESSIONS).await;
    stage.home = stage.home.limit("concurrent_turns", SESSIONS as u64);
    let daemon = Daemon::start(&stage.home).await;
    stage.talk(&stage.chats, WARM_UP).await;
    let mut looks = Vec::new();
    for slice in 1..=SLICES {
        oracle::at_rest(&stage.home).await;
        let (began, cpu) = (Instant::now(), proc::cpu_ms(daemon.pid()));
        stage.talk(&stage.chats, SLICE).await;
        let per_sec = SLICE as f64 / began.elapsed().as_secs_f64();
        if slice == 1 {
            table.tell(&format!("turns a second, {SESSIONS} sessions at a time"), format!("{per_sec:.0}"));
            let cpu = (proc::cpu_ms(daemon.pid()) - cpu) as f64 / SLICE as f64;
            table.tell("processor time of the daemon for a turn, then", format!("{cpu:.1} ms"));
        }
        let home = stage.home.path();
        looks.push(Look {
            turns: WARM_UP + slice * SLICE,
            per_sec,
            rss_mib: proc::memory(daemon.pid()).rss_mib,
            open_files: proc::open_files(daemon.pid()),
            wal_mib: bytes_of(&home.join("data/midwatch.db-wal")) as f64 / MIB,
            logs_mib: bytes_of(&home.join("state/logs")) as f64 / MIB,
        });
    }
    for Look { turns, per_sec, rss_mib, open_files, wal_mib, logs_mib } in looks {
        table.tell(
            &format!("after {turns} turns"),
            format!(
                "{per_sec:.0} turns/s, RSS {rss_mib:.1} MiB, {open_files} open files, write-ahead file {wal_mib:.1} MiB, \
                 logs {logs_mib:.2} MiB"
            ),
        );
    }
    stage.assert_clean();
}

/// Of a file, or of all files in a folder.
fn bytes_of(path: &Path) -> u64 {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| bytes_of(&entry.path())).sum(),
        Err(_) => std::fs::metadata(path).map_or(0, |meta| meta.len()),
    }
}
