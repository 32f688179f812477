//! Reports from the users of other daemons, each turned into a test that is named after it: `b007_…` is row B007.
//!
//! A module a kind of failure. `docs/field-reports.md` says for each row which test holds it, or which subject it waits
//! for. What a report shows once is tried on its neighbours too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test is told and does not expect is a failed test"
)]

mod fallback;
mod others;
mod p12;
mod p13;
mod p14;
mod p3;
mod p5;
mod p8;
mod p9;

use crate::support::home::Home;
use crate::support::model::{Model, Reply};
use crate::support::oracle;
use crate::support::telegram::Telegram;

/// The operator, in a private chat that is linked as `home`.
pub(crate) const ANN: i64 = 501;
/// Somebody else.
pub(super) const BOB: i64 = 602;
/// A supergroup.
pub(super) const GROUP: i64 = -1_009;

/// A platform, a model, and a home that links Ann's private chat and may read there.
pub(crate) async fn stage() -> (Telegram, Model, Home) {
    let (telegram, model) = (Telegram::start().await, Model::start().await);
    let home = Home::new()
        .model(&model)
        .telegram(&telegram)
        .link("home", ANN, &[ANN])
        .grant("home", &["read_file", "list_files", "search_files"])
        .operator(&[ANN]);
    (telegram, model, home)
}

/// Waits until nothing runs, then asks the oracle.
pub(crate) async fn kept(home: &Home, telegram: &Telegram, model: &Model) {
    oracle::at_rest(home).await;
    oracle::assert_promises(home, telegram, model);
}

/// Lets the model answer Ann's `words` with `reply`, which is no whole answer: it is asked a second time, and only the
/// second answer is shown.
pub(crate) async fn is_asked_again(telegram: &Telegram, model: &Model, words: &str, reply: Reply) {
    let before = model.requests().len();
    model.queue(reply);
    telegram.says(ANN, ANN, words);
    assert_eq!(telegram.next_sent(ANN).await.text, format!("echo: {words}"));
    assert_eq!(model.requests().len(), before + 2, "{words}: {}", model.told());
}

/// The texts of the bot in a chat.
pub(super) fn texts(telegram: &Telegram, chat: i64) -> Vec<String> {
    telegram.sent(chat).into_iter().map(|sent| sent.text).collect()
}

#[test]
fn the_page_of_field_reports_names_tests_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/field-reports.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| B")).collect();
    assert_eq!(rows.len(), 100);
    let mut gone = Vec::new();
    for row in rows {
        // `name` (path) for each test.
        for (name, rest) in row.split('`').skip(1).step_by(2).zip(row.split('`').skip(2).step_by(2)) {
            let Some(path) = rest.strip_prefix(" (").and_then(|rest| rest.split(')').next()) else { continue };
            let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
            if !text.contains(&format!("fn {name}(")) {
                gone.push(format!("{name} in {path}"));
            }
        }
    }
    assert!(gone.is_empty(), "docs/field-reports.md names what is no longer there: {gone:#?}");
}
