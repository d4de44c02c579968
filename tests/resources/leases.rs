//! Leases with watchdogs, on three nodes, one of which hangs.

use std::time::{Duration, Instant};

use quorlock::{Lease, ReleaseOutcome};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::connect;
use crate::measure::Usage;
use crate::{AT_A_TIME, acquire, nothing_is_left, testbed};

/// Most memory of a lease in bytes: a third above the measured value.
const MOST_EACH: u64 = 9_500;
/// Renewals come every third of it.
const TTL: Duration = Duration::from_secs(60);
const SHORT_TTL: Duration = Duration::from_secs(12);
const MANY: usize = 50_000;
/// Most memory of a renewed lease while a node hangs: the subscriptions to its channel on all nodes, and one renewal, until its
/// budget is over or the node is known to hang.
const MOST_WAITING_EACH: u64 = 9_000;

pub(crate) async fn renewed(count: usize) {
    let ttl = if count < MANY { SHORT_TTL } else { TTL };
    let testbed = testbed(3).await;
    let before = Usage::now(&testbed).await;
    let redlock = connect(&testbed).await;
    let connected = Usage::now(&testbed).await;
    println!("before     {before}\nconnected  {connected}");

    let started = Instant::now();
    let leases = acquire(&redlock, count, ttl).await;
    let held = Usage::now(&testbed).await;
    let each = held.each(&connected, count);
    println!(
        "held       {held}: {count} leases in {:.1?}, {each} bytes each",
        started.elapsed()
    );
    // A slow node may have a second connection.
    assert!(held.connections <= 2 * connected.connections);

    testbed.nodes()[2].stop().unwrap();
    let (from, mut most) = (Instant::now(), held.memory);
    // Two renewals move the deadline of each by two thirds of a TTL.
    let renewed = |lease: &Lease| lease.deadline() > from + ttl + ttl / 3;
    while !leases.iter().all(renewed) {
        let lost = leases.iter().filter(|lease| !lease.is_held()).count();
        assert_eq!(lost, 0, "of {count} leases are lost after {:?}", from.elapsed());
        most = most.max(crate::measure::resident());
        sleep(Duration::from_millis(100)).await;
    }
    let renewed = Usage::now(&testbed).await;
    println!(
        "renewed    {renewed}: twice or more in {:.1?} with a node that hangs",
        from.elapsed()
    );
    let waiting = most.saturating_sub(held.memory) / count as u64;
    println!(
        "at most    {:>7} KB meanwhile: {waiting} bytes more for each",
        most >> 10
    );
    testbed.nodes()[2].resume().unwrap();

    let started = Instant::now();
    let mut releasing = JoinSet::new();
    for (number, lease) in leases.into_iter().enumerate() {
        if number % 2 == 0 {
            drop(lease);
            continue;
        }
        if releasing.len() == AT_A_TIME {
            assert_eq!(
                releasing.join_next().await.unwrap().unwrap(),
                ReleaseOutcome::Released
            );
        }
        releasing.spawn(lease.release());
    }
    assert!(
        releasing
            .join_all()
            .await
            .iter()
            .all(|outcome| *outcome == ReleaseOutcome::Released)
    );
    redlock.shutdown().await;
    println!("released in {:.1?}", started.elapsed());
    drop(redlock);
    nothing_is_left(&testbed, &before).await;
    assert!(each <= MOST_EACH, "a lease takes {each} bytes");
    assert!(
        waiting <= MOST_WAITING_EACH,
        "while a node hangs, a lease takes another {waiting} bytes"
    );
}
