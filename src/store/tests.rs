use std::sync::mpsc;

use super::*;
use crate::domain::Timestamp;

fn fresh() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("midwatch.db");
    (folder, path)
}

/// Runs three changes as one batch, and tells what each caller heard and which rows stand afterwards.
fn three(
    path: &Path,
    before: impl FnOnce(&Connection),
    middle: impl FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
) -> (Vec<Result<(), StoreError>>, Vec<String>) {
    migrate::bring_up_to_date(path, migrate::MIGRATIONS).unwrap();
    let mut writer = Writer::open(path).unwrap();
    writer
        .read(|db| {
            before(db);
            Ok(())
        })
        .unwrap();
    let (reply_1, heard_1) = oneshot::channel();
    let (reply_2, heard_2) = oneshot::channel();
    let (reply_3, heard_3) = oneshot::channel();
    let row = |name: &'static str| move |db: &Connection| mark(db, name);
    run_batch(
        &mut writer,
        vec![
            Box::new(Change { operation: "one", change: Some(row("one")), outcome: None, reply: reply_1 }),
            Box::new(Change { operation: "two", change: Some(middle), outcome: None, reply: reply_2 }),
            Box::new(Change { operation: "three", change: Some(row("three")), outcome: None, reply: reply_3 }),
        ],
    );
    let heard = [heard_1, heard_2, heard_3].map(|heard| heard.blocking_recv().unwrap());
    let db = Connection::open(path).unwrap();
    let mut sql = db.prepare("select channel from cursors order by rowid").unwrap();
    let rows = sql.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    (heard.into(), rows)
}

fn mark(db: &Connection, name: &str) -> Result<(), StoreError> {
    db.execute("insert into cursors (channel, value, updated_at_ms) values (?1, 1, 1)", [name])?;
    Ok(())
}

#[test]
fn a_panic_in_the_middle_closure_costs_that_closure_alone() {
    let (_folder, path) = fresh();
    let (heard, rows) = three(
        &path,
        |_| (),
        |db| {
            mark(db, "two")?;
            panic!("in the middle")
        },
    );
    assert!(heard[0].is_ok() && heard[2].is_ok(), "{heard:?}");
    assert_eq!(heard[1].as_ref().unwrap_err().to_string(), "two panicked: in the middle");
    assert_eq!(rows, ["one", "three"]);
}

#[test]
fn a_constraint_in_the_middle_closure_costs_that_closure_alone() {
    let (_folder, path) = fresh();
    let (heard, rows) = three(
        &path,
        |_| (),
        |db| {
            mark(db, "two")?;
            mark(db, "one")
        },
    );
    assert!(heard[0].is_ok() && heard[2].is_ok(), "{heard:?}");
    assert_eq!(heard[1].as_ref().unwrap_err().to_string(), "two: UNIQUE constraint failed: cursors.channel");
    assert_eq!(rows, ["one", "three"]);
}

#[test]
fn a_full_disk_in_the_middle_closure_costs_the_whole_batch_and_everybody_hears_it() {
    let (_folder, path) = fresh();
    let full = |db: &Connection| {
        let pages: i64 = db.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        db.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0)).unwrap();
    };
    let (heard, rows) = three(&path, full, |db| {
        db.execute("insert into cursors (channel, value, updated_at_ms) values (hex(zeroblob(200000)), 1, 1)", [])?;
        Ok(())
    });
    for (name, heard) in ["one", "two", "three"].iter().zip(&heard) {
        let error = heard.as_ref().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{name} was taken back with its whole batch: two: database or disk is full"),
            "{heard:?}"
        );
        assert!(error.is_outage() && !error.is_unknown());
    }
    assert_eq!(rows, Vec::<String>::new());
}

/// A real I/O error: the system refuses to let the write-ahead file grow. The limit holds for a whole process, so this
/// runs in one of its own.
#[test]
fn an_io_error_in_the_middle_closure_costs_the_whole_batch_and_everybody_hears_it() {
    if std::env::var_os("MIDWATCH_TEST_EIO").is_none() {
        let test = "store::tests::an_io_error_in_the_middle_closure_costs_the_whole_batch_and_everybody_hears_it";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("MIDWATCH_TEST_EIO", "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && told.contains("1 passed"), "{told}");
        return;
    }
    let (_folder, path) = fresh();
    let limit = |db: &Connection| {
        db.pragma_update(None, "cache_size", 10).unwrap();
        // Without a handler the signal would end us before SQLite hears of the error.
        let heard = std::sync::Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(25, heard).unwrap();
        let bytes = std::fs::metadata(db.path().unwrap()).unwrap().len() + (64 << 10);
        rustix::process::setrlimit(
            rustix::process::Resource::Fsize,
            rustix::process::Rlimit { current: Some(bytes), maximum: None },
        )
        .unwrap();
    };
    let (heard, rows) = three(&path, limit, |db| {
        for at in 0..200 {
            db.execute(
                "insert into cursors (channel, value, updated_at_ms) values (?1 || hex(randomblob(4000)), 1, 1)",
                [at],
            )?;
        }
        Ok(())
    });
    for heard in &heard {
        let error = heard.as_ref().unwrap_err();
        assert!(error.to_string().contains("taken back with its whole batch: two: disk I/O error"), "{error}");
    }
    assert_eq!(rows, Vec::<String>::new());
}

#[test]
fn after_a_lost_batch_the_next_one_goes_through() {
    let (_folder, path) = fresh();
    migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap();
    let mut writer = Writer::open(&path).unwrap();
    let (reply, heard) = oneshot::channel();
    let broken = |_: &Connection| -> Result<(), StoreError> {
        Err(StoreError::Failed { operation: "", cause: "disk I/O error".into(), breaks_batch: true })
    };
    run_batch(&mut writer, vec![Box::new(Change { operation: "a", change: Some(broken), outcome: None, reply })]);
    assert!(heard.blocking_recv().unwrap().is_err());
    let (reply, heard) = oneshot::channel();
    let good = |db: &Connection| mark(db, "good");
    run_batch(&mut writer, vec![Box::new(Change { operation: "b", change: Some(good), outcome: None, reply })]);
    assert!(heard.blocking_recv().unwrap().is_ok());
}

#[test]
fn a_caller_hears_nothing_before_the_commit() {
    let (_folder, path) = fresh();
    migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap();
    let mut writer = Writer::open(&path).unwrap();
    let (reply, mut heard) = oneshot::channel();
    let (seen, saw) = mpsc::channel();
    let later = move |_: &Connection| {
        seen.send(heard.try_recv().is_err()).unwrap();
        Ok(())
    };
    let (reply_2, _heard_2) = oneshot::channel();
    run_batch(
        &mut writer,
        vec![
            Box::new(Change { operation: "a", change: Some(|db: &Connection| mark(db, "a")), outcome: None, reply }),
            Box::new(Change { operation: "b", change: Some(later), outcome: None, reply: reply_2 }),
        ],
    );
    assert!(saw.recv().unwrap(), "the first caller was answered while the batch was open");
}

#[test]
fn a_newer_schema_is_refused_and_unchanged() {
    let (_folder, path) = fresh();
    migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap();
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap_err();
    assert!(matches!(error, StoreError::FromTheFuture { found: 99, .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_migration_runs_on_a_copy_and_keeps_a_backup() {
    let (folder, path) = fresh();
    migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap();
    mark(&Connection::open(&path).unwrap(), "kept").unwrap();
    let known = migrate::MIGRATIONS.len();
    let bad = [migrate::MIGRATIONS, &["create table extra (id integer) strict; this is no sql"]].concat();
    let error = migrate::bring_up_to_date(&path, &bad).unwrap_err();
    assert!(matches!(error, StoreError::Migrate { .. }), "{error}");
    let good = [migrate::MIGRATIONS, &["create table extra (id integer) strict"]].concat();
    migrate::bring_up_to_date(&path, &good).unwrap();
    let rows = |path: &Path, table: &str| {
        let db = Connection::open(path).unwrap();
        db.query_row(&format!("select count(*) from {table}"), [], |row| row.get::<_, i64>(0)).ok()
    };
    let backup = folder.path().join(format!("midwatch.db.v{known}.backup"));
    assert_eq!((rows(&path, "cursors"), rows(&path, "extra")), (Some(1), Some(0)));
    assert_eq!((rows(&backup, "cursors"), rows(&backup, "extra")), (Some(1), None));
}

#[test]
fn another_programs_database_and_a_damaged_one_are_refused() {
    let (_folder, path) = fresh();
    Connection::open(&path).unwrap().execute_batch("create table theirs (x)").unwrap();
    let error = migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap_err();
    assert!(error.to_string().ends_with("this is another program's database"), "{error}");
    std::fs::write(&path, "not a database at all, but long enough to be looked at by anyone who cares").unwrap();
    let error = migrate::bring_up_to_date(&path, migrate::MIGRATIONS).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_does_not_fork_and_the_timeline_does_not_change() {
    let (_folder, path) = fresh();
    let (store, closing) = Store::open(&path).unwrap();
    let now = Timestamp(1);
    let new = store
        .write("set up", move |db| {
            let session = inbox::ensure_session(db, "console:local:main", None, now)?;
            let boot = crate::domain::BootId::new(&crate::domain::OsRng);
            let budget = crate::domain::Budget { time_ms: 1, rounds: 1, tokens: 1, cost_usd: 0.0 };
            let turn = turns::NewTurn {
                session,
                cause: "message",
                mode: "console",
                link: None,
                sender: "me".into(),
                boot,
                budget,
                model: "m".into(),
            };
            let turn = turns::open(db, &turn, now)?;
            timeline::append(db, &timeline::Entry { kind: "test", ..timeline::Entry::default() }, now)?;
            Ok(chain::NewCheckpoint {
                session,
                parent: None,
                turn,
                round: 0,
                kind: chain::Kind::Opened,
                first_seq: 1,
                messages: vec![],
                state: serde_json::json!({}),
            })
        })
        .await
        .unwrap();
    let commit = |new: chain::NewCheckpoint| store.write("commit", move |db| chain::commit(db, &new, now));
    commit(new.clone()).await.unwrap();
    let error = commit(new).await.unwrap_err();
    assert!(matches!(error, StoreError::NotHead { .. }), "{error}");
    let change = |db: &Connection| Ok(db.execute("update timeline set kind = 'other'", [])?);
    assert!(store.write("change", change).await.unwrap_err().to_string().contains("append-only"));
    let one_turn_at_a_time = store
        .write("second turn", move |db| {
            let row = turns::list(db, None, true, 1)?.remove(0);
            let boot = crate::domain::BootId::new(&crate::domain::OsRng);
            turns::open(
                db,
                &turns::NewTurn {
                    session: row.session,
                    cause: "message",
                    mode: "console",
                    link: None,
                    sender: "me".into(),
                    boot,
                    budget: row.budget,
                    model: "m".into(),
                },
                now,
            )
        })
        .await;
    assert!(one_turn_at_a_time.unwrap_err().to_string().ends_with("has a turn at work"));
    store.close();
    closing.join();
    assert!(matches!(store.write("late", |_| Ok(())).await, Err(StoreError::Closed)));
}
