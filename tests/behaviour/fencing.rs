//! Fencing tokens, and the counters that they leave on the nodes (F).

use std::time::Duration;

use quorlock::{AcquireError, Lease, LockRequest, ReleaseOutcome};

use super::exclusion::{calls, difference};
use crate::common::{ask, eventually};
use crate::world::{Behaviour, World, behaviours, short};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![false;
        tokens_rise_from_lease_to_lease_whoever_holds_it,
        tokens_rise_over_expired_and_dropped_leases,
        a_token_is_the_same_from_beginning_to_end,
        a_lock_without_fencing_has_no_token_and_leaves_no_counter,
        counters_agree_and_expire,
        counters_are_kept_as_long_as_asked_for,
        lost_counters_start_ahead_of_every_token,
        counters_that_are_no_numbers_are_a_fault_and_leave_no_lock,
    ]
}

pub(crate) fn counted() -> Vec<Behaviour> {
    behaviours![true; acquiring_is_one_call_to_each_node_from_the_first_use_on]
}

const DAY: Duration = Duration::from_secs(24 * 3_600);

async fn fenced(world: &World, resource: &str) -> LockRequest {
    world.redlock().await.lock(resource).fencing(true)
}

fn value(lease: &Lease) -> u64 {
    lease.fencing_token().unwrap().get()
}

/// Waits until every memory is two seconds old. Nodes with younger memories may start counters that do not agree (F5).
async fn settled(world: &World) {
    drop(world.redlock().await);
    let age = b"local time = redis.call('TIME') \
                return time[1] * 1000000 + time[2] - redis.call('GET', KEYS[1]):sub(36, 51)";
    for url in world.live() {
        eventually("the memory is two seconds old", || async {
            let micros: i64 = ask(url, &[b"EVAL", age, b"1", b"quorlock:#node"]).await.unwrap();
            micros > 2_000_000
        })
        .await;
    }
}

async fn agreed(world: &World, resource: &str, token: u64) {
    eventually("the counters agree", || async {
        world
            .counters(resource)
            .await
            .iter()
            .all(|counter| *counter == Some(token))
    })
    .await;
}

async fn tokens_rise_from_lease_to_lease_whoever_holds_it(world: &World) {
    let resource = world.resource("job");
    let requests = [fenced(world, &resource).await, fenced(world, &resource).await];
    let mut latest = 0;
    for round in 0..20 {
        let lease = requests[round % 2].clone().acquire().await.unwrap();
        let token = value(&lease);
        assert!(latest < token && token < 1 << 53, "{latest}, then {token}");
        latest = token;
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

async fn tokens_rise_over_expired_and_dropped_leases(world: &World) {
    let resource = world.resource("job");
    let request = fenced(world, &resource).await.watchdog(false);
    let mut latest = 0;
    for _ in 0..3 {
        let lease = short(request.clone()).acquire().await.unwrap();
        assert!(latest < value(&lease));
        latest = value(&lease);
        lease.lost().await;
        let lease = request.clone().ttl(world.ttl()).acquire().await.unwrap();
        assert!(latest < value(&lease));
        latest = value(&lease);
        drop(lease);
    }
}

async fn a_token_is_the_same_from_beginning_to_end(world: &World) {
    let resource = world.resource("job");
    let lease = fenced(world, &resource).await.acquire().await.unwrap();
    world.spread(&resource).await;
    let (token, counters) = (value(&lease), world.counters(&resource).await);
    lease.extend().await.unwrap();
    assert_eq!(value(&lease), token);
    assert_eq!(world.counters(&resource).await, counters);
    let handle = lease.handle();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    assert_eq!(handle.fencing_token().unwrap().get(), token);
}

async fn a_lock_without_fencing_has_no_token_and_leaves_no_counter(world: &World) {
    let resource = world.resource("job");
    let lease = world.redlock().await.lock(resource.as_str()).fencing(false);
    let lease = lease.acquire().await.unwrap();
    assert_eq!(lease.fencing_token(), None);
    world.spread(&resource).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    assert!(world.counters(&resource).await.iter().all(Option::is_none));
}

/// All nodes start a counter from one seed, and counters expire (F5).
async fn counters_agree_and_expire(world: &World) {
    settled(world).await;
    let resource = world.resource("job");
    let lease = fenced(world, &resource).await.acquire().await.unwrap();
    agreed(world, &resource, value(&lease)).await;
    for left in world.pttls(&format!("{resource}#fence")).await {
        let day = DAY.as_millis() as i64;
        assert!(left > day - 60_000 && left <= day, "{left} ms");
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let lease = fenced(world, &resource).await.acquire().await.unwrap();
    agreed(world, &resource, value(&lease)).await;
}

async fn counters_are_kept_as_long_as_asked_for(world: &World) {
    for (ttl, retention, kept) in [
        (30, Some(Duration::from_secs(300)), Some(300)),
        (30, Some(Duration::MAX), None),
        // The shortest retention is ten times the TTL.
        (3 * 24 * 3_600, None, Some(30 * 24 * 3_600)),
    ] {
        let resource = world.resource("job");
        let mut request = fenced(world, &resource).await.ttl(Duration::from_secs(ttl));
        if let Some(retention) = retention {
            request = request.counter_retention(retention);
        }
        let lease = request.acquire().await.unwrap();
        world.spread(&resource).await;
        for left in world.pttls(&format!("{resource}#fence")).await {
            match kept {
                Some(seconds) => assert!(
                    left > (seconds - 60) * 1_000 && left <= seconds * 1_000,
                    "{left} ms"
                ),
                None => assert_eq!(left, -1),
            }
        }
        drop(lease);
    }
}

/// Tokens rise whichever nodes lose the counter, and whether the lock is held or free (F5).
async fn lost_counters_start_ahead_of_every_token(world: &World) {
    settled(world).await;
    let resource = world.resource("job");
    let request = fenced(world, &resource).await;
    let mut lease = request.clone().acquire().await.unwrap();
    for losers in 0..1u32 << world.live().len() {
        let before = value(&lease);
        let held = losers % 2 == 0;
        if held {
            world.lose(&resource, losers).await;
        }
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        if !held {
            world.lose(&resource, losers).await;
        }
        lease = request.clone().acquire().await.unwrap();
        assert!(
            before < value(&lease),
            "{before}, then {lease:?}, without {losers:b}"
        );
        world.spread(&resource).await;
    }
}

async fn counters_that_are_no_numbers_are_a_fault_and_leave_no_lock(world: &World) {
    for (write, nonsense, named) in [
        ("SET", "seven", "not an integer"),
        ("SET", "9007199254740991", "fencing counter"),
        ("RPUSH", "seven", "WRONGTYPE"),
    ] {
        let resource = world.resource("job");
        let counter = format!("{resource}#fence");
        world.tell::<redis::Value>(write, &counter, &[nonsense]).await;
        let request = fenced(world, &resource).await.ttl(world.ttl());
        let request = request.node_budget(world.generous_budget());
        match request.try_acquire().await {
            Err(AcquireError::NoQuorum { votes, .. }) => {
                assert!(votes.to_string().contains(named), "{votes}");
            }
            other => panic!("{other:?}"),
        }
        world.gone(&resource).await;
    }
}

/// How many calls the nodes have refused that name a script which they do not know.
async fn unknown(world: &World) -> Vec<String> {
    let mut refused = Vec::new();
    for url in world.live() {
        let info: String = ask(url, &[b"INFO", b"errorstats"]).await.unwrap();
        refused.extend(
            info.lines()
                .filter(|line| line.contains("NOSCRIPT"))
                .map(str::to_owned),
        );
    }
    refused
}

async fn acquiring_is_one_call_to_each_node_from_the_first_use_on(world: &World) {
    settled(world).await;
    let resource = world.resource("job");
    let request = fenced(world, &resource).await;
    for _ in 0..3 {
        let before = (calls(world, "evalsha").await, unknown(world).await);
        let lease = request.clone().acquire().await.unwrap();
        agreed(world, &resource, value(&lease)).await;
        let evalsha = difference(&calls(world, "evalsha").await, &before.0);
        assert_eq!(evalsha, vec![1; world.live().len()]);
        // Otherwise, the text would have been sent as well.
        assert_eq!(unknown(world).await, before.1, "a node did not know the script");
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        world.gone(&resource).await;
    }
}
