//! What the daemon costs on this machine: the release binary against the counterparts of the tests.
//!
//! ```text
//! start ▸ idle ∥ (an empty home, a big one) ▸ probe ▸ turns ▸ syncs ▸ load ─▶ one table, as in docs/performance.md
//! ```
//! `cargo bench --bench figures` runs everything in some five minutes; `-- turns load` only these parts. The table
//! says what came out; nothing fails because a figure is bad. Everything shares the machine's cores with the daemon:
//! the two counterparts and this program, which plays the people.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench that cannot go on may only panic, and measuring time is what it is for"
)]

mod big;
mod idle;
mod load;
mod overhead;
mod people;
mod probe;
mod proc;
mod start;
#[path = "../it/support/mod.rs"]
#[allow(unused_imports, reason = "the counterparts' own tests are compiled here and not run")]
mod support;
mod syncs;
mod table;
mod turns;

use table::Table;

/// The parts, in the order in which they run.
const PARTS: &[&str] = &["size", "start", "overhead", "turns", "syncs", "load", "idle"];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // Cargo adds `--bench`; names of parts are the caller's.
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if let Some(unknown) = asked.iter().find(|part| !PARTS.contains(&part.as_str())) {
        eprintln!("there is no part {unknown}; there are: {}", PARTS.join(", "));
        std::process::exit(2);
    }
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|asked| asked == part);
    let mut table = Table::new();
    for part in PARTS.iter().copied().filter(|part| wanted(part)) {
        eprintln!("figures: {part} …");
        match part {
            "size" => start::size(&mut table),
            "start" => start::run(&mut table).await,
            "overhead" => overhead::run(&mut table).await,
            "turns" => turns::run(&mut table).await,
            "syncs" => syncs::run(&mut table).await,
            "load" => load::run(&mut table).await,
            _ => idle::run(&mut table).await,
        }
    }
    println!("\n{}\n\n{table}", proc::machine());
}
