//! Connections that hang, are leaked, or end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorlock::node::{Fault, NodeState};
use quorlock::testbed::{Data, Testbed};
use quorlock::{AcquireError, Redlock, ReleaseOutcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::log::Log;
use crate::{PATIENCE, connect, eventually, grants, is_up, keys, only_fault, testbed};

/// T4, A9: the pipeline gives the hung connection up, and what the old one still delivers is refused.
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
    assert_eq!(grants(node).await, 0, "an old acquire took effect");
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
    let lease = connect(&testbed).await.lock("hung").try_acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
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
    assert_eq!(grants(node).await, 0, "an attempt had been queued for its return");
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
}

/// Nothing is sent for a lock: once a look is too old, requests are refused before they are sent, so the look has to notice.
#[tokio::test]
async fn an_idle_connection_that_leads_nowhere_is_given_up() {
    let testbed = testbed(1, true).await;
    let redlock = Redlock::builder()
        .urls(testbed.urls())
        .guard_window(Duration::from_secs(3))
        .restart_guard(false);
    let redlock = redlock.connect().await.unwrap();
    let proxy = testbed.nodes()[0].proxy().unwrap();
    proxy.blackhole();
    eventually("the connection is given up", async || !is_up(&redlock, 0)).await;
    proxy.heal();
    eventually("locks are given again", async || {
        redlock.lock("x").try_acquire().await.is_ok()
    })
    .await;
}

/// Connecting may take a minute; a node that hangs is out of reach within the patience of its callers.
#[tokio::test]
async fn a_long_time_to_connect_does_not_keep_a_hung_connection() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let builder = Redlock::builder()
        .urls(testbed.urls())
        .connect_timeout(Duration::from_secs(60))
        .restart_guard(false);
    let redlock = builder.connect().await.unwrap();
    node.stop().unwrap();
    let lock = redlock.lock("x").node_budget(Duration::from_millis(100));
    lock.try_acquire().await.unwrap_err();
    eventually("the connection is given up", async || !is_up(&redlock, 0)).await;
    node.resume().unwrap();
}

#[tokio::test]
async fn a_node_is_warned_of_once_and_not_with_each_connection() {
    let (log, _guard) = Log::start();
    let testbed = Testbed::builder()
        .nodes(1)
        .arg("appendonly", "no")
        .start()
        .await
        .unwrap();
    let redlock = connect(&testbed).await;
    for _ in 0..3 {
        let cut = ["CLIENT", "KILL", "TYPE", "normal"];
        testbed.nodes()[0].command(&cut).await.unwrap();
        eventually("connected again", async || {
            redlock.lock("x").try_acquire().await.is_ok()
        })
        .await;
    }
    let text = log.text();
    assert!(text.matches("node connected").count() > 3, "{text}");
    assert_eq!(text.matches("appendonly is off").count(), 1, "{text}");
}

/// A connection that was of use and is lost is opened again at once. `QUORLOCK_GRANTS` asks for more.
#[tokio::test]
async fn locks_are_given_over_connections_that_are_killed_again_and_again() {
    const SERVED: usize = 30;
    let testbed = testbed(3, false).await;
    let redlock = connect(&testbed).await;
    let killing = async {
        loop {
            for (number, node) in testbed.nodes().iter().enumerate() {
                if is_up(&redlock, number) {
                    node.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let granting = async {
        let wanted = std::env::var("QUORLOCK_GRANTS").map_or(SERVED, |text| text.parse().unwrap());
        let start = Instant::now();
        let mut last = None;
        for _ in 0..wanted {
            let lease = redlock.lock("x").within(PATIENCE).acquire().await.unwrap();
            let token = lease.fencing_token();
            assert!(last < token, "{last:?}, then {token:?}");
            last = token;
            let _ = lease.release().await;
        }
        println!("{wanted} grants in {:?}", start.elapsed());
    };
    tokio::select! {
        () = granting => {}
        () = killing => unreachable!(),
    }
    redlock.shutdown().await;
    for node in testbed.nodes() {
        assert_eq!(keys(node).await, 0);
    }
}

/// The client library leaks its task and its socket when its client is dropped.
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
    for round in 0..3 {
        let redlock = connect(&testbed).await;
        let lease = redlock.lock("x").acquire().await.unwrap();
        assert_eq!(
            clients(&testbed).await,
            3,
            "one connection per node, round {round}"
        );
        // Somebody else holds the lock, so a waiter listens.
        let other = connect(&testbed).await;
        let waiter = tokio::spawn(other.lock("x").forever().acquire());
        eventually("a second connection per node", async || {
            clients(&testbed).await == 9
        })
        .await;
        waiter.abort();
        drop(other);
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

/// The socket's buffer is full.
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

/// T4: also where all of them have that much time, as with the TTL that locks come with.
#[tokio::test]
async fn long_budgets_of_all_callers_do_not_hide_a_hung_connection() {
    let testbed = testbed(3, false).await;
    let redlock = connect(&testbed).await;
    testbed.nodes()[2].stop().unwrap();
    eventually("the hung connection is given up", async || {
        let lease = redlock.lock("patient").try_acquire().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        !is_up(&redlock, 2)
    })
    .await;
    testbed.nodes()[2].resume().unwrap();
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
    assert!(matches!(error, AcquireError::RuntimeEnded), "{error}");
}

/// Whatever has been answered by then. Otherwise the node would be out for as long as connecting may take.
#[tokio::test]
async fn a_connection_that_ends_while_it_is_made_is_followed_by_another() {
    let testbed = testbed(1, false).await;
    let server = testbed.nodes()[0].direct_addr();
    for round in 0..3 {
        let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", between.local_addr().unwrap());
        // One connection ends behind the first answer, the next behind the second, and so on.
        let ends = tokio::spawn(async move {
            for answers in 1.. {
                let (client, _) = between.accept().await.unwrap();
                tokio::spawn(carry_answers(client, server, answers));
            }
        });
        let builder = Redlock::builder()
            .url(url)
            .connect_timeout(Duration::from_secs(60));
        let connected = timeout(PATIENCE, builder.restart_guard(false).connect()).await;
        connected
            .unwrap_or_else(|_| panic!("not connected, round {round}"))
            .unwrap();
        ends.abort();
    }
}

/// Calls are made one by one, so what comes back together is an answer.
async fn carry_answers(mut client: TcpStream, server: SocketAddr, answers: usize) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut asked, mut answered) = ([0; 65_536], [0; 65_536]);
    let mut carried = 0;
    while carried < answers {
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(bytes @ 1..) => server.write_all(&asked[..bytes]).await.unwrap(),
                _ => return,
            },
            read = server.read(&mut answered) => {
                client.write_all(&answered[..read.unwrap()]).await.unwrap();
                carried += 1;
            }
        }
    }
}
