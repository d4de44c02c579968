//! Restarts without data, restarts with old data, `FLUSHALL`.

use std::time::Duration;

use futures_util::future::join_all;
use quorlock::testbed::{Data, TestNode, Testbed};
use quorlock::{AcquireError, ReleaseOutcome};

use crate::common::eventually;
use crate::{all_up, chosen, flush, grant, known_to_all, lease, masters, unguarded};

/// Every set of nodes, all of them included: between two leases, nobody has a memory of the first.
#[tokio::test]
async fn any_nodes_restarted_without_data() {
    let testbed = masters(3).await;
    let redlock = unguarded(testbed.urls()).await;
    let request = redlock.lock("job").within(Duration::from_secs(30));
    for losers in 1..1 << 3 {
        all_up(&redlock, &testbed).await;
        let before = grant(&request).await;
        let restarts = chosen(&testbed, losers).map(|node| node.restart(Data::Wipe));
        join_all(restarts).await.into_iter().for_each(Result::unwrap);
        let after = grant(&request).await;
        assert!(before < after, "{before}, then {after}, without {losers:b}");
    }
}

#[tokio::test]
async fn any_nodes_flushed() {
    let testbed = masters(5).await;
    let redlock = unguarded(testbed.urls()).await;
    let other = unguarded(testbed.urls()).await;
    all_up(&redlock, &testbed).await;
    all_up(&other, &testbed).await;
    for losers in 1..1 << 5 {
        let before = grant(&redlock.lock("job")).await;
        join_all(chosen(&testbed, losers).map(flush)).await;
        let after = grant(&other.lock("job")).await;
        assert!(before < after, "{before}, then {after}, without {losers:b}");
    }
}

/// As long as a quorum remembers, nobody else gets in; whoever comes next has the larger token.
#[tokio::test]
async fn any_minority_flushed_under_a_lease() {
    let testbed = masters(5).await;
    let redlock = unguarded(testbed.urls()).await;
    let other = unguarded(testbed.urls()).await;
    all_up(&redlock, &testbed).await;
    all_up(&other, &testbed).await;
    for losers in (1u32..1 << 5).filter(|losers| losers.count_ones() <= 2) {
        let (held, before) = lease(&redlock.lock("job")).await;
        spread(&testbed).await;
        join_all(chosen(&testbed, losers).map(flush)).await;
        let error = other.lock("job").try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        // Unless a busy client has looked at the nodes too long ago.
        eventually("it is extended", async || held.extend().await.is_ok()).await;
        assert_eq!(held.fencing_token(), Some(before));
        assert_eq!(held.release().await, ReleaseOutcome::Released);
        let after = grant(&other.lock("job")).await;
        assert!(before < after, "{before}, then {after}, without {losers:b}");
        known_to_all(&testbed, &[&redlock, &other]).await;
    }
}

/// More than the lock can stand: two hold it at a time. The store can tell who is newer.
#[tokio::test]
async fn a_majority_flushed_under_a_lease_leaves_two_holders_in_order() {
    let testbed = masters(5).await;
    let redlock = unguarded(testbed.urls()).await;
    let other = unguarded(testbed.urls()).await;
    all_up(&redlock, &testbed).await;
    all_up(&other, &testbed).await;
    for losers in (1u32..1 << 5).filter(|losers| losers.count_ones() >= 3) {
        let (first, before) = lease(&redlock.lock("job").watchdog(false)).await;
        spread(&testbed).await;
        join_all(chosen(&testbed, losers).map(flush)).await;
        let (second, after) = lease(&other.lock("job").watchdog(false)).await;
        assert!(first.is_held() && second.is_held());
        assert!(before < after, "{before}, then {after}, without {losers:b}");
        drop((first, second));
        redlock_is_clean(&testbed).await;
        known_to_all(&testbed, &[&redlock, &other]).await;
    }
}

/// A crashed server may come back with an older state than it has acknowledged. Its counters are then too low, but they
/// are also from before its start, and not trusted.
#[tokio::test]
async fn nodes_restarted_with_old_data() {
    let testbed = Testbed::builder()
        .nodes(3)
        .arg("appendonly", "no")
        .arg("save", "")
        .start()
        .await
        .unwrap();
    let [a, b, c] = testbed.nodes() else { panic!() };
    let redlock = unguarded(testbed.urls()).await;
    let request = redlock.lock("job").within(Duration::from_secs(30));
    all_up(&redlock, &testbed).await;
    // Nodes start a counter at different values; a release brings them together.
    eventually("the counters agree", async || {
        grant(&request).await;
        let [a, b, c] = [counter(a).await, counter(b).await, counter(c).await];
        a == b && b == c
    })
    .await;
    let on_disk = counter(a).await;
    for node in [a, c] {
        assert_eq!(node.command(&["SAVE"]).await.unwrap().as_str(), Some("OK"));
    }
    // Grants that only two of the nodes know of.
    c.kill().await.unwrap();
    let mut before = grant(&request).await;
    for _ in 0..20 {
        before = grant(&request).await;
    }
    assert!(
        on_disk < before.get(),
        "nothing is to be forgotten, so this shows nothing"
    );
    // One of them forgets these, and the other one is away.
    a.kill().await.unwrap();
    b.kill().await.unwrap();
    for node in [a, c] {
        node.restart(Data::Keep).await.unwrap();
        // The client may have told the node of a newer token by now.
        assert!(counter(node).await >= on_disk, "not even the old data is there");
    }
    let after = grant(&request).await;
    assert!(before < after, "{before}, then {after}");
}

async fn counter(node: &TestNode) -> u64 {
    let counter = node.command(&["GET", "quorlock:job#fence"]).await.unwrap();
    counter.as_str().unwrap().parse().unwrap()
}

/// The lock is on all nodes, not on a quorum only.
async fn spread(testbed: &Testbed) {
    copies(testbed, true).await;
}

async fn redlock_is_clean(testbed: &Testbed) {
    copies(testbed, false).await;
}

async fn copies(testbed: &Testbed, there: bool) {
    for node in testbed.nodes() {
        eventually("the lock is on all nodes, or on none", || async {
            let answer = node.command(&["EXISTS", "quorlock:job"]).await.unwrap();
            answer.as_int() == Some(i64::from(there))
        })
        .await;
    }
}
