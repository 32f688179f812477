//! What a turn costs in things that can be counted, and must not grow unnoticed: commits, requests, bytes. Nothing is
//! timed here; `cargo bench --bench figures` does that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on may only panic")]

use serde_json::json;

use crate::spine::{ANN, ends_well};
use crate::support::commits::Commits;
use crate::support::daemon::Daemon;
use crate::support::home::Home;
use crate::support::model::{Model, Reply, Request};
use crate::support::oracle;
use crate::support::telegram::Telegram;

/// Most tokens of system prompt and tools that come with a plain hello, at four bytes each.
const OVERHEAD_TOKENS_MAX: usize = 1_500;
/// All tools of this version.
const TOOLS: &[&str] = &["read_file", "list_files", "search_files"];

/// Bytes of what is sent along whatever people write: the system prompt and the tools' JSON.
fn overhead_bytes(request: &Request) -> usize {
    request.system().len() + request.body["tools"].to_string().len()
}

/// What one message cost.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    commits: usize,
    model_requests: usize,
    messages_sent: usize,
}

/// Lets Ann write and waits until all that follows from it has happened.
async fn cost(home: &Home, telegram: &Telegram, model: &Model, text: &str) -> Cost {
    oracle::at_rest(home).await;
    let (requests, sent) = (model.requests().len(), telegram.calls("sendMessage").len());
    let commits = Commits::from_now(home);
    telegram.says(ANN, ANN, text);
    telegram.next_sent(ANN).await;
    oracle::at_rest(home).await;
    Cost {
        commits: commits.so_far(),
        model_requests: model.requests().len() - requests,
        messages_sent: telegram.calls("sendMessage").len() - sent,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_turn_costs_four_commits_and_a_tool_round_two_more() {
    let (telegram, model) = (Telegram::start().await, Model::start().await);
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", TOOLS);
    let home = home.workspace_file("notes.md", "the boat leaves at nine\n");
    let daemon = Daemon::start(&home).await;
    let plain = Cost { commits: 4, model_requests: 1, messages_sent: 1 };
    for text in ["hello", "and once more", "and again"] {
        assert_eq!(cost(&home, &telegram, &model, text).await, plain, "{text}");
    }
    for rounds in 1..=2 {
        (0..rounds).for_each(|_| model.queue(Reply::calls(vec![("read_file", json!({ "path": "notes.md" }))])));
        let expected = Cost { commits: 4 + 2 * rounds, model_requests: 1 + rounds, messages_sent: 1 };
        assert_eq!(cost(&home, &telegram, &model, "when?").await, expected, "{rounds} tool rounds");
    }
    // Calls that are made together are one round.
    let both = vec![("read_file", json!({ "path": "notes.md" })), ("list_files", json!({}))];
    model.queue(Reply::calls(both));
    let expected = Cost { commits: 6, model_requests: 2, messages_sent: 1 };
    assert_eq!(cost(&home, &telegram, &model, "both?").await, expected, "two calls in a round");
    ends_well(daemon, &home, &telegram, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_hello_carries_at_most_1500_tokens_of_our_own() {
    let (telegram, model) = (Telegram::start().await, Model::start().await);
    let home = Home::new().model(&model).telegram(&telegram).link("home", ANN, &[ANN]).grant("home", TOOLS);
    let daemon = Daemon::start(&home).await;
    telegram.says(ANN, ANN, "hello");
    telegram.next_sent(ANN).await;
    let request = model.requests().remove(0);
    let mut tools = request.tools();
    tools.sort();
    assert_eq!(tools, ["list_files", "read_file", "search_files"], "with fewer tools the figure says little");
    let bytes = overhead_bytes(&request);
    assert!(bytes.div_ceil(4) <= OVERHEAD_TOKENS_MAX, "{bytes} bytes of system prompt and tools");
    ends_well(daemon, &home, &telegram, &model).await;
}
