//! Tokens rise in the order of the grants, while nodes are killed, stopped, emptied and restarted: eight processes, and a
//! database that says what came after what.
//!
//! `QUORLOCK_GRANTS` says how many grants a run should see, `QUORLOCK_SEED` which faults.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod history;
mod nemesis;
#[path = "../common/order.rs"]
mod order;
#[path = "../common/postgres.rs"]
mod postgres;
#[path = "../common/task.rs"]
mod task;
mod worker;

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use quorlock::testbed::Testbed;
use tokio::process::Child;

use history::History;
use nemesis::{Manners, Nemesis};
use postgres::Database;
use task::Task;

const PROCESSES: usize = 8;
/// For a look in passing. The figures in the documentation come from 100,000.
const GRANTS: i64 = 1_500;
/// With so many, it takes long enough for progress to be of interest.
const MANY: i64 = 10_000;

fn main() -> ExitCode {
    if let Some(task) = Task::from_env() {
        return run(worker::work(task));
    }
    let arguments = Arguments::from_args();
    let trials = vec![
        Trial::test("emptied_nodes_that_stay_away_for_a_ttl", || {
            run(grants_in_order(Manners::StayAway));
            Ok(())
        }),
        Trial::test("nodes_emptied_at_any_time", || {
            run(grants_in_order(Manners::None));
            Ok(())
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

async fn grants_in_order(manners: Manners) {
    let wanted = env::var("QUORLOCK_GRANTS").map_or(GRANTS, |text| text.parse().unwrap());
    let seed = env::var("QUORLOCK_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("{manners:?}: {wanted} grants, QUORLOCK_SEED={seed}");
    let testbed = Testbed::builder()
        .nodes(5)
        .arg("appendfsync", "no")
        .start()
        .await
        .unwrap();
    let database = Database::create().await;
    let history = History::begin(&database).await;
    let mut workers: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            let task = Task {
                number: number as u64,
                nodes: testbed.urls().join(","),
                database: database.address(),
                guarded: false,
            };
            task.start()
        })
        .collect();

    let started = Instant::now();
    let mut nemesis = Nemesis::new(&testbed, manners, seed);
    let mut told = Instant::now();
    loop {
        nemesis.strike().await;
        let grants = history.grants().await;
        // A quick machine would be done before every fault had its turn.
        if grants >= wanted && nemesis.struck_in_every_way() {
            break;
        }
        if wanted >= MANY && told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            println!("{grants} of {wanted} grants after {:.0?}", started.elapsed());
        }
        for worker in &mut workers {
            assert!(
                worker.try_wait().unwrap().is_none(),
                "a worker has ended by itself"
            );
        }
    }
    nemesis.make_good().await;
    // The end of its input tells a worker to stop.
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    for worker in &mut workers {
        assert!(worker.wait().await.unwrap().success(), "a worker failed");
    }
    let report = history.check(manners == Manners::StayAway).await;
    println!("{report}\nin {:.0?}; {nemesis}", started.elapsed());
}
