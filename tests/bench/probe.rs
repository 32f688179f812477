//! What a commit and a round trip cost here without the daemon, in the same run: the yardstick for its turns.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::people::Stage;
use crate::support::telegram::TOKEN;
use crate::table::median;

const COMMITS: usize = 400;
const TRIPS: usize = 400;
/// Roughly what a commit of a turn writes in rows.
const ROW_BYTES: usize = 1_000;

/// The yardstick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) commit: Duration,
    pub(crate) round_trip: Duration,
}

impl Probe {
    pub(crate) async fn take(stage: &Stage) -> Self {
        Self { commit: commit(stage), round_trip: round_trip(stage).await }
    }
}

/// One row in one transaction, as durable as the daemon's, on the same file system.
fn commit(stage: &Stage) -> Duration {
    let path = stage.home.path().join("probe.db");
    let db = Connection::open(&path).unwrap();
    db.execute_batch(
        "pragma journal_mode = wal; pragma synchronous = full; pragma wal_autocheckpoint = 0;
         create table if not exists rows (id integer primary key, text text not null) strict;",
    )
    .unwrap();
    let text = "x".repeat(ROW_BYTES);
    let times: Vec<Duration> = (0..COMMITS)
        .map(|_| {
            let began = Instant::now();
            db.execute_batch("begin immediate").unwrap();
            db.prepare_cached("insert into rows (text) values (?1)").unwrap().execute([&text]).unwrap();
            db.execute_batch("commit").unwrap();
            began.elapsed()
        })
        .collect();
    median(&times)
}

/// One small request to the platform's counterpart over a connection that is open already.
async fn round_trip(stage: &Stage) -> Duration {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/bot{TOKEN}/getMe", stage.telegram.url());
    let mut times = Vec::new();
    for _ in 0..TRIPS {
        let began = Instant::now();
        let answer = client.post(&url).json(&serde_json::json!({})).send().await.unwrap();
        answer.bytes().await.unwrap();
        times.push(began.elapsed());
    }
    median(&times)
}
