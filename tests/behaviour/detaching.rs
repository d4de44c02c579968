//! Leases that outlive a process: another one goes on with them.

use std::time::Duration;

use quorlock::{AttachError, DetachedLease, ExtendError, LossReason, ReleaseOutcome};

use crate::polled::polled;
use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        another_client_goes_on_with_a_detached_lease,
        a_detached_lease_is_released_by_another_client,
        a_detached_lease_that_was_lost_is_not_attached,
        a_dropped_attach_deletes_nothing,
        a_lease_that_has_ended_cannot_be_detached,
    ]
}

/// Acquires a lock with a client of its own, which then ends.
async fn detached(world: &World, resource: &str) -> DetachedLease {
    let redlock = world.redlock().await;
    let lock = redlock
        .lock(resource)
        .ttl(world.ttl())
        .node_budget(world.generous_budget());
    let lease = lock.acquire().await.unwrap();
    world.spread(resource).await;
    let detached = lease.detach().unwrap();
    redlock.shutdown().await;
    drop(redlock);
    assert_eq!(world.copies(resource).await, world.live().len());
    // As it is handed to another process.
    detached.to_string().parse().unwrap()
}

async fn another_client_goes_on_with_a_detached_lease(world: &World) {
    let resource = world.resource("job");
    let detached = detached(world, &resource).await;
    world.tell::<i64>("PEXPIRE", &resource, &["9000"]).await;
    let other = world.redlock().await;
    let lease = other.attach(&detached).await.unwrap();
    assert_eq!((lease.resource(), lease.owner()), (&*resource, detached.owner()));
    assert_eq!(lease.fencing_token(), detached.fencing_token());
    assert!(lease.remaining() <= world.ttl() && lease.is_held());
    assert_eq!(
        lease.votes().yes() + lease.votes().faults() + lease.votes().outstanding(),
        world.nodes()
    );
    lease.extend().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
    // Counters agree, so the next token is larger on whichever quorum it is counted.
    let next = other.lock(&resource).ttl(world.ttl()).acquire().await.unwrap();
    assert!(next.fencing_token() > detached.fencing_token() || detached.fencing_token().is_none());
    let _ = next.release().await;
}

async fn a_detached_lease_is_released_by_another_client(world: &World) {
    let resource = world.resource("job");
    let detached = detached(world, &resource).await;
    let other = world.redlock().await;
    assert_eq!(
        other.release_detached(&detached).await.unwrap(),
        ReleaseOutcome::Released
    );
    world.gone(&resource).await;
    assert_eq!(
        other.release_detached(&detached).await.unwrap(),
        ReleaseOutcome::AlreadyGone
    );
}

async fn a_detached_lease_that_was_lost_is_not_attached(world: &World) {
    let resource = world.resource("job");
    let detached = detached(world, &resource).await;
    world.delete(&resource).await;
    let other = world.redlock().await;
    let holder = other.lock(&resource).ttl(world.ttl()).acquire().await.unwrap();
    world.spread(&resource).await;
    let error = other.attach(&detached).await.unwrap_err();
    let AttachError::Lost(lost) = &error else {
        panic!("{error}")
    };
    assert!(matches!(lost.reason, LossReason::Gone(_)), "{error}");
    assert_eq!(
        world.copies(&resource).await,
        world.live().len(),
        "the other holder's keys stay"
    );
    let _ = holder.release().await;
}

/// Dropped at any of its polls, until it is done.
async fn a_dropped_attach_deletes_nothing(world: &World) {
    let resource = world.resource("job");
    let detached = detached(world, &resource).await;
    let other = world.redlock().await;
    for polls in 1.. {
        let attached = polled(other.attach(&detached), polls).await;
        let Some(attached) = attached else { continue };
        let lease = attached.unwrap();
        assert_eq!(world.copies(&resource).await, world.live().len());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        break;
    }
    other.shutdown().await;
    world.gone(&resource).await;
}

async fn a_lease_that_has_ended_cannot_be_detached(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, Duration::from_secs(30)).await;
    world.delete(&resource).await;
    assert!(matches!(lease.extend().await, Err(ExtendError::Lost(_))));
    assert_eq!(lease.detach(), None);
}
