//! Memory of leases, waiters, connections for announcements, nodes that are away, and the list of all locks; and that nothing
//! of it stays. Each trial
//! has its own process.
//!
//! `QUORLOCK_LEASES` sets the number of leases; waiters are a tenth of it, listed locks ten times
//! as many. The documented figures come from 100,000
//! (`make resources`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod away;
#[path = "../common/mod.rs"]
mod common;
mod leases;
mod listening;
mod listing;
mod measure;
mod waiters;

use std::env;
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use measure::Usage;
use quorlock::testbed::Testbed;
use quorlock::{Lease, Redlock};
use tokio::task::JoinSet;

const CHILD: &str = "QUORLOCK_RESOURCES_CHILD";
/// For a quick run.
const LEASES: usize = 2_000;
/// Acquires or releases at a time.
const AT_A_TIME: usize = 256;
/// Suffices on a busy machine.
const BUDGET: Duration = Duration::from_secs(10);

const TRIALS: [&str; 6] = [
    "many_leases_are_renewed_while_a_node_hangs",
    "many_wait_for_one_resource",
    "many_wait_for_many_resources",
    "leftovers_of_a_node_that_is_away",
    "many_managers_listen",
    "all_locks_are_listed_in_bounded_memory",
];

fn main() -> ExitCode {
    if let Ok(trial) = env::var(CHILD) {
        run(&trial);
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trial = |name: &'static str| Trial::test(name, move || in_a_child(name));
    libtest_mimic::run(&arguments, TRIALS.map(trial).into()).exit_code()
}

fn in_a_child(trial: &str) -> Result<(), libtest_mimic::Failed> {
    let status = Command::new(env::current_exe()?).env(CHILD, trial).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{trial}: {status}").into()),
    }
}

fn run(trial: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let count = env::var("QUORLOCK_LEASES").map_or(LEASES, |text| text.parse().unwrap());
    println!("\n{trial}");
    match trial {
        "many_leases_are_renewed_while_a_node_hangs" => runtime.block_on(leases::renewed(count)),
        "many_wait_for_one_resource" => runtime.block_on(waiters::wait(count / 10, 1)),
        "many_wait_for_many_resources" => runtime.block_on(waiters::wait(count / 10, count / 100)),
        "leftovers_of_a_node_that_is_away" => runtime.block_on(away::leftovers(count)),
        "many_managers_listen" => runtime.block_on(listening::listen()),
        "all_locks_are_listed_in_bounded_memory" => runtime.block_on(listing::list(10 * count)),
        other => panic!("no trial {other}"),
    }
}

/// Starts masters that do not wait for a disk.
async fn testbed(nodes: usize) -> Testbed {
    let builder = Testbed::builder().nodes(nodes).arg("appendonly", "no");
    builder.start().await.unwrap()
}

async fn acquire(redlock: &Redlock, count: usize, ttl: Duration) -> Vec<Lease> {
    let mut acquiring = JoinSet::new();
    let mut leases = Vec::with_capacity(count);
    for number in 0..count {
        if acquiring.len() == AT_A_TIME {
            leases.extend(acquiring.join_next().await.unwrap());
        }
        let lock = redlock
            .lock(format!("r{number}"))
            .ttl(ttl)
            .node_budget(BUDGET.min(ttl / 3));
        acquiring.spawn(async { lock.acquire().await.unwrap() });
    }
    leases.extend(acquiring.join_all().await);
    leases
}

/// Waits until nothing is left that was not there before.
async fn nothing_is_left(testbed: &Testbed, before: &Usage) {
    common::eventually("nothing is left", async || {
        Usage::now(testbed).await.holds_no_more_than(before)
    })
    .await;
    println!("after      {}", Usage::now(testbed).await);
}
