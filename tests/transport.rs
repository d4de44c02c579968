//! What the client library and the network must not do to a lock, shown on real servers: late requests, requests sent
//! twice, leaked connections, hung connections.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used)]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use quorlock::node::{Fault, NodeState, Unfit};
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

/// T1: a task that has used up its turn must not send later than it says.
#[tokio::test]
async fn an_attempt_is_sent_in_its_first_poll_even_when_the_tasks_turn_is_over() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    for fencing in [true, false] {
        let mut acquire = Box::pin(redlock.lock("turn").fencing(fencing).acquire());
        poll_fn(|cx| {
            while pin!(tokio::task::coop::consume_budget()).poll(cx).is_ready() {}
            assert!(acquire.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        eventually("the key is there", async || keys(node).await == 1).await;
        drop(acquire);
        eventually("the key is gone", async || keys(node).await == 0).await;
    }
}

/// T4: what hangs is found out however long the budgets of those in flight are.
#[tokio::test]
async fn callers_with_long_budgets_do_not_hide_a_hung_connection() {
    let testbed = testbed(1, true).await;
    let redlock = connect(&testbed).await;
    testbed.nodes()[0].proxy().unwrap().blackhole();
    let mut patient = tokio::task::JoinSet::new();
    for number in 0..3 {
        let lock = redlock
            .lock(format!("patient{number}"))
            .ttl(Duration::from_secs(3_600));
        patient.spawn(lock.try_acquire());
    }
    eventually("the hung connection is given up", async || {
        let lock = redlock.lock("hasty").node_budget(Duration::from_millis(50));
        lock.try_acquire().await.unwrap_err();
        !is_up(&redlock, 0)
    })
    .await;
}

/// The acquire is on its way for longer than its connection lasts, and arrives behind its deletion.
#[tokio::test]
async fn an_acquire_overtaken_by_its_deletion_is_deleted_once_more() {
    let testbed = testbed(1, true).await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let redlock = connect(&testbed).await;
    proxy.delay(Duration::from_millis(2_500));
    let lock = redlock.lock("overtaken").ttl(Duration::from_secs(60));
    let attempt = lock.node_budget(Duration::from_secs(5)).try_acquire();
    assert!(
        tokio::time::timeout(Duration::from_millis(20), attempt)
            .await
            .is_err()
    );
    let hasty = redlock.lock("hasty").node_budget(Duration::from_millis(50));
    hasty.try_acquire().await.unwrap_err();
    proxy.delay(Duration::ZERO);
    // The state may be "down" for too short a time to be seen; the probe of the new connection stays.
    eventually("it is connected again", async || {
        calls(node, "script|load").await == 2
    })
    .await;
    assert_eq!(
        calls(node, "set").await,
        0,
        "the acquire was there first, so this shows nothing"
    );
    redlock.shutdown().await;
    assert!(
        calls(node, "set").await > 0,
        "the acquire never came, so this shows nothing"
    );
    assert_eq!(keys(node).await, 0);
}

/// R1: a server that has become a replica follows its master, and so has no vote of its own.
#[tokio::test]
async fn a_node_that_becomes_a_replica_confirms_nothing_and_is_found_out() {
    let testbed = testbed(2, false).await;
    let redlock = connect(&testbed).await;
    let lease = redlock.lock("replica").watchdog(false).acquire().await.unwrap();
    let master = testbed.nodes()[0].direct_addr();
    let (host, port) = (master.ip().to_string(), master.port().to_string());
    let reply = testbed.nodes()[1]
        .command(&["REPLICAOF", &host, &port])
        .await
        .unwrap();
    assert!(!reply.is_error());
    for _ in 0..200 {
        lease.extend().await.unwrap_err();
    }
    let replica = NodeState::Down(Fault::Unfit(Unfit::Replica));
    eventually("it is probed again", async || redlock.nodes()[1].state == replica).await;
}

/// T2: requests that share a call do not share their faults.
#[tokio::test]
async fn a_forbidden_key_does_not_spoil_the_locks_of_others() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let rights = ["ACL", "SETUSER", "app", "on", ">pw", "~quorlock:may*", "+@all"];
    assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
    let redlock = Redlock::connect([format!("redis://app:pw@{}", node.addr())])
        .await
        .unwrap();
    for _ in 0..5 {
        let mut attempts = tokio::task::JoinSet::new();
        for number in 0..64 {
            let forbidden = number % 16 == 7;
            let name = if forbidden {
                "forbidden".to_owned()
            } else {
                format!("may{number}")
            };
            let lock = redlock.lock(name);
            attempts.spawn(async move { (forbidden, lock.try_acquire().await) });
        }
        while let Some(outcome) = attempts.join_next().await {
            match outcome.unwrap() {
                (false, lease) => assert_eq!(lease.unwrap().release().await, ReleaseOutcome::Released),
                (true, outcome) => {
                    let fault = only_fault(&outcome.unwrap_err());
                    assert!(matches!(fault, Fault::NoPermission { .. }), "{fault}");
                }
            }
        }
    }
}

/// The README names the rights that a lock needs.
#[tokio::test]
async fn the_rights_in_the_readme_are_enough() {
    let readme = include_str!("../README.md");
    let rights = readme
        .split_once("`~quorlock:* ")
        .unwrap()
        .1
        .split_once('`')
        .unwrap()
        .0;
    let connecting = readme
        .split_once("what connecting takes (`")
        .unwrap()
        .1
        .split_once('`')
        .unwrap()
        .0;
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pw", "~quorlock:*", "-@all"];
    command.extend(rights.split(' ').chain(connecting.split(' ')));
    assert_eq!(
        node.command(&command).await.unwrap().as_str(),
        Some("OK"),
        "{command:?}"
    );
    let redlock = Redlock::connect([format!("redis://app:pw@{}", node.addr())])
        .await
        .unwrap();
    for fencing in [true, false] {
        let lease = redlock.lock("x").fencing(fencing).acquire().await.unwrap();
        let error = redlock
            .lock("x")
            .fencing(fencing)
            .try_acquire()
            .await
            .unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        lease.extend().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
    assert_eq!(
        node.command(&["SCRIPT", "FLUSH"]).await.unwrap().as_str(),
        Some("OK")
    );
    let lease = redlock.lock("x").acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

/// The connections live on the runtime of their manager. Without it, nodes are out of reach and say so.
#[test]
fn nodes_whose_runtime_has_ended_are_out_of_reach() {
    let home = tokio::runtime::Runtime::new().unwrap();
    let abroad = tokio::runtime::Runtime::new().unwrap();
    let testbed = home.block_on(testbed(1, false));
    let redlock = home.block_on(connect(&testbed));
    drop(home);
    let NodeState::Down(Fault::Disconnected { reason }) = redlock.nodes()[0].state.clone() else {
        panic!("{:?}", redlock.nodes());
    };
    assert!(reason.contains("runtime"), "{reason}");
    let error = abroad.block_on(redlock.lock("x").try_acquire()).unwrap_err();
    assert!(
        matches!(only_fault(&error), Fault::Disconnected { .. }),
        "{error}"
    );
}
