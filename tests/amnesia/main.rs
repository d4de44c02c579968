//! Nodes that lose their memory, or the time: tokens still rise (F5).
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod guard;
mod healing;
mod losses;
mod retention;
#[path = "../common/server.rs"]
mod server;

use common::eventually;
use quorlock::node::NodeState;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{FencingToken, Lease, LockRequest, Redlock, ReleaseOutcome};

/// Masters that do not wait for a disk.
pub(crate) async fn masters(nodes: usize) -> Testbed {
    let testbed = Testbed::builder().nodes(nodes).arg("appendfsync", "no");
    testbed.start().await.unwrap()
}

/// Waits until every node that runs takes part.
pub(crate) async fn all_up(redlock: &Redlock, testbed: &Testbed) {
    eventually("the nodes are up", || async {
        let states = redlock.nodes().into_iter().zip(testbed.nodes());
        let mut running = states.filter(|(_, node)| node.pid().is_some());
        running.all(|(status, _)| matches!(status.state, NodeState::Up { .. }))
    })
    .await;
}

pub(crate) async fn lease(request: &LockRequest) -> (Lease, FencingToken) {
    let lease = request.clone().acquire().await.unwrap();
    let token = lease.fencing_token().unwrap();
    (lease, token)
}

/// Acquires and releases; the token.
pub(crate) async fn grant(request: &LockRequest) -> FencingToken {
    let (lease, token) = lease(request).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    token
}

pub(crate) async fn flush(node: &TestNode) {
    let answer = node.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"));
}

/// Those of a testbed's nodes whose bit is set.
pub(crate) fn chosen(testbed: &Testbed, set: u32) -> impl Iterator<Item = &TestNode> {
    let numbered = testbed.nodes().iter().enumerate();
    numbered.filter_map(move |(number, node)| (set >> number & 1 == 1).then_some(node))
}
