//! Checks the rules of memories (M) exhaustively in small worlds, and that weaker rules fail.
//!
//! ```text
//! cargo test --test identity -- --test-threads 1     prints the sizes, and how weaker rules fail
//! make model                                         the same, with larger worlds
//! ```
//!
//! `rules.rs` has the rules that can be left out, `worlds.rs` the worlds; `lock.rs`, `knowledge.rs` and `events.rs` have the
//! steps. `search.rs` tries all interleavings.
#![allow(clippy::unwrap_used)]

mod events;
mod judge;
mod knowledge;
mod lock;
mod rules;
mod search;
mod state;
mod step;
mod world;
mod worlds;

use libtest_mimic::{Arguments, Failed, Trial};
use search::Outcome;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;
use world::World;

const LIMIT: usize = 20_000_000;

fn main() -> ExitCode {
    let trial = |world: World, check: fn(&World) -> Result<(), Failed>| {
        let is_larger = world.is_larger;
        Trial::test(world.name, move || check(&world)).with_ignored_flag(is_larger)
    };
    let safe = worlds::safe().into_iter().map(|world| trial(world, exhaust));
    let refuted = worlds::weaker().into_iter().chain(worlds::uncovered());
    let refuted = refuted.map(|world| trial(world, refute));
    let trials = safe.chain(refuted).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Searches all states: two clients must never hold the lock.
fn exhaust(world: &World) -> Result<(), Failed> {
    let started = Instant::now();
    match world.search(LIMIT) {
        Outcome::NeverTwoHolders { states } => {
            println!(
                "{:64} {states:>9} states {:>6.1?}  never two holders",
                world.name,
                started.elapsed()
            );
            Ok(())
        }
        Outcome::TooLarge { states } => Err(format!("{}: more than {states} states", world.name).into()),
        two => Err(table(world, &two).into()),
    }
}

/// Finds a shortest way to two holders.
fn refute(world: &World) -> Result<(), Failed> {
    let outcome = world.search(LIMIT);
    match outcome {
        Outcome::TwoHolders { .. } => {
            println!("{}", table(world, &outcome));
            Ok(())
        }
        _ => Err(format!("{}: there is no way to two holders", world.name).into()),
    }
}

fn table(world: &World, outcome: &Outcome) -> String {
    let mut table = format!("{:64}", world.name);
    let Outcome::TwoHolders { states, trace } = outcome else {
        return table;
    };
    let _ = writeln!(table, "{states:>10} states, two holders:");
    for (step, state) in trace {
        let clients = state.clients.iter().zip('A'..);
        let holders: String = clients
            .filter(|(client, _)| client.holds())
            .map(|(_, name)| name)
            .collect();
        let _ = writeln!(table, "    {:64} {holders}", step.to_string());
    }
    table
}
