//! The cost of a lock with distant nodes, with more nodes, and with many locks held.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use quorlock::testbed::Testbed;
use tokio::time::sleep;

use crate::common::report::Report;
use crate::contender::{Contender, KnownResources, Quorlock, TTL};
use crate::distance::Distances;
use crate::floor::Floor;
use crate::measure::one_by_one;
use crate::tables::{Other, Series, Step};
use crate::wire::Requests;
use crate::{addresses, urls};

const FLOOR: &str = "floor with quorlock's requests";
const QUORLOCK: &str = "quorlock";
const LIMIT: Duration = Duration::from_secs(5);

type Outcome = Result<(), Box<dyn Error>>;
type Steps = Result<Vec<Step>, Box<dyn Error>>;

/// Measures with three nodes at a round trip of 1 ms and two at 50 ms: a quorum is near.
pub(crate) async fn spread(rounds: usize, pairs: usize, report: &mut Report) -> Outcome {
    const ONE_WAY: [Duration; 5] = {
        let (near, far) = (Duration::from_micros(500), Duration::from_millis(25));
        [near, far, near, far, near]
    };
    const ONLY: &[Other] = &[("floor", |_| FLOOR)];
    let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
    sleep(crate::UP_FOR).await;
    let distances = Distances::to(&addresses(&testbed))?;
    let (floor, quorlock) = connect(&distances.addresses).await?;
    distances.set(&ONE_WAY);
    let mut all = [FLOOR, QUORLOCK].map(Series::new);
    for _ in 0..rounds {
        // On some machines, a client that has not run for a while is slow at first. So one pair each is not counted.
        one_by_one(&floor, 1, LIMIT).await;
        all[0].rounds.push(one_by_one(&floor, pairs, LIMIT).await);
        one_by_one(&quorlock, 1, LIMIT).await;
        all[1].rounds.push(one_by_one(&quorlock, pairs, LIMIT).await);
        // Answers of the distant nodes are still under way.
        sleep(Duration::from_millis(200)).await;
    }
    report.latency("latency with 3 nodes at 1 ms and 2 at 50 ms", &all, ONLY);
    testbed.shutdown().await;
    Ok(())
}

pub(crate) async fn nodes(rounds: usize, pairs: usize) -> Steps {
    const MANY: [usize; 4] = [3, 5, 7, 9];
    let mut testbeds = Vec::new();
    for nodes in MANY {
        let testbed = Testbed::builder().nodes(nodes).arg("appendonly", "no");
        testbeds.push(testbed.start().await?);
    }
    sleep(crate::UP_FOR).await;
    let mut worlds = Vec::new();
    for testbed in &testbeds {
        worlds.push(connect(&addresses(testbed)).await?);
    }
    let mut steps = MANY.map(step);
    for _ in 0..rounds {
        for (step, (floor, quorlock)) in steps.iter_mut().zip(&worlds) {
            step.floor.rounds.push(one_by_one(floor, pairs, LIMIT).await);
            step.quorlock
                .rounds
                .push(one_by_one(quorlock, pairs, LIMIT).await);
        }
    }
    drop(worlds);
    for testbed in testbeds {
        testbed.shutdown().await;
    }
    Ok(steps.into())
}

/// Measures while more and more locks are held.
pub(crate) async fn held(rounds: usize, pairs: usize, most: usize, report: &mut Report) -> Steps {
    const LEVELS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
    /// Nothing expires during the run.
    const LONG: Duration = Duration::from_secs(3_600);
    const AT_A_TIME: usize = 512;
    let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
    let holder = Quorlock::connect(&testbed.urls(), true, false, LONG).await?;
    sleep(crate::UP_FOR).await;
    let (floor, one) = connect(&addresses(&testbed)).await?;
    let empty = resident();
    let mut leases = Vec::new();
    let mut steps = Vec::new();
    for level in LEVELS.into_iter().filter(|level| *level <= most) {
        let started = Instant::now();
        let names = (leases.len()..level).map(|number| holder.acquire(format!("held-{number:06}")));
        let mut acquired = stream::iter(names).buffer_unordered(AT_A_TIME);
        while let Some(lease) = acquired.next().await {
            leases.push(lease?);
        }
        drop(acquired);
        eprintln!("{level} held: after {:.1} s", started.elapsed().as_secs_f64());
        // Fewer leases fit into memory that the process has already.
        if level >= 100_000 {
            let each = resident().saturating_sub(empty) / level;
            report.keep("bytes of memory for each of 100000 leases", each);
        }
        let mut step = step(level);
        for _ in 0..rounds {
            step.floor.rounds.push(one_by_one(&floor, pairs, LIMIT).await);
            step.quorlock.rounds.push(one_by_one(&one, pairs, LIMIT).await);
        }
        steps.push(step);
    }
    // Their deletions go on in the background. The servers end earlier.
    drop(leases);
    testbed.shutdown().await;
    Ok(steps)
}

fn step(size: usize) -> Step {
    Step {
        size,
        floor: Series::new(FLOOR),
        quorlock: Series::new(QUORLOCK),
    }
}

/// Connects to servers that have been up for a while.
async fn connect(
    addresses: &[SocketAddr],
) -> Result<(KnownResources<Floor>, KnownResources<Quorlock>), Box<dyn Error>> {
    let floor = Floor::connect(addresses, Requests::Scripted)?;
    let quorlock = Quorlock::connect(&urls(addresses), true, false, TTL).await?;
    quorlock.make_known().await?;
    Ok((KnownResources::new(floor), KnownResources::new(quorlock)))
}

/// Returns the memory of this process in bytes; 0 if unknown.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) * 1_024
}
