//! Connections that die silently while nodes accept new ones (T4). `QUORLOCK_TTLS` sets the TTLs, in seconds.

use std::env;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::testbed::Testbed;
use quorlock::{Lease, Redlock, ReleaseOutcome};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until, timeout};

use crate::common::PATIENCE;
use crate::{eventually, keys, testbed};

/// How long before a renewal the connections die.
const SHORTLY: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3_600);

async fn managers(testbed: &Testbed) -> Vec<(Duration, Redlock)> {
    let ttls = env::var("QUORLOCK_TTLS").unwrap_or("2 4 6 10 15 20 30".into());
    let connected = ttls.split(' ').map(async |ttl| {
        let ttl = Duration::from_secs(ttl.parse().unwrap());
        let builder = Redlock::builder().urls(testbed.urls()).restart_guard(false);
        (ttl, builder.ttl(ttl).connect().await.unwrap())
    });
    join_all(connected).await
}

fn strand(testbed: &Testbed) {
    let proxies = testbed.nodes().iter().filter_map(|node| node.proxy());
    proxies.for_each(|proxy| proxy.strand());
}

async fn acquire(managers: &[(Duration, Redlock)]) -> Vec<Lease> {
    let acquired = managers
        .iter()
        .map(async |(ttl, redlock)| redlock.lock(format!("{ttl:?}")).acquire().await.unwrap());
    join_all(acquired).await
}

async fn release(testbed: &Testbed, leases: Vec<Lease>) {
    for outcome in join_all(leases.into_iter().map(Lease::release)).await {
        // Connecting may outlast the release's budget. The deletion goes on then.
        let goes_on = matches!(outcome, ReleaseOutcome::Released | ReleaseOutcome::Uncertain(_));
        assert!(goes_on, "{outcome}");
    }
    for node in testbed.nodes() {
        eventually("no lock is left", async || keys(node).await == 0).await;
    }
}

#[tokio::test]
async fn leases_outlive_connections_that_die_just_after_a_renewal_and_just_before() {
    let testbed = testbed(3, true).await;
    let managers = managers(&testbed).await;
    let leases = acquire(&managers).await;
    let start = Instant::now();
    let deadlines: Vec<_> = leases.iter().map(|lease| lease.deadline()).collect();
    strand(&testbed);
    for (ttl, _) in &managers {
        sleep_until(start + *ttl / 3 - SHORTLY).await;
        strand(&testbed);
    }
    for (lease, deadline) in leases.iter().zip(deadlines) {
        let what = format!("{} is renewed", lease.resource());
        eventually(&what, async || lease.deadline() > deadline).await;
        assert!(lease.is_held(), "{lease:?}");
    }
    strand(&testbed);
    release(&testbed, leases).await;
}

#[tokio::test]
async fn locks_are_given_over_connections_that_have_died_while_idle() {
    let testbed = testbed(3, true).await;
    let managers = managers(&testbed).await;
    strand(&testbed);
    let leases = acquire(&managers).await;
    strand(&testbed);
    release(&testbed, leases).await;
}

/// The nodes set the key, but their answers are lost.
#[tokio::test]
async fn locks_are_given_although_connections_die_during_the_acquire() {
    let testbed = testbed(3, true).await;
    let managers = managers(&testbed).await;
    let proxies = || testbed.nodes().iter().filter_map(|node| node.proxy());
    proxies().for_each(|proxy| proxy.blackhole_from_server());
    let acquired = acquire(&managers);
    let stranded = async {
        for node in testbed.nodes() {
            let all = i64::try_from(managers.len()).unwrap();
            eventually("the keys are set", async || keys(node).await == all).await;
        }
        strand(&testbed);
        proxies().for_each(|proxy| proxy.heal());
    };
    let (leases, ()) = tokio::join!(acquired, stranded);
    release(&testbed, leases).await;
}

/// A connection is accepted, and dies before the server's first answers arrive. A node that has answered at once before is not
/// waited for until the connect timeout is over.
#[tokio::test]
async fn a_connection_that_dies_while_it_is_opened_is_given_up_soon() {
    let testbed = testbed(1, true).await;
    let [node] = testbed.nodes() else { unreachable!() };
    let proxy = node.proxy().unwrap();
    let builder = Redlock::builder().urls(testbed.urls()).restart_guard(false);
    let redlock = builder.connect_timeout(HOUR).connect().await.unwrap();
    proxy.blackhole();
    proxy.drop_connections();
    eventually("the node is connected to again", async || {
        proxy.connections() == 1
    })
    .await;
    proxy.strand();
    proxy.heal();
    let lease = redlock.lock("x").forever().acquire();
    let lease = timeout(PATIENCE, lease).await;
    drop(lease.expect("a lease over another connection").unwrap());
}

/// As above, for the connection over which releases are announced.
#[tokio::test]
async fn a_connection_for_announcements_that_dies_while_it_is_opened_is_given_up_soon() {
    let testbed = testbed(1, true).await;
    let [node] = testbed.nodes() else { unreachable!() };
    let proxy = node.proxy().unwrap();
    let holder = Redlock::builder().urls([node.direct_url()]).guard_window(HOUR);
    let holder = holder.restart_guard(false).connect().await.unwrap();
    // A watchdog would listen, too.
    let held = holder.lock("x").ttl(HOUR).watchdog(false);
    let _held = held.acquire().await.unwrap();
    let builder = Redlock::builder().urls(testbed.urls()).restart_guard(false);
    let redlock = builder.connect_timeout(HOUR).connect().await.unwrap();
    let _waiter = tokio::spawn(redlock.lock("x").forever().acquire());
    let listens = async || {
        let list = node.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.unwrap();
        !list.as_str().unwrap().is_empty()
    };
    eventually("it listens", listens).await;
    // Accepts connections, and is silent.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    proxy.lead_to(silent.local_addr().unwrap());
    node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    let _silent = timeout(PATIENCE, silent.accept()).await.unwrap().unwrap();
    proxy.lead_to(node.direct_addr());
    eventually("it listens again", listens).await;
}

/// The holder's connections live on.
#[tokio::test]
async fn a_waiter_listens_again_after_its_connections_have_died() {
    let testbed = testbed(3, true).await;
    let direct = testbed.nodes().iter().map(|node| node.direct_url());
    let builder = Redlock::builder().urls(direct).restart_guard(false);
    let holder = builder.connect().await.unwrap();
    let held = holder.lock("x").acquire().await.unwrap();
    let builder = Redlock::builder().urls(testbed.urls()).restart_guard(false);
    let redlock = builder.connect().await.unwrap();
    let listening = async |connections: usize| {
        for node in testbed.nodes() {
            eventually("the waiter has subscribed", async || {
                let list = node.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.unwrap();
                list.as_str().unwrap().lines().count() == connections
            })
            .await;
        }
    };
    let waiter = tokio::spawn(redlock.lock("x").forever().acquire());
    listening(1).await;
    strand(&testbed);
    // The servers still count the dead connections.
    listening(2).await;
    assert_eq!(held.release().await, ReleaseOutcome::Released);
    drop(waiter.await.unwrap().unwrap());
}
