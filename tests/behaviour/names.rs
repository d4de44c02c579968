//! Names of locks, and other bounds.

use std::time::Duration;

use quorlock::{AcquireError, ConfigError, MAX_RESOURCE_BYTES, MAX_TTL, ReleaseOutcome};

use crate::world::{Behaviour, World, behaviours};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        any_text_up_to_the_limit_is_a_name,
        names_that_look_alike_are_different_locks,
        names_that_cannot_be_used_are_refused_with_the_reason,
        ttls_out_of_bounds_are_refused_with_the_value,
        budgets_and_holds_out_of_bounds_are_refused_with_the_value,
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

async fn names_that_cannot_be_used_are_refused_with_the_reason(world: &World) {
    let redlock = world.redlock().await;
    match redlock.lock("").acquire().await {
        Err(AcquireError::Config(ConfigError::EmptyResource)) => {}
        other => panic!("{other:?}"),
    }
    let error = redlock
        .lock("x".repeat(MAX_RESOURCE_BYTES + 1))
        .try_acquire()
        .await
        .unwrap_err();
    match &error {
        AcquireError::Config(ConfigError::LongResource { bytes: 1_025 }) => {}
        other => panic!("{other:?}"),
    }
    let text = error.to_string();
    assert!(text.contains("1025") && text.contains("1024"), "{text}");
    assert!(error.votes().is_none());
}

async fn ttls_out_of_bounds_are_refused_with_the_value(world: &World) {
    let redlock = world.redlock().await;
    let too_long = MAX_TTL + Duration::from_millis(1);
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_millis(9),
        too_long,
        Duration::MAX,
    ] {
        let refused = redlock.lock("job").ttl(ttl).acquire().await.unwrap_err();
        match &refused {
            AcquireError::Config(ConfigError::Ttl { ttl: named }) => assert_eq!(*named, ttl),
            other => panic!("{other:?}"),
        }
        assert!(refused.to_string().contains(&format!("{ttl:?}")), "{refused}");
        let refused = world.builder().ttl(ttl).connect().await.unwrap_err();
        assert!(refused.to_string().contains(&format!("{ttl:?}")), "{refused}");
    }
}

async fn budgets_and_holds_out_of_bounds_are_refused_with_the_value(world: &World) {
    let redlock = world.redlock().await;
    let ttl = Duration::from_secs(1);
    for budget in [Duration::ZERO, ttl, Duration::MAX] {
        let request = redlock.lock("job").ttl(ttl).node_budget(budget);
        let refused = request.acquire().await.unwrap_err();
        match &refused {
            AcquireError::Config(ConfigError::NodeBudget { budget: named, .. }) => {
                assert_eq!(*named, budget);
            }
            other => panic!("{other:?}"),
        }
        assert!(refused.to_string().contains(&format!("{budget:?}")), "{refused}");
    }
    let request = redlock.lock("job").max_hold(Duration::ZERO);
    let refused = request.acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::MaxHold)));
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
