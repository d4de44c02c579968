//! Waiting for a lock that another client holds.

use std::time::Duration;

use quorlock::{AcquireError, ReleaseOutcome};
use tokio::time::sleep;

use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        a_waiter_gets_the_lock_after_the_release,
        a_key_that_never_expires_is_held,
    ]
}

async fn a_waiter_gets_the_lock_after_the_release(world: &World) {
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
    let held = lease.handle();
    let redlock = world.redlock().await;
    let mut waiting = std::pin::pin!(redlock.lock(resource.as_str()).forever().acquire());
    tokio::select! {
        early = &mut waiting => panic!("{early:?}"),
        lost = lease.lost() => panic!("{lost}"),
        () = sleep(ttl * 4 / 3) => {}
    }
    let next = async {
        let next = waiting.await.unwrap();
        assert!(!held.is_held(), "acquired while it was held");
        next
    };
    let (next, released) = tokio::join!(next, lease.release());
    assert_eq!(released, ReleaseOutcome::Released);
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
