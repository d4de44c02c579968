//! A dropped lease or call leaves no keys, also outside of a runtime.

use std::thread;
use std::time::Duration;

use futures_util::future::FutureExt;
use quorlock::ReleaseOutcome;
use tokio::time::timeout;

use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        dropping_a_lease_deletes_its_keys,
        dropping_a_lease_outside_of_a_runtime_deletes_its_keys,
        whoever_asks_after_a_drop_is_behind_the_deletion,
        a_lease_outlives_its_manager,
        dropping_an_acquire_deletes_what_it_may_have_set,
    ]
}

async fn dropping_a_lease_deletes_its_keys(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let lease = redlock.lock(resource.as_str()).acquire().await.unwrap();
    world.spread(&resource).await;
    drop(lease);
    world.gone(&resource).await;
}

async fn dropping_a_lease_outside_of_a_runtime_deletes_its_keys(world: &World) {
    let resource = world.resource("job");
    let redlock = world.redlock().await;
    let lease = redlock.lock(resource.as_str()).acquire().await.unwrap();
    world.spread(&resource).await;
    thread::spawn(move || drop(lease)).join().unwrap();
    world.gone(&resource).await;
}

/// A single attempt right after the drop succeeds: it is ordered behind the deletion (A6).
async fn whoever_asks_after_a_drop_is_behind_the_deletion(world: &World) {
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

async fn dropping_an_acquire_deletes_what_it_may_have_set(world: &World) {
    let redlock = world.redlock().await;
    for _ in 0..10 {
        let resource = world.resource("job");
        // One poll sends the request.
        let lock = redlock.lock(resource.as_str()).ttl(world.ttl());
        let acquiring = lock.node_budget(world.generous_budget()).acquire();
        if let Ok(acquired) = timeout(Duration::ZERO, acquiring).await {
            assert_eq!(acquired.unwrap().release().await, ReleaseOutcome::Released);
        }
        world.gone(&resource).await;
    }
    redlock.shutdown().await;
}
