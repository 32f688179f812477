//! A disk that takes no more: nothing is acknowledged, it is said, and all goes on by itself.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::spine::ANN;
use crate::support::daemon::cli;
use crate::support::home::Home;
use crate::support::model::{self, Model, Reply};
use crate::support::oracle;
use crate::support::telegram::{self, Telegram};
use crate::support::{PATIENCE, eventually};

/// The daemon, with a size that no file of its may pass: what a full disk looks like to a writer.
struct Cramped {
    child: Child,
}

impl Cramped {
    fn start(home: &Home) -> Self {
        home.write();
        // The signal that comes with the limit would end the process, as no full disk does.
        let log = File::create(home.path().join("stderr.log")).unwrap();
        let child = Command::new("/bin/sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_midwatch"), "--home"])
            .arg(home.path())
            .arg("serve")
            .env_clear()
            .env("HOME", home.path())
            .env("TELEGRAM_BOT_TOKEN", telegram::TOKEN)
            .env("OPENAI_API_KEY", model::KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child }
    }

    /// No write beyond `bytes` of any file; none lifts it.
    fn limit(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
    }

    async fn stop(mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        eventually("the end of the daemon", || self.child.try_wait().unwrap()).await.code()
    }
}

impl Drop for Cramped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b078_while_the_store_takes_nothing_nothing_is_acknowledged_and_then_all_goes_on() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
    oracle::watch_acknowledgements(&home, &telegram);
    let daemon = Cramped::start(&home);
    telegram.says(ANN, ANN, "before");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: before");

    // A turn is in its model call while the disk fills up.
    model.queue(Reply::text("worked on meanwhile").held());
    telegram.says(ANN, ANN, "long work");
    model.wait_requests(2).await;
    daemon.limit(Some(4_096));
    let during = telegram.says(ANN, ANN, "during");
    model.release();
    let looks = async {
        loop {
            let output = cli(&home, &["--json", "status"]).await;
            assert_eq!(output.code, Some(0), "reading goes on: {output:?}");
            let status = output.json();
            if status["store_ok"] == false {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, looks).await.expect("`status` says that the store takes no writes");
    assert_eq!(status["ready"], false);
    let told = cli(&home, &["status"]).await.stdout;
    assert!(told.contains("is not taking work") && told.contains("The store does not take writes"), "{told}");
    let said = cli(&home, &["say", "hello"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("hint: look at the disk"), "{said:?}");
    let polls = telegram.polls();
    telegram
        .wait_for("polls that bring it again", |journal| (journal.calls("getUpdates").len() > polls).then_some(()))
        .await;
    assert!(!telegram.journal().acknowledged.contains(&during.update_id));
    assert_eq!(telegram.sent(ANN).len(), 1, "what is not stored is not said");

    daemon.limit(None);
    let sent = telegram.wait_sent(ANN, 3).await;
    let texts: Vec<_> = sent.iter().map(|sent| sent.text.as_str()).collect();
    assert_eq!(texts, ["echo: before", "worked on meanwhile", "echo: during"]);
    telegram.wait_acknowledged(during.update_id).await;
    assert_eq!(cli(&home, &["say", "hello"]).await.stdout, "echo: hello\n");
    let status = cli(&home, &["--json", "status"]).await.json();
    assert_eq!((&status["store_ok"], &status["ready"]), (&true.into(), &true.into()));
    oracle::at_rest(&home).await;
    assert_eq!(daemon.stop().await, Some(0));
    assert_eq!(home.rows("pragma integrity_check"), ["ok"]);
    oracle::assert_promises(&home, &telegram, &model);
    assert_eq!(model.requests().len(), 4, "the answer that could not be stored at once was not asked for again");
}
