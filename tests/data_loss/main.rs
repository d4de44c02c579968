//! Tokens rise although nodes lose their memory, or have wrong clocks (F5).
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod guard;
mod healing;
mod losses;
mod records;
mod retention;
#[path = "../common/server.rs"]
mod server;

use std::time::Duration;

use common::eventually;
use quorlock::node::NodeState;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{FencingToken, Lease, LockRequest, Redlock, RedlockBuilder, ReleaseOutcome};

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A guard window with which clients look at least twice a second.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);

/// Builds a client with the guard, whose locks outlast the test.
pub(crate) fn on(testbed: &Testbed) -> RedlockBuilder {
    let builder = Redlock::builder().urls(testbed.urls()).guard_window(WINDOW);
    builder.ttl(LONG).watchdog(false)
}

/// Connects without the restart guard, and looks at the nodes as often.
pub(crate) async fn unguarded(testbed: &Testbed) -> Redlock {
    let builder = common::unguarded(testbed.urls()).guard_window(WINDOW);
    builder.connect().await.unwrap()
}

/// Starts masters that do not wait for a disk.
pub(crate) async fn masters(nodes: usize) -> Testbed {
    let testbed = Testbed::builder().nodes(nodes).arg("appendfsync", "no");
    testbed.start().await.unwrap()
}

pub(crate) async fn all_up(redlock: &Redlock, testbed: &Testbed) {
    eventually("the nodes are up", || async {
        let states = redlock.nodes().into_iter().zip(testbed.nodes());
        let mut running = states.filter(|(_, node)| node.pid().is_some());
        running.all(|(status, _)| matches!(status.state, NodeState::Up { .. }))
    })
    .await;
}

/// Waits until every node knows these clients, and they use all nodes. An emptied node knows no client.
pub(crate) async fn known_to_all(testbed: &Testbed, clients: &[&Redlock]) {
    let count = "return #redis.call('KEYS', '*#client')";
    for node in testbed.nodes() {
        eventually("the clients are known to the node", async || {
            let known = node.command(&["EVAL", count, "0"]).await.unwrap();
            known.as_int() == i64::try_from(clients.len()).ok()
        })
        .await;
    }
    for redlock in clients {
        all_up(redlock, testbed).await;
    }
}

pub(crate) async fn lease(request: &LockRequest) -> (Lease, FencingToken) {
    let lease = request.clone().acquire().await.unwrap();
    let token = lease.fencing_token().unwrap();
    (lease, token)
}

pub(crate) async fn grant(request: &LockRequest) -> FencingToken {
    let (lease, token) = lease(request).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    token
}

pub(crate) async fn flush(node: &TestNode) {
    let answer = node.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"));
}

/// Returns the nodes whose bit is set.
pub(crate) fn chosen(testbed: &Testbed, set: u32) -> impl Iterator<Item = &TestNode> {
    let numbered = testbed.nodes().iter().enumerate();
    numbered.filter_map(move |(number, node)| (set >> number & 1 == 1).then_some(node))
}
