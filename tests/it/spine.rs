//! One message, end to end.

use crate::support::daemon::Daemon;
use crate::support::home::Home;
use crate::support::model::Model;
use crate::support::oracle;
use crate::support::telegram::Telegram;

const ANN: i64 = 501;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_and_a_stop_is_clean() {
    let telegram = Telegram::start().await;
    let model = Model::start().await;
    let home = Home::new().model(&model).telegram(&telegram).link("home", 501, &[ANN]);
    let mut daemon = Daemon::start(&home).await;
    telegram.says(501, ANN, "hi");
    assert_eq!(telegram.next_sent(501).await.text, "echo: hi");
    assert_eq!(daemon.stop().await, Some(0));
    oracle::at_rest(&home).await;
    oracle::assert_promises(&home, &telegram, &model);
}
