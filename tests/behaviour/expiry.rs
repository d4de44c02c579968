//! A lease ends at its deadline, unless it is renewed.

use std::time::{Duration, Instant};

use quorlock::{AcquireError, LossReason, ReleaseOutcome};
use tokio::time::{sleep, timeout};

use crate::world::{Behaviour, SHORT, World, behaviours, short};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        without_a_watchdog_it_is_lost_at_the_deadline_and_not_before,
        an_expired_lock_is_free_for_others,
        a_watchdog_keeps_it_for_longer_than_three_ttls,
        a_watchdog_notices_that_the_keys_are_gone,
        max_hold_ends_it_in_spite_of_the_watchdog,
        max_hold_may_be_shorter_than_the_ttl,
        a_cancellation_token_is_cancelled_when_the_lease_ends,
    ]
}

async fn without_a_watchdog_it_is_lost_at_the_deadline_and_not_before(world: &World) {
    let request = short(world.lock("job").await).watchdog(false);
    let lease = request.acquire().await.unwrap();
    let deadline = lease.deadline();
    let mut announced = std::pin::pin!(lease.lost());
    loop {
        let before = Instant::now();
        let held = lease.is_held();
        let after = Instant::now();
        assert!(
            if held {
                before < deadline
            } else {
                after >= deadline
            },
            "is_held() was {held} on the wrong side of the deadline"
        );
        if !held {
            break;
        }
        if let Ok(lost) = timeout(Duration::from_millis(1), announced.as_mut()).await {
            assert!(
                Instant::now() >= deadline,
                "the loss was announced before the deadline"
            );
            assert_eq!(lost.reason, LossReason::Expired { last_failure: None });
            assert!(!lease.is_held());
            assert_eq!(lease.remaining(), Duration::ZERO);
            return;
        }
    }
    let lost = announced.await;
    assert_eq!(lost.reason, LossReason::Expired { last_failure: None });
}

async fn a_cancellation_token_is_cancelled_when_the_lease_ends(world: &World) {
    let short_lived = short(world.lock("job").await).watchdog(false);
    let lost = short_lived.acquire().await.unwrap();
    let token = lost.cancellation_token();
    assert!(!token.is_cancelled());
    token.cancelled().await;
    assert!(!lost.is_held());

    let released = world.lock("another").await.acquire().await.unwrap();
    let token = released.cancellation_token();
    tokio::task::yield_now().await;
    assert!(!token.is_cancelled());
    let _ = released.release().await;
    token.cancelled().await;
}

async fn an_expired_lock_is_free_for_others(world: &World) {
    let resource = world.resource("job");
    let other = world.redlock().await.lock(resource.as_str()).forever();
    let request = short(world.redlock().await.lock(resource.as_str()));
    let lease = request.watchdog(false).acquire().await.unwrap();
    let next = other.acquire().await.unwrap();
    assert!(!lease.is_held(), "two leases are held at once");
    drop(lease);
    assert!(next.is_held());
    assert_eq!(next.release().await, ReleaseOutcome::Released);
}

async fn a_watchdog_keeps_it_for_longer_than_three_ttls(world: &World) {
    let ttl = Duration::from_secs(3);
    let other = world.redlock().await;
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .ttl(ttl)
        .node_budget(ttl / 2)
        .acquire()
        .await
        .unwrap();
    let first_deadline = lease.deadline();
    tokio::select! {
        lost = lease.lost() => panic!("{lost}"),
        () = sleep(ttl * 13 / 4) => {}
    }
    assert!(lease.is_held() && lease.deadline() > first_deadline + 2 * ttl);
    let refused = other.lock(resource.as_str()).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
}

async fn a_watchdog_notices_that_the_keys_are_gone(world: &World) {
    let resource = world.resource("job");
    // The watchdog renews after a third of the TTL.
    let ttl = Duration::from_secs(6);
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .ttl(ttl)
        .node_budget(ttl / 2)
        .acquire()
        .await
        .unwrap();
    world.spread(&resource).await;
    world.delete(&resource).await;
    let lost = lease.lost().await;
    assert!(matches!(lost.reason, LossReason::Gone(_)), "{lost}");
    assert!(
        Instant::now() < lease.deadline(),
        "the loss was not announced before the deadline"
    );
    assert!(!lease.is_held());
    assert_eq!(world.copies(&resource).await, 0);
}

async fn max_hold_ends_it_in_spite_of_the_watchdog(world: &World) {
    let resource = world.resource("job");
    let most = SHORT * 3 / 2;
    let before = Instant::now();
    let request = short(world.redlock().await.lock(resource.as_str()));
    let lease = request.max_hold(most).acquire().await.unwrap();
    let acquired = Instant::now();
    let lost = lease.lost().await;
    assert_eq!(lost.reason, LossReason::MaxHold);
    assert!(before.elapsed() >= most);
    assert!(lease.deadline() <= acquired + most);
    world.gone(&resource).await;
}

async fn max_hold_may_be_shorter_than_the_ttl(world: &World) {
    let resource = world.resource("job");
    let lease = world
        .redlock()
        .await
        .lock(resource.as_str())
        .ttl(Duration::from_secs(30))
        .max_hold(Duration::from_millis(200))
        .acquire()
        .await
        .unwrap();
    assert!(lease.remaining() <= Duration::from_millis(200));
    assert_eq!(lease.lost().await.reason, LossReason::MaxHold);
    // The key does not stay for the rest of its TTL.
    world.gone(&resource).await;
}
