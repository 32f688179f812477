//! Who says what when, when the clock on the wall is set, and when the operator restarts the daemon: all drawn from
//! the seed before the world begins.

use std::sync::Arc;
use std::time::Duration;

use crate::messenger::{Messenger, Shape};
use crate::world::{Chance, World};

/// A chat with the people who speak in it.
#[derive(Clone, Debug)]
pub(crate) struct Chat {
    pub(crate) chat: i64,
    pub(crate) name: &'static str,
    /// Who is listed.
    pub(crate) senders: &'static [u64],
    /// What its turns may do.
    pub(crate) allow: &'static [&'static str],
    /// Running time of its turns, in seconds, where it has its own.
    pub(crate) time_budget_secs: Option<u64>,
}

/// The linked chats; a seed uses the first few of them.
pub(crate) const CHATS: &[Chat] = &[
    Chat { chat: 11, name: "home", senders: &[11], allow: &["read_file", "list_files"], time_budget_secs: None },
    Chat { chat: -12, name: "club", senders: &[11, 21, 22], allow: &["read_file(notes/**)"], time_budget_secs: None },
    Chat { chat: 13, name: "short", senders: &[13], allow: &["read_file"], time_budget_secs: Some(20) },
    Chat { chat: 14, name: "bare", senders: &[14], allow: &[], time_budget_secs: Some(60) },
    Chat { chat: 15, name: "other", senders: &[15], allow: &["list_files"], time_budget_secs: None },
    Chat { chat: 16, name: "third", senders: &[16], allow: &["read_file"], time_budget_secs: None },
];
/// Writes where nobody listens.
const STRANGER: u64 = 99;

/// Something that happens at a moment of its own.
#[derive(Clone, Debug)]
enum Act {
    Say {
        chat: i64,
        sender: u64,
        words: String,
        shape: Shape,
    },
    /// Other words for the last message of that chat.
    Edit {
        chat: i64,
        sender: u64,
    },
    Jump(i64),
}

/// All that a seed decides beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    acts: Vec<(Duration, Act)>,
    /// Faults happen.
    pub(crate) storm: bool,
    /// When the daemon is stopped and started again.
    pub(crate) restarts: Vec<Duration>,
    /// At which touch of the outside each life ends, as long as there is one.
    pub(crate) deaths: Vec<Option<u64>>,
    /// Before that life the operator takes the link of that name out of the files.
    pub(crate) unlinks: Option<(u32, &'static str)>,
}

impl Plan {
    /// The plan of `seed`. Every fifth is fair weather: nothing fails, and nobody pulls the plug.
    pub(crate) fn of(seed: u64) -> Self {
        let chance = Chance::new(seed, "people");
        let storm = !seed.is_multiple_of(5);
        let chats = &CHATS[..usize::try_from(chance.between(2, CHATS.len() as u64)).unwrap()];
        let span_ms = chance.between(5_000, 400_000);
        // In some seeds the threads outgrow the model's window.
        let chatter = chance.weighed(&[(60, 10), (40, 180)]);
        let mut acts = Vec::new();
        for number in 0..chance.between(6, 30) {
            let at = chance.millis(0, span_ms);
            let chat = &chats[usize::try_from(chance.below(chats.len() as u64)).unwrap()];
            let sender = chat.senders[usize::try_from(chance.below(chat.senders.len() as u64)).unwrap()];
            say((&chance, chatter), &mut acts, at, (chat.chat, sender), number);
        }
        if storm && chance.is(30) {
            let by_ms = i64::try_from(chance.between(1_000, 3_600_000)).unwrap();
            acts.push((chance.millis(0, span_ms), Act::Jump(if chance.is(50) { by_ms } else { -by_ms })));
        }
        // Stable: of two acts at one moment the first drawn comes first.
        acts.sort_by_key(|(at, _)| *at);
        let restarts = if chance.is(40) { vec![chance.millis(0, span_ms)] } else { Vec::new() };
        let lives = if storm { chance.weighed(&[(30, 0), (30, 1), (20, 2), (20, 4)]) } else { 0 };
        let reach = chance.weighed(&[(1, 12), (2, 80), (3, 300)]);
        let deaths = (0..lives).map(|_| Some(chance.between(1, reach))).collect();
        let unlinks = (storm && chance.is(25)).then(|| (2, chats[0].name));
        Self { acts, storm, restarts, deaths, unlinks }
    }

    /// Lets it all happen.
    pub(crate) async fn happen(self, world: Arc<World>, messenger: Arc<Messenger>) {
        let mut last = std::collections::BTreeMap::new();
        for (at, act) in self.acts {
            world.until(at).await;
            match act {
                Act::Say { chat, sender, words, shape } => {
                    last.insert((chat, sender), messenger.says(chat, sender, &words, shape));
                }
                Act::Edit { chat, sender } => {
                    if let Some(message) = last.get(&(chat, sender)) {
                        messenger.says(chat, sender, "what I meant to say", Shape::EditOf(*message));
                    }
                }
                Act::Jump(by_ms) => world.jump(by_ms),
            }
        }
    }
}

fn say(
    (chance, chatter): (&Chance, usize),
    acts: &mut Vec<(Duration, Act)>,
    at: Duration,
    (chat, sender): (i64, u64),
    number: u64,
) {
    let soon = |ms| at + Duration::from_millis(ms);
    let words = |words: &str| format!("{words} {number}");
    let mut one = |at, sender, words: String, shape| acts.push((at, Act::Say { chat, sender, words, shape }));
    match chance.below(100) {
        0..=39 => one(at, sender, words("how are things"), Shape::Whole),
        40..=59 => {
            one(at, sender, format!("{} {}", words("much to say:"), "many words. ".repeat(chatter)), Shape::Whole)
        }
        60..=67 => {
            one(at, sender, words("a long text, first half"), Shape::FirstHalf);
            one(soon(chance.below(1_500)), sender, words("and its second half"), Shape::Whole);
        }
        68..=71 => {
            one(at, sender, words("a picture"), Shape::Album);
            one(soon(20), sender, words("and another"), Shape::Album);
        }
        72..=77 => one(at, sender, "/stop".to_owned(), Shape::Whole),
        78..=81 => one(at, sender, "/status".to_owned(), Shape::Whole),
        82..=85 => one(at, sender, "/new".to_owned(), Shape::Whole),
        86..=87 => one(at, sender, "/help".to_owned(), Shape::Whole),
        88..=90 => one(at, STRANGER, words("let me in"), Shape::Whole),
        _ => {
            one(at, sender, words("this is what I say"), Shape::Whole);
            acts.push((soon(chance.below(2_000)), Act::Edit { chat, sender }));
        }
    }
}
