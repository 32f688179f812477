//! Every crash point, by name: the daemon dies there as under `kill -9`, is started again, and keeps its promises.
//!
//! The points are read from the source, so a new one without a scenario in [`SCENARIOS`] fails the test. Each point is
//! met in every scenario that reaches it.
//!
//! ```text
//! start with MIDWATCH_CRASH_AT=point ─▶ people act ─▶ it dies at the point ─▶ start without ─▶ at rest ─▶ oracle
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test is told and does not expect is a failed test"
)]

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{FutureExt, StreamExt};
use rustix::process::Signal;
use serde_json::json;

use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::oracle;
use crate::support::telegram::{Said, Telegram};

const ANN: i64 = 501;
const BOB: i64 = 602;
/// A chat that nobody has linked yet.
const EVE: i64 = 703;
/// Daemons at work at the same time.
const AT_ONCE: usize = 4;
const MIGRATIONS: [&str; 2] = ["migrate.copy_ready", "migrate.renamed"];

/// What people do while the daemon dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// One message, one answer.
    Plain,
    /// A round of reads before the answer.
    Reads,
    /// Two chats at the same time.
    TwoSessions,
    /// An answer of several parts.
    LongAnswer,
    /// A code links a new chat.
    Pairing,
    /// `/stop` while the model thinks.
    Stop,
    /// A message that waits behind another's turn.
    Queue,
    /// A fresh start between two messages.
    New,
    /// A line from the console.
    Say,
    /// The service manager stops the daemon while the model thinks.
    Drain,
    /// The store is of an older schema.
    OldStore,
}

use Scenario::{Drain, LongAnswer, New, OldStore, Pairing, Plain, Queue, Reads, Say, Stop, TwoSessions};

/// The points each scenario is known to reach; `store.*` and `start.*` are reached by all of them.
const SCENARIOS: &[(Scenario, &[&str])] = &[
    (
        Plain,
        &[
            "migrate.copy_ready",
            "migrate.renamed",
            "start.taken_over",
            "store.before_commit",
            "store.after_commit",
            "telegram.polled",
            "telegram.claimed",
            "telegram.stored",
            "desk.turn_handed",
            "turn.concluded",
            "outbox.sending",
            "outbox.sent_unrecorded",
            "outbox.recorded",
        ],
    ),
    (Reads, &["turn.before_tools", "turn.after_tools", "turn.checkpoint", "turn.concluded"]),
    (TwoSessions, &["telegram.stored", "desk.turn_handed", "turn.concluded", "outbox.sending", "outbox.recorded"]),
    (LongAnswer, &["turn.concluded", "outbox.sending", "outbox.sent_unrecorded", "outbox.recorded"]),
    (Pairing, &["pairing.file_written", "telegram.claimed", "telegram.stored", "outbox.sending", "outbox.recorded"]),
    (Queue, &["desk.turn_handed", "desk.turn_opened", "turn.concluded", "outbox.recorded"]),
    (Stop, &["desk.command_done", "desk.turn_handed", "turn.concluded", "outbox.sending"]),
    (New, &["desk.command_done", "outbox.sending", "outbox.sent_unrecorded"]),
    (Say, &["console.stored", "desk.turn_handed", "turn.concluded"]),
    (Drain, &["turn.checkpoint"]),
    (OldStore, &["migrate.copy_ready", "migrate.backup_kept", "migrate.renamed"]),
];

/// The names in `crash_point!("…")`, wherever they stand in the source.
fn points() -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                found.extend(code.filter_map(|line| {
                    let (_, rest) = line.split_once("crash_point!(\"")?;
                    rest.split_once('"').map(|(name, _)| name.to_owned())
                }));
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.sort();
    found.dedup();
    found
}

/// One deployment with its platform, its model and people.
struct World {
    telegram: Telegram,
    model: Model,
    home: Home,
    scenario: Scenario,
    /// The last thing that people did, so that the end can be waited for.
    last: Mutex<Option<Said>>,
}

impl World {
    async fn new(scenario: Scenario) -> Self {
        let (telegram, model) = (Telegram::start().await, Model::start().await);
        telegram.chats().open(EVE);
        let home = Home::new()
            .model(&model)
            .telegram(&telegram)
            .link("ann", ANN, &[ANN])
            .link("bob", BOB, &[BOB])
            .grant("ann", &["read_file", "list_files"])
            .operator(&[ANN])
            .workspace_file("notes.txt", "the door is shut\n");
        if scenario == OldStore {
            let old = rusqlite::Connection::open(home.store_path()).unwrap();
            // Schema 0 of our own, as the very first start would leave it if it were torn.
            old.execute_batch("pragma application_id = 0x6d696477; pragma user_version = 0; vacuum").unwrap();
        }
        oracle::watch_acknowledgements(&home, &telegram);
        let held = Arc::new(AtomicBool::new(matches!(scenario, Queue | Stop | Drain)));
        model.script(move |request| match request.last_user().as_str() {
            "look" if request.results().is_empty() => {
                let calls = vec![("read_file", json!({ "path": "notes.txt" })), ("list_files", json!({}))];
                let reply = Reply::calls(calls);
                // Held once: what is asked again after the crash is answered at once.
                if held.swap(false, Ordering::SeqCst) { reply.held() } else { reply }
            }
            "look" => Reply::text("It reads: the door is shut."),
            "wait" if held.swap(false, Ordering::SeqCst) => Reply::text("done waiting").held(),
            "tell" => Reply::text(&long_answer()),
            words => Reply::text(&format!("echo: {words}")),
        });
        Self { telegram, model, home, scenario, last: Mutex::new(None) }
    }

    fn says(&self, user: i64, text: &str) {
        let said = self.telegram.says(user, user, text);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
    }

    /// What people do, however often the daemon dies meanwhile.
    async fn people(&self) {
        match self.scenario {
            Plain | OldStore => self.says(ANN, "hi"),
            Reads => self.says(ANN, "look"),
            TwoSessions => {
                self.says(BOB, "hi");
                self.says(ANN, "look");
                self.says(BOB, "and again");
            }
            LongAnswer => self.says(ANN, "tell"),
            Pairing => {
                let made = cli(&self.home, &["link", "telegram", "--json"]).await.json();
                self.says(EVE, &format!("/link {}", made["code"].as_str().unwrap()));
            }
            Stop => {
                self.says(ANN, "wait");
                self.model.wait_requests(1).await;
                self.says(ANN, "/stop");
            }
            Queue => {
                self.says(ANN, "wait");
                self.model.wait_requests(1).await;
                let next = self.telegram.says(ANN, ANN, "next");
                self.telegram.wait_acknowledged(next.update_id).await;
                self.model.release();
            }
            New => {
                self.says(ANN, "hi");
                self.comes_to_rest().await;
                self.says(ANN, "/new");
                self.says(ANN, "hi again");
            }
            Say => {
                // It ends with an answer, or says that the daemon went away; it must not hang.
                let said = cli(&self.home, &["say", "hi"]).await;
                assert!(said.code == Some(0) || said.stderr.contains("error:"), "{said:?}");
            }
            Drain => {
                self.says(ANN, "look");
            }
        }
    }

    /// How the daemon comes to its death.
    async fn dies(&self, daemon: &mut Daemon, point: &str) {
        if self.scenario == Drain {
            self.model.wait_requests(1).await;
            daemon.signal(Signal::TERM);
            daemon.wait_notify("STOPPING=1").await;
            self.model.release();
        }
        let exit = daemon.wait_exit().await;
        assert!(exit.killed(), "{:?} never met {point}: {exit:?}", self.scenario);
    }

    async fn comes_to_rest(&self) {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last {
            self.telegram.wait_acknowledged(last.update_id).await;
        }
        oracle::at_rest(&self.home).await;
    }

    /// What was in doubt is shown with the command that acts on it, nothing else is missing.
    async fn keeps_its_promises(&self, point: &str) {
        oracle::assert_promises(&self.home, &self.telegram, &self.model);
        let in_doubt = self.home.count("select count(*) from outbox where state = 'uncertain'");
        let surely = i64::from(["outbox.sending", "outbox.sent_unrecorded"].contains(&point));
        // Two chats have two sends on their way at the same time, and any commit may be the one that begins a send.
        let at_most = match self.scenario {
            TwoSessions => 2,
            // The answer to the first may be on its way while the second begins.
            Queue => 1,
            _ if point.starts_with("store.") => 1,
            _ => surely,
        };
        assert!((surely..=at_most).contains(&in_doubt), "{in_doubt}: only a send that was on its way is in doubt");
        assert_eq!(self.home.count("select count(*) from outbox where state not in ('sent', 'uncertain')"), 0);
        assert_eq!(self.home.count("select count(*) from turns where state = 'parked'"), 0, "one crash parks nothing");
        let status = cli(&self.home, &["status", "--json"]).await.json();
        assert_eq!(status["outbox"]["uncertain"], in_doubt);
        let replies = cli(&self.home, &["replies", "--json"]).await.json();
        assert_eq!(replies["replies"].as_array().map(Vec::len), usize::try_from(in_doubt).ok());
        if in_doubt > 0 {
            let shown = cli(&self.home, &["status"]).await.stdout;
            assert!(shown.contains("midwatch replies resend|drop"), "{shown}");
        }
        self.everybody_was_answered();
    }

    fn everybody_was_answered(&self) {
        let words = self.home.rows("select plain from outbox order by session, id");
        let one_of = |expected: &[&[&str]]| assert!(expected.iter().any(|other| words == *other), "{words:#?}");
        match self.scenario {
            Plain | OldStore => one_of(&[&["echo: hi"]]),
            Reads | Drain => one_of(&[&["It reads: the door is shut."]]),
            TwoSessions => {
                let (ann, bob) = ("It reads: the door is shut.", ["echo: hi", "echo: and again"]);
                one_of(&[&[ann, bob[0], bob[1]], &[bob[0], bob[1], ann]]);
            }
            LongAnswer => {
                let all: String = words.iter().flat_map(|part| part.split_whitespace()).collect();
                assert_eq!(all, long_answer().split_whitespace().collect::<String>());
                assert!(words.len() > 1, "an answer of one part does not show much");
            }
            Pairing => {
                assert!(words.len() == 1 && words[0].starts_with("This chat is linked as"), "{words:?}");
                let file = std::fs::read_to_string(self.home.path().join("config/channels/telegram.toml")).unwrap();
                assert_eq!(file.matches(&format!("chat = {EVE}")).count(), 1, "{file}");
            }
            Queue => one_of(&[&["done waiting", "echo: next"], &["echo: wait", "echo: next"]]),
            Stop => one_of(&[&["Stopped."]]),
            New => {
                let new = "A fresh start. What was said before is kept, but I no longer look at it.";
                one_of(&[&["echo: hi", new, "echo: hi again"]]);
            }
            Say => {
                let ends =
                    self.home.rows("select i.state, t.end_reason from inbox i left join turns t on t.id = i.turn");
                assert_eq!(ends, ["done|natural"], "the line from the console has its end");
            }
        }
    }
}

/// Three parts and a bit, each word once.
fn long_answer() -> String {
    let words: Vec<String> = (0..1_800).map(|n| format!("word{n}")).collect();
    words.chunks(60).map(|line| line.join(" ")).collect::<Vec<_>>().join("\n\n")
}

/// Kills one daemon at one pass of one point, and holds what is left to the promises.
async fn crash(scenario: Scenario, point: &str, pass: u32) {
    let world = World::new(scenario).await;
    let at = format!("{point}:{pass}");
    let mut daemon = Daemon::start_with_env(&world.home, &[("MIDWATCH_CRASH_AT", &at)]).await;
    let dies = async {
        world.dies(&mut daemon, point).await;
        daemon.restart().await;
    };
    if scenario == Pairing || scenario == Say {
        // These talk to the daemon first: one that dies before it is ready has nobody to talk to.
        tokio::join!(world.people(), dies);
    } else {
        tokio::join!(dies, world.people());
    }
    world.comes_to_rest().await;
    world.keeps_its_promises(point).await;
    assert_eq!(daemon.stop().await, Some(0), "{scenario:?} at {at}: a clean stop");
}

/// Runs the crashes, some at a time, and says of each that fails which it was.
async fn crashes(all: Vec<(Scenario, String, u32)>) {
    let run = |(scenario, point, pass): (Scenario, String, u32)| async move {
        let name = format!("{scenario:?} at {point}:{pass}");
        AssertUnwindSafe(crash(scenario, &point, pass)).catch_unwind().await.err().map(|_| name)
    };
    let failed: Vec<_> = futures_util::stream::iter(all).map(run).buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = failed.into_iter().flatten().collect();
    assert!(failed.is_empty(), "these broke a promise (see above): {failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_crash_point_is_survived() {
    let reached: BTreeSet<&str> = SCENARIOS.iter().flat_map(|(_, reached)| reached.iter().copied()).collect();
    let points = points();
    let unknown: Vec<_> = reached.iter().filter(|point| !points.iter().any(|known| known == *point)).collect();
    assert!(unknown.is_empty(), "the source no longer has {unknown:?}");
    let missed: Vec<_> = points.iter().filter(|point| !reached.contains(point.as_str())).collect();
    assert!(missed.is_empty(), "no scenario of SCENARIOS reaches {missed:?}");
    let all = all_pairs();
    println!("{} crashes at {} points", all.len(), points.len());
    crashes(all).await;
}

/// Some of the many commits: between two of them lies every state that a start can find.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_around_any_commit_is_survived() {
    let mut all = Vec::new();
    for pass in 2..=7 {
        all.push((Reads, "store.before_commit".to_owned(), pass));
        all.push((Stop, "store.after_commit".to_owned(), pass));
    }
    // The second batch is the `/stop`, stored and not yet looked at.
    all.push((Stop, "telegram.stored".to_owned(), 2));
    crashes(all).await;
}

/// Every point in every scenario that reaches it, and second passes where there are any.
fn all_pairs() -> Vec<(Scenario, String, u32)> {
    let everywhere = ["start.taken_over", "store.before_commit", "store.after_commit"];
    let mut all = Vec::new();
    for (scenario, reached) in SCENARIOS {
        let own = reached.iter().filter(|point| !everywhere.contains(point));
        all.extend(own.map(|point| (*scenario, (*point).to_owned(), 1)));
        for point in everywhere.into_iter().filter(|_| !matches!(scenario, Pairing | Say | Drain)) {
            all.push((*scenario, point.to_owned(), 1));
        }
    }
    for point in ["outbox.sending", "outbox.sent_unrecorded", "outbox.recorded"] {
        all.push((LongAnswer, point.to_owned(), 2));
        all.push((New, point.to_owned(), 2));
    }
    assert!(all.len() > points().len() && MIGRATIONS.iter().all(|step| all.iter().any(|(_, point, _)| point == step)));
    all
}
