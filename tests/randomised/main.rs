//! Simulates the whole protocol: clients of the library and servers, each on its own clock, with faults between them. The seed
//! determines the run.
//!
//! ```text
//! cargo test --features testbed,simulation --test randomised     20 s, QUORLOCK_SIM_SECONDS, or QUORLOCK_SIM_SEEDS runs
//! QUORLOCK_SIM_SEED=7 cargo test [...] --test randomised         one run, with its log
//! make simulate SECONDS=600                                      optimised, and longer
//! ```
//!
//! `plan.rs` has the faults, `check.rs` the invariants.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod check;
mod client;
mod connections;
mod heap;
mod ledger;
mod log;
mod plan;
mod report;
mod server;
mod store;
mod workload;
mod world;

#[path = "../common/node_model/mod.rs"]
mod node_model;

/// The library's own modules, not copies.
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/protocol/memory.rs"]
mod memory;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/protocol/node_clock.rs"]
mod node_clock;

use std::cell::RefCell;
use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

use report::Report;
use world::{Outcome, World};

/// The number of seeds, unless the environment sets a time or a number.
const SEEDS: u64 = 20_000;
const SECONDS: u64 = 20;
const THREADS: u64 = 2;

thread_local! {
    /// Panics of the library's tasks, which nothing else would show.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One test at a time: each uses both cores, and prints its progress.
    arguments.test_threads = Some(1);
    panic::set_hook(Box::new(|panic| {
        PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()))
    }));
    let trials = match number("QUORLOCK_SIM_SEED") {
        Some(seed) => vec![Trial::test(format!("seed_{seed}"), move || tell(seed))],
        None => vec![
            Trial::test("seeds_that_once_failed_do_so_no_more", once_failed),
            Trial::test("the_same_seed_is_the_same_run", the_same_again),
            Trial::test("whatever_goes_wrong_the_invariants_hold", many),
        ],
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
    )
}

/// Runs one seed. `Err` if the simulation itself panicked.
fn run(seed: u64, with_text: bool) -> Result<Outcome, String> {
    PANICS.take();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| World::new(seed, with_text).run()));
    let panics = PANICS.take();
    match outcome {
        Ok(mut outcome) => {
            outcome.records.violations.extend(panics);
            Ok(outcome)
        }
        Err(_) => Err(panics.join("\n")),
    }
}

fn check(seed: u64) -> Result<Outcome, Failed> {
    let outcome = run(seed, false)?;
    if outcome.records.violations.is_empty() {
        return Ok(outcome);
    }
    let profile = outcome.plan.profile;
    let violations = outcome.records.violations.join("\n  ");
    Err(format!(
        "seed {seed} ({profile}):\n  {violations}\n\
         Log: QUORLOCK_SIM_SEED={seed} cargo test --features testbed,simulation --test randomised"
    )
    .into())
}

fn tell(seed: u64) -> Result<(), Failed> {
    let outcome = run(seed, true)?;
    println!("{:#?}\n{}", outcome.plan, outcome.log);
    for (what, count) in &outcome.records.tally.0 {
        println!("{count:>8} {what}");
    }
    check(seed).map(drop)
}

/// Each line of the file has a seed and a reason.
fn once_failed() -> Result<(), Failed> {
    let lines = include_str!("seeds.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let seed = line.split_whitespace().next().unwrap_or_default();
        check(seed.parse().map_err(|_| format!("not a seed: {line:?}"))?)?;
    }
    Ok(())
}

fn the_same_again() -> Result<(), Failed> {
    for seed in 0..36 {
        let (first, second) = (run(seed, false)?, run(seed, false)?);
        // Where clocks are set, all leases of a client are notified at once, and the runtime wakes them in any order.
        if first.plan.clocks_behave && first.log.hash() != second.log.hash() {
            return Err(format!("seed {seed} is a different run each time").into());
        }
    }
    Ok(())
}

/// Runs seeds until the time or the number is reached.
fn many() -> Result<(), Failed> {
    let seconds = number("QUORLOCK_SIM_SECONDS");
    let most = if seconds.is_some() { u64::MAX } else { SEEDS };
    let seeds = number("QUORLOCK_SIM_SEEDS").unwrap_or(most);
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let (next, started) = (
        AtomicU64::new(number("QUORLOCK_SIM_FIRST").unwrap_or(0)),
        Instant::now(),
    );
    let reports = thread::scope(|scope| {
        let worker = || {
            let mut report = Report::default();
            while started.elapsed() < time {
                let seed = next.fetch_add(1, SeqCst);
                if seed >= seeds {
                    break;
                }
                match check(seed) {
                    Ok(outcome) => report.add(&outcome),
                    Err(failure) => report
                        .failures
                        .push(failure.message().unwrap_or_default().to_owned()),
                }
                if report.failures.len() > 4 {
                    break;
                }
            }
            report
        };
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::park_timeout(Duration::from_millis(20));
            if time > Duration::from_secs(10) && told.elapsed() >= Duration::from_secs(5) {
                told = Instant::now();
                println!(
                    "{:>4} s: {} seeds",
                    started.elapsed().as_secs(),
                    next.load(SeqCst)
                );
            }
        }
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker ends"))
            .collect::<Vec<_>>()
    });
    let mut report = Report::default();
    reports.into_iter().for_each(|other| report.merge(other));
    println!("{report}in {:.1} s", started.elapsed().as_secs_f64());
    report.verdict().map_err(Failed::from)
}
