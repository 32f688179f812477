//! What is sent to the model along with a plain hello.

use crate::people::Stage;
use crate::support::daemon::Daemon;
use crate::table::Table;

const TOKENS_MAX: f64 = 1_500.0;

pub(crate) async fn run(table: &mut Table) {
    let stage = Stage::new(1).await;
    let _daemon = Daemon::start(&stage.home).await;
    stage.talk(&stage.chats, 1).await;
    let request = stage.model.requests().remove(0);
    let (prompt, tools) = (request.system().len(), request.body["tools"].to_string().len());
    table.tell("system prompt and tools of a plain hello", format!("{prompt} + {tools} bytes"));
    table.aim("the same in tokens, four bytes each", (prompt + tools).div_ceil(4) as f64, TOKENS_MAX, "");
    stage.assert_clean();
}
