//! Faults of connections must not harm locks, on real servers: late or repeated requests, leaked, hung and dead connections.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used)]

mod announcing;
#[path = "../common/mod.rs"]
mod common;
mod connections;
#[cfg(feature = "metrics")]
#[path = "../common/counted.rs"]
mod counted;
mod credentials;
mod faults;
#[path = "../common/log.rs"]
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod requests;
mod rights;
mod silent;
mod stopped;

use std::time::Duration;

use common::{calls, connect, eventually, keys};
use quorlock::node::{Fault, NodeState};
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{AcquireError, Redlock};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn testbed(nodes: usize, proxies: bool) -> Testbed {
    let testbed = Testbed::builder()
        .nodes(nodes)
        .proxies(proxies)
        .start()
        .await
        .unwrap();
    // Counts only what the library sends from now on.
    for node in testbed.nodes() {
        node.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    }
    testbed
}

/// Returns how many locks with a token were granted. The library uses `INCR` for nothing else.
pub(crate) async fn grants(node: &TestNode) -> u64 {
    calls(node, "incr").await
}

pub(crate) fn is_up(redlock: &Redlock, number: usize) -> bool {
    matches!(redlock.nodes()[number].state, NodeState::Up { .. })
}

pub(crate) fn only_fault(error: &AcquireError) -> Fault {
    let votes = error.votes().unwrap();
    let mut faults = votes.iter().filter_map(|vote| vote.answer.clone()?.err());
    let fault = faults.next().unwrap();
    assert!(faults.next().is_none(), "more than one fault: {votes}");
    fault
}
