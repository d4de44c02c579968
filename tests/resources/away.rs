//! What the janitor keeps for a node that is away, until it comes back.

use std::time::{Duration, Instant};

use crate::acquire;
use crate::common::{LOCK_KEYS, unguarded};
use crate::measure::Usage;
use crate::{nothing_is_left, testbed};

/// Long: what is kept is kept until then.
const TTL: Duration = Duration::from_secs(600);
/// As in `src/janitor.rs`, and what may be on its way there.
const MOST_KEPT: usize = 100_000;
const ON_ITS_WAY: usize = 1_000;

pub(crate) async fn leftovers(leases: usize) {
    // More than are kept, in a run of full size.
    let count = leases * 13 / 10;
    let testbed = testbed().await;
    let before = Usage::now(&testbed).await;
    let redlock = unguarded(testbed.urls()).await;
    let leases = acquire(&redlock, count, TTL).await;
    let held = Usage::now(&testbed).await;
    println!("before     {before}\nheld       {held}: {count} leases");

    let away = &testbed.nodes()[2];
    away.stop().unwrap();
    let started = Instant::now();
    drop(leases);
    // The others confirm, and the watchdogs end.
    crate::common::eventually("the rest is gone", async || {
        locks(&testbed.nodes()[0]).await == 0 && locks(&testbed.nodes()[1]).await == 0
    })
    .await;
    let dropped = Usage::now(&testbed).await;
    println!(
        "dropped    {dropped}: in {:.1?}, with a node that is away",
        started.elapsed()
    );
    // Several tries of the node that is away.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kept = Usage::now(&testbed).await;
    println!(
        "kept       {kept}: at most {} bytes for each",
        kept.each(&before, count.min(MOST_KEPT))
    );

    away.resume().unwrap();
    redlock.shutdown().await;
    let left = locks(away).await;
    println!("cleaned up: {left} were left to their TTL");
    drop(redlock);
    nothing_is_left(&testbed, &before).await;
    assert!(
        left <= count.saturating_sub(MOST_KEPT),
        "{left} of {count} were forgotten"
    );
    assert!(
        count - left <= MOST_KEPT + ON_ITS_WAY,
        "{} were kept",
        count - left
    );
    assert!(
        kept.memory <= held.memory + (16 << 20),
        "grown by leases that are dropped"
    );
}

async fn locks(node: &quorlock::testbed::TestNode) -> usize {
    let answer = node.command(&["EVAL", LOCK_KEYS, "0"]).await.unwrap();
    answer.as_int().unwrap() as usize
}
