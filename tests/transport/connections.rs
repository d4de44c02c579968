//! Connections that hang, leak, or end.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quorlock::node::Fault;
use quorlock::testbed::{Data, Testbed};
use quorlock::{Redlock, ReleaseOutcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::common::unguarded;
use crate::log::Log;
use crate::{PATIENCE, connect, eventually, grants, is_up, keys, only_fault, testbed};

/// The hung connection is replaced, and requests that arrive over it later are refused (T4, A9).
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
    // Steady traffic must not hide the hang.
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
        "attempts waited for a node without a connection (A3)"
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
    assert_eq!(
        grants(node).await,
        0,
        "an attempt was queued until the node came back"
    );
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
}

/// Without a recent look, requests are refused unsent (M3), so the look itself must notice the dead connection.
#[tokio::test]
async fn an_idle_connection_that_leads_nowhere_is_given_up() {
    let testbed = testbed(1, true).await;
    let builder = unguarded(testbed.urls()).guard_window(Duration::from_secs(3));
    let redlock = builder.connect().await.unwrap();
    let proxy = testbed.nodes()[0].proxy().unwrap();
    proxy.blackhole();
    eventually("the connection is given up", async || !is_up(&redlock, 0)).await;
    proxy.heal();
    eventually("locks are given again", async || {
        redlock.lock("x").try_acquire().await.is_ok()
    })
    .await;
}

/// The connect timeout does not delay noticing a hang.
#[tokio::test]
async fn a_long_time_to_connect_does_not_keep_a_hung_connection() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let builder = unguarded(testbed.urls()).connect_timeout(Duration::from_secs(60));
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
        eventually("the client is connected again", async || {
            redlock.lock("x").try_acquire().await.is_ok()
        })
        .await;
    }
    let text = log.text();
    assert!(text.matches("node connected").count() > 3, "{text}");
    assert_eq!(text.matches("appendonly is off").count(), 1, "{text}");
}

/// One line for each change, however often the nodes are tried meanwhile.
#[tokio::test]
async fn an_outage_is_told_once() {
    const LEASES: usize = 20;
    let (log, _guard) = Log::start();
    let testbed = testbed(3, false).await;
    let redlock = connect(&testbed).await;
    let mut leases = Vec::new();
    for number in 0..LEASES {
        let lock = redlock.lock(format!("job{number}")).ttl(Duration::from_secs(6));
        leases.push(lock.acquire().await.unwrap());
    }
    for node in &testbed.nodes()[1..] {
        node.kill().await.unwrap();
    }
    for lease in &leases {
        lease.lost().await;
    }
    for node in &testbed.nodes()[1..] {
        node.restart(Data::Keep).await.unwrap();
    }
    let told = |words: &str| log.text().matches(words).count();
    eventually("both nodes are back", async || told("node in reach again") == 2).await;
    let text = log.text();
    assert_eq!(
        (told("node out of reach"), told("lease lost")),
        (2, LEASES),
        "{text}"
    );
    assert_eq!(told("renewal failed resource"), LEASES, "{text}");
    // Beside these: three lines a lease until it is held, and what the nodes are found to be when they are back.
    assert!(text.lines().count() < 6 * LEASES, "{text}");
}

/// A connection that was of use is opened again at once. Two clients want the lock. `QUORLOCK_GRANTS` sets the number of grants.
#[tokio::test]
async fn locks_are_given_over_connections_that_are_killed_again_and_again() {
    const SERVED: usize = 30;
    let testbed = testbed(3, false).await;
    let clients = [connect(&testbed).await, connect(&testbed).await];
    let killing = async {
        loop {
            for (number, node) in testbed.nodes().iter().enumerate() {
                if clients.iter().any(|redlock| is_up(redlock, number)) {
                    node.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let wanted = std::env::var("QUORLOCK_GRANTS").map_or(SERVED, |text| text.parse().unwrap());
    let start = Instant::now();
    // The last token, and the client that holds the lock.
    let state = Mutex::new((None, None));
    let granting = async |number: usize| {
        for _ in 0..wanted / 2 {
            let lease = clients[number]
                .lock("x")
                .within(PATIENCE)
                .acquire()
                .await
                .unwrap();
            let token = lease.fencing_token();
            {
                let (last, holder) = &mut *state.lock().unwrap();
                assert!(*last < token, "{last:?}, then {token:?}");
                assert_eq!(*holder, None, "two holders");
                (*last, *holder) = (token, Some(number));
            }
            tokio::task::yield_now().await;
            assert!(lease.is_held(), "lost after a moment");
            state.lock().unwrap().1 = None;
            let _ = lease.release().await;
        }
    };
    tokio::select! {
        _ = async { tokio::join!(granting(0), granting(1)) } => {}
        () = killing => unreachable!(),
    }
    println!("{wanted} grants in {:?}", start.elapsed());
    for redlock in clients {
        redlock.shutdown().await;
    }
    for node in testbed.nodes() {
        assert_eq!(keys(node).await, 0);
    }
}

/// The client library keeps its task and socket when its client is dropped, so quorlock ends them.
#[tokio::test]
async fn dropping_the_manager_closes_every_connection() {
    let testbed = testbed(3, false).await;
    // Without the connection that asks.
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
            "expected one connection per node in round {round}"
        );
        // The lock is held, so a waiter subscribes.
        let other = connect(&testbed).await;
        let waiter = tokio::spawn(other.lock("x").forever().acquire());
        eventually("the waiter has two connections per node", async || {
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
    // A connect that is dropped half way closes its connections.
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

/// The flood fills the socket's buffer.
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

/// One short budget is enough to notice a hang, whatever the other budgets are (T4).
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

/// A hang is noticed even if all budgets are long (T4).
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

/// Whatever has been answered by then. Otherwise the node would be out for as long as connecting may take.
#[tokio::test]
async fn a_connection_that_ends_while_it_is_made_is_followed_by_another() {
    let testbed = testbed(1, false).await;
    let server = testbed.nodes()[0].direct_addr();
    for round in 0..3 {
        let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", between.local_addr().unwrap());
        // The first connection ends after one answer, the next after two.
        let ends = tokio::spawn(async move {
            for answers in 1.. {
                let (client, _) = between.accept().await.unwrap();
                tokio::spawn(carry_answers(client, server, answers));
            }
        });
        let builder = unguarded([url]).connect_timeout(Duration::from_secs(60));
        let connected = timeout(PATIENCE, builder.connect()).await;
        connected
            .unwrap_or_else(|_| panic!("not connected, round {round}"))
            .unwrap();
        ends.abort();
    }
}

/// Forwards this many answers, and closes. The client waits for each, so bytes read together are one answer.
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
