//! Each failure of a node is reported under its own name, and never as "held" (R5).

use std::time::Duration;

use quorlock::node::Fault;
use quorlock::{AcquireError, Redlock, ReleaseOutcome, Votes};

use crate::common::{PATIENCE, ask};
use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    let mut all = behaviours![false;
        a_name_that_collides_with_data_is_not_held_with_or_without_a_script,
        a_collision_on_a_minority_does_not_matter,
        a_lock_overwritten_by_other_data_is_a_fault_to_its_release,
    ];
    all.extend(behaviours![true;
        a_server_out_of_memory_is_named_and_still_releases,
        a_server_that_forgot_the_script_is_sent_it_again,
    ]);
    all
}

/// Checks that every live node that answered reported this fault, and that at least one did.
fn assert_all(error: &AcquireError, fault: &Fault, world: &World) {
    let AcquireError::NoQuorum { votes, .. } = error else {
        panic!("{error:?}")
    };
    let named = count(votes, fault);
    assert!(named >= 1, "{error}");
    for vote in votes.iter().take(world.live().len()) {
        assert!(
            vote.answer.is_none() || vote.answer == Some(Err(fault.clone())),
            "{error}"
        );
    }
    assert!(error.to_string().contains(&fault.to_string()), "{error}");
}

fn count(votes: &Votes, fault: &Fault) -> usize {
    votes
        .iter()
        .filter(|vote| vote.answer == Some(Err(fault.clone())))
        .count()
}

/// Longer than any test.
const TTL: Duration = Duration::from_secs(3_600);

/// Checks that the clean-up ends before the TTL: a node whose key holds other data is not asked again. Worlds with missing nodes
/// are not checked, because the clean-up asks these until the TTL has passed.
async fn nothing_is_left(redlock: &Redlock, world: &World) {
    if world.all_live() {
        redlock.shutdown().await;
    }
}

async fn a_name_that_collides_with_data_is_not_held_with_or_without_a_script(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("list");
    world.tell::<i64>("RPUSH", &resource, &["data"]).await;
    for fencing in [true, false] {
        let request = redlock.lock(resource.as_str()).fencing(fencing);
        let request = request.ttl(TTL).node_budget(PATIENCE);
        let error = request.try_acquire().await.unwrap_err();
        assert_all(&error, &Fault::WrongType, world);
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    }
    nothing_is_left(&redlock, world).await;
    assert!(
        world
            .tell::<i64>("LLEN", &resource, &[])
            .await
            .iter()
            .all(|length| *length == 1)
    );
}

async fn a_collision_on_a_minority_does_not_matter(world: &World) {
    let resource = world.resource("list");
    let key = format!("quorlock:{resource}");
    let others = &world.live()[world.quorum()..];
    for url in others {
        let _: i64 = ask(url, &[b"RPUSH", key.as_bytes(), b"data"]).await.unwrap();
    }
    let redlock = world.redlock().await;
    for fencing in [true, false] {
        let request = redlock.lock(resource.as_str()).fencing(fencing);
        let request = request.ttl(TTL).node_budget(PATIENCE);
        let lease = request.acquire().await.unwrap();
        assert!(lease.extend().await.is_ok());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
    nothing_is_left(&redlock, world).await;
    for url in others {
        let length: i64 = ask(url, &[b"LLEN", key.as_bytes()]).await.unwrap();
        assert_eq!(length, 1);
    }
}

async fn everywhere(world: &World, args: &[&[u8]]) {
    for url in world.live() {
        let _: redis::Value = ask(url, args).await.unwrap();
    }
}

async fn a_server_out_of_memory_is_named_and_still_releases(world: &World) {
    let redlock = world.redlock().await;
    let lease = redlock.lock(world.resource("held")).acquire().await.unwrap();
    everywhere(world, &[b"CONFIG", b"SET", b"maxmemory", b"1"]).await;
    let error = redlock
        .lock(world.resource("job"))
        .try_acquire()
        .await
        .unwrap_err();
    assert_all(&error, &Fault::OutOfMemory, world);
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn a_server_that_forgot_the_script_is_sent_it_again(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    for _ in 0..2 {
        everywhere(world, &[b"SCRIPT", b"FLUSH"]).await;
        let lease = redlock
            .lock(resource.as_str())
            .ttl(Duration::from_secs(30))
            .acquire()
            .await
            .unwrap();
        // Acquire returns at a quorum, so the other nodes may not have the key yet.
        assert!(world.copies(&resource).await >= world.quorum());
        everywhere(world, &[b"SCRIPT", b"FLUSH"]).await;
        assert!(lease.extend().await.is_ok());
        everywhere(world, &[b"SCRIPT", b"FLUSH"]).await;
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        world.gone(&resource).await;
    }
}

/// The release reports WRONGTYPE, whether or not it carries a counter (F4, R5).
async fn a_lock_overwritten_by_other_data_is_a_fault_to_its_release(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("overwritten");
    let counter = format!("quorlock:{resource}#fence");
    for _ in 0..20 {
        let request = redlock.lock(resource.as_str()).ttl(TTL).node_budget(PATIENCE);
        let lease = request.acquire().await.unwrap();
        world.spread(&resource).await;
        world.delete(&resource).await;
        world.tell::<i64>("RPUSH", &resource, &["data"]).await;
        match lease.release().await {
            ReleaseOutcome::Uncertain(votes) => {
                assert!(
                    votes.no() == 0 && count(&votes, &Fault::WrongType) >= 1,
                    "{votes}"
                );
            }
            other => panic!("{other:?}"),
        }
        world.delete(&resource).await;
        // This counter is ahead now, so the next release carries a counter to the other nodes.
        let _: i64 = ask(&world.live()[0], &[b"INCRBY", counter.as_bytes(), b"1000"])
            .await
            .unwrap();
    }
    nothing_is_left(&redlock, world).await;
}
