//! Counters expire.

use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use quorlock::ReleaseOutcome;
use quorlock::testbed::{TestNode, Testbed};

use crate::common::{self, eventually};
use crate::{all_up, grant, masters, unguarded};

/// `QUORLOCK_RESOURCES` overrides it.
const RESOURCES: usize = 20_000;
const AT_A_TIME: usize = 64;

#[tokio::test]
async fn a_counter_that_has_expired_starts_ahead_of_where_it_was() {
    let testbed = masters(3).await;
    let redlock = unguarded(&testbed).await;
    all_up(&redlock, &testbed).await;
    let request = redlock
        .lock("job")
        .ttl(Duration::from_millis(500))
        .node_budget(Duration::from_millis(400))
        .counter_retention(Duration::from_secs(5));
    let before = grant(&request).await;
    eventually("the counters have expired", || async {
        counters(&testbed).await == 0
    })
    .await;
    let mut latest = grant(&request).await;
    assert!(before < latest, "{before}, then {latest}");
    // Long enough for counters in steady use to expire.
    let until = Instant::now() + Duration::from_millis(5_500);
    while Instant::now() < until {
        let token = grant(&request).await;
        assert!(latest < token, "{latest}, then {token}");
        latest = token;
    }
}

#[tokio::test]
async fn many_resources_locked_once_leave_no_key_and_no_memory() {
    let resources = std::env::var("QUORLOCK_RESOURCES").map_or(RESOURCES, |text| text.parse().unwrap());
    let testbed = masters(3).await;
    let redlock = common::unguarded(testbed.urls())
        .ttl(Duration::from_secs(1))
        .counter_retention(Duration::from_secs(10));
    let redlock = redlock.connect().await.unwrap();
    all_up(&redlock, &testbed).await;
    grant(&redlock.lock("first")).await;
    let before = memory(&testbed).await;
    let mut most = before.clone();
    let started = Instant::now();
    let locks = stream::iter(0..resources).map(|number| {
        let lock = redlock.lock(format!("resource/{number}"));
        async move {
            // A busy machine may take longer than a TTL.
            let lease = lock.within(Duration::from_secs(60)).acquire().await.unwrap();
            assert!(lease.fencing_token().is_some());
            let outcome = lease.release().await;
            assert!(
                matches!(outcome, ReleaseOutcome::Released | ReleaseOutcome::AlreadyGone),
                "{outcome}"
            );
        }
    });
    let mut done = locks.buffer_unordered(AT_A_TIME).enumerate();
    while let Some((number, ())) = done.next().await {
        if number % (resources / 20).max(1) == 0 {
            let now = memory(&testbed).await;
            println!(
                "{number} of {resources} after {:.0?}: {} counters, {now:?} KiB",
                started.elapsed(),
                counters(&testbed).await
            );
            most = most.iter().zip(now).map(|(most, now)| now.max(*most)).collect();
        }
    }
    drop(done);
    redlock.shutdown().await;
    eventually("all counters have expired", || async {
        counters(&testbed).await == 0
    })
    .await;
    let after = memory(&testbed).await;
    println!("memory (KiB) before {before:?}, at most {most:?}, after {after:?}");
    for ((before, most), after) in before.iter().zip(&most).zip(&after) {
        assert!(
            most > before,
            "the nodes kept nothing, so this test shows nothing"
        );
        // The server's tables shrink later, if at all.
        assert!(
            after - before < (most - before) / 2 + 256,
            "{before} KiB, {most} KiB, {after} KiB"
        );
    }
}

/// Counts locks and counters on all nodes, but no records or registrations.
async fn counters(testbed: &Testbed) -> i64 {
    let count =
        "return redis.call('DBSIZE') - #redis.call('KEYS', 'quorlock:#*') - #redis.call('KEYS', '*#client')";
    let mut keys = 0;
    for node in testbed.nodes() {
        let answer = node.command(&["EVAL", count, "0"]).await.unwrap();
        keys += answer.as_int().unwrap();
    }
    keys
}

/// Returns the size of each node's data in KiB.
async fn memory(testbed: &Testbed) -> Vec<i64> {
    let mut all = Vec::new();
    for node in testbed.nodes() {
        all.push(used(node).await);
    }
    all
}

async fn used(node: &TestNode) -> i64 {
    let info = node.command(&["INFO", "memory"]).await.unwrap();
    let mut lines = info.as_str().unwrap().lines();
    let bytes = lines
        .find_map(|line| line.strip_prefix("used_memory_dataset:"))
        .unwrap();
    bytes.parse::<i64>().unwrap() / 1_024
}
