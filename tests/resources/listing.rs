//! The list of all locks: what it costs in memory, and how much longer other clients wait meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quorlock::testbed::TestNode;
use quorlock::{LockStatus, Redlock};
use tokio::time::sleep;

use crate::common::{connect, eventually};
use crate::measure::{Usage, resident};
use crate::testbed;

/// Most memory that the list may take, however many locks there are.
const MOST: u64 = 8 << 20;
/// How long other clients are watched without a list.
const ALONE: Duration = Duration::from_secs(3);
/// Locks that one command sets. The value is the same on all nodes.
const BATCH: usize = 20_000;
const FILL: &str = "
    for i = ARGV[1] + 0, ARGV[2] - 1 do
        local owner = ('01a22951-0000-7000-8000-%012x'):format(i)
        redis.call('SET', 'quorlock:r' .. i, owner, 'PX', 36000000)
        redis.call('SET', 'quorlock:r' .. i .. '#fence', 17, 'PX', 36000000)
    end";

pub(crate) async fn list(count: usize) {
    let testbed = testbed(5).await;
    join_all(testbed.nodes().iter().map(|node| fill(node, count))).await;
    let looks = connect(&testbed).await;
    let other = connect(&testbed).await;
    let alone = watched(&other, sleep(ALONE)).await;
    println!(
        "before     {}: {count} locks; {alone}",
        Usage::now(&testbed).await
    );

    let before = resident();
    let started = Instant::now();
    let mut seen = vec![false; count];
    let mut most = before;
    let listing = async {
        let mut locks = looks.locks("r*");
        let mut listed = 0;
        while let Some(lock) = locks.next().await {
            let Some(number) = lock
                .resource
                .strip_prefix('r')
                .and_then(|number| number.parse::<usize>().ok())
            else {
                panic!("no lock of this test: {}", lock.resource);
            };
            assert!(!std::mem::replace(&mut seen[number], true), "r{number} twice");
            assert_eq!((lock.status, lock.keys()), (LockStatus::Held, 5));
            listed += 1;
            if listed % 1_000 == 0 {
                most = most.max(resident());
            }
        }
        assert_eq!(locks.faults().count(), 0);
    };
    let meanwhile = watched(&other, listing).await;
    let grown = most.saturating_sub(before);
    println!(
        "listed     in {:.1?}, with {} KB more; {meanwhile}",
        started.elapsed(),
        grown >> 10
    );
    assert!(seen.iter().all(|seen| *seen), "not all were listed");
    assert!(grown <= MOST, "the list took {grown} bytes");
}

async fn fill(node: &TestNode, count: usize) {
    for from in (0..count).step_by(BATCH) {
        let to = count.min(from + BATCH);
        let command = ["EVAL", FILL, "0", &from.to_string(), &to.to_string()];
        // A busy machine may need longer than a command has.
        eventually("the locks are set", async || node.command(&command).await.is_ok()).await;
    }
}

/// Returns how long another client's acquires take while `work` is done.
async fn watched(redlock: &Redlock, work: impl Future<Output = ()>) -> String {
    let done = Arc::new(AtomicBool::new(false));
    let acquiring = tokio::spawn({
        let (redlock, done) = (redlock.clone(), done.clone());
        async move {
            let mut took = Vec::new();
            while !done.load(Relaxed) {
                let started = Instant::now();
                let lease = redlock.lock("other").acquire().await.unwrap();
                took.push(started.elapsed());
                let _ = lease.release().await;
            }
            took
        }
    });
    work.await;
    done.store(true, Relaxed);
    let mut took = acquiring.await.unwrap();
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    format!(
        "an acquire: p50 {:.2?}, p99 {:.2?} of {}",
        at(50),
        at(99),
        took.len()
    )
}
