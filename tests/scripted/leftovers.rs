//! Keys that a dead client has left on some nodes. They stand there until they expire, so their owner gives no vote back (W3).
//! The other nodes must still be able to form a quorum.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use quorlock::Redlock;
use quorlock::simulation::{Action, OwnerToken, Reply};
use tokio::time::Instant;

use crate::nodes::{Plan, ScriptedNode, ms, redlock, yes};

fn free(number: usize, after: Duration) -> Arc<ScriptedNode> {
    ScriptedNode::new(number, move |action| Plan::Answer(after, Ok(yes(action))))
}

fn left_behind(number: usize, after: Duration, token: u128) -> Arc<ScriptedNode> {
    ScriptedNode::new(number, move |action| {
        let reply = match action {
            Action::Acquire { .. } => Reply::Held {
                remaining: Some(ms(3_600_000)),
                holder: Some(OwnerToken::from(token)),
            },
            Action::Release { .. } | Action::Extend { .. } => Reply::Foreign,
            action => yes(action),
        };
        Plan::Answer(after, Ok(reply))
    })
}

/// As [`left_behind`], until the key expires.
fn expiring(number: usize, after: Duration, token: u128, at: Instant) -> Arc<ScriptedNode> {
    ScriptedNode::new(number, move |action| {
        let left = at.saturating_duration_since(Instant::now() + after);
        let reply = match action {
            Action::Acquire { .. } if !left.is_zero() => Reply::Held {
                remaining: Some(left),
                holder: Some(OwnerToken::from(token)),
            },
            action => yes(action),
        };
        Plan::Answer(after, Ok(reply))
    })
}

/// Returns a node that does not answer the first acquire, and answers later requests more slowly than others.
fn once_silent(number: usize) -> Arc<ScriptedNode> {
    let asked = AtomicUsize::new(0);
    ScriptedNode::new(number, move |action| {
        let is_first = matches!(action, Action::Acquire { .. }) && asked.fetch_add(1, SeqCst) == 0;
        match is_first {
            true => Plan::Never,
            false => Plan::Answer(ms(2), Ok(yes(action))),
        }
    })
}

/// Acquires the lock, and returns how long that took.
async fn get(nodes: &[Arc<ScriptedNode>]) -> Duration {
    let manager = redlock(nodes, Redlock::builder().ttl(ms(10_000)));
    let started = Instant::now();
    let waiting = manager.lock("job").within(ms(60_000)).acquire();
    drop(waiting.await.unwrap());
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_farther_away_is_heard_all_the_same() {
    for token in [0, u128::MAX / 2, u128::MAX] {
        let three = [free(0, ms(1)), left_behind(1, ms(1), token), free(2, ms(20))];
        assert_eq!(get(&three).await, ms(20));
        let five = [
            free(0, ms(1)),
            free(1, ms(1)),
            left_behind(2, ms(1), token),
            free(3, ms(20)),
            free(4, ms(20)),
        ];
        assert_eq!(get(&five).await, ms(20));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_silent_is_heard_again() {
    for token in [0, u128::MAX / 2, u128::MAX] {
        let three = [free(0, ms(1)), left_behind(1, ms(1), token), once_silent(2)];
        assert!(get(&three).await < ms(2_000));
        let five = [
            free(0, ms(1)),
            left_behind(1, ms(1), token),
            left_behind(2, ms(1), token),
            once_silent(3),
            once_silent(4),
        ];
        assert!(get(&five).await < ms(2_000));
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_waited_for_longer_than_the_budget() {
    let silent = ScriptedNode::new(2, |_| Plan::Never);
    let nodes = [free(0, ms(1)), left_behind(1, ms(95), 0), silent];
    let manager = redlock(&nodes, Redlock::builder().ttl(ms(1_000)));
    let started = Instant::now();
    manager.lock("job").try_acquire().await.unwrap_err();
    assert!(started.elapsed() <= ms(101), "{:?}", started.elapsed());
}

/// The refusals decide an attempt before the free nodes have answered. Whatever the back-off, the waiter asks when a key expires
/// that these nodes need for a quorum.
#[tokio::test(start_paused = true)]
async fn an_expiry_that_may_complete_a_quorum_is_asked_at() {
    for seed in 0..50 {
        fastrand::seed(seed);
        let at = Instant::now() + ms(300);
        let three = [
            free(0, ms(3)),
            expiring(1, ms(1), 1, at),
            left_behind(2, ms(1), 2),
        ];
        let waited = get(&three).await;
        assert!((ms(300)..ms(310)).contains(&waited), "{waited:?}");
        let at = Instant::now() + ms(300);
        let five = [
            free(0, ms(3)),
            free(1, ms(3)),
            expiring(2, ms(1), 1, at),
            left_behind(3, ms(1), 2),
            left_behind(4, ms(1), 3),
        ];
        let waited = get(&five).await;
        assert!((ms(300)..ms(310)).contains(&waited), "{waited:?}");
    }
}
