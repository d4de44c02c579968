//! Nodes that become replicas for a moment, and keep their master's data.

use quorlock::testbed::{Data, TestNode, Testbed};

use crate::common::eventually;
use crate::{Client, Holders, acquire_on_two, info, wide};

/// The second client's view of the replica.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The client sends nothing.
    Nothing,
    /// One write is refused. Then no server answers.
    ReadOnly,
    /// The replica has not reached its master yet.
    MasterDown,
}

async fn replicate(node: &TestNode, master: &TestNode) {
    let port = master.direct_addr().port().to_string();
    let answer = node.command(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"));
}

async fn synchronised(node: &TestNode) {
    eventually("the replica is in step", async || {
        info(node, "master_link_status").await == "up"
    })
    .await;
}

async fn promote(node: &TestNode) {
    let answer = node.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"));
}

/// The lease stands on two of three nodes. One of these becomes a replica of `master`, and a master again.
async fn a_replica_for_a_moment(master: usize, seen: Seen, fencing: bool) {
    let builder = Testbed::builder().nodes(5).proxies(true);
    let builder = builder
        .arg("replica-serve-stale-data", "no")
        .arg("repl-diskless-sync-delay", "0");
    let testbed = builder.start().await.unwrap();
    let urls = testbed.urls()[..3].to_vec();
    let (node, master) = (&testbed.nodes()[1], &testbed.nodes()[master]);
    let nobody = &testbed.nodes()[4];
    nobody.kill().await.unwrap();
    let holders = Holders::default();
    let mut first = Client::connected("first", || wide(&urls).fencing(fencing)).await;
    let mut second = Client::connected("second", || wide(&urls).fencing(fencing)).await;
    let lease = acquire_on_two(&testbed, &mut first, &second, &holders).await;
    match seen {
        Seen::Nothing => {
            replicate(node, master).await;
            synchronised(node).await;
        }
        Seen::ReadOnly => {
            replicate(node, master).await;
            synchronised(node).await;
            // The open connection shows a replica. No new connection can show more.
            node.proxy().unwrap().lead_to(nobody.direct_addr());
            second.try_acquire("job", &holders).await.unwrap_err();
        }
        Seen::MasterDown => {
            master.kill().await.unwrap();
            replicate(node, master).await;
            second.try_acquire("job", &holders).await.unwrap_err();
            master.restart(Data::Keep).await.unwrap();
            synchronised(node).await;
        }
    }
    promote(node).await;
    node.proxy().unwrap().lead_to(node.direct_addr());
    second.contest(&lease, &holders).await;
    assert!(lease.is_held(), "the lease ended before the contest did");
}

#[tokio::test]
async fn of_a_server_outside_the_set_and_nobody_saw_it() {
    a_replica_for_a_moment(3, Seen::Nothing, true).await;
}

/// Locks without tokens need the same checks.
#[tokio::test]
async fn of_a_server_outside_the_set_and_nobody_saw_it_without_fencing() {
    a_replica_for_a_moment(3, Seen::Nothing, false).await;
}

/// The node comes back with another node's record.
#[tokio::test]
async fn of_another_node_and_nobody_saw_it() {
    a_replica_for_a_moment(2, Seen::Nothing, true).await;
}

/// Before Redis 7, the error of a script's refused write does not begin with READONLY.
#[tokio::test]
async fn of_a_server_outside_the_set_seen_by_a_refused_write_only() {
    a_replica_for_a_moment(3, Seen::ReadOnly, true).await;
}

#[tokio::test]
async fn of_a_server_that_was_not_there_yet() {
    a_replica_for_a_moment(3, Seen::MasterDown, true).await;
}
