//! What a lock may be called, and the longest TTL.

use quorlock::{MAX_RESOURCE_BYTES, MAX_TTL, ReleaseOutcome};

use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        any_text_up_to_the_limit_is_a_name,
        names_that_look_alike_are_different_locks,
        the_longest_ttl_works,
    ]
}

async fn any_text_up_to_the_limit_is_a_name(world: &World) {
    for what in [
        "料金/ä 🔒",
        "with spaces ",
        "a\0b",
        "two\nlines\r\n",
        "{tag}*?[x]",
        "\"'\\%",
    ] {
        let resource = world.resource(what);
        let redlock = world.redlock().await;
        let lease = redlock.lock(resource.as_str()).acquire().await.unwrap();
        world.spread(&resource).await;
        assert_eq!(lease.resource(), resource);
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        world.gone(&resource).await;
    }
    let mut longest = world.resource("");
    longest.push_str(&"x".repeat(MAX_RESOURCE_BYTES - longest.len()));
    let redlock = world.redlock().await;
    let lease = redlock.lock(longest.as_str()).acquire().await.unwrap();
    world.spread(&longest).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&longest).await;
}

async fn names_that_look_alike_are_different_locks(world: &World) {
    let redlock = world.redlock().await;
    let name = world.resource("a");
    let mut leases = Vec::new();
    for suffix in ["", " ", "\0", "\n", "A", "á", "a\u{301}"] {
        let lease = redlock.lock(format!("{name}{suffix}")).try_acquire().await;
        leases.push(lease.unwrap());
    }
    for lease in leases {
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

async fn the_longest_ttl_works(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    let lease = redlock
        .lock(resource.as_str())
        .ttl(MAX_TTL)
        .acquire()
        .await
        .unwrap();
    world.spread(&resource).await;
    let most = MAX_TTL.as_millis() as i64;
    for pttl in world.pttls(&resource).await {
        assert!(pttl <= most && pttl > most - 600_000, "{pttl}");
    }
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    world.gone(&resource).await;
}
