//! Another model stands in: when it does, when it must not, and that it can be seen.

use serde_json::json;

use super::{ANN, kept, stage};
use crate::support::daemon::{Daemon, cli};
use crate::support::model::{Model, NAME, Reply, Request};

const OTHER: &str = "fallback-model";

/// The first model as `first` says; the other one answers.
fn script(model: &Model, first: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
    model.script(move |request| match request.model() {
        NAME => first(request),
        other => Reply::text(&format!("{other}: {}", request.last_user())),
    });
}

/// How often each of the two was asked.
fn asked(model: &Model) -> (usize, usize) {
    let requests = model.requests();
    let of = |name: &str| requests.iter().filter(|request| request.model() == name).count();
    (of(NAME), of(OTHER))
}

#[tokio::test(flavor = "multi_thread")]
async fn b119_a_model_that_stays_busy_is_left_after_a_few_tries_and_the_switch_is_kept() {
    let (telegram, model, home) = stage().await;
    let home = home.fallback(&model);
    let _daemon = Daemon::start(&home).await;
    script(&model, |_| Reply::status(529, "busy", &[]));
    telegram.says(ANN, ANN, "hi");
    assert_eq!(telegram.next_sent(ANN).await.text, "fallback-model: hi");
    assert_eq!(asked(&model), (2, 1), "{}", model.told());
    let line = home.rows("select detail from timeline where kind = 'model.fallback'");
    assert!(line.len() == 1 && line[0].contains(r#""from":"fake-model","message""#), "{line:?}");
    assert!(line[0].contains(r#""to":"fallback-model""#), "{line:?}");
    let status = cli(&home, &["--json", "status"]).await.json();
    assert_eq!(status["models"][0]["name"], NAME);
    assert!(status["models"][0]["error"].as_str().unwrap().starts_with("overload"), "{status}");
    assert!(status["models"][1]["last_answered_at"].is_string() && status["models"][1]["error"].is_null(), "{status}");
    // The first one is asked first again in the next turn, and what it did before is forgiven.
    script(&model, |request| Reply::text(&format!("back: {}", request.last_user())));
    telegram.says(ANN, ANN, "and now?");
    assert_eq!(telegram.next_sent(ANN).await.text, "back: and now?");
    let status = cli(&home, &["--json", "status"]).await.json();
    assert!(status["models"][0]["error"].is_null(), "{status}");
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_decides_whether_another_model_is_asked() {
    type Case = (&'static str, fn() -> Reply, (usize, usize), &'static str);
    let cases: [Case; 8] = [
        ("a refused key", || Reply::error(401, "invalid_api_key", "no"), (1, 1), "fallback-model: "),
        ("a spent account", || Reply::error(429, "insufficient_quota", "spent"), (1, 1), "fallback-model: "),
        ("busy", || Reply::status(503, "busy", &[]), (2, 1), "fallback-model: "),
        (
            "busy for longer than one likes to wait",
            || Reply::status(429, "", &[("retry-after", "60")]),
            (1, 1),
            "fallback-model: ",
        ),
        ("broken off", || Reply::text("half an answer that goes on").cut_after(2), (2, 1), "fallback-model: "),
        (
            "a request that is wrong",
            || Reply::error(400, "invalid_request_error", "bad"),
            (1, 0),
            "Something went wrong",
        ),
        ("a filter", || Reply::error(400, "content_filter", "no"), (1, 0), "The model declined"),
        (
            "too long, also when cut to half",
            || Reply::error(400, "context_length_exceeded", "long"),
            (2, 0),
            "This conversation",
        ),
    ];
    for (name, reply, expected, shown) in cases {
        let (telegram, model, home) = stage().await;
        let home = home.fallback(&model);
        let _daemon = Daemon::start(&home).await;
        script(&model, move |_| reply());
        telegram.says(ANN, ANN, "hi");
        let text = telegram.next_sent(ANN).await.text;
        assert_eq!(asked(&model), expected, "{name}: {text}; {}", model.told());
        assert!(text.starts_with(shown), "{name}: {text}");
        kept(&home, &telegram, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_changed_its_model_stays_with_it_and_pays_its_price() {
    let (telegram, model, home) = stage().await;
    let price = "price = { input = 2.0, output = 4.0, cached = 1.0 }";
    let home = home.set("model", "price", "{ input = 1000.0, output = 1000.0 }");
    let home = home.fallback(&model).toml(price);
    let _daemon = Daemon::start(&home).await;
    model.script(|request| match (request.model(), request.results().len()) {
        (NAME, _) => Reply::status(529, "busy", &[]),
        (_, 0) => Reply::calls(vec![("list_files", json!({}))]).usage(1_000, 100, 500),
        _ => Reply::text("an empty folder").usage(1_000, 100, 0),
    });
    telegram.says(ANN, ANN, "what is there?");
    assert_eq!(telegram.next_sent(ANN).await.text, "an empty folder");
    assert_eq!(asked(&model), (2, 2), "{}", model.told());
    // 500 fresh and 500 cached read, then 1,000 fresh; 200 written.
    let spent = home.rows("select json_extract(spent, '$.cost_usd') from turns");
    assert_eq!(spent, [(((500.0 + 1_000.0) * 2.0 + 500.0 + 200.0 * 4.0) / 1e6).to_string()]);
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_model_has_the_rest_of_the_budget_and_all_that_fail_are_said() {
    let (telegram, model, home) = stage().await;
    let home = home.fallback(&model).link_line("home", "time_budget_secs = 3").set("model", "stall_secs", "2");
    let _daemon = Daemon::start(&home).await;
    model.script(|_| Reply::status(529, "busy", &[]));
    telegram.says(ANN, ANN, "hi");
    let text = telegram.next_sent(ANN).await.text;
    assert!(text.starts_with("The model cannot be reached right now."), "{text}");
    let (first, other) = asked(&model);
    assert!(first == 2 && other >= 2, "{}", model.told());
    let status = cli(&home, &["status"]).await.stdout;
    assert!(status.contains("model fake-model: last answered not since the start\n  overload"), "{status}");
    kept(&home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_and_a_day_end_at_their_cost() {
    let (telegram, model, home) = stage().await;
    let home = home.set("model", "price", "{ input = 1000.0, output = 1000.0 }");
    let home = home.set("limits", "turn_cost_usd", "1.5").set("limits", "day_cost_usd", "2.5");
    let _daemon = Daemon::start(&home).await;
    model.script(|request| match request.last_user().as_str() {
        "look" => {
            Reply::calls(vec![("list_files", json!({ "depth": request.results().len() + 1 }))]).usage(1_000, 0, 0)
        }
        _ => Reply::text("fine").usage(1_000, 0, 0),
    });
    telegram.says(ANN, ANN, "look");
    let text = telegram.next_sent(ANN).await.text;
    assert_eq!(home.rows("select end_reason from turns"), ["cost_budget"], "{text}");
    assert_eq!(asked(&model).0, 2, "{}", model.told());
    telegram.says(ANN, ANN, "hello");
    assert_eq!(telegram.next_sent(ANN).await.text, "fine");
    telegram.says(ANN, ANN, "once more");
    telegram.next_sent(ANN).await;
    assert_eq!(
        home.rows("select end_reason from turns where id = 3"),
        ["cost_budget"],
        "the day's three dollars are spent"
    );
    assert_eq!(asked(&model).0, 3, "{}", model.told());
    kept(&home, &telegram, &model).await;
}
