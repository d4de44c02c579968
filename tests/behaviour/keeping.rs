//! A minimum hold keeps a lock that is released early, and lets it expire in time.

use std::time::Duration;

use quorlock::{AcquireError, Lease, LockRequest, Redlock, ReleaseOutcome};

use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        a_lock_that_is_released_early_stays_for_its_minimum,
        a_lock_that_was_held_for_its_minimum_is_deleted,
        a_waiter_gets_the_lock_when_the_minimum_is_over,
        a_detached_lease_has_no_minimum,
    ]
}

fn lock(world: &World, redlock: &Redlock, resource: &str) -> LockRequest {
    let lock = redlock.lock(resource).ttl(world.ttl());
    lock.node_budget(world.generous_budget())
}

async fn held(world: &World, resource: &str, min_hold: Duration) -> Lease {
    let redlock = world.redlock().await;
    let lease = lock(world, &redlock, resource).min_hold(min_hold).acquire().await;
    world.spread(resource).await;
    lease.unwrap()
}

async fn a_lock_that_is_released_early_stays_for_its_minimum(world: &World) {
    let least = world.ttl() / 2;
    for is_dropped in [false, true] {
        let resource = world.resource("job");
        let lease = held(world, &resource, least).await;
        match is_dropped {
            true => drop(lease),
            false => assert_eq!(lease.release().await, ReleaseOutcome::Released),
        }
        let other = world.redlock().await;
        let expires = || async {
            let pttls = world.pttls(&resource).await;
            pttls.iter().all(|ms| *ms <= least.as_millis() as i64 + 1)
        };
        crate::common::eventually("every key expires earlier", expires).await;
        let error = lock(world, &other, &resource).try_acquire().await.unwrap_err();
        let AcquireError::Held { votes, .. } = &error else {
            panic!("{error}")
        };
        assert!(votes.longest_remaining().unwrap() <= least + Duration::from_millis(1));
        world.delete(&resource).await;
    }
}

async fn a_lock_that_was_held_for_its_minimum_is_deleted(world: &World) {
    let resource = world.resource("job");
    let lease = held(world, &resource, Duration::from_millis(1)).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
}

async fn a_waiter_gets_the_lock_when_the_minimum_is_over(world: &World) {
    let least = Duration::from_secs(2).min(world.ttl());
    for is_local in [false, true] {
        let resource = world.resource("job");
        let first = world.redlock().await;
        let second = match is_local {
            true => first.clone(),
            false => world.redlock().await,
        };
        let begin = tokio::time::Instant::now();
        let lease = lock(world, &first, &resource)
            .min_hold(least)
            .acquire()
            .await
            .unwrap();
        world.spread(&resource).await;
        let next = lock(world, &second, &resource).forever().acquire();
        let release = async {
            tokio::task::yield_now().await;
            lease.release().await
        };
        let (next, released) = tokio::join!(next, release);
        assert_eq!(released, ReleaseOutcome::Released);
        assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
        let _ = next.unwrap().release().await;
    }
}

async fn a_detached_lease_has_no_minimum(world: &World) {
    let resource = world.resource("job");
    let detached = held(world, &resource, world.ttl()).await.detach().unwrap();
    let other = world.redlock().await;
    let released = other.release_detached(&detached).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    world.gone(&resource).await;
}
