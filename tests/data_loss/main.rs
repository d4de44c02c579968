//! Nodes that lose their memory, or the time: tokens still rise (F5).
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

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A guard's window with which clients look at their nodes twice a second.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);

/// A client with the restart guard, whose locks outlast the test.
pub(crate) fn on(testbed: &Testbed) -> RedlockBuilder {
    let builder = Redlock::builder().urls(testbed.urls()).guard_window(WINDOW);
    builder.ttl(LONG).watchdog(false)
}

/// Locks without the restart guard. Such clients look at their nodes as often.
pub(crate) async fn unguarded<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Redlock {
    unguarded_for(WINDOW, urls).await
}

/// The same for TTLs of up to a window.
pub(crate) async fn unguarded_for<U: AsRef<str>>(
    window: Duration,
    urls: impl IntoIterator<Item = U>,
) -> Redlock {
    let builder = Redlock::builder().urls(urls).guard_window(window);
    builder.restart_guard(false).connect().await.unwrap()
}

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

/// Waits until so many clients use all nodes as these are now. A node that was emptied knows of no client at first.
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
