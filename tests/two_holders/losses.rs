//! A quorum of nodes loses data without a restart.

use futures_util::future::join_all;
use quorlock::testbed::Testbed;
use tokio::time::timeout;

use crate::common::{PATIENCE, eventually};
use crate::{Client, Holders, flush, short};

/// Flushes this many of three nodes under a lease, while one client waits and another one tries again and again.
async fn flushed(losers: usize, watchdog: bool) {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let holders = Holders::default();
    let mut first = Client::connected("first", || short(&urls).watchdog(watchdog)).await;
    let mut second = Client::connected("second", || short(&urls)).await;
    let lease = first.acquire("job", &holders).await;
    let waiting = {
        let (waiter, holders) = (short(&urls).connect().await.unwrap(), holders.clone());
        let request = waiter.lock("job").within(PATIENCE);
        tokio::spawn(async move {
            let lease = request.acquire().await.unwrap();
            holders.record("the waiter", &lease);
            lease.release().await
        })
    };
    eventually("the waiter has subscribed", async || {
        let channels = testbed.nodes()[2]
            .command(&["PUBSUB", "CHANNELS", "*"])
            .await
            .unwrap();
        !channels.as_array().unwrap().is_empty()
    })
    .await;
    join_all(testbed.nodes()[..losers].iter().map(flush)).await;
    let taken = second.contest(&lease, &holders).await;
    assert!(
        !lease.is_held(),
        "the lease is held although a quorum has forgotten it"
    );
    drop((lease, taken));
    let outcome = timeout(PATIENCE, waiting)
        .await
        .expect("the waiter did not get the lock in time");
    drop(outcome.unwrap());
}

#[tokio::test]
async fn of_a_majority_that_is_flushed_under_a_lease_that_is_renewed() {
    flushed(2, true).await;
}

#[tokio::test]
async fn of_a_majority_that_is_flushed_under_a_lease_that_is_not_renewed() {
    flushed(2, false).await;
}

#[tokio::test]
async fn of_all_nodes_that_are_flushed_under_a_lease_that_is_renewed() {
    flushed(3, true).await;
}

#[tokio::test]
async fn of_all_nodes_that_are_flushed_under_a_lease_that_is_not_renewed() {
    flushed(3, false).await;
}

/// The lock's keys stay. Clients leave these nodes out until they have a new record.
#[tokio::test]
async fn records_that_are_deleted_by_hand() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let holders = Holders::default();
    let mut first = Client::connected("first", || short(&urls)).await;
    let mut second = Client::connected("second", || short(&urls)).await;
    let lease = first.acquire("job", &holders).await;
    for node in &testbed.nodes()[..2] {
        let delete = "local n = 0 \
             for _, pattern in ipairs({'*#node', '*#memory'}) do \
               for _, key in ipairs(redis.call('KEYS', pattern)) do n = n + redis.call('DEL', key) end \
             end \
             return n";
        let deleted = node.command(&["EVAL", delete, "0"]).await.unwrap();
        assert_ne!(deleted.as_int(), Some(0), "the node had no record");
    }
    let taken = second.contest(&lease, &holders).await;
    drop((lease, taken));
    second.succeed("job", &holders).await;
    first.succeed("job", &holders).await;
}
