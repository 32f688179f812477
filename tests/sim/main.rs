//! Everything above the platform's and the model's clients, in one thread and on a clock of its own: the real store,
//! desk, turns, gate and courier, among people, a messenger and a model that a seed drives.
//!
//! ```text
//! seed ─▶ plan: who says what when, when the plug is pulled ─▶ lives of the daemon, one after the other ─▶ rest
//!           └▶ messenger, model, chance: faults                        │ story          │ store, chats
//!                                                                      └───▶ oracle ◀───┘
//! ```
//!
//! `cargo test --test sim` lives through ten seeds. `MIDWATCH_SEEDS=2000` makes it that many, `MIDWATCH_SEED=17` the
//! one seed 17, whose story is the same byte for byte each time (`-- --nocapture` shows it when it is a good one).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a broken simulation may only panic, and the simulated clock is a shell over tokio's"
)]

mod messenger;
mod model;
mod oracle;
mod people;
mod poller;
mod process;
mod story;
mod tamper;
mod tools;
mod words;
mod world;

use story::{Evidence, live};

/// Seeds of a plain `cargo test`.
const SEEDS: u64 = 10;

#[test]
fn the_promises_hold_in_every_seed() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let one = number("MIDWATCH_SEED");
    let seeds = one.map_or(0..number("MIDWATCH_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    assert!(!seeds.is_empty(), "no seed was asked for");
    let mut failed = Vec::new();
    for seed in seeds {
        let evidence = live(seed);
        let complaints = oracle::complaints(&evidence);
        if !complaints.is_empty() {
            eprintln!("{}", report(&evidence, &complaints));
            failed.push(seed);
        } else if one.is_some() {
            println!("{}", evidence.story);
        }
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
}

/// What a person needs to understand a failed seed.
fn report(evidence: &Evidence, complaints: &[String]) -> String {
    format!(
        "the story of seed {seed}:\n{}\nseed {seed} broke a promise:\n  {}\nreplay: MIDWATCH_SEED={seed} cargo test --test sim\n",
        evidence.story,
        complaints.join("\n  "),
        seed = evidence.seed,
    )
}

#[test]
fn one_seed_tells_one_story() {
    for seed in [1, 5, 7, 93] {
        let (first, second) = (live(seed), live(seed));
        assert_eq!(first.story, second.story, "seed {seed}");
        assert_eq!(first.store_as_text(), second.store_as_text(), "seed {seed}");
    }
}
