//! Extending moves the deadline, and never brings a lost lease back.

use std::time::{Duration, Instant};

use quorlock::{ExtendError, LossReason, ReleaseOutcome};

use crate::common::eventually;
use crate::world::{Behaviour, World, behaviours, short};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        extending_moves_the_deadline_and_the_expiry_on_the_nodes,
        extending_never_shortens,
        extending_after_the_keys_are_gone_is_a_loss_at_once_and_does_not_bring_them_back,
        extending_after_a_takeover_is_a_loss_and_leaves_the_stranger_alone,
        extending_after_the_deadline_is_a_loss,
    ]
}

const TTL: Duration = Duration::from_secs(30);

async fn extending_moves_the_deadline_and_the_expiry_on_the_nodes(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, TTL).await;
    let acquired_until = lease.deadline();
    world.tell::<i64>("PEXPIRE", &resource, &["9000"]).await;

    let before = Instant::now();
    let left = lease.extend().await.unwrap();
    assert!(lease.deadline() > acquired_until);
    assert!(lease.deadline() > before && lease.deadline() < Instant::now() + TTL);
    assert!(left <= TTL && lease.is_held());
    eventually("the keys live longer", || async {
        world.pttls(&resource).await.iter().all(|pttl| *pttl > 9_000)
    })
    .await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn extending_never_shortens(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, TTL).await;
    world.tell::<i64>("PEXPIRE", &resource, &["600000"]).await;
    let before = lease.deadline();
    lease.extend().await.unwrap();
    assert!(lease.deadline() >= before);
    // Ordered behind the first extension on each connection.
    lease.extend().await.unwrap();
    assert!(world.pttls(&resource).await.iter().all(|pttl| *pttl > 500_000));
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn extending_after_the_keys_are_gone_is_a_loss_at_once_and_does_not_bring_them_back(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, TTL).await;
    world.delete(&resource).await;
    let error = lease.extend().await.unwrap_err();
    let ExtendError::Lost(lost) = &error else {
        panic!("{error:?}")
    };
    let LossReason::Gone(votes) = &lost.reason else {
        panic!("{lost:?}")
    };
    assert!(votes.no() > world.nodes() - world.quorum());
    assert_eq!(&*lost.resource, resource);
    assert_eq!(lease.lost().await, *lost);
    assert!(!lease.is_held());
    assert!(matches!(lease.extend().await, Err(ExtendError::Lost(_))));
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
    assert_eq!(world.copies(&resource).await, 0);
}

async fn extending_after_a_takeover_is_a_loss_and_leaves_the_stranger_alone(world: &World) {
    let resource = world.resource("job");
    let lease = world.hold(&resource, TTL).await;
    world
        .tell::<String>("SET", &resource, &["stranger", "PX", "20000"])
        .await;
    let error = lease.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::Lost(_)), "{error:?}");
    assert!(error.to_string().contains("taken over"), "{error}");
    for (value, pttl) in world
        .values(&resource)
        .await
        .iter()
        .zip(world.pttls(&resource).await)
    {
        assert_eq!(value.as_deref(), Some("stranger"));
        assert!(pttl <= 20_000, "the stranger's key was extended: {pttl} ms");
    }
}

async fn extending_after_the_deadline_is_a_loss(world: &World) {
    let resource = world.resource("job");
    let request = short(world.redlock().await.lock(resource.as_str()));
    let lease = request.watchdog(false).acquire().await.unwrap();
    // The keys stay, but a lost lease does not come back.
    world.tell::<i64>("PERSIST", &resource, &[]).await;
    lease.lost().await;
    let error = lease.extend().await.unwrap_err();
    match error {
        ExtendError::Lost(lost) => assert_eq!(lost.reason, LossReason::Expired { last_failure: None }),
        other => panic!("{other:?}"),
    }
    assert!(!lease.is_held());
    world.gone(&resource).await;
}
