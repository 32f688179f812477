//! The files read again: a swap in one step, or none at all.

use rustix::process::Signal;

use crate::spine::{ANN, BOB, ends_well};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::telegram::Telegram;
use crate::support::{PATIENCE, eventually};

/// Has the files read again, and waits until `links` shows as many links as there should be.
async fn reload(how: &str, home: &Home, daemon: &mut Daemon, links: usize) {
    home.write();
    if how == "SIGHUP" {
        daemon.signal(Signal::HUP);
    } else {
        let output = cli(home, &["reload"]).await;
        assert_eq!((output.code, output.stdout.as_str()), (Some(0), "read again\n"), "{output:?}");
    }
    let looks = async {
        while cli(home, &["--json", "links"]).await.json()["links"].as_array().map(Vec::len) != Some(links) {}
    };
    tokio::time::timeout(PATIENCE, looks).await.expect("the files are read again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_link_works_at_once_and_a_removed_ones_turn_is_cancelled() {
    for how in ["SIGHUP", "midwatch reload"] {
        let telegram = Telegram::start().await;
        let model = Model::start().await;
        let mut home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
        let mut daemon = Daemon::start(&home).await;
        let before = telegram.says(BOB, BOB, "before the link");
        telegram.wait_acknowledged(before.update_id).await;
        home = home.link("bobs", BOB, &[BOB]);
        reload(how, &home, &mut daemon, 2).await;
        telegram.says(BOB, BOB, "hello");
        assert_eq!(telegram.next_sent(BOB).await.text, "echo: hello", "{how}");

        model.queue(Reply::hang());
        telegram.says(BOB, BOB, "something long");
        model.wait_requests(2).await;
        telegram.says(BOB, BOB, "that waits behind it");
        eventually("it waits", || (home.count("select count(*) from inbox where state = 'new'") == 1).then_some(()))
            .await;
        home = home.unlink("bobs");
        reload(how, &home, &mut daemon, 1).await;
        let cancelled =
            || home.rows("select end_reason from turns where id = 2").pop().filter(|reason| !reason.is_empty());
        assert_eq!(eventually("the turn ended", cancelled).await, "cancelled", "{how}");
        let late = telegram.says(BOB, BOB, "and now?");
        telegram.wait_acknowledged(late.update_id).await;
        telegram.says(ANN, ANN, "and me?");
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: and me?", "{how}");
        assert_eq!(model.requests().len(), 3, "{how}: nothing of a removed link reaches the model");
        let waited = home.rows("select state, text, reason from inbox where id = 4");
        assert_eq!(waited, ["ignored||link `bobs` is no longer configured"], "{how}: nor are the words kept");
        model.release();
        ends_well(daemon, &home, &telegram, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_renamed_loses_no_message_and_no_turn() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let mut home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    home = home.grant("home", &["read_file"]).workspace_file("notes.md", "the boat leaves at nine\n");
    let mut daemon = Daemon::start(&home).await;
    model.queue(Reply::calls(vec![("read_file", serde_json::json!({ "path": "notes.md" }))]).held());
    model.queue(Reply::text("it leaves at nine"));
    telegram.says(ANN, ANN, "when?");
    model.wait_requests(1).await;
    let waits = telegram.says(ANN, ANN, "and this waits");
    telegram.wait_acknowledged(waits.update_id).await;
    home = home.unlink("home").link("house", ANN, &[ANN]).link("bobs", BOB, &[BOB]).grant("house", &["read_file"]);
    reload("midwatch reload", &home, &mut daemon, 2).await;
    model.release();
    assert_eq!(telegram.next_sent(ANN).await.text, "it leaves at nine");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and this waits");
    let read = model.requests()[1].results();
    assert!(read[0].contains("the boat leaves at nine"), "the running turn keeps what the link still grants: {read:?}");
    assert_eq!(home.rows("select link from turns order by id"), ["home", "house"]);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_was_replaced_is_seen_and_one_that_is_gone_is_said() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let mut home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    home = home.grant("home", &["read_file"]).workspace_file("notes.md", "old\n");
    let daemon = Daemon::start(&home).await;
    model.script(|request| match request.results().pop() {
        None => Reply::calls(vec![("read_file", serde_json::json!({ "path": "notes.md" }))]),
        Some(result) => Reply::text(&format!("no error, or: {result}")),
    });
    std::fs::rename(home.workspace(), home.path().join("away")).unwrap();
    telegram.says(ANN, ANN, "read");
    let gone = telegram.next_sent(ANN).await.text;
    assert!(gone.contains("the workspace itself cannot be opened"), "{gone}");
    let status = cli(&home, &["status"]).await.stdout;
    assert!(status.contains("The workspace is gone"), "{status}");
    std::fs::create_dir(home.workspace()).unwrap();
    std::fs::write(home.workspace().join("notes.md"), "new\n").unwrap();
    telegram.says(ANN, ANN, "/new");
    telegram.next_sent(ANN).await;
    telegram.says(ANN, ANN, "read");
    let new = telegram.next_sent(ANN).await.text;
    assert!(new.contains("new"), "{new}");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_in_a_prompt_files_place_holds_nothing_up() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let daemon = Daemon::start(&home).await;
    let fifo = home.path().join("data/prompt/SOUL.md");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    telegram.says(ANN, ANN, "hello");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hello");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_narrows_a_running_turn_and_widens_only_the_next() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let mut home =
        Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["read_file"]);
    home = home.link("bobs", BOB, &[BOB]).workspace_file("notes.md", "the boat leaves at nine\n");
    let mut daemon = Daemon::start(&home).await;
    let read = || Reply::calls(vec![("read_file", serde_json::json!({ "path": "notes.md" }))]).held();
    let tell = |request: &crate::support::model::Request| match request.results().as_slice() {
        [] => Reply::text("no call, no error"),
        [.., last] => Reply::text(&format!("refused, or: {last}")),
    };
    model.script(tell);
    model.queue(read());
    model.queue(read());
    telegram.says(ANN, ANN, "read it");
    model.wait_requests(1).await;
    telegram.says(BOB, BOB, "read it");
    model.wait_requests(2).await;
    home = home.unlink("home").unlink("bobs").link("home", ANN, &[ANN]).link("bobs", BOB, &[BOB]);
    home = home.grant("bobs", &["read_file"]);
    reload("midwatch reload", &home, &mut daemon, 2).await;
    model.release();
    let narrowed = telegram.next_sent(ANN).await.text;
    assert!(narrowed.contains("Refused at the step policy"), "{narrowed}");
    let widened = telegram.next_sent(BOB).await.text;
    assert!(widened.contains("Refused at the step scope"), "{widened}");
    model.queue(Reply::calls(vec![("read_file", serde_json::json!({ "path": "notes.md" }))]));
    telegram.says(BOB, BOB, "and now?");
    let next = telegram.next_sent(BOB).await.text;
    assert!(next.contains("the boat leaves at nine"), "{next}");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_changes_nothing_and_is_told() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    let mut daemon = Daemon::start(&home).await;
    let file = home.path().join("config/channels/telegram.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, good.replace("senders = [501]", "senderz = [501, 502]")).unwrap();
    let output = cli(&home, &["reload"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (Some(78), ""));
    insta::assert_snapshot!(output.stderr, @"
    error: channels/telegram.toml:8: unknown key `senderz`
    hint: did you mean `senders`?
    the old configuration stays
    ");
    let told = cli(&home, &["--json", "reload"]).await;
    assert_eq!((told.code, told.json()["faults"].as_array().map(Vec::len)), (Some(78), Some(1)));
    daemon.signal(Signal::HUP);
    eventually("the log tells of it", || daemon.stderr().contains("the old one stays").then_some(())).await;
    telegram.says(ANN, ANN, "still there?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: still there?");
    std::fs::write(&file, good).unwrap();
    assert_eq!(cli(&home, &["reload"]).await.code, Some(0));
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reload_cannot_change_is_said() {
    let model = Model::start().await;
    let mut home = Home::new().model(&model);
    let daemon = Daemon::start(&home).await;
    home = home.set("supervisor", "drain_secs", "7").set("workspace", "path", "\"elsewhere\"");
    let output = cli(&home, &["reload"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.stdout, "read again; [workspace] path, [supervisor] takes effect at the next start\n");
    drop(daemon);
}
