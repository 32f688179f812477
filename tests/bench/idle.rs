//! What a daemon costs that has nothing to do: a poll is held, nobody writes.

use std::time::{Duration, Instant};

use crate::big;
use crate::people::Stage;
use crate::proc;
use crate::support::daemon::Daemon;
use crate::table::Table;

/// Until connections that are not used any more are closed and the write-ahead file is copied back.
const SETTLE: Duration = Duration::from_secs(15);
const REST: Duration = Duration::from_secs(60);
const RSS_MIB_MAX: f64 = 15.0;

pub(crate) async fn run(table: &mut Table) {
    let mut homes = Vec::new();
    for (name, is_big) in [("an empty home", false), (big::NAME, true)] {
        let stage = Stage::new(1).await;
        if is_big {
            big::fill(&stage).await;
        }
        let daemon = Daemon::start(&stage.home).await;
        // An answer warms up what every daemon needs sooner or later.
        stage.talk(&stage.chats, 1).await;
        homes.push((name, stage, daemon));
    }
    tokio::time::sleep(SETTLE).await;
    let counts = |homes: &[(&str, Stage, Daemon)]| -> Vec<(u64, u64)> {
        homes.iter().map(|(_, _, daemon)| (proc::wakeups(daemon.pid()), proc::cpu_ms(daemon.pid()))).collect()
    };
    let (before, began) = (counts(&homes), Instant::now());
    tokio::time::sleep(REST).await;
    let (after, secs) = (counts(&homes), began.elapsed().as_secs_f64());
    for (((name, stage, daemon), before), after) in homes.iter().zip(before).zip(after) {
        let memory = proc::memory(daemon.pid());
        table.aim(&format!("idle RSS, {name}"), memory.rss_mib, RSS_MIB_MAX, "MiB");
        table.tell("of that its own, the rest being pages of files", format!("{:.1} MiB", memory.anonymous_mib));
        table.tell("threads", proc::threads(daemon.pid()));
        table.tell("wake-ups a minute", format!("{:.0}", (after.0 - before.0) as f64 / secs * 60.0));
        table.tell("processor time in that minute", format!("{} ms", after.1 - before.1));
        stage.assert_clean();
    }
}
