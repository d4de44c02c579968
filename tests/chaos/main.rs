//! Everything that goes wrong with servers, their data and addresses, networks, clocks and clients, while several processes
//! write under locks: no two hold one at the same time, unless clocks are set; and even then, tokens rise, a store that looks at
//! them takes no stale write, and nothing stays locked. Two more trials do without the restart guard and lose counters: tokens
//! rise in the order of the grants.
//!
//! `QUORLOCK_CHAOS_SECONDS` says how long each trial takes, `QUORLOCK_GRANTS` how many grants one without the restart guard
//! sees, `QUORLOCK_SEED` which faults there are.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "metrics")]
#[path = "../common/counted.rs"]
mod counted;
#[cfg(feature = "metrics")]
mod counters;
mod event;
mod fault;
mod history;
mod injector;
mod node_faults;
mod order;
mod overlaps;
#[path = "../common/postgres.rs"]
mod postgres;
mod report;
#[path = "../common/server.rs"]
mod server;
mod task;
mod worker;
mod workers;

use std::collections::BTreeSet;
use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use quorlock::testbed::Testbed;
use tokio::time::sleep;
use tokio_postgres::Client;

use common::eventually;
use fault::{FaultModel, STEP};
use history::{TABLES, now, resources};
use injector::Injector;
use postgres::Database;
use report::{Leftovers, Report};
use server::tampered;
use task::Task;
use worker::TTL;
use workers::{INTRUDERS, PROCESSES, Workers};

const NODES: usize = 5;
/// Two more servers: one that addresses are moved to, and one that only other lists have.
const SPARE: usize = NODES;
const FOREIGN: usize = NODES + 1;

/// When a trial ends: as the environment says, or after a look in passing.
#[derive(Clone, Copy, Debug)]
enum Goal {
    Seconds(i64),
    Grants(i64),
}

impl Goal {
    fn of(model: FaultModel) -> Goal {
        let set = |name| env::var(name).ok().map(|text| text.parse().unwrap());
        match model.is_guarded() {
            true => Goal::Seconds(set("QUORLOCK_CHAOS_SECONDS").unwrap_or(20)),
            false => Goal::Grants(set("QUORLOCK_GRANTS").unwrap_or(1_500)),
        }
    }

    fn is_reached(self, lasted: Duration, grants: i64) -> bool {
        match self {
            Goal::Seconds(seconds) => lasted.as_secs() as i64 >= seconds,
            Goal::Grants(wanted) => grants >= wanted,
        }
    }

    /// Whether the trial goes on until there has been every fault.
    fn includes_every_fault(self) -> bool {
        matches!(self, Goal::Seconds(120..) | Goal::Grants(_))
    }

    /// Whether the trial takes so long that progress is of interest.
    fn is_far(self) -> bool {
        matches!(self, Goal::Seconds(31..) | Goal::Grants(10_000..))
    }
}

fn main() -> ExitCode {
    if let Some(task) = Task::from_env() {
        return match task.number {
            ..INTRUDERS => run(worker::work(task)),
            _ => run(worker::intrude(task)),
        };
    }
    let mut arguments = Arguments::from_args();
    // Two trials at a time would disturb each other, because leases are short.
    arguments.test_threads.get_or_insert(1);
    let trials = [
        (
            "locks_survive_what_they_are_promised_to_survive",
            FaultModel::Promised,
        ),
        ("tokens_survive_anything", FaultModel::Anything),
        ("emptied_nodes_that_stay_away_for_a_ttl", FaultModel::StayAway),
        ("nodes_emptied_at_any_time", FaultModel::AtAnyTime),
    ];
    let trials = trials.map(|(name, model)| {
        Trial::test(name, move || {
            run(trial(model));
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

async fn trial(model: FaultModel) {
    let goal = Goal::of(model);
    let seed = env::var("QUORLOCK_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("{model:?}: {goal:?}, QUORLOCK_SEED={seed}");
    let builder = Testbed::builder()
        .nodes(NODES + 2)
        .server(tampered())
        .arg("repl-diskless-sync-delay", "0");
    let builder = match model.is_guarded() {
        true => builder.proxies(true),
        false => builder.arg("appendfsync", "no"),
    };
    let testbed = builder.start().await.unwrap();
    let database = Database::create().await;
    let history = database.connect().await;
    history.batch_execute(TABLES).await.unwrap();
    let mut workers = Workers::start(&testbed, &database, model);
    let resources = resources(model.is_guarded());
    everything_works(&history, resources).await;

    let started = Instant::now();
    let mut injector = Injector::new(&testbed, &mut workers, model, seed);
    let mut told = Instant::now();
    loop {
        injector.inject_next().await;
        let grants = number(&history, "SELECT coalesce(max(id), 0) FROM leases").await;
        let is_reached = goal.is_reached(started.elapsed(), grants);
        if is_reached && (injector.has_injected_every_fault() || !goal.includes_every_fault()) {
            break;
        }
        if goal.is_far() && told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let faults: usize = injector.injected.values().sum();
            println!("{grants} grants, {faults} faults after {:.0?}", started.elapsed());
        }
    }
    let lasted = started.elapsed();
    injector.repair_all().await;
    let (injected, events) = (injector.injected, injector.events);
    // How long after its holder's end a key expires; later if its clock was set back.
    let expiry = match model {
        FaultModel::Anything => TTL + STEP,
        _ => TTL,
    };
    let peace = sleep(expiry);
    everything_works(&history, resources).await;
    peace.await;
    workers.end().await;
    let (ended, at_once) = (now(), locks(&testbed).await);
    sleep(expiry).await;
    let left = Leftovers {
        behind: at_once
            .difference(&forgotten(&history, ended, expiry).await)
            .count(),
        finally: locks(&testbed).await.len(),
    };
    let report = Report::make(&history, model, lasted, injected, &events, left).await;
    println!("{report}");
    report.check();
    #[cfg(feature = "metrics")]
    assert_eq!(counters::check(&history).await, PROCESSES);
    if model.is_guarded() && goal.includes_every_fault() {
        report.check_names();
    }
}

/// I6: with a quorum up, somebody gets each lock; and each process finds its way back to all nodes.
async fn everything_works(history: &Client, resources: i32) {
    let moment = number(history, "SELECT nextval('moment')").await;
    eventually("each lock is acquired", || async {
        let served = format!("SELECT count(DISTINCT resource) FROM leases WHERE won > {moment}");
        number(history, &served).await == i64::from(resources)
    })
    .await;
    eventually("each process gets locks from each node", || async {
        let voting = format!(
            "SELECT count(*) FROM (
                SELECT bit_or(granters) AS nodes FROM leases WHERE won > {moment} GROUP BY worker
            ) workers WHERE nodes = (1 << {NODES}) - 1"
        );
        number(history, &voting).await == PROCESSES as i64
    })
    .await;
}

async fn number(history: &Client, query: &str) -> i64 {
    history.query_one(query, &[]).await.unwrap().get(0)
}

/// Returns the locks that have a key on some node.
async fn locks(testbed: &Testbed) -> BTreeSet<i32> {
    let mut locks = BTreeSet::new();
    for node in testbed.nodes() {
        let list = "return table.concat(redis.call('KEYS', 'quorlock:job*'), ' ')";
        let keys = node_faults::ask(node, &["EVAL", list, "0"]).await;
        // A counter's name has no number at the end.
        let names = keys.as_str().unwrap().split(' ');
        locks.extend(names.filter_map(|name| name.strip_prefix("quorlock:job")?.parse::<i32>().ok()));
    }
    locks
}

/// Returns the locks that were leaked so recently that keys may be left.
async fn forgotten(history: &Client, time: i64, expiry: Duration) -> BTreeSet<i32> {
    let since = time - (TTL + expiry).as_nanos() as i64;
    let query = "SELECT resource FROM leases WHERE ending = 'forgotten' AND until > $1";
    let rows = history.query(query, &[&since]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
