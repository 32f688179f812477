//! `try`: the newcomer's first minute. Everything is the real thing but the home, which is thrown away.

use std::io::IsTerminal as _;

use super::chat;
use super::client::Client;
use super::complain::{Complaint, Exit};
use super::out;
use crate::config::Home;
use crate::daemon::{Daemon, Held};
use crate::record::logs;
use crate::session::Snapshot;

const NOTES: &str = "# Today\n\n- water the plants\n- call Ann about the boat\n- 18:00 dinner\n";
const WELCOME: &str = "This is the workspace of a midwatch that is thrown away when you leave.\n";

/// Starts a daemon in a throw-away home, talks with it, and stops it.
pub(super) async fn run() -> Result<Exit, Complaint> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| Complaint::failed(format!("{what}: {error}"))
    };
    let folder =
        tempfile::Builder::new().prefix("midwatch-").tempdir().map_err(io("no throw-away home can be made"))?;
    let home = Home::find(Some(folder.path().to_owned()), None)?;
    home.create()?;
    std::fs::create_dir_all(&home.config).map_err(io("no throw-away home can be made"))?;
    std::fs::write(home.config_file(), model_from_environment()).map_err(io("no configuration can be written"))?;
    let notes = home.default_workspace().join("notes");
    std::fs::create_dir_all(&notes).map_err(io("no workspace can be made"))?;
    std::fs::write(notes.join("today.md"), NOTES).map_err(io("no workspace can be made"))?;
    std::fs::write(home.default_workspace().join("welcome.txt"), WELCOME).map_err(io("no workspace can be made"))?;

    let _held = Held::take(&home.lock_path())?;
    let snapshot = Snapshot::load(&home)?;
    let model = snapshot.models.first().map_or_else(String::new, |model| model.client.name().to_owned());
    let guards = logs::start(&home.logs_dir(), false).map_err(io("the log cannot be written"))?;
    let client = Client::connect(&home)?;
    let daemon = Daemon::start(home, snapshot).await?;
    let stop = daemon.services().stop.clone();
    if std::io::stdin().is_terminal() {
        out::note(format_args!(
            "midwatch, in a throw-away home ({}); the model is \"{model}\".\nTry: hello · list files · read notes/today.md · write hi to x.md. Ctrl-D leaves.",
            folder.path().display()
        ));
    }
    let running = tokio::spawn(daemon.run());
    let talked = chat::chat(&client, "main").await;
    stop.ask();
    let _ = running.await;
    drop(guards);
    talked
}

/// A model that the environment names, else the built-in stand-in.
fn model_from_environment() -> String {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let Some(model) = set("MIDWATCH_MODEL") else {
        return "[model]\nprovider = \"rehearsal\"\n".to_owned();
    };
    let quoted = |text: String| toml::Value::String(text).to_string();
    if set("ANTHROPIC_API_KEY").is_some() && set("OPENAI_API_KEY").or(set("OPENAI_BASE_URL")).is_none() {
        let base_url = set("ANTHROPIC_BASE_URL").map(|url| format!("base_url = {}\n", quoted(url))).unwrap_or_default();
        let key = "api_key = { env = \"ANTHROPIC_API_KEY\" }";
        return format!("[model]\nprovider = \"anthropic\"\nmodel = {}\n{base_url}{key}\n", quoted(model));
    }
    let base_url = set("OPENAI_BASE_URL").unwrap_or_else(|| "https://api.openai.com/v1".to_owned());
    let key = set("OPENAI_API_KEY").map(|_| "api_key = { env = \"OPENAI_API_KEY\" }\n").unwrap_or_default();
    format!("[model]\nprovider = \"openai\"\nmodel = {}\nbase_url = {}\n{key}", quoted(model), quoted(base_url))
}
