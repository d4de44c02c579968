//! A dropped lease or call leaves no keys, also outside of a runtime.

use std::thread;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use quorlock::ReleaseOutcome;

use crate::common::{eventually, keys};
use crate::polled::polled;
use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    let mut all = behaviours![false;
        dropping_a_lease_outside_of_a_runtime_deletes_its_keys,
        an_acquire_after_a_drop_follows_the_deletion,
        a_lease_outlives_its_manager,
    ];
    all.extend(behaviours![true; acquires_dropped_at_any_poll_leave_nothing]);
    all
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3_600);

async fn dropping_a_lease_outside_of_a_runtime_deletes_its_keys(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let lease = redlock.lock(resource.as_str()).acquire().await.unwrap();
    world.spread(&resource).await;
    thread::spawn(move || drop(lease)).join().unwrap();
    world.gone(&resource).await;
}

/// A single attempt right after the drop succeeds: it is ordered behind the deletion (A6).
async fn an_acquire_after_a_drop_follows_the_deletion(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    let lock = || {
        let lock = redlock.lock(resource.as_str()).ttl(world.ttl());
        lock.node_budget(world.generous_budget())
    };
    for _ in 0..20 {
        drop(
            lock()
                .try_acquire()
                .await
                .expect("the dropped lease still blocks the lock"),
        );
    }
    for _ in 0..20 {
        // The first poll may have set the key.
        let mut acquiring = Box::pin(lock().try_acquire());
        if (&mut acquiring).now_or_never().is_none() {
            drop(acquiring);
        }
        drop(
            lock()
                .try_acquire()
                .await
                .expect("the dropped attempt still blocks the lock"),
        );
    }
    redlock.shutdown().await;
}

async fn a_lease_outlives_its_manager(world: &World) {
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .acquire()
        .await
        .unwrap();
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
}

/// Two clients contend, so that calls are dropped in every state: won, lost, waiting for the next attempt. In one round of ten,
/// a node hangs meanwhile. Every few rounds the lock is another one: what is left on the nodes stays there to be found.
async fn acquires_dropped_at_any_poll_leave_nothing(world: &World) {
    let clients = [world.redlock().await, world.redlock().await];
    let nodes = &world.servers()[..world.live().len()];
    let mut random = fastrand::Rng::with_seed(7);
    let (mut dropped, mut ended) = (0, 0);
    for round in 0..250 {
        let node = &nodes[random.usize(..nodes.len())];
        let hangs = round % 10 == 0;
        if hangs {
            node.stop().unwrap();
        }
        let acquires = clients.each_ref().map(|redlock| {
            let lock = redlock.lock(format!("job{}", round / 5)).ttl(LONG);
            let lock = lock.node_budget(Duration::from_millis(500));
            // The winner keeps its lease while the other one waits.
            let lock = lock.within(Duration::from_millis(30));
            polled(lock.acquire(), random.usize(0..6))
        });
        match join_all(acquires).await.iter().all(Option::is_none) {
            true => dropped += 1,
            false => ended += 1,
        }
        if hangs {
            node.resume().unwrap();
        }
    }
    if world.all_live() {
        for redlock in clients {
            redlock.shutdown().await;
        }
        for node in nodes {
            assert_eq!(keys(node).await, 0);
        }
    }
    for node in nodes {
        eventually("no lock is left", async || keys(node).await == 0).await;
    }
    assert!(
        dropped > 10 && ended > 10,
        "one-sided: {dropped} dropped, {ended} not"
    );
}
