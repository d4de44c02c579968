//! Faults of servers, their data and addresses, networks, clocks and clients, while several processes write under locks. No two
//! hold a lock at the same time, unless clocks are set. In any case, tokens rise, a store that checks them accepts no stale
//! write, and nothing stays locked.
//!
//! `QUORLOCK_CHAOS_SECONDS` sets the length of each trial, `QUORLOCK_SEED` chooses the faults.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod fault;
mod hands;
mod history;
mod nemesis;
#[path = "../common/order.rs"]
mod order;
mod overlaps;
#[path = "../common/postgres.rs"]
mod postgres;
mod report;
#[path = "../common/server.rs"]
mod server;
mod stroke;
#[path = "../common/task.rs"]
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
use fault::{Manners, STEP};
use history::{RESOURCES, TABLES, now};
use nemesis::Nemesis;
use postgres::Database;
use report::{Left, Report};
use server::tampered;
use task::Task;
use worker::TTL;
use workers::{INTRUDERS, PROCESSES, Workers};

const NODES: usize = 5;
/// Two more servers: one that addresses are moved to, and one that only other lists have.
const SPARE: usize = NODES;
const FOREIGN: usize = NODES + 1;
/// The default length of a trial.
const SECONDS: u64 = 20;
/// A trial of this length goes on until every fault has occurred.
const LONG: u64 = 120;
/// A longer trial prints its progress.
const TELLING: u64 = 30;

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
    let trials = vec![
        Trial::test("locks_survive_what_they_are_promised_to_survive", || {
            run(trial(Manners::Promised));
            Ok(())
        }),
        Trial::test("tokens_survive_anything", || {
            run(trial(Manners::Anything));
            Ok(())
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

async fn trial(manners: Manners) {
    let seconds = env::var("QUORLOCK_CHAOS_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let seed = env::var("QUORLOCK_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("{manners:?}: {seconds} s, QUORLOCK_SEED={seed}");
    let testbed = Testbed::builder()
        .nodes(NODES + 2)
        .proxies(true)
        .server(tampered())
        .arg("repl-diskless-sync-delay", "0")
        .start()
        .await
        .unwrap();
    let database = Database::create().await;
    let history = database.connect().await;
    history.batch_execute(TABLES).await.unwrap();
    let mut workers = Workers::start(&testbed, &database);
    everything_works(&history).await;

    let started = Instant::now();
    let mut nemesis = Nemesis::new(&testbed, &mut workers, manners, seed);
    let mut told = Instant::now();
    while started.elapsed().as_secs() < seconds || seconds >= LONG && !nemesis.struck_in_every_way() {
        nemesis.strike().await;
        if seconds > TELLING && told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let faults: usize = nemesis.struck.values().sum();
            let grants = number(&history, "SELECT count(*) FROM leases").await;
            println!("{grants} grants, {faults} faults after {:.0?}", started.elapsed());
        }
    }
    let lasted = started.elapsed();
    nemesis.make_good().await;
    let (struck, strokes) = (nemesis.struck, nemesis.strokes);
    // How long after its holder's end a key expires; later if its clock was set back.
    let expiry = match manners {
        Manners::Promised => TTL,
        Manners::Anything => TTL + STEP,
    };
    let peace = sleep(expiry);
    everything_works(&history).await;
    peace.await;
    workers.end().await;
    let (ended, at_once) = (now(), locks(&testbed).await);
    sleep(expiry).await;
    let left = Left {
        behind: at_once
            .difference(&forgotten(&history, ended, expiry).await)
            .count(),
        finally: locks(&testbed).await.len(),
    };
    let report = Report::make(&history, manners, lasted, struck, &strokes, left).await;
    println!("{report}");
    report.check();
    if seconds >= LONG {
        report.check_names();
    }
}

/// Waits until every lock has been acquired again, and each process has got votes from all nodes.
async fn everything_works(history: &Client) {
    let moment = number(history, "SELECT nextval('moment')").await;
    eventually("each lock is acquired", || async {
        let served = format!("SELECT count(DISTINCT resource) FROM leases WHERE won > {moment}");
        number(history, &served).await == i64::from(RESOURCES)
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
        let keys = hands::ask(node, &["EVAL", list, "0"]).await;
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
