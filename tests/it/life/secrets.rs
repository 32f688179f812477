//! After failures of every kind no secret stands where people or backups can read it.

use super::telegram_is;
use crate::spine::{ANN, store_bytes};
use crate::support::daemon::{Daemon, cli};
use crate::support::home::Home;
use crate::support::model::{self, Model, Reply};
use crate::support::telegram::{self, Fault, Telegram};
use crate::support::{assert_no_secrets, eventually};

async fn assert_clean(what: &str, home: &Home, daemon: &Daemon) {
    assert_no_secrets(&format!("{what}: a log"), &daemon.all_logs());
    assert_no_secrets(&format!("{what}: the store"), &String::from_utf8_lossy(&store_bytes(home)));
    for args in [
        &["status"][..],
        &["--json", "status"],
        &["sessions", "show", "main"],
        &["--json", "replies"],
        &["--json", "turns"],
        &["--json", "timeline", "main"],
        &["links"],
        &["check"],
        &["--json", "reload"],
    ] {
        let output = cli(home, args).await;
        assert_no_secrets(&format!("{what}: {args:?}"), &(output.stdout + &output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_failure_of_a_model_or_a_platform_shows_a_secret() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).env("MIDWATCH_LOG", "trace");
    let home = home.set("limits", "console_turn_secs", "4").set("model", "stall_secs", "1");
    let daemon = Daemon::start(&home).await;
    let echoed = format!("Incorrect API key provided: {} (Bearer {})", model::KEY, model::KEY);
    for (name, reply) in [
        ("a refused key that is echoed", Reply::error(401, "invalid_request_error", &echoed)),
        ("a bad request that echoes it", Reply::error(400, "invalid_request_error", &echoed)),
        ("a page that echoes it", Reply::status(403, &format!("<html>{echoed}</html>"), &[])),
        ("an end before the end", Reply::text(&echoed).end_after(1)),
        ("a broken connection", Reply::hangup()),
        ("a portal's page", Reply::html200()),
        ("a stall", Reply::stall()),
    ] {
        model.script(move |_| reply.clone());
        cli(&home, &["say", name]).await;
        assert_clean(name, &home, &daemon).await;
    }
    model.set_offline(true);
    cli(&home, &["say", "nobody there"]).await;
    model.set_offline(false);
    model.script(|request| Reply::text(&format!("echo: {}", request.last_user())));
    for (name, fault) in [
        ("401 for a send", Fault::Status(401)),
        ("502 for a send", Fault::Status(502)),
        ("a send that breaks", Fault::DropBefore),
        ("a send whose answer is lost", Fault::DropAfter),
        ("no JSON", Fault::Garbage),
        ("bad entities", Fault::BadEntities),
    ] {
        telegram.fault("sendMessage", fault, 1);
        let before = telegram.calls("sendMessage").len();
        telegram.says(ANN, ANN, name);
        telegram.wait_for(name, |journal| (journal.calls("sendMessage").len() > before).then_some(())).await;
        let settled = "select count(*) from outbox where state = 'sending'";
        eventually("the send settled", || (home.count(settled) == 0).then_some(())).await;
        assert_clean(name, &home, &daemon).await;
    }
    telegram.set_offline(true);
    telegram_is(&home, "retrying").await;
    assert_clean("the platform is away", &home, &daemon).await;
    telegram.set_offline(false);
    telegram.revoke();
    telegram_is(&home, "stopped").await;
    assert_clean("the token is void", &home, &daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b026_what_is_pasted_in_the_tokens_place_is_never_shown() {
    let model = Model::start().await;
    let telegram = Telegram::start().await;
    let pasted = format!("Use this token to access the HTTP API: {} Keep it secure", telegram::TOKEN);
    let lines = format!("Done!\n{}", telegram::TOKEN);
    let spaced = format!("{} ", telegram::TOKEN.replace(':', ": "));
    for (name, token) in [("BotFather's sentence", pasted), ("two lines", lines), ("a space within", spaced)] {
        let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]);
        let home = home.env("TELEGRAM_BOT_TOKEN", &token).env("MIDWATCH_LOG", "trace");
        let mut daemon = Daemon::start(&home).await;
        assert_eq!(cli(&home, &["say", "hello"]).await.stdout, "echo: hello\n", "{name}: the console works");
        let channel = telegram_is(&home, "stopped").await;
        assert!(channel["error"].as_str().unwrap().contains("token"), "{name}: {channel}");
        assert_clean(name, &home, &daemon).await;
        let linked = cli(&home, &["link", "telegram"]).await;
        assert_no_secrets(name, &(linked.stdout + &linked.stderr));
        assert_eq!(daemon.stop().await, Some(0));
    }
    assert!(telegram.journal().calls.is_empty(), "nothing of it left the machine");
}
