//! Kind 8: streams, JSON and overload of a provider.

use std::time::Duration;

use serde_json::json;

use super::{ANN, is_asked_again, kept, stage, texts};
use crate::support::daemon::Daemon;
use crate::support::model::{End, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn b070_a_refused_request_is_not_sent_for_ever() {
    let (telegram, model, home) = stage().await;
    let mut daemon = Daemon::start(&home).await;
    model.script(|_| Reply::error(400, "invalid_request_error", "messages.3: unexpected block"));
    telegram.says(ANN, ANN, "hi");
    insta::assert_snapshot!(telegram.next_sent(ANN).await.text, @r"
    Something went wrong on my side.

    (turn-1)
    ");
    assert!(model.requests().len() <= 2, "{}", model.told());
    kept(&home, &telegram, &model).await;
    daemon.restart().await;

    // Nothing begins again, and the chat is not dead for good: the same session goes on with the next message.
    model.script(|request| Reply::text(&format!("echo: {}", request.last_user())));
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: and now?");
    kept(&home, &telegram, &model).await;
    assert!(model.requests().len() <= 3, "{}", model.told());
}

#[tokio::test(flavor = "multi_thread")]
async fn b114_b124_what_is_no_whole_answer_is_asked_again_and_never_shown() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let half = || Reply::text("half of an answer that goes on and on");
    let null = json!({ "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake",
                       "choices": [{ "index": 0, "delta": null, "finish_reason": null }] });
    let cases = [
        ("closed cleanly before the end event", half().end_after(4)),
        ("broken off", half().cut_after(4)),
        ("nothing at all", half().end_after(0)),
        ("no choices", Reply::empty_choices()),
        ("a null where words should be", Reply::events(vec![null])),
        ("a page of the hotel's network", Reply::html200()),
        ("no answer", Reply::hangup()),
        ("a gateway's error", Reply::status(502, "<html>bad gateway</html>", &[])),
    ];
    let all = cases.len();
    for (name, reply) in cases {
        is_asked_again(&telegram, &model, name, reply).await;
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(telegram.sent(ANN).len(), all);
    assert_eq!(home.count("select count(*) from messages where blocks like '%half of an answer%'"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn b114_a_stream_that_is_always_cut_ends_in_words_of_ours() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.script(|_| Reply::text("half of an answer that goes on and on").end_after(4));
    telegram.says(ANN, ANN, "hi");
    insta::assert_snapshot!(telegram.next_sent(ANN).await.text, @r"
    The model cannot be reached right now. Please try again later.

    (turn-1)
    ");
    kept(&home, &telegram, &model).await;
    assert!(model.requests().len() <= 5, "{}", model.told());
    assert_eq!(home.count("select count(*) from messages where blocks like '%half of an answer%'"), 0);
    assert_eq!(home.rows("select end_reason from turns"), ["failed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b114_an_answer_that_reached_its_limit_says_so() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::text("as far as it goes").finish("length"));
    model.queue(Reply::text("whole without the closing line").no_done());
    telegram.says(ANN, ANN, "hi");
    let limit = "as far as it goes\n\n(The answer reached the model's output limit and ends here.)";
    assert_eq!(telegram.next_sent(ANN).await.text, limit);
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "whole without the closing line");
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b115_cut_arguments_do_not_run_and_do_not_loop() {
    for reason in ["length", "tool_calls"] {
        let (telegram, model, home) = stage().await;
        let home = home.workspace_file("notes.txt", "the words of the file");
        let _daemon = Daemon::start(&home).await;
        model.script(move |_| Reply::calls(vec![("read_file", json!({ "path": "notes.txt" }))]).cut_arguments(reason));
        telegram.says(ANN, ANN, "read it");
        let told = telegram.next_sent(ANN).await.text;
        kept(&home, &telegram, &model).await;
        assert_eq!(told, "I stopped here: the same step failed again and again.\n\n(turn-1)", "{reason}");
        let requests = model.requests();
        assert_eq!(requests.len(), 3, "{reason}: {}", model.told());
        assert_eq!(home.count("select count(*) from timeline where kind = 'call.done'"), 0, "{reason}");
        let result = requests[1].results().join("\n");
        assert!(!result.contains("the words of the file"), "{reason}: {result}");
        assert!(result.contains("cut") && result.contains("limit"), "{reason}: the model is told why: {result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b115_no_arguments_are_not_taken_for_cut_ones() {
    let (telegram, model, home) = stage().await;
    let home = home.workspace_file("notes.txt", "x");
    let _daemon = Daemon::start(&home).await;
    for arguments in ["", "{}"] {
        model.queue(Reply::raw_call("list_files", arguments));
        model.queue(Reply::text("notes.txt lies there"));
        telegram.says(ANN, ANN, "list");
        assert_eq!(telegram.next_sent(ANN).await.text, "notes.txt lies there", "{arguments:?}");
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(home.count("select count(*) from timeline where kind = 'call.done'"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn b118_overload_is_waited_out_within_the_budget() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let overloaded = || {
        let body = json!({ "error": { "type": "overloaded_error", "message": "Overloaded" } }).to_string();
        Reply::status(529, &body, &[("retry-after", "1")])
    };
    // More than a broken connection would be forgiven.
    for _ in 0..5 {
        model.queue(overloaded());
    }
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi");
    kept(&home, &telegram, &model).await;
    let times: Vec<Duration> = model.requests().iter().map(|request| request.at).collect();
    assert_eq!(times.len(), 6);
    let waits: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.iter().all(|wait| *wait >= Duration::from_secs(1)), "the wait that was asked for is kept: {waits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b118_overload_that_outlasts_the_budget_ends_within_it() {
    let (telegram, model, home) = stage().await;
    let home = home.link_line("home", "time_budget_secs = 4").set("model", "stall_secs", "2");
    let home = home.set("model", "request_timeout_secs", "3");
    let _daemon = Daemon::start(&home).await;
    model.script(|_| Reply::status(529, "{}", &[("retry-after", "1")]));
    telegram.says(ANN, ANN, "hi");
    insta::assert_snapshot!(telegram.next_sent(ANN).await.text, @r"
    The model cannot be reached right now. Please try again later.

    (turn-1)
    ");
    kept(&home, &telegram, &model).await;
    assert!(home.count("select ended_at_ms - started_at_ms from turns") <= 4_500);
    assert!(model.requests().len() <= 5, "{}", model.told());
}

#[tokio::test(flavor = "multi_thread")]
async fn b124_odd_shapes_around_a_good_answer_are_no_failure() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    let chunk = |choices: serde_json::Value| json!({ "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": choices });
    let words = |text: &str| chunk(json!([{ "index": 0, "delta": { "content": text }, "finish_reason": null }]));
    let end = || chunk(json!([{ "index": 0, "delta": {}, "finish_reason": "stop" }]));
    let usage = || {
        let mut last = chunk(json!([]));
        last["usage"] = json!({ "prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9 });
        last
    };
    for (name, events) in [
        ("a filter's empty chunk first", vec![chunk(json!([])), words("fine"), end(), usage()]),
        ("usage before the end", vec![words("fine"), usage(), end()]),
        ("no usage at all", vec![words("fine"), end()]),
    ] {
        model.queue(Reply::events(events));
        telegram.says(ANN, ANN, name);
        assert_eq!(telegram.next_sent(ANN).await.text, "fine", "{name}");
    }
    kept(&home, &telegram, &model).await;
    assert_eq!(model.requests().len(), 3, "{}", model.told());
}

#[tokio::test(flavor = "multi_thread")]
async fn b126_comments_do_not_hide_a_stall() {
    let (telegram, model, home) = stage().await;
    let home = home.set("model", "stall_secs", "1");
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::text("five words and then nothing more").stall_after(5).keepalive());
    model.queue(Reply::text("never").stall_after(0));
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "echo: hi");
    kept(&home, &telegram, &model).await;
    assert_eq!(texts(&telegram, ANN), ["echo: hi"]);
    let ends: Vec<End> = model.requests().iter().map(|request| request.end).collect();
    assert_eq!(ends, [End::Abandoned, End::Abandoned, End::Answered]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b126_a_stop_ends_a_stalled_turn_at_once() {
    let (telegram, model, home) = stage().await;
    let _daemon = Daemon::start(&home).await;
    model.queue(Reply::keepalive_only());
    telegram.says(ANN, ANN, "hi");
    model.wait_requests(1).await;
    telegram.says(ANN, ANN, "/stop");
    assert_eq!(telegram.next_sent(ANN).await.text, "Stopped.");
    kept(&home, &telegram, &model).await;
    let spent = home.count("select ended_at_ms - started_at_ms from turns");
    assert!(spent < 20_000, "half of the 40 s after which a stall would have ended it: {spent}");
    let gone = model.wait_for("the request given up", |all| (all[0].end == End::Abandoned).then_some(())).await;
    assert_eq!(gone, ());
}
