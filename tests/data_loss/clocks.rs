//! Nodes with wrong clocks.

use std::time::Duration;

use quorlock::node::Fault;
use quorlock::testbed::{Data, Testbed};
use quorlock::{LockRequest, LossReason, Redlock};
use tokio::time::timeout;

use crate::common::{self, PATIENCE, eventually};
use crate::server::{shift, shifted, tampered};
use crate::{LONG, WINDOW, all_up, flush, grant, masters, unguarded};

/// A server whose clock can be set while it runs.
struct ShiftedServer {
    testbed: Testbed,
}

impl ShiftedServer {
    async fn start() -> ShiftedServer {
        let testbed = Testbed::builder()
            .nodes(1)
            .arg("appendfsync", "no")
            .server(tampered())
            .start()
            .await
            .unwrap();
        ShiftedServer { testbed }
    }

    async fn set(&self, seconds: i64) {
        let before = self.time().await;
        let node = &self.testbed.nodes()[0];
        let previous = shifted(node) / 1_000_000;
        shift(node, seconds * 1_000_000);
        // Valkey 9.1 reads the clock only now and then.
        eventually("the server's clock has moved", || async {
            let moved = self.time().await - before;
            (moved - (seconds - previous)).abs() < 20
        })
        .await;
    }

    /// Returns the server's time in seconds.
    async fn time(&self) -> i64 {
        let answer = self.testbed.nodes()[0].command(&["EVAL", "return redis.call('TIME')[1]", "0"]);
        answer.await.unwrap().as_str().unwrap().parse().unwrap()
    }
}

/// One of three nodes has a wrong clock. This node is needed while another one is away, and is then flushed.
#[tokio::test]
async fn a_node_whose_clock_is_wrong() {
    for seconds in [-3_600, 3_600, -30 * 365 * 24 * 3_600] {
        let (good, bad) = (masters(2).await, ShiftedServer::start().await);
        bad.set(seconds).await;
        let urls = [good.urls(), bad.testbed.urls()].concat();
        let builder = common::unguarded(urls).guard_window(WINDOW);
        let redlock = builder.connect().await.unwrap();
        let request = redlock.lock("job").within(Duration::from_secs(30));
        let mut tokens = vec![grant(&request).await, grant(&request).await];
        flush(&bad.testbed.nodes()[0]).await;
        tokens.push(grant(&request).await);
        let away = &good.nodes()[0];
        away.kill().await.unwrap();
        for _ in 0..3 {
            tokens.push(grant(&request).await);
            flush(&bad.testbed.nodes()[0]).await;
            tokens.push(grant(&request).await);
        }
        away.restart(Data::Wipe).await.unwrap();
        all_up(&redlock, &good).await;
        tokens.push(grant(&request).await);
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    }
}

/// A counter goes on from its value after the node's clock was set.
#[tokio::test]
async fn clocks_that_are_set_back_do_not_set_back_counters() {
    let bad = ShiftedServer::start().await;
    bad.set(10).await;
    let redlock = unguarded(&bad.testbed).await;
    let request = redlock.lock("job").within(Duration::from_secs(30));
    let first = grant(&request).await;
    for seconds in [-3_600, 3_600, -7_200, 7_200] {
        bad.set(seconds).await;
        let next = grant(&request).await;
        assert!(first < next);
        assert!(
            next.get() - first.get() < 10,
            "{first}, then {next}: the counter was started anew"
        );
    }
}

/// The node's record is then from the future, but the guard does not last an hour.
#[tokio::test]
async fn a_clock_that_is_set_back_leaves_its_node_out_for_no_longer_than_the_guard() {
    let bad = ShiftedServer::start().await;
    bad.set(3_600).await;
    let second = Duration::from_secs(1);
    let builder = || {
        let builder = Redlock::builder().urls(bad.testbed.urls()).guard_window(second);
        builder.ttl(second)
    };
    let before = builder().connect().await.unwrap();
    grant(&before.lock("job").within(LONG)).await;
    bad.set(0).await;
    let after = builder().connect().await.unwrap();
    let left_out = after.nodes().remove(0).left_out;
    let Some(Fault::Restarted { remaining, .. } | Fault::Replaced { remaining }) = left_out else {
        panic!("{left_out:?}")
    };
    assert!(remaining < 2 * second, "left out for another {remaining:?}");
    grant(&after.lock("job").within(LONG)).await;
    grant(&before.lock("job").within(LONG)).await;
}

/// The same for a client that stays connected.
#[tokio::test]
async fn a_clock_that_is_set_back_under_a_connection_leaves_its_node_out_for_no_longer_than_the_guard() {
    let bad = ShiftedServer::start().await;
    bad.set(3_600).await;
    let second = Duration::from_secs(1);
    let builder = Redlock::builder().urls(bad.testbed.urls()).guard_window(second);
    let redlock = builder.ttl(second).connect().await.unwrap();
    grant(&redlock.lock("job").within(LONG)).await;
    bad.set(0).await;
    grant(&redlock.lock("job").within(LONG)).await;
}

/// Acquires and releases until all of these nodes have answered, and their clocks were seen.
async fn look(request: &LockRequest, nodes: &[usize]) {
    let mut unheard = nodes.to_vec();
    let looking = async {
        while !unheard.is_empty() {
            let lease = request.clone().acquire().await.unwrap();
            let heard: Vec<bool> = lease.votes().iter().map(|vote| vote.answer.is_some()).collect();
            let _ = lease.release().await;
            unheard.retain(|node| !heard[*node]);
        }
    };
    timeout(PATIENCE, looking)
        .await
        .expect("a node did not answer in time");
}

/// Keys expire by the nodes' clocks: a lease ends early if two of three clocks are put forward.
#[tokio::test]
async fn clocks_that_are_put_forward_shorten_leases() {
    let nodes = [
        ShiftedServer::start().await,
        ShiftedServer::start().await,
        ShiftedServer::start().await,
    ];
    let urls = nodes.iter().flat_map(|node| node.testbed.urls());
    let builder = common::unguarded(urls).guard_window(LONG);
    let redlock = builder.connect().await.unwrap();
    let lock = |name: &str| redlock.lock(name).ttl(Duration::from_secs(60)).watchdog(false);
    let lease = lock("job").acquire().await.unwrap();
    let watched = lock("other").watchdog(true).acquire().await.unwrap();
    let (deadline, renewed) = (lease.deadline(), watched.deadline());
    nodes[0].set(20).await;
    look(&lock("a look at the clocks"), &[0]).await;
    assert_eq!(
        lease.deadline(),
        deadline,
        "the deadline moved although two nodes keep the key"
    );
    nodes[1].set(30).await;
    look(&lock("a look at the clocks"), &[0, 1]).await;
    let shortened = deadline - lease.deadline();
    let twenty = Duration::from_secs(20);
    assert!(
        shortened >= twenty && shortened < twenty + Duration::from_secs(5),
        "{shortened:?}"
    );
    assert!(lease.is_held());
    eventually("the lease with a watchdog is renewed", async || {
        watched.deadline() > renewed
    })
    .await;
    nodes[0].set(100).await;
    nodes[1].set(100).await;
    look(&lock("a look at the clocks"), &[0, 1]).await;
    assert!(!lease.is_held());
    let lost = lease.lost().await;
    assert!(
        matches!(lost.reason, LossReason::ClockPutForward { .. }),
        "{lost}"
    );
    // An expired key cannot be renewed.
    let lost = watched.lost().await;
    assert!(
        matches!(
            lost.reason,
            LossReason::ClockPutForward { .. } | LossReason::Gone(_)
        ),
        "{lost}"
    );
}
