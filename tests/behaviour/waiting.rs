//! Waiting for a lock that another client holds.

use std::time::Duration;

use quorlock::{AcquireError, ReleaseOutcome};
use tokio::time::sleep;

use crate::common::MOMENT;
use crate::world::{Behaviour, SHORT, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        within_gives_up,
        trying_makes_one_attempt,
        forever_waits_through_a_holder,
        whoever_waits_gets_it_after_the_release,
        whoever_waits_gets_it_after_the_holder_died,
        a_key_that_never_expires_is_held,
    ]
}

async fn within_gives_up(world: &World) {
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .acquire()
        .await
        .unwrap();
    let limit = SHORT;
    let waiting = world.redlock().await.lock(resource.as_str()).within(limit);
    match waiting.acquire().await {
        Err(AcquireError::Held { attempts, waited, .. }) => {
            assert!(
                attempts > 1 && waited >= limit,
                "{attempts} attempts in {waited:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(lease.is_held());
}

async fn trying_makes_one_attempt(world: &World) {
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .acquire()
        .await
        .unwrap();
    let redlock = world.redlock().await;
    let trying = redlock.lock(resource.as_str()).forever().try_acquire();
    match trying.await {
        Err(AcquireError::Held { attempts: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    let hurried = redlock.lock(resource.as_str()).within(Duration::ZERO).acquire();
    match hurried.await {
        Err(AcquireError::Held { attempts: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(lease);
}

async fn forever_waits_through_a_holder(world: &World) {
    let ttl = Duration::from_secs(3);
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .ttl(ttl)
        .node_budget(ttl / 2)
        .forever()
        .acquire()
        .await
        .unwrap();
    let redlock = world.redlock().await;
    let mut waiting = std::pin::pin!(redlock.lock(resource.as_str()).forever().acquire());
    tokio::select! {
        early = &mut waiting => panic!("{early:?}"),
        lost = lease.lost() => panic!("{lost}"),
        () = sleep(ttl * 4 / 3) => {}
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let next = waiting.await.unwrap();
    assert_eq!(next.release().await, ReleaseOutcome::Released);
}

async fn whoever_waits_gets_it_after_the_release(world: &World) {
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .acquire()
        .await
        .unwrap();
    let held = lease.handle();
    let redlock = world.redlock().await;
    let waiting = async {
        let next = redlock
            .lock(resource.as_str())
            .within(Duration::from_secs(30))
            .acquire()
            .await;
        (next.unwrap(), held.is_held())
    };
    let releasing = async {
        sleep(MOMENT).await;
        lease.release().await
    };
    let ((next, overlap), released) = tokio::join!(waiting, releasing);
    assert_eq!(released, ReleaseOutcome::Released);
    assert!(!overlap, "acquired while the first lease was held");
    assert_eq!(next.release().await, ReleaseOutcome::Released);
}

async fn whoever_waits_gets_it_after_the_holder_died(world: &World) {
    let resource = world.resource("job");
    // The dead holder never deletes the key.
    world
        .tell::<String>("SET", &resource, &["dead-holder", "PX", "300"])
        .await;
    let next = world
        .redlock()
        .await
        .lock(resource.as_str())
        .acquire()
        .await
        .unwrap();
    assert_eq!(next.release().await, ReleaseOutcome::Released);
}

async fn a_key_that_never_expires_is_held(world: &World) {
    let resource = world.resource("job");
    world.tell::<String>("SET", &resource, &["for ever"]).await;
    let error = world
        .redlock()
        .await
        .lock(resource.as_str())
        .try_acquire()
        .await
        .unwrap_err();
    match &error {
        AcquireError::Held { votes, .. } => assert_eq!(votes.longest_remaining(), None),
        other => panic!("{other:?}"),
    }
}
