//! How long an answer takes when the model takes no time.

use std::time::Duration;

use crate::people::Stage;
use crate::probe::Probe;
use crate::support::daemon::Daemon;
use crate::support::oracle;
use crate::table::{Table, median, ms, spread};

/// Commits of a plain turn; `syncs` counts them.
const COMMITS: u32 = 4;
/// `getUpdates`, the model, `sendMessage`.
const ROUND_TRIPS: u32 = 3;
/// A turn may take this many times what its commits and round trips take.
const TIMES_MAX: f64 = 1.5;
const WARM_UP: usize = 50;
const TURNS: usize = 500;
/// 25 messages a second: what Telegram lets one bot answer is 30.
const EVERY: Duration = Duration::from_millis(40);

pub(crate) async fn run(table: &mut Table) {
    let stage = Stage::new(50).await;
    let _daemon = Daemon::start(&stage.home).await;
    stage.talk(&stage.chats, WARM_UP).await;
    oracle::at_rest(&stage.home).await;
    let probe = Probe::take(&stage).await;
    table.tell("a bare commit, median", format!("{:.2} ms", ms(probe.commit)));
    table.tell("a bare round trip, median", format!("{:.2} ms", ms(probe.round_trip)));
    let yardstick = TIMES_MAX * ms(probe.commit * COMMITS + probe.round_trip * ROUND_TRIPS);
    let mut tell = |name: &str, times: &[Duration]| {
        table.tell(&format!("update → reply, {name}"), spread(times));
        table.aim(
            &format!("the same, p50 against {TIMES_MAX} × its commits and round trips"),
            ms(median(times)),
            yardstick,
            "ms",
        );
    };
    tell("1 chat", &stage.talk(&stage.chats[..1], TURNS).await);
    oracle::at_rest(&stage.home).await;
    tell("50 chats, 25 messages a second", &stage.trickle(TURNS, EVERY).await);
    oracle::at_rest(&stage.home).await;
    let all_at_once = stage.talk(&stage.chats, 2 * TURNS).await;
    table.tell("update → reply, 50 chats that never rest", spread(&all_at_once));
    stage.assert_clean();
}
