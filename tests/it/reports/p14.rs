//! Kind 14: a history that the provider refuses. The fake model refuses what real ones refuse.

use serde_json::json;

use super::{ANN, kept, stage};
use crate::support::daemon::Daemon;
use crate::support::model::{Model, Reply};

/// "read" becomes two calls and then words; everything else is echoed.
fn reads_first(model: &Model) {
    model.script(|request| match request.last_user().as_str() {
        "read" if request.results().is_empty() => {
            let read = |path: &str| ("read_file", json!({ "path": path }));
            Reply::text_and_calls("I look.", vec![read("a.txt"), read("missing.txt"), read("b.txt")])
        }
        "read" => Reply::text(&format!("I could not find one; found: {}", request.results().join(" / "))),
        words => Reply::text(&format!("echo: {words}")),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn b067_b080_a_crash_around_a_read_is_made_good_in_silence() {
    for point in ["turn.before_tools", "turn.after_tools", "turn.checkpoint:1", "turn.checkpoint:2"] {
        let (telegram, model, home) = stage().await;
        let home = home.workspace_file("a.txt", "alpha").workspace_file("b.txt", "beta");
        reads_first(&model);
        let mut daemon = Daemon::start_with_env(&home, &[("MIDWATCH_CRASH_AT", point)]).await;
        telegram.says(ANN, ANN, "read");
        assert!(daemon.wait_exit().await.killed(), "{point}");
        daemon.restart().await;
        telegram.says(ANN, ANN, "continue");
        let answer = telegram.next_sent(ANN).await.text;
        assert_eq!(telegram.next_sent(ANN).await.text, "echo: continue", "{point}");
        kept(&home, &telegram, &model).await;
        // Order of the calls kept, nothing interrupted, nothing asked of the person.
        let (a, b) = (answer.find("alpha"), answer.find("beta"));
        assert!(a.is_some() && a < b && !answer.contains("Interrupted"), "{point}: {answer}");
        assert_eq!(home.count("select count(*) from sessions"), 1, "{point}");
        assert_eq!(
            home.rows("select end_reason, crashes from turns order by id"),
            ["natural|1", "natural|0"],
            "{point}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b067_a_parked_call_does_not_make_its_chat_unusable() {
    let (telegram, model, home) = stage().await;
    reads_first(&model);
    let deadly = [("MIDWATCH_CRASH_AT", "turn.before_tools")];
    let mut daemon = Daemon::start_with_env(&home, &deadly).await;
    telegram.says(ANN, ANN, "read");
    assert!(daemon.wait_exit().await.killed());
    daemon.restart_with_env(&deadly).await;
    assert!(daemon.wait_exit().await.killed());
    daemon.restart().await;
    telegram.says(ANN, ANN, "continue");
    assert!(telegram.next_sent(ANN).await.text.starts_with("I set this message aside"));
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: continue");
    kept(&home, &telegram, &model).await;
    let last = model.requests().pop().unwrap();
    let results = last.messages().iter().filter(|message| message["role"] == "tool");
    let interrupted =
        results.filter(|result| result["content"].to_string().contains("outcome of this call is not known"));
    assert_eq!(interrupted.count(), 3, "each call is paired: {}", last.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn b068_half_a_call_is_never_stored_wherever_the_stream_is_cut() {
    /// Events before the one that ends the answer: the words, the call's head, its arguments in three pieces.
    const CUTS: i64 = 7;
    let (telegram, model, home) = stage().await;
    let mut home = home.workspace_file("a.txt", "alpha");
    for cut in 1..=CUTS {
        home = home.link(&format!("chat-{cut}"), cut, &[cut]).grant(&format!("chat-{cut}"), &["read_file"]);
    }
    // Each chat has its own cut; even ones end cleanly, odd ones break.
    model.script(|request| {
        let words = request.last_user();
        let Some(cut) = words.strip_prefix("cut at ") else { return Reply::text(&format!("echo: {words}")) };
        if !request.results().is_empty() {
            return Reply::text("read");
        }
        let reply = Reply::text_and_calls("I look.", vec![("read_file", json!({ "path": "a.txt", "limit": 1 }))]);
        let cut: usize = cut.parse().unwrap();
        if cut.is_multiple_of(2) { reply.end_after(cut) } else { reply.cut_after(cut) }
    });
    let _daemon = Daemon::start(&home).await;
    for chat in 1..=CUTS {
        telegram.says(chat, chat, &format!("cut at {chat}"));
    }
    for chat in 1..=CUTS {
        let told = telegram.next_sent(chat).await.text;
        assert!(told.starts_with("The model cannot be reached right now."), "cut at {chat}: {told}");
        telegram.says(chat, chat, "hello again");
    }
    for chat in 1..=CUTS {
        assert_eq!(telegram.next_sent(chat).await.text, "echo: hello again");
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(home.count("select count(*) from messages where blocks like '%tool_%'"), 0, "nothing half is stored");
}
