//! What the client library and the network must not do to a lock, shown on real servers: late requests, requests sent
//! twice, leaked connections, hung connections.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use quorlock::node::{Fault, NodeState};
use quorlock::testbed::{Data, TestNode, Testbed};
use quorlock::{AcquireError, Redlock, ReleaseOutcome};

const PATIENCE: Duration = Duration::from_secs(20);

async fn testbed(nodes: usize, proxies: bool) -> Testbed {
    Testbed::builder()
        .nodes(nodes)
        .proxies(proxies)
        .start()
        .await
        .unwrap()
}

async fn connect(testbed: &Testbed) -> Redlock {
    Redlock::connect(testbed.urls()).await.unwrap()
}

/// How often the server has executed a command, from scripts too.
async fn calls(node: &TestNode, command: &str) -> u64 {
    let stats = node.command(&["INFO", "commandstats"]).await.unwrap();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats
        .as_str()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix(&prefix).map(str::to_owned));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

async fn keys(node: &TestNode) -> i64 {
    node.command(&["DBSIZE"]).await.unwrap().as_int().unwrap()
}

/// Waits for something that is to come true by itself.
async fn eventually(what: &str, mut test: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !test().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_up(redlock: &Redlock, number: usize) -> bool {
    matches!(redlock.nodes()[number].state, NodeState::Up { .. })
}

fn only_fault(error: &AcquireError) -> Fault {
    let votes = error.votes().unwrap();
    let mut faults = votes.iter().filter_map(|vote| vote.answer.clone()?.err());
    let fault = faults.next().unwrap();
    assert!(faults.next().is_none(), "more than one: {votes}");
    fault
}

/// A9. The bytes lie in the stopped server's receive buffer; nothing can take them back.
#[tokio::test]
async fn a_request_that_a_stopped_server_finds_later_refuses_itself() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    let before = calls(node, "evalsha").await;
    node.stop().unwrap();
    let request = redlock
        .lock("late")
        .ttl(Duration::from_secs(60))
        .node_budget(Duration::from_millis(100));
    let error = request.try_acquire().await.unwrap_err();
    assert!(matches!(only_fault(&error), Fault::Timeout { .. }), "{error}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.resume().unwrap();
    redlock.shutdown().await;
    assert!(
        calls(node, "evalsha").await > before,
        "the request was never there, so this shows nothing"
    );
    assert_eq!(calls(node, "set").await, 0, "the old acquire took effect");
    assert_eq!(keys(node).await, 0);
}

/// A6 is the only line of defence of a plain SET: its deletion is behind it in the same connection.
#[tokio::test]
async fn a_plain_set_that_a_stopped_server_finds_later_is_deleted_behind_it() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    node.stop().unwrap();
    let request = redlock.lock("late").fencing(false).ttl(Duration::from_secs(60));
    let error = request
        .node_budget(Duration::from_millis(100))
        .try_acquire()
        .await
        .unwrap_err();
    assert!(matches!(only_fault(&error), Fault::Timeout { .. }), "{error}");
    node.resume().unwrap();
    redlock.shutdown().await;
    assert_eq!(
        calls(node, "set").await,
        1,
        "the SET was never there, so this shows nothing"
    );
    assert_eq!(keys(node).await, 0);
}

/// T4, A9: the lane gives the hung connection up, and what the old one still delivers is refused.
#[tokio::test]
async fn a_hung_connection_is_replaced_and_its_leftovers_take_no_effect() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    node.stop().unwrap();
    let lock = || {
        redlock
            .lock("hung")
            .ttl(Duration::from_secs(60))
            .node_budget(Duration::from_millis(50))
    };
    // Steady traffic must not keep it from being noticed.
    eventually("the hung connection is given up", async || {
        let error = lock().try_acquire().await.unwrap_err();
        matches!(only_fault(&error), Fault::Disconnected { .. })
    })
    .await;
    let start = Instant::now();
    for _ in 0..100 {
        let error = lock().try_acquire().await.unwrap_err();
        assert!(
            matches!(only_fault(&error), Fault::Disconnected { .. }),
            "{error}"
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "known to be out of reach is a fault at once (A3)"
    );
    node.resume().unwrap();
    eventually("the node is back", async || is_up(&redlock, 0)).await;
    assert_eq!(calls(node, "set").await, 0, "an old acquire took effect");
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
    let lease = connect(&testbed).await.lock("hung").try_acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

/// A8: one attempt is one attempt, whatever happens to its connection.
#[tokio::test]
async fn a_connection_cut_in_the_middle_of_an_attempt_sends_nothing_again() {
    for fencing in [true, false] {
        let testbed = testbed(1, true).await;
        let node = &testbed.nodes()[0];
        let proxy = node.proxy().unwrap();
        let redlock = connect(&testbed).await;
        // The server gets the request; its answer does not come back.
        proxy.blackhole_from_server();
        let lock = redlock.lock("cut").fencing(fencing).ttl(Duration::from_secs(60));
        let attempt = tokio::spawn(lock.node_budget(Duration::from_secs(30)).try_acquire());
        eventually("the request has arrived", async || calls(node, "set").await == 1).await;
        proxy.cut();
        let error = attempt.await.unwrap().unwrap_err();
        assert!(
            matches!(only_fault(&error), Fault::ConnectionLost { .. }),
            "{error}"
        );
        proxy.heal();
        redlock.shutdown().await;
        assert_eq!(calls(node, "set").await, 1, "sent again");
        assert_eq!(keys(node).await, 0, "left behind");
    }
}

/// The bytes never got through: they are held back until the client has given up and come back.
#[tokio::test]
async fn a_blackholed_attempt_takes_no_effect_when_the_network_heals() {
    let testbed = testbed(1, true).await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let redlock = connect(&testbed).await;
    proxy.blackhole_to_server();
    let lock = || {
        redlock
            .lock("hole")
            .ttl(Duration::from_secs(60))
            .node_budget(Duration::from_millis(100))
    };
    let error = lock().try_acquire().await.unwrap_err();
    assert!(matches!(only_fault(&error), Fault::Timeout { .. }), "{error}");
    eventually("the connection is given up", async || !is_up(&redlock, 0)).await;
    proxy.heal();
    eventually("the node is back", async || is_up(&redlock, 0)).await;
    redlock.shutdown().await;
    assert_eq!(calls(node, "set").await, 0);
    assert_eq!(keys(node).await, 0);
}

/// The same on one connection: the network heals before anybody has noticed.
#[tokio::test]
async fn a_request_held_up_on_its_way_for_longer_than_its_budget_is_refused() {
    let testbed = testbed(1, true).await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let redlock = connect(&testbed).await;
    proxy.blackhole_to_server();
    let lock = redlock
        .lock("slow")
        .ttl(Duration::from_secs(60))
        .node_budget(Duration::from_millis(100));
    let error = lock.try_acquire().await.unwrap_err();
    assert!(matches!(only_fault(&error), Fault::Timeout { .. }), "{error}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.heal();
    redlock.shutdown().await;
    assert!(
        is_up(&redlock, 0),
        "the connection was given up, so this shows nothing new"
    );
    assert_eq!(calls(node, "set").await, 0, "a late acquire took effect");
    assert_eq!(keys(node).await, 0);
}

#[tokio::test]
async fn a_node_that_was_killed_is_a_fault_at_once_and_nothing_waits_for_its_return() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    node.kill().await.unwrap();
    eventually("the loss is noticed", async || !is_up(&redlock, 0)).await;
    for _ in 0..200 {
        let error = redlock.lock("dead").try_acquire().await.unwrap_err();
        assert!(
            matches!(only_fault(&error), Fault::Disconnected { .. }),
            "{error}"
        );
    }
    node.restart(Data::Keep).await.unwrap();
    eventually("the node is back", async || is_up(&redlock, 0)).await;
    assert_eq!(
        calls(node, "set").await,
        0,
        "an attempt had been queued for its return"
    );
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
}

/// Options given to the client library's own script calls are ignored; ours must not be.
#[tokio::test]
async fn script_calls_keep_the_patience_they_are_given() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    // The default time-out of commands is that of connecting: a minute. The call's own is half a second.
    let builder = Redlock::builder()
        .urls(testbed.urls())
        .connect_timeout(Duration::from_secs(60));
    let redlock = builder.connect().await.unwrap();
    node.stop().unwrap();
    let lock = redlock.lock("x").node_budget(Duration::from_millis(100));
    lock.try_acquire().await.unwrap_err();
    eventually("the call's own time-out ends the connection", async || {
        !is_up(&redlock, 0)
    })
    .await;
    node.resume().unwrap();
}

/// Dropping the client library's client alone leaks its task and its socket.
#[tokio::test]
async fn dropping_the_manager_closes_every_connection() {
    let testbed = testbed(3, false).await;
    // CLIENT LIST is asked over a connection of its own.
    async fn clients(testbed: &Testbed) -> usize {
        let mut count = 0;
        for node in testbed.nodes() {
            let list = node.command(&["CLIENT", "LIST"]).await.unwrap();
            count += list
                .as_str()
                .unwrap()
                .lines()
                .filter(|line| !line.contains("cmd=client"))
                .count();
        }
        count
    }
    for round in 0..20 {
        let redlock = connect(&testbed).await;
        let lease = redlock.lock("x").acquire().await.unwrap();
        assert_eq!(
            clients(&testbed).await,
            3,
            "one connection per node, round {round}"
        );
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        drop(redlock);
        eventually("all connections are closed", async || {
            clients(&testbed).await == 0
        })
        .await;
    }
    // Given up half way: the connections of a connect that never finished.
    testbed.nodes()[0].stop().unwrap();
    testbed.nodes()[1].stop().unwrap();
    let connecting = Redlock::connect(testbed.urls());
    assert!(
        tokio::time::timeout(Duration::from_millis(50), connecting)
            .await
            .is_err()
    );
    testbed.nodes()[0].resume().unwrap();
    testbed.nodes()[1].resume().unwrap();
    eventually("all connections are closed", async || {
        clients(&testbed).await == 0
    })
    .await;
}

/// A full socket buffer makes the client library wait for it without limit.
#[tokio::test]
async fn a_flood_into_a_stopped_node_ends_and_leaves_nothing() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    node.stop().unwrap();
    let name = "n".repeat(quorlock::MAX_RESOURCE_BYTES);
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..5_000 {
        let resource = format!("{number}{}", &name[..name.len() - 5]);
        let lock = redlock
            .lock(resource)
            .ttl(Duration::from_secs(60))
            .node_budget(Duration::from_millis(200));
        attempts.spawn(lock.try_acquire());
    }
    let mut failed = 0;
    while let Some(outcome) = attempts.join_next().await {
        outcome.unwrap().unwrap_err();
        failed += 1;
    }
    assert_eq!(failed, 5_000);
    eventually("the flooded connection is given up", async || !is_up(&redlock, 0)).await;
    node.resume().unwrap();
    eventually("the node is back", async || is_up(&redlock, 0)).await;
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
    let lease = connect(&testbed).await.lock("after").try_acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}
