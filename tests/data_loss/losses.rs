//! Restarts without data, restarts with old data, and `FLUSHALL`.

use std::time::Duration;

use futures_util::future::join_all;
use quorlock::testbed::{Data, TestNode, Testbed};
use quorlock::{AcquireError, ReleaseOutcome};

use crate::common::eventually;
use crate::{all_up, chosen, flush, grant, known_to_all, lease, masters, unguarded};

/// Tokens rise whichever nodes lose their data between two leases.
#[tokio::test]
async fn any_nodes_restarted_without_data() {
    let testbed = masters(3).await;
    let redlock = unguarded(&testbed).await;
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
    let redlock = unguarded(&testbed).await;
    let other = unguarded(&testbed).await;
    all_up(&redlock, &testbed).await;
    all_up(&other, &testbed).await;
    for losers in 1..1 << 5 {
        let before = grant(&redlock.lock("job")).await;
        join_all(chosen(&testbed, losers).map(flush)).await;
        let after = grant(&other.lock("job")).await;
        assert!(before < after, "{before}, then {after}, without {losers:b}");
    }
}

/// While a quorum keeps the lock, no other client gets it.
#[tokio::test]
async fn any_minority_flushed_under_a_lease() {
    let testbed = masters(5).await;
    let redlock = unguarded(&testbed).await;
    let other = unguarded(&testbed).await;
    all_up(&redlock, &testbed).await;
    all_up(&other, &testbed).await;
    for losers in (1u32..1 << 5).filter(|losers| losers.count_ones() <= 2) {
        let (held, before) = lease(&redlock.lock("job")).await;
        spread(&testbed).await;
        join_all(chosen(&testbed, losers).map(flush)).await;
        let error = other.lock("job").try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        // A busy client's look may be too old for votes to count.
        eventually("the lease is extended", async || held.extend().await.is_ok()).await;
        assert_eq!(held.fencing_token(), Some(before));
        assert_eq!(held.release().await, ReleaseOutcome::Released);
        let after = grant(&other.lock("job")).await;
        assert!(before < after, "{before}, then {after}, without {losers:b}");
        known_to_all(&testbed, &[&redlock, &other]).await;
    }
}

/// Two clients hold the lock after this loss. A store can tell which one is newer.
#[tokio::test]
async fn a_majority_flushed_under_a_lease_leaves_two_holders_in_order() {
    let testbed = masters(5).await;
    let redlock = unguarded(&testbed).await;
    let other = unguarded(&testbed).await;
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

/// A crashed server may come back with an older state. Its counters are from before the memory began, and not trusted (F5).
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
    let redlock = unguarded(&testbed).await;
    let request = redlock.lock("job").within(Duration::from_secs(30));
    all_up(&redlock, &testbed).await;
    // Counters may start at different values. A release makes them agree.
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
    // Only two nodes know of these grants.
    c.kill().await.unwrap();
    let mut before = grant(&request).await;
    for _ in 0..20 {
        before = grant(&request).await;
    }
    assert!(
        on_disk < before.get(),
        "all grants are on disk, so this test shows nothing"
    );
    // One of them forgets the grants, and the other one is away.
    a.kill().await.unwrap();
    b.kill().await.unwrap();
    for node in [a, c] {
        node.restart(Data::Keep).await.unwrap();
        // The client may have raised the counter since.
        assert!(counter(node).await >= on_disk, "the old data is missing");
    }
    let after = grant(&request).await;
    assert!(before < after, "{before}, then {after}");
}

async fn counter(node: &TestNode) -> u64 {
    let counter = node.command(&["GET", "quorlock:job#fence"]).await.unwrap();
    counter.as_str().unwrap().parse().unwrap()
}

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
