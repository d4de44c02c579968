//! A lease outlives the memory of all its nodes, if they do not lose it at the same time (E4).

use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::testbed::{Data, Testbed};
use quorlock::{LossReason, Redlock, ReleaseOutcome};

use crate::common::eventually;
use crate::{all_up, flush};

async fn holding(testbed: &Testbed) -> usize {
    let mut holding = 0;
    for node in testbed.nodes() {
        let exists = node.command(&["EXISTS", "quorlock:job"]).await.unwrap();
        holding += usize::try_from(exists.as_int().unwrap()).unwrap();
    }
    holding
}

async fn counters(testbed: &Testbed) -> Vec<u64> {
    let mut counters = Vec::new();
    for node in testbed.nodes() {
        let counter = node.command(&["GET", "quorlock:job#fence"]).await.unwrap();
        counters.push(counter.as_str().map_or(0, |text| text.parse().unwrap()));
    }
    counters
}

/// An emptied node gives no new locks at first, but gets this lease's key. The next node restarts once the previous one votes.
#[tokio::test]
async fn a_lease_whose_nodes_restart_empty_one_after_the_other() {
    let testbed = Testbed::start(5).await.unwrap();
    let ttl = Duration::from_secs(2);
    let builder = Redlock::builder().urls(testbed.urls()).ttl(ttl).guard_window(ttl);
    let redlock = builder.connect().await.unwrap();
    all_up(&redlock, &testbed).await;
    let lease = redlock.lock("job").acquire().await.unwrap();
    let token = lease.fencing_token().unwrap().get();
    for round in 0..2 {
        for (number, node) in testbed.nodes().iter().enumerate() {
            node.restart(Data::Wipe).await.unwrap();
            eventually("all five nodes have the key", async || {
                holding(&testbed).await == 5
            })
            .await;
            eventually("the node gives locks again", async || {
                let status = redlock.nodes().remove(number);
                matches!(status.state, NodeState::Up { .. }) && status.left_out.is_none()
            })
            .await;
            assert!(lease.is_held(), "round {round}");
        }
    }
    let counters = counters(&testbed).await;
    assert!(
        counters.iter().all(|counter| *counter >= token),
        "{token}: {counters:?}"
    );
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    eventually("no node has the key", async || holding(&testbed).await == 0).await;
}

#[tokio::test]
async fn a_lease_that_a_quorum_has_forgotten_is_lost_and_not_brought_back() {
    let testbed = Testbed::start(5).await.unwrap();
    let redlock = Redlock::connect(testbed.urls()).await.unwrap();
    all_up(&redlock, &testbed).await;
    let lease = redlock
        .lock("job")
        .ttl(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap();
    for node in &testbed.nodes()[..3] {
        flush(node).await;
    }
    let lost = lease.lost().await;
    assert!(matches!(lost.reason, LossReason::Gone(_)), "{lost}");
    redlock.shutdown().await;
    assert_eq!(holding(&testbed).await, 0);
}
