//! Names that lead from one server to another while the first one lives on.

use std::time::Duration;

use libtest_mimic::Trial;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{Redlock, ReleaseOutcome};
use tokio::time::sleep;

use crate::common::{MOMENT, eventually, unguarded};
use crate::log::Log;
use crate::network::{builder, lead, one_port, open};
use crate::trial;

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_node_moves_with_its_name", moves),
        trial("waiters_move_with_their_node", waiters_move),
        trial("a_name_that_leads_to_no_node_costs_nothing", leads_nowhere),
    ]
}

/// Returns the ids of a server's connections, without the one that asks.
async fn connections(node: &TestNode) -> Vec<String> {
    let list = node.command(&["CLIENT", "LIST"]).await.unwrap();
    let lines = list.as_str().unwrap().lines();
    let ours = lines.filter(|line| !line.contains("cmd=client"));
    ours.map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

async fn listeners(node: &TestNode) -> usize {
    let list = node.command(&["CLIENT", "LIST", "TYPE", "PUBSUB"]).await.unwrap();
    list.as_str()
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty())
        .count()
}

/// Acquires and releases a lock. Returns whether the node had its key; `false` also while the connection is being replaced.
async fn is_taken_on(redlock: &Redlock, node: &TestNode, name: &str) -> bool {
    let Ok(lease) = redlock.lock(name).try_acquire().await else {
        return false;
    };
    let key = format!("quorlock:{name}");
    let there = node.command(&["EXISTS", &key]).await.unwrap().as_int() == Some(1);
    lease.release().await == ReleaseOutcome::Released && there
}

/// Counts the lines with all of these words.
fn lines(log: &Log, words: &[&str]) -> usize {
    let text = log.text();
    let matching = text
        .lines()
        .filter(|line| words.iter().all(|word| line.contains(word)));
    matching.count()
}

async fn moves() {
    let (log, _guard) = Log::start();
    let testbed = Testbed::start(2).await.unwrap();
    let [a, b] = testbed.nodes() else { unreachable!() };
    let [at_a, at_b] = one_port(["127.0.0.2", "127.0.0.3"]).await;
    let ((at_a, _door_a), (at_b, _door_b)) = (open(at_a, a), open(at_b, b));
    lead("moves.test", &[at_a]);
    let builder = builder(format!("redis://moves.test:{}", at_a.port()));
    let redlock = builder.connect().await.unwrap();
    assert!(is_taken_on(&redlock, a, "before").await);

    lead("moves.test", &[at_b]);
    eventually("locks are taken on the other server", async || {
        is_taken_on(&redlock, b, "after").await
    })
    .await;
    eventually("the connection to the first is closed", async || {
        connections(a).await.is_empty()
    })
    .await;
    let (from, to) = (format!("from={at_a}"), format!("to={at_b}"));
    assert_eq!(lines(&log, &["INFO", "node moved", &from, &to]), 1);

    // An additional address changes nothing.
    lead("moves.test", &[at_a, at_b]);
    let before = connections(b).await;
    sleep(5 * MOMENT).await;
    assert_eq!(connections(b).await, before);
}

async fn waiters_move() {
    let testbed = Testbed::start(2).await.unwrap();
    let [a, b] = testbed.nodes() else { unreachable!() };
    let [at_a, at_b] = one_port(["127.0.0.2", "127.0.0.3"]).await;
    let ((at_a, _door_a), (at_b, _door_b)) = (open(at_a, a), open(at_b, b));
    let builder = || builder(format!("redis://waits.test:{}", at_a.port()));
    // This client looks too rarely to follow the name.
    lead("waits.test", &[at_b]);
    let on_b = builder().guard_window(HOUR).connect().await.unwrap();
    let held = on_b.lock("job").acquire().await.unwrap();
    let on_a = unguarded([a.url()]).connect().await.unwrap();
    let _held = on_a.lock("job").acquire().await.unwrap();
    lead("waits.test", &[at_a]);
    let redlock = builder().connect().await.unwrap();
    let waiting = tokio::spawn(redlock.lock("job").forever().acquire());
    eventually("the waiter has subscribed", async || listeners(a).await == 1).await;

    lead("waits.test", &[at_b]);
    eventually("the waiter follows to the other server", async || {
        listeners(a).await == 0 && listeners(b).await == 1
    })
    .await;
    assert_eq!(held.release().await, ReleaseOutcome::Released);
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn leads_nowhere() {
    let (log, _guard) = Log::start();
    let testbed = Testbed::start(2).await.unwrap();
    let [a, b] = testbed.nodes() else { unreachable!() };
    let [at_a, at_b, closed] = one_port(["127.0.0.2", "127.0.0.3", "127.0.0.4"]).await;
    let ((at_a, _door_a), (at_b, _door_b)) = (open(at_a, a), open(at_b, b));
    let closed = closed.local_addr().unwrap();
    lead("nowhere.test", &[at_a]);
    let builder = builder(format!("redis://nowhere.test:{}", at_a.port()));
    // So long that a slow machine renews and extends in time.
    let redlock = builder.ttl(Duration::from_secs(3)).connect().await.unwrap();
    let lock = redlock.lock("job").node_budget(Duration::from_secs(2));
    let lease = lock.acquire().await.unwrap();
    let before = connections(a).await;

    lead("nowhere.test", &[]);
    eventually("the name has no address", async || {
        lines(&log, &["DEBUG", "cannot resolve nowhere.test", "kept"]) == 1
    })
    .await;
    lead("nowhere.test", &[closed]);
    eventually("the other address refuses", async || {
        lines(&log, &["INFO", "Connection refused", "kept"]) == 1
    })
    .await;
    let port = a.direct_addr().port().to_string();
    b.command(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
    lead("nowhere.test", &[at_b]);
    eventually("the other server is a replica", async || {
        lines(&log, &["INFO", "replica", "kept"]) == 1
    })
    .await;
    // The replica has a connection in addition.
    let after = connections(a).await;
    assert!(
        before.iter().all(|connection| after.contains(connection)),
        "{before:?} {after:?}"
    );
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    assert_eq!(lines(&log, &["node out of reach"]), 0);
}
