//! A release deletes this lease's keys only, and reports what it found.

use std::time::Duration;

use futures_util::poll;
use quorlock::{AcquireError, ReleaseOutcome};
use tokio::time::timeout;

use crate::world::{Behaviour, SHORT, World, behaviours, short};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3_600);

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        released_after_its_key_was_deleted_it_was_already_gone,
        taken_over_it_was_already_gone_and_the_strangers_key_stays,
        a_minority_without_the_key_does_not_matter,
        a_release_is_not_a_loss,
        a_release_goes_on_when_nobody_waits_for_it,
        shutdown_waits_for_clean_ups_and_then_refuses_locks,
        shutdown_waits_for_no_future_that_nobody_polls,
    ]
}

async fn released_after_its_key_was_deleted_it_was_already_gone(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, LONG).await;
    world.delete(&resource).await;
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
    assert_eq!(world.copies(&resource).await, 0);
}

async fn taken_over_it_was_already_gone_and_the_strangers_key_stays(world: &World) {
    let (resource, other) = (world.resource("job"), world.resource("job"));
    let (first, second) = (world.redlock().await, world.redlock().await);
    let mut leases = Vec::new();
    for (redlock, name) in [(&first, &resource), (&second, &other)] {
        let request = redlock.lock(name.as_str()).ttl(world.ttl());
        let request = request.node_budget(world.generous_budget());
        let lease = request.watchdog(false).acquire().await.unwrap();
        world.spread(name).await;
        world
            .tell::<String>("SET", name, &["stranger", "PX", "60000"])
            .await;
        leases.push(lease);
    }
    drop(leases.pop());
    let released = leases.pop().unwrap();
    assert_eq!(released.release().await, ReleaseOutcome::AlreadyGone);
    first.shutdown().await;
    second.shutdown().await;
    for name in [&resource, &other] {
        for value in world.values(name).await {
            assert_eq!(value.as_deref(), Some("stranger"));
        }
    }
}

async fn a_minority_without_the_key_does_not_matter(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, LONG).await;
    let key = format!("quorlock:{resource}");
    for url in &world.live()[world.quorum()..] {
        let _: i64 = crate::common::ask(url, &[b"DEL", key.as_bytes()]).await.unwrap();
    }
    assert!(lease.extend().await.is_ok());
    let second = world.redlock().await.lock(resource.as_str()).try_acquire().await;
    assert!(matches!(second, Err(AcquireError::Held { .. })), "{second:?}");
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
}

async fn a_release_is_not_a_loss(world: &World) {
    let redlock = world.redlock().await;
    let lock = |what| short(redlock.lock(world.resource(what))).acquire();
    let (released, dropped) = (lock("released").await.unwrap(), lock("dropped").await.unwrap());
    let (first, second) = (released.handle(), dropped.handle());
    let _ = released.release().await;
    drop(dropped);
    let announced = async {
        tokio::select! { lost = first.lost() => lost, lost = second.lost() => lost }
    };
    assert!(
        timeout(SHORT, announced).await.is_err(),
        "a release was announced as a loss"
    );
    for handle in [first, second] {
        assert!(!handle.is_held());
        assert_eq!(handle.remaining(), Duration::ZERO);
        let extension = handle.extend().await;
        assert!(matches!(extension, Err(quorlock::ExtendError::Released)));
    }
}

async fn a_release_goes_on_when_nobody_waits_for_it(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, LONG).await;
    // One poll sends the deletions. Then the release is dropped.
    let _ = timeout(Duration::ZERO, lease.release()).await;
    world.gone(&resource).await;
}

async fn shutdown_waits_for_clean_ups_and_then_refuses_locks(world: &World) {
    let redlock = world.redlock().await;
    let resources: Vec<String> = (0..5).map(|_| world.resource("job")).collect();
    for resource in &resources {
        let lease = redlock
            .lock(resource.as_str())
            .ttl(world.ttl())
            .node_budget(world.generous_budget())
            .acquire()
            .await
            .unwrap();
        drop(lease);
    }
    redlock.shutdown().await;
    for resource in &resources {
        assert_eq!(world.copies(resource).await, 0);
    }
    let refused = redlock.lock(world.resource("job")).acquire().await;
    assert!(matches!(refused, Err(AcquireError::ShutDown)), "{refused:?}");
}

/// `select!` on `&mut future` may leave such a future behind.
async fn shutdown_waits_for_no_future_that_nobody_polls(world: &World) {
    let redlock = world.redlock().await;
    let lock = |resource: &str| {
        let lock = redlock.lock(resource).ttl(world.ttl());
        Box::pin(lock.node_budget(world.generous_budget()).acquire())
    };
    let untouched = lock(&world.resource("job"));
    // One poll sends the requests. Where other threads read the answers, it may already return the lease.
    let (resource, acquiring) = loop {
        let resource = world.resource("job");
        let mut acquiring = lock(&resource);
        if poll!(&mut acquiring).is_pending() {
            break (resource, acquiring);
        }
    };
    world.spread(&resource).await;
    redlock.shutdown().await;
    assert_eq!(world.copies(&resource).await, 0);
    for kept in [acquiring.await, untouched.await] {
        assert!(matches!(kept, Err(AcquireError::ShutDown)), "{kept:?}");
    }
}
