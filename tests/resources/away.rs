//! Deletions kept for a node that is away.

use std::time::{Duration, Instant};

use quorlock::testbed::TestNode;
use tokio::time::{sleep, timeout};

use crate::common::connect;
use crate::measure::Usage;
use crate::{acquire, nothing_is_left, testbed};

/// Deletions are kept until then.
const TTL: Duration = Duration::from_secs(600);
/// As in `src/keys/cleanup/worker.rs`.
const MOST_KEPT: usize = 100_000;
/// Deletions that may be in flight besides.
const ON_ITS_WAY: usize = 1_000;

pub(crate) async fn leftovers(leases: usize) {
    // More than are kept, in a run of full size.
    let count = leases * 13 / 10;
    let testbed = testbed(3).await;
    let before = Usage::now(&testbed).await;
    let redlock = connect(&testbed).await;
    let own = own_keys(&testbed.nodes()[0]).await;
    let leases = acquire(&redlock, count, TTL).await;
    let held = Usage::now(&testbed).await;
    println!("before     {before}\nheld       {held}: {count} leases");

    let away = &testbed.nodes()[2];
    away.stop().unwrap();
    let started = Instant::now();
    drop(leases);
    // The other nodes confirm, and the watchdogs end.
    let gone = async {
        while locks(&testbed.nodes()[0], count, &own).await + locks(&testbed.nodes()[1], count, &own).await
            > 0
        {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TTL, gone)
        .await
        .expect("the other nodes did not confirm the deletions in time");
    let dropped = Usage::now(&testbed).await;
    println!(
        "dropped    {dropped}: in {:.1?}, with a node that is away",
        started.elapsed()
    );
    // Long enough for several requests to that node.
    sleep(Duration::from_secs(3)).await;
    let kept = Usage::now(&testbed).await;
    println!(
        "kept       {kept}: at most {} bytes for each",
        kept.each(&before, count.min(MOST_KEPT))
    );

    away.resume().unwrap();
    redlock.shutdown().await;
    let left = locks(away, count, &own).await;
    println!("cleaned up: {left} were left to their TTL");
    drop(redlock);
    nothing_is_left(&testbed, &before).await;
    assert!(
        left <= count.saturating_sub(MOST_KEPT),
        "{left} of {count} locks were not deleted"
    );
    assert!(
        count - left <= MOST_KEPT + ON_ITS_WAY,
        "{} deletions were kept",
        count - left
    );
    // All leases are dropped at once: deletions are kept before the leases' tasks have ended.
    assert!(
        kept.memory <= held.memory + held.memory / 8 + (16 << 20),
        "dropping the leases took too much memory"
    );
}

/// Counts locks, without counters (one for each lease) and the node's own keys. (`KEYS` would take too long.)
async fn locks(node: &TestNode, leases: usize, own: &[String]) -> usize {
    let size = node.command(&["DBSIZE"]).await.unwrap().as_int().unwrap();
    let exists: Vec<&str> = ["EXISTS"]
        .into_iter()
        .chain(own.iter().map(|key| &**key))
        .collect();
    let own = node.command(&exists).await.unwrap().as_int().unwrap();
    usize::try_from(size - own).unwrap() - leases
}

/// Neither locks nor counters.
async fn own_keys(node: &TestNode) -> Vec<String> {
    let answer = node.command(&["KEYS", "quorlock:*#*"]).await.unwrap();
    let keys = answer.as_array().unwrap().iter();
    keys.map(|key| key.as_str().unwrap().to_owned()).collect()
}
