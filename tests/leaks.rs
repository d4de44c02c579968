//! Nothing stays held, and nothing is announced wrongly: cancelled attempts, many short leases, loss in a partition.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used)]

#[path = "common/mod.rs"]
mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use common::{LOCK_KEYS, unguarded};
use futures_util::FutureExt;
use quorlock::testbed::Testbed;
use quorlock::{LossReason, ReleaseOutcome};

async fn keys(testbed: &Testbed) -> Vec<i64> {
    let mut keys = Vec::new();
    for node in testbed.nodes() {
        keys.push(
            node.command(&["EVAL", LOCK_KEYS, "0"])
                .await
                .unwrap()
                .as_int()
                .unwrap(),
        );
    }
    keys
}

/// Five masters that do not wait for a disk: where many short leases are the point.
async fn quick() -> Testbed {
    Testbed::builder().arg("appendonly", "no").start().await.unwrap()
}

/// Polls `future` at most `polls` times, then drops it wherever it is.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A6, at a random point: with a stopped node among the five, whose answer never comes while anybody waits for it.
#[tokio::test]
async fn a_thousand_cancelled_attempts_leave_nothing_on_any_node() {
    for (stopped, fencing) in [(false, true), (true, true), (false, false), (true, false)] {
        let testbed = Testbed::start(5).await.unwrap();
        let redlock = unguarded(testbed.urls()).await;
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut cancelled, mut got) = (0, 0);
        for round in 0..250 {
            let node = &testbed.nodes()[rng.usize(..5)];
            if stopped && round % 10 == 0 {
                node.stop().unwrap();
            }
            // Two contenders, so that attempts are cancelled in every state: won, lost, waiting for the next try.
            let lock = || {
                redlock
                    .lock("r")
                    .fencing(fencing)
                    .ttl(Duration::from_secs(60))
                    .node_budget(Duration::from_millis(500))
                    // Whoever has got it keeps it for as long as the other one waits.
                    .within(Duration::from_millis(30))
                    .acquire()
            };
            let (one, other) = (polled(lock(), rng.usize(0..6)), polled(lock(), rng.usize(0..6)));
            match tokio::join!(one, other) {
                (None, None) => cancelled += 1,
                _ => got += 1,
            }
            if stopped && round % 10 == 0 {
                node.resume().unwrap();
            }
        }
        redlock.shutdown().await;
        assert_eq!(
            keys(&testbed).await,
            [0; 5],
            "stopped {stopped}, fencing {fencing}"
        );
        assert!(
            cancelled > 50 && got > 10,
            "one-sided: {cancelled} cancelled, {got} not"
        );
    }
}

/// A node stopped while it is asked, which goes on after the attempt has failed.
#[tokio::test]
async fn nodes_that_go_on_after_the_attempt_failed_keep_nothing() {
    for fencing in [true, false] {
        let testbed = Testbed::start(3).await.unwrap();
        let redlock = unguarded(testbed.urls()).await;
        for _ in 0..5 {
            testbed.nodes()[0].stop().unwrap();
            testbed.nodes()[1].stop().unwrap();
            let lock = redlock.lock("r").fencing(fencing).ttl(Duration::from_secs(60));
            lock.node_budget(Duration::from_millis(30))
                .try_acquire()
                .await
                .unwrap_err();
            testbed.nodes()[0].resume().unwrap();
            testbed.nodes()[1].resume().unwrap();
        }
        redlock.shutdown().await;
        assert_eq!(keys(&testbed).await, [0; 3], "fencing {fencing}");
    }
}

/// E2: no renewal after the release, and no loss announced by one.
#[tokio::test]
async fn two_thousand_rounds_with_a_busy_watchdog_leave_no_key_and_announce_no_loss() {
    let testbed = quick().await;
    let redlock = unguarded(testbed.urls()).await;
    let mut rng = fastrand::Rng::with_seed(11);
    let mut rounds = tokio::task::JoinSet::new();
    for round in 0..2_000 {
        let (redlock, hold) = (redlock.clone(), Duration::from_micros(rng.u64(0..2_000_000)));
        // Released before, after and in the middle of renewals, which come every second; about 400 at a time.
        let start = Duration::from_millis(round * 5 / 2);
        rounds.spawn(async move {
            tokio::time::sleep(start).await;
            let lock = redlock.lock(format!("r{round}")).ttl(Duration::from_secs(3));
            let lock = lock.node_budget(Duration::from_millis(1_500)).forever();
            let lease = lock.acquire().await.unwrap();
            let (handle, first) = (lease.handle(), lease.deadline());
            let waiting = tokio::spawn({
                let handle = handle.clone();
                async move { handle.lost().await }
            });
            tokio::time::sleep(hold).await;
            let renewed = handle.deadline() > first;
            let released = lease.release().await == ReleaseOutcome::Released;
            assert!(!handle.is_held());
            if released {
                assert!(
                    handle.lost().now_or_never().is_none(),
                    "a release announced a loss"
                );
                assert!(!waiting.is_finished(), "a release announced a loss");
            }
            waiting.abort();
            (released, renewed)
        });
    }
    let ended = rounds.join_all().await;
    let released = ended.iter().filter(|(released, _)| *released).count();
    let renewed = ended.iter().filter(|(_, renewed)| *renewed).count();
    // A busy machine may lose some to their short TTL; that is no release.
    assert!(released > 1_500, "only {released} were released while held");
    assert!(
        renewed > 100 && renewed < 1_900,
        "one-sided: {renewed} had been renewed"
    );
    redlock.shutdown().await;
    assert_eq!(keys(&testbed).await, [0; 5]);
}

/// E3, I4: no reply is needed, and none comes.
#[tokio::test]
async fn loss_is_announced_by_the_deadline_although_no_node_says_a_word() {
    let testbed = Testbed::builder().nodes(5).proxies(true).start().await.unwrap();
    let redlock = unguarded(testbed.urls()).await;
    let lease = redlock
        .lock("r")
        .ttl(Duration::from_secs(4))
        .node_budget(Duration::from_secs(1))
        .forever()
        .acquire()
        .await
        .unwrap();
    let acquired = lease.deadline();
    while lease.deadline() == acquired {
        tokio::task::yield_now().await;
    }
    testbed
        .nodes()
        .iter()
        .for_each(|node| node.proxy().unwrap().blackhole());
    let (handle, expiring) = (lease.handle(), lease.handle());
    // From the runtime's point of view: not before the deadline, and in the first turn of the timer after it.
    let wound_up = tokio::spawn(async move {
        let lead = Duration::from_secs(2);
        expiring.expiring(lead).await;
        (expiring.is_held(), expiring.remaining() <= lead)
    });
    let lost = handle.lost().await;
    assert!(std::time::Instant::now() >= handle.deadline());
    assert!(
        matches!(
            lost.reason,
            LossReason::Expired {
                last_failure: Some(_)
            }
        ),
        "{lost}"
    );
    assert!(!handle.is_held());
    assert_eq!(handle.remaining(), Duration::ZERO);
    assert_eq!(
        wound_up.await.unwrap(),
        (true, true),
        "held still, with the lead left to wind up in"
    );
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
    testbed
        .nodes()
        .iter()
        .for_each(|node| node.proxy().unwrap().heal());
    redlock.shutdown().await;
    assert_eq!(keys(&testbed).await, [0; 5]);
}

#[tokio::test]
async fn a_short_ttl_works_while_a_node_is_stopped() {
    let testbed = quick().await;
    let redlock = unguarded(testbed.urls()).await;
    for stopped in 1..=2 {
        testbed.nodes()[stopped].stop().unwrap();
        let mut released = 0;
        for round in 0..200 {
            let lock = redlock
                .lock(format!("r{stopped}-{round}"))
                .ttl(Duration::from_secs(1));
            let lease = lock.forever().acquire().await.unwrap();
            released += usize::from(lease.release().await == ReleaseOutcome::Released);
        }
        assert!(released > 100, "only {released} of 200 were released in time");
    }
    testbed
        .nodes()
        .iter()
        .for_each(|node| node.resume().unwrap_or(()));
    redlock.shutdown().await;
    assert_eq!(keys(&testbed).await, [0; 5]);
}
