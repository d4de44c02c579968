//! Waiters for held resources, which poll the nodes.

use std::time::{Duration, Instant};

use quorlock::Backoff;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::unguarded;
use crate::measure::{Usage, resident};
use crate::{BUDGET, acquire, nothing_is_left, testbed};

/// Most memory of a waiter in bytes: a third above the measured value.
const MOST_EACH: u64 = 12_000;
const TTL: Duration = Duration::from_secs(60);
/// Sets the back-off so that all waiters together ask about a thousand times a second.
const PACE: Duration = Duration::from_millis(1);

pub(crate) async fn wait(waiters: usize, resources: usize) {
    let testbed = testbed(3).await;
    let before = Usage::now(&testbed).await;
    let pace = PACE * waiters as u32;
    let builder = unguarded(testbed.urls()).backoff(Backoff::new(pace / 2, pace * 2));
    let redlock = builder.connect().await.unwrap();
    let leases = acquire(&redlock, resources.max(1), TTL).await;
    let held = Usage::now(&testbed).await;
    println!(
        "before     {before}\nheld       {held}: {} resources",
        leases.len()
    );

    let started = Instant::now();
    let mut waiting = JoinSet::new();
    for number in 0..waiters {
        let lock = redlock
            .lock(format!("r{}", number % leases.len()))
            .ttl(TTL)
            .node_budget(BUDGET);
        waiting.spawn(lock.forever().acquire());
    }
    // Each has asked several times by then.
    let mut most = resident();
    while started.elapsed() < pace * 5 {
        most = most.max(resident());
        sleep(Duration::from_millis(20)).await;
    }
    let waited = Usage::now(&testbed).await;
    let each = most.saturating_sub(held.memory) / waiters as u64;
    println!(
        "waiting    {waited}: {waiters} for {:.1?}, at most {each} bytes each",
        started.elapsed()
    );
    // A slow node may have a second connection.
    assert!(waited.connections <= 2 * held.connections);
    assert!(waiting.try_join_next().is_none(), "a waiter got a held lock");

    drop(leases);
    // Some get the lock in turn. All others are cancelled.
    for _ in 0..resources.clamp(1, 10) {
        let lease = waiting.join_next().await.unwrap().unwrap().unwrap();
        let _ = lease.release().await;
    }
    waiting.shutdown().await;
    redlock.shutdown().await;
    drop(redlock);
    nothing_is_left(&testbed, &before).await;
    assert!(each <= MOST_EACH, "a waiter takes {each} bytes");
}
