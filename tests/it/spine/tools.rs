//! The tools of a chat: what is offered, what runs, and what the model hears of either.

use serde_json::json;

use super::{ANN, ends_well};
use crate::support::daemon::Daemon;
use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::telegram::Telegram;

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_tool_runs_and_the_model_sees_what_the_file_holds() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.queue(Reply::text_and_calls("I look it up.", vec![("read_file", json!({ "path": "notes/today.md" }))]));
    model.queue(Reply::text("The boat leaves at nine."));
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["read_file"]);
    let home = home.workspace_file("notes/today.md", "the boat leaves at nine\nbring <bread> & wine\n");
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "when does the boat leave?");
    assert_eq!(telegram.next_sent(ANN).await.text, "The boat leaves at nine.");
    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    let results = requests[1].results();
    assert!(matches!(&results[..], [result] if result.contains("bring <bread> & wine")), "{results:?}");
    assert_eq!(requests[0].system(), requests[1].system(), "a provider's cache holds from round to round");
    let timeline = home.rows("select call, json_extract(detail, '$.tool') from timeline where call is not null");
    assert_eq!(timeline, ["call-1-1|read_file"]);
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_offered_and_runs_only_by_grant() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    model.script(|request| match request.results().as_slice() {
        [] => Reply::calls(vec![("read_file", json!({ "path": "notes/today.md" }))]),
        [result] => Reply::text(&format!("I was refused or not: {result}")),
        more => panic!("{more:?}"),
    });
    let home = Home::new()
        .model(&model)
        .telegram(&telegram)
        .workspace_file("notes/today.md", "the boat leaves at nine\n")
        .workspace_file("secret.md", "nobody may read this\n")
        .link("bare", 601, &[601])
        .link("lists", 602, &[602])
        .grant("lists", &["list_files"])
        .link("reads", 603, &[603])
        .grant("reads", &["read_file", "search_files"])
        .link("elsewhere", 604, &[604])
        .grant("elsewhere", &["read_file(private/**)"])
        .link("denied", 605, &[605])
        .grant("denied", &["read_file"])
        .link_line("denied", "deny = [\"read_file(notes/**)\"]");
    let daemon = Daemon::start(&home).await;
    const REFUSED_SCOPE: &str = "Refused at the step scope";
    const REFUSED_POLICY: &str = "Refused at the step policy";
    for (name, chat, offered, heard) in [
        ("no grant: no tool", 601, &[][..], REFUSED_SCOPE),
        ("another tool", 602, &["list_files"], REFUSED_SCOPE),
        ("granted", 603, &["read_file", "search_files"], "the boat leaves at nine"),
        ("granted for other paths", 604, &["read_file"], REFUSED_POLICY),
        ("refusal beats grant", 605, &["read_file"], REFUSED_POLICY),
    ] {
        let before = model.requests().len();
        telegram.says(chat, chat, "read my notes");
        let answer = telegram.next_sent(chat).await.text;
        assert!(answer.contains(heard), "{name}: {answer}");
        assert_eq!(answer.contains("the boat leaves"), heard == "the boat leaves at nine", "{name}: {answer}");
        let mut tools = model.requests()[before].tools();
        tools.sort();
        assert_eq!(tools, offered, "{name}");
    }
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_comes_back_in_the_order_of_its_calls() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let read = |path: &str| ("read_file", json!({ "path": path }));
    // The first is long and the last is short, and one in the middle fails.
    model.queue(Reply::calls(vec![read("long.md"), read("missing.md"), read("write.md"), read("short.md")]));
    model.queue(Reply::text("Done, but missing.md was not found."));
    let long = "a long line of the long file\n".repeat(1_500);
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", &["read_file"]);
    let home = home.workspace_file("long.md", &long).workspace_file("short.md", "short\n");
    let home = home.workspace_file("write.md", "between\n");
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "read them all");
    telegram.next_sent(ANN).await;
    let results = model.requests()[1].results();
    let holds = ["a long line of the long file", "missing.md", "between", "short"];
    assert_eq!(results.len(), holds.len());
    for (result, expected) in results.iter().zip(holds) {
        assert!(result.contains(expected), "{expected} should stand in {}", &result[..result.len().min(200)]);
    }
    let calls = home.rows("select call from timeline where call is not null order by id");
    assert_eq!(calls, ["call-1-1", "call-1-2", "call-1-3", "call-1-4"]);
    ends_well(daemon, &home, &telegram, &model).await;
}
