//! Checks the rules of fencing (F) exhaustively in small worlds, and that weaker rules fail.
//!
//! The clients of the model decide with `src/protocol/fencing.rs` itself. `attempt.rs` has a client's decisions, `world.rs` the
//! possible steps, `check.rs` the properties.
//!
//! ```text
//! cargo test --test model -- --nocapture --test-threads 1     prints the sizes, and how weaker rules fail
//! make model                                                  the same, with larger worlds
//! ```
#![allow(clippy::unwrap_used)]

mod attempt;
mod check;
mod set;
mod trace;
mod world;

/// The library's own module, not a copy.
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/protocol/mod.rs"]
mod protocol;

use attempt::Rules;
use check::{DIFFER, ORDERED, exhaust, refute};
use world::World;

fn complete<const N: usize, const A: usize>(spread: u8, releases: bool) -> World<N, A> {
    World {
        rules: Rules::Complete,
        spread,
        releases,
    }
}

#[test]
fn two_attempts_on_three_nodes() {
    exhaust(complete::<3, 2>(2, false), 20_000);
}

#[test]
fn two_attempts_on_three_nodes_with_releases() {
    exhaust(complete::<3, 2>(2, true), 50_000);
}

#[test]
fn three_attempts_on_three_nodes() {
    exhaust(complete::<3, 3>(0, false), 300_000);
}

#[test]
fn two_attempts_on_four_nodes() {
    exhaust(complete::<4, 2>(0, false), 30_000);
}

#[test]
#[ignore = "a larger world: make model"]
fn two_attempts_on_four_nodes_with_unequal_counters() {
    exhaust(complete::<4, 2>(1, false), 200_000);
}

#[test]
#[ignore = "a larger world: make model"]
fn three_attempts_on_three_nodes_with_unequal_counters() {
    exhaust(complete::<3, 3>(1, false), 1_500_000);
}

fn weaker(rules: Rules) -> World<3, 2> {
    World {
        rules,
        spread: 2,
        releases: false,
    }
}

#[test]
fn the_largest_counter_alone_is_not_enough() {
    refute(&weaker(Rules::LargestIsIssued), DIFFER);
    refute(&weaker(Rules::LargestIsIssued), ORDERED);
}

#[test]
fn a_raise_must_check_the_owner_of_the_key() {
    refute(&weaker(Rules::RaisedForAnybody), DIFFER);
}

#[test]
fn a_straggler_ahead_must_not_count() {
    refute(&weaker(Rules::AheadCounts), DIFFER);
}
