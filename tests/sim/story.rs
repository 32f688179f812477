//! One seed from its first moment to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use midwatch::config::Home;
use midwatch::domain::{OutboxId, TurnId};
use midwatch::session::closing;
use midwatch::session::status::{self, Status};
use midwatch::store::outbox;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::messenger::{Messenger, Said, Shown};
use crate::model::{Provider, TURNS_AT_ONCE, answer_tokens, window_tokens};
use crate::people::{CHATS, Plan};
use crate::process::{Outside, Process, Run, Runs, at_work};
use crate::world::{Chance, World};

/// How often somebody looks whether all is at rest.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// By then there is rest, whatever happened: an hour for a wall clock set back, and as much for the rest.
const REST_BY: Duration = Duration::from_secs(4 * 3_600);

/// What is left when everything is over.
pub(crate) struct Evidence {
    pub(crate) seed: u64,
    pub(crate) story: String,
    /// What was complained of while things happened.
    pub(crate) complaints: Vec<String>,
    pub(crate) store: Connection,
    pub(crate) said: Vec<Said>,
    pub(crate) shown: Vec<Shown>,
    pub(crate) runs: Vec<Run>,
    /// What `status` said at the end.
    pub(crate) status: Option<Status>,
    /// How often a person had which reply sent again.
    pub(crate) resent: BTreeMap<i64, usize>,
    /// Turns that a person had tried again.
    pub(crate) retried: BTreeSet<i64>,
    /// Faults could happen.
    pub(crate) storm: bool,
    _dir: TempDir,
}

impl Evidence {
    /// Everything in the store, as text, for comparing two runs.
    pub(crate) fn store_as_text(&self) -> String {
        let mut text = String::new();
        for table in
            ["cursors", "sessions", "threads", "turns", "inbox", "messages", "checkpoints", "outbox", "timeline"]
        {
            let mut sql = self.store.prepare(&format!("select * from {table} order by 1, 2")).unwrap();
            let columns = sql.column_count();
            let mut rows = sql.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let _ = write!(text, "{table}");
                for column in 0..columns {
                    let _ = write!(text, " | {:?}", row.get_ref(column).unwrap());
                }
                text.push('\n');
            }
        }
        text
    }
}

/// Lives through `seed`.
pub(crate) fn live(seed: u64) -> Evidence {
    let dir = tempfile::Builder::new().prefix("sim").tempdir().unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // One task at a time, so that a death is noticed before anybody else gets to work.
    let runtime = runtime.enable_time().start_paused(true).event_interval(1).build().unwrap();
    runtime.block_on(async {
        let plan = Plan::of(seed);
        let world = World::new(seed, dir.path());
        let outside = Outside {
            messenger: Messenger::new(&world, plan.storm),
            provider: Provider::new(&world, plan.storm),
            runs: std::sync::Arc::new(Runs::default()),
            home: home(dir.path(), seed),
            world,
        };
        let mut end = End::default();
        let storm = plan.storm;
        let last = to_rest(&outside, plan, &mut end).await;
        let path = dir.path().join(format!("life-{}.db", last + 1));
        let store = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
        Evidence {
            seed,
            story: outside.world.story(),
            complaints: outside.world.complaints(),
            store,
            said: outside.messenger.said(),
            shown: outside.messenger.shown(),
            runs: outside.runs.all(),
            status: end.status,
            resent: end.resent,
            retried: end.retried,
            storm,
            _dir: dir,
        }
    })
}

/// What the operator did, and saw at the end.
#[derive(Default)]
struct End {
    status: Option<Status>,
    resent: BTreeMap<i64, usize>,
    retried: BTreeSet<i64>,
    looked_at: BTreeSet<String>,
}

/// Starts the daemon as often as it takes; returns the number of its last life.
async fn to_rest(outside: &Outside, plan: Plan, end: &mut End) -> u32 {
    let world = &outside.world;
    let chance = Chance::new(world.seed, "operator");
    let (mut deaths, mut restarts) = (plan.deaths.clone().into_iter(), plan.restarts.clone().into_iter());
    let unlinks = plan.unlinks;
    let people = tokio::spawn(plan.happen(world.clone(), outside.messenger.clone()));
    let mut restart = restarts.next();
    for number in 1.. {
        if let Some((_, link)) = unlinks.filter(|unlinks| unlinks.0 == number) {
            world.tell(&format!("the operator unlinks `{link}`, and lets one turn work at a time"));
            write_links(&outside.home, Some(link));
            write_main(&outside.home, world.seed, 1);
        }
        let process = Process::start(outside, number, deaths.next().flatten()).await;
        loop {
            let restart_at = restart.unwrap_or(Duration::MAX / 4);
            tokio::select! {
                biased;
                () = process.life.died() => {
                    process.vanish().await;
                    break;
                }
                () = world.until(restart_at.min(world.age() + Duration::from_secs(86_400))), if restart.is_some() => {
                    restart = restarts.next();
                    process.stop().await;
                    break;
                }
                () = tokio::time::sleep(LOOK_EVERY) => {
                    process.look();
                    let late = world.age() > REST_BY || world.is_broken();
                    if late {
                        world.complain("there is no rest".to_owned());
                    }
                    let all_said = people.is_finished() && outside.messenger.is_heard();
                    if late || all_said && is_at_rest(&process).await && !acts(&process, &chance, end).await {
                        end.status = status::status(&process.services).await.ok();
                        process.stop().await;
                        start_at_rest(outside, number + 1).await;
                        return number + 1;
                    }
                }
            }
        }
        tokio::time::sleep(chance.millis(0, 60_000)).await;
    }
    unreachable!("lives are counted without end")
}

/// A start that finds everything at rest leaves it so.
async fn start_at_rest(outside: &Outside, number: u32) {
    let seen = || (outside.messenger.shown().len(), outside.runs.all().len());
    let before = seen();
    let process = Process::start(outside, number, None).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    process.look();
    if before != seen() || !is_at_rest(&process).await {
        outside.world.complain("a start that had nothing to do did something".to_owned());
    }
    process.stop().await;
}

async fn is_at_rest(process: &Process) -> bool {
    let open = "select (select count(*) from inbox where state in ('new', 'running'))
                     + (select count(*) from turns where state in ('running', 'suspended'))
                     + (select count(*) from outbox where state in ('pending', 'sending'))";
    let open =
        process.services.store.read("look for rest", |db| Ok(db.query_row(open, [], |row| row.get::<_, i64>(0))?));
    open.await.unwrap() == 0 && at_work(&process.services.hub).is_empty()
}

/// The operator looks at what needs a person, each thing once: acts on some of it, and leaves the rest.
async fn acts(process: &Process, chance: &Chance, end: &mut End) -> bool {
    let services = &process.services;
    let needs = services.store.read("look at what needs a person", |db| {
        let mut needs: Vec<(bool, i64)> =
            outbox::in_doubt(db, 1_000)?.iter().map(|part| (true, part.id.row())).collect();
        let mut sql = db.prepare("select id from turns where state = 'parked'")?;
        let parked = sql.query_map([], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
        needs.extend(parked.into_iter().map(|turn| (false, turn)));
        Ok(needs)
    });
    let mut acted = false;
    for (is_reply, row) in needs.await.unwrap() {
        let again = match chance.below(10) {
            0..=4 => true,
            5..=6 => false,
            _ => continue,
        };
        let name = if is_reply { OutboxId::from_row(row).to_string() } else { TurnId::from_row(row).to_string() };
        if !end.looked_at.insert(name.clone()) {
            continue;
        }
        process.life.tell(&format!("the operator {} {name}", if again { "tries again" } else { "drops" }));
        let now = services.clock.now();
        let done = services.store.write("act for a person", move |db| match (is_reply, again) {
            (true, true) => outbox::resend(db, OutboxId::from_row(row)),
            (true, false) => outbox::drop_part(db, OutboxId::from_row(row), now),
            (false, true) => closing::retry(db, TurnId::from_row(row), now),
            (false, false) => closing::drop_turn(db, TurnId::from_row(row), now),
        });
        if let Err(error) = done.await {
            process.life.world.complain(format!("{name} cannot be acted on: {error}"));
        }
        if again && is_reply {
            *end.resent.entry(row).or_default() += 1;
        } else if again {
            end.retried.insert(row);
        }
        acted = true;
    }
    services.desk.notify_one();
    services.wake_couriers();
    acted
}

/// A deployment's folders with the operator's files.
fn home(dir: &Path, seed: u64) -> Home {
    let home = Home::find(Some(dir.to_owned()), None).unwrap();
    home.create().unwrap();
    std::fs::create_dir_all(home.channels_dir()).unwrap();
    write_main(&home, seed, TURNS_AT_ONCE);
    write_links(&home, None);
    let notes = home.default_workspace().join("notes");
    std::fs::create_dir_all(&notes).unwrap();
    std::fs::write(notes.join("today.md"), "Feed the cat.\n").unwrap();
    std::fs::write(notes.join("3.md"), "three ".repeat(2_000)).unwrap();
    home
}

/// Writes the messenger account's file with all links but `without`.
fn write_links(home: &Home, without: Option<&str>) {
    let mut channel = "kind = \"telegram\"\ntoken = { env = \"SIM_TOKEN\" }\n".to_owned();
    for chat in CHATS.iter().filter(|chat| Some(chat.name) != without) {
        let _ = write!(
            channel,
            "[[link]]\nname = \"{}\"\nchat = {}\nsenders = {:?}\nmention = \"always\"\nallow = {:?}\n",
            chat.name, chat.chat, chat.senders, chat.allow
        );
        if let Some(secs) = chat.time_budget_secs {
            let _ = writeln!(channel, "time_budget_secs = {secs}");
        }
    }
    std::fs::write(home.channels_dir().join("telegram.toml"), channel).unwrap();
}

/// Writes `midwatch.toml`.
fn write_main(home: &Home, seed: u64, turns_at_once: usize) {
    let main = format!(
        "[model]\nprovider = \"rehearsal\"\ncontext_window = {}\nmax_output_tokens = {}\n\
         [limits]\nconcurrent_turns = {turns_at_once}\nrounds = 6\ndaemon_turn_secs = 120\n\
         [operator]\ntelegram = [11]\n",
        window_tokens(seed),
        answer_tokens(seed)
    );
    std::fs::write(home.config_file(), main).unwrap();
}
