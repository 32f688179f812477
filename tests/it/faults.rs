//! What a model's server can do wrong, and what we do about it: a table for each protocol, `faults/*.toml`.
//!
//! Each row is played to the real daemon twice, in a chat of its own: where the model stands alone, and where another
//! one stands in. A row says what comes back, each time that the model is asked:
//!
//! - `status` and `headers`; without a status the connection breaks before any answer
//! - `body`, JSON unless `headers` say otherwise, in which `{key}` is the key; or a stream of `events`, each framed as
//!   the protocol frames them, and then of `pieces` as they are, in which `\xNN` is a byte
//! - `filler`: so many letters more
//! - `end`: `close` (the default), `reset`, `hang`, or `pings`, which go on for ever
//!
//! and what we do about it:
//!
//! - `asked`: how often the model is asked when it stands alone; `2+` is twice or more
//! - `class`: the class of the failure; without one it is an answer
//! - `detail`: how the words for the operator begin, after the class
//! - `reason`: how the turn ends
//! - `says`: how its words in the chat begin
//! - `next`: how often the model is asked before another one is, where there is one; without it no other is

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test is told and does not expect is a failed test"
)]

use serde::Deserialize;

use crate::reports::kept;
use crate::spine::store_bytes;
use crate::support::assert_no_secrets;
use crate::support::daemon::Daemon;
use crate::support::home::Home;
use crate::support::model::{Ending, KEY, Model, NAME, Reply, Request};
use crate::support::telegram::Telegram;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    row: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    status: Option<u16>,
    #[serde(default)]
    headers: toml::Table,
    body: Option<String>,
    #[serde(default)]
    events: Vec<String>,
    #[serde(default)]
    pieces: Vec<String>,
    #[serde(default)]
    filler: usize,
    #[serde(default)]
    end: End,
    /// Running time of the turn, in seconds.
    #[serde(default = "long")]
    budget: u64,
    asked: String,
    class: Option<String>,
    #[serde(default)]
    detail: String,
    reason: String,
    says: String,
    next: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum End {
    #[default]
    Close,
    Reset,
    Hang,
    Pings,
}

fn long() -> u64 {
    30
}

/// What the other model says.
const OTHER: &str = "another model answers";
/// The chat of the first row; the others follow.
const CHATS: i64 = 7_000;

/// The two protocols, as far as the tables need to know them.
#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    OpenAi,
    Anthropic,
}

impl Protocol {
    fn framed(self, event: &str) -> String {
        let kind = serde_json::from_str::<serde_json::Value>(event).ok().and_then(|event| {
            event["type"].as_str().filter(|_| self == Self::Anthropic).map(|kind| format!("event: {kind}\n"))
        });
        format!("{}data: {event}\n\n", kind.unwrap_or_default())
    }

    fn ping(self) -> &'static str {
        match self {
            Self::OpenAi => ": ping\n\n",
            Self::Anthropic => "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        }
    }
}

impl Row {
    fn reply(&self, protocol: Protocol) -> Reply {
        let Some(status) = self.status else { return Reply::hangup() };
        let streams = self.body.is_none();
        let mut pieces: Vec<Vec<u8>> = match &self.body {
            Some(body) => vec![body.replace("{key}", KEY).into_bytes()],
            None => self.events.iter().map(|event| protocol.framed(event).into_bytes()).collect(),
        };
        pieces.extend(self.pieces.iter().map(|piece| bytes(piece)));
        if let Some(last) = pieces.last_mut() {
            last.resize(last.len() + self.filler, b'x');
        }
        let kind = if streams { "text/event-stream" } else { "application/json" };
        let mut headers = vec![("content-type".to_owned(), kind.to_owned())];
        let named = self.headers.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        headers.extend(named);
        let ending = match self.end {
            End::Close => Ending::Close,
            End::Reset => Ending::Reset,
            End::Hang => Ending::Hang,
            End::Pings => Ending::Repeat(protocol.ping()),
        };
        Reply::raw(status, headers, pieces, ending)
    }

    fn fits(&self, asked: usize) -> bool {
        match self.asked.strip_suffix('+') {
            Some(least) => asked >= least.parse().unwrap(),
            None => asked == self.asked.parse::<usize>().unwrap(),
        }
    }
}

/// The bytes of a piece, in which `\xNN` is one and `\n` a line's end.
fn bytes(piece: &str) -> Vec<u8> {
    let mut made = Vec::new();
    let mut rest = piece;
    while let Some((before, after)) = rest.split_once('\\') {
        made.extend(before.as_bytes());
        rest = match after.strip_prefix('n') {
            Some(rest) => {
                made.push(b'\n');
                rest
            }
            None => {
                made.push(u8::from_str_radix(&after[1..3], 16).unwrap());
                &after[3..]
            }
        };
    }
    made.extend(rest.as_bytes());
    made
}

/// The row that a request belongs to: its message began with `#ROW `.
fn row_of(request: &Request) -> usize {
    let text = request.messages().iter().map(ToString::to_string).collect::<String>();
    let number = text.rsplit_once('#').unwrap().1.split_once(' ').unwrap().0;
    number.parse().unwrap()
}

/// Plays all rows side by side, and says where what came of them is not what the table says.
async fn play(protocol: Protocol, rows: &[Row], stands_in: bool) -> Vec<String> {
    let (telegram, model) = (Telegram::start().await, Model::start().await);
    let mut home = Home::new().telegram(&telegram).limit("concurrent_turns", 64).set("model", "stall_secs", "1");
    home = if protocol == Protocol::OpenAi { home.model(&model) } else { home.anthropic(&model) };
    for (chat, row) in (CHATS..).zip(rows) {
        let link = format!("row-{chat}");
        home = home.link(&link, chat, &[chat]).grant(&link, &["read_file"]);
        home = home.link_line(&link, &format!("time_budget_secs = {}", row.budget));
    }
    if stands_in {
        home = home.fallback(&model);
    }
    let table = rows.to_vec();
    model.script(move |request| match request.model() {
        NAME => table[row_of(request)].reply(protocol),
        _ => Reply::text(OTHER),
    });
    let daemon = Daemon::start(&home).await;
    for (number, (chat, row)) in (CHATS..).zip(rows).enumerate() {
        telegram.says(chat, chat, &format!("#{number} {}", row.name));
    }
    let mut told = Vec::new();
    for chat in (CHATS..).take(rows.len()) {
        told.push(telegram.next_sent(chat).await.text);
    }
    kept(&home, &telegram, &model).await;
    assert_no_secrets("a log", &daemon.all_logs());
    assert_no_secrets("the store", &String::from_utf8_lossy(&store_bytes(&home)));

    let requests = model.requests();
    let mut wrong = Vec::new();
    for (number, (chat, row)) in (CHATS..).zip(rows).enumerate() {
        let said = &told[number];
        let asked = requests.iter().filter(|request| request.model() == NAME && row_of(request) == number).count();
        let ends = home.rows(&format!(
            "select end_reason, detail from turns where id = (select turn from inbox where chat = '{chat}')"
        ));
        let switches = home.rows(&format!(
            "select json_extract(detail, '$.class') from timeline where kind = 'model.fallback'
              and turn = (select turn from inbox where chat = '{chat}')"
        ));
        let mut hold = |holds: bool, what: &str| {
            if !holds {
                let found = format!("asked {asked} times; {ends:?}; {switches:?}; {said:?}");
                wrong.push(format!("{} (stands in: {stands_in}): {what}\n    {found}", row.name));
            }
        };
        if let Some(first) = row.next.filter(|_| stands_in) {
            hold(said == OTHER, "another model answers");
            hold(asked == first, &format!("the first one is asked {first} times"));
            hold(switches == row.class.iter().cloned().collect::<Vec<_>>(), "the switch is kept, with the class");
            continue;
        }
        let class = row.class.as_deref().map(|class| format!("{class}: ")).unwrap_or_default();
        hold(said.starts_with(&row.says), &format!("the chat is told {:?}", row.says));
        hold(row.fits(asked), &format!("the model is asked {} times", row.asked));
        hold(switches.is_empty(), "no other model is asked");
        let end = format!("{}|{class}{}", row.reason, row.detail);
        hold(ends.len() == 1 && ends[0].starts_with(&end), &format!("the turn ends as {end}"));
    }
    wrong
}

async fn check(protocol: Protocol, table: &str) {
    let table: Table = toml::from_str(table).unwrap();
    let (alone, with_another) = tokio::join!(play(protocol, &table.row, false), play(protocol, &table.row, true));
    let wrong = [alone, with_another].concat();
    assert!(wrong.is_empty(), "{} of the table do not hold:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_chat_completions() {
    check(Protocol::OpenAi, include_str!("faults/openai.toml")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_messages() {
    check(Protocol::Anthropic, include_str!("faults/anthropic.toml")).await;
}
