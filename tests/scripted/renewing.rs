//! Extensions and the watchdog, exact to the millisecond.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{ExtendError, Lease, LossReason, Redlock, ReleaseOutcome, RunError};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::nodes::{Answer, Plan, ScriptedNode, at_once, ms, redlock, scripted_nodes, yes};

const TTL: Duration = ms(3_000);
/// The TTL less 1 % and 2 ms for clock drift.
const VALID: Duration = ms(2_968);
const THIRD: Duration = ms(1_000);

async fn acquire(nodes: &[Arc<ScriptedNode>], watchdog: bool) -> (Lease, Instant) {
    let redlock = redlock(nodes, Redlock::builder());
    let started = Instant::now();
    let request = redlock.lock("job").ttl(TTL).watchdog(watchdog);
    let lease = request.try_acquire().await.unwrap();
    assert_eq!(lease.deadline(), (started + VALID).into_std());
    (lease, started)
}

/// Returns three nodes that grant and release at once, and extend as `plan` says.
fn extending(mut plan: impl FnMut(usize) -> Plan + Clone + Send + 'static) -> Vec<Arc<ScriptedNode>> {
    scripted_nodes(3, move |node, action| match action {
        Action::Extend { .. } => plan(node),
        other => at_once(Ok(yes(other))),
    })
}

fn fault() -> Answer {
    Err(Fault::Disconnected {
        reason: "gone".into(),
    })
}

fn extensions(node: &ScriptedNode) -> Vec<Instant> {
    let calls = node.calls();
    let extensions = calls.iter().filter(|call| call.is_extend());
    extensions.map(|call| call.at).collect()
}

#[tokio::test(start_paused = true)]
async fn an_extension_counts_from_before_it_was_sent() {
    let nodes = extending(|node| Plan::Answer(ms(100 * (node as u64 + 1)), Ok(Reply::Extended)));
    let (lease, started) = acquire(&nodes, false).await;
    sleep(ms(700)).await;
    let left = lease.extend().await.unwrap();
    assert_eq!(started.elapsed(), ms(900), "the second of three");
    assert_eq!(lease.deadline(), (started + ms(700) + VALID).into_std());
    assert_eq!(left, VALID - ms(200));
}

#[tokio::test(start_paused = true)]
async fn a_failed_extension_changes_nothing() {
    let nodes = extending(|node| match node {
        0 => at_once(Ok(Reply::Extended)),
        1 => at_once(fault()),
        _ => Plan::Never,
    });
    let (lease, started) = acquire(&nodes, false).await;
    sleep(ms(500)).await;
    let error = lease.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::NoQuorum { .. }), "{error}");
    assert_eq!(started.elapsed(), ms(800), "a node budget later");
    assert_eq!(lease.deadline(), (started + VALID).into_std());
    assert!(lease.is_held());
    // A failed extension deletes no keys (E1).
    assert!(
        nodes
            .iter()
            .all(|node| !node.calls().iter().any(|call| call.is_release()))
    );
    let lost = lease.lost().await;
    assert_eq!(started.elapsed(), VALID);
    assert!(matches!(
        lost.reason,
        LossReason::Expired {
            last_failure: Some(_)
        }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_after_the_deadline_brings_nothing_back() {
    let nodes = extending(|_| Plan::Answer(ms(200), Ok(Reply::Extended)));
    let (lease, started) = acquire(&nodes, false).await;
    let handle = lease.handle();
    sleep_until(started + VALID - ms(100)).await;
    let error = handle.extend().await.unwrap_err();
    assert!(!lease.is_held());
    assert!(
        matches!(error, ExtendError::NoQuorum { .. } | ExtendError::Lost(_)),
        "{error}"
    );
    assert_eq!(started.elapsed(), VALID, "not later than the deadline");
    lease.lost().await;
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
}

#[tokio::test(start_paused = true)]
async fn every_world_of_answers_extends_refuses_or_leaves_it_open() {
    let answers: [Answer; 4] = [
        Ok(Reply::Extended),
        Ok(Reply::Missing),
        Ok(Reply::Foreign),
        fault(),
    ];
    for nodes in 1..=5usize {
        for world in 0..4usize.pow(nodes as u32) {
            let kind = move |node: usize| world / 4usize.pow(node as u32) % 4;
            let plans = answers.clone();
            let scripted_nodes = scripted_nodes(nodes, move |node, action| match action {
                Action::Extend { .. } => at_once(plans[kind(node)].clone()),
                other => at_once(Ok(yes(other))),
            });
            let (lease, _) = acquire(&scripted_nodes, false).await;
            let before = lease.deadline();
            sleep(ms(1)).await;
            let outcome = lease.extend().await;
            let count = |wanted: &[usize]| (0..nodes).filter(|node| wanted.contains(&kind(*node))).count();
            let (yes, no, quorum) = (count(&[0]), count(&[1, 2]), nodes / 2 + 1);
            match outcome {
                Ok(_) => assert!(yes >= quorum && lease.deadline() > before),
                Err(ExtendError::Lost(lost)) => {
                    assert!(nodes - no < quorum, "{lost}");
                    assert!(!lease.is_held() && matches!(lost.reason, LossReason::Gone(_)));
                }
                Err(ExtendError::NoQuorum { .. }) => {
                    assert!(yes < quorum && nodes - no >= quorum);
                    assert!(lease.is_held() && lease.deadline() == before);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_sends_a_third_of_the_ttl_after_the_last_send() {
    // Slow answers do not delay the next renewal.
    let nodes = extending(|node| Plan::Answer(ms(70 * (node as u64 + 1)), Ok(Reply::Extended)));
    let (lease, started) = acquire(&nodes, true).await;
    for _ in 0..(30 * 20) {
        sleep(ms(50)).await;
        assert!(lease.is_held());
        assert!(lease.remaining() <= VALID, "beyond t0 + TTL - drift");
        assert!(lease.remaining() >= VALID - THIRD - ms(140));
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let expected: Vec<Instant> = (1..=30).map(|n| started + THIRD * n).collect();
    for node in &nodes {
        // The release may come at the moment of the last renewal.
        let sent = extensions(node);
        assert!(sent == expected || sent == expected[..29], "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_tried_again_quickly_and_never_after_the_deadline() {
    let nodes = extending(|_| at_once(fault()));
    let (lease, started) = acquire(&nodes, true).await;
    let lost = lease.lost().await;
    assert_eq!(started.elapsed(), VALID, "lost exactly at the deadline");
    assert!(
        matches!(
            lost.reason,
            LossReason::Expired {
                last_failure: Some(_)
            }
        ),
        "{lost}"
    );
    assert!(lost.to_string().contains("gone"), "{lost}");
    sleep(10 * TTL).await;
    for node in &nodes {
        let sent = extensions(node);
        assert_eq!(sent[0], started + THIRD);
        assert!(*sent.last().unwrap() < started + VALID);
        for pair in sent.windows(2) {
            let gap = pair[1] - pair[0];
            // A thirtieth of the TTL, plus or minus half of it. Timers are at most a millisecond late.
            assert!(gap >= ms(50) && gap <= ms(151), "{gap:?}");
        }
        // The lost lease is cleaned up, once (A6).
        let calls = node.calls();
        assert!(calls.last().unwrap().is_release());
        assert_eq!(calls.iter().filter(|call| call.is_release()).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_announced_at_the_deadline_too() {
    let nodes = extending(|_| Plan::Never);
    let (lease, started) = acquire(&nodes, true).await;
    let handle = lease.handle();
    let elsewhere = tokio::spawn(async move { handle.lost().await });
    lease.lost().await;
    assert_eq!(started.elapsed(), VALID);
    elsewhere.await.unwrap();
    assert_eq!(started.elapsed(), VALID);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_works_again_saves_the_lease() {
    let healed = Instant::now() + ms(2_500);
    let nodes = extending(move |_| {
        at_once(if Instant::now() < healed {
            fault()
        } else {
            Ok(Reply::Extended)
        })
    });
    let (lease, started) = acquire(&nodes, true).await;
    assert!(timeout(ms(20_000), lease.lost()).await.is_err());
    assert!(lease.deadline() > (started + ms(20_000)).into_std());
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_announced_at_once() {
    let nodes = extending(|node| {
        at_once(match node {
            0 => Ok(Reply::Missing),
            1 => Ok(Reply::Foreign),
            _ => Ok(Reply::Extended),
        })
    });
    let (lease, started) = acquire(&nodes, true).await;
    let lost = lease.lost().await;
    assert_eq!(started.elapsed(), THIRD);
    assert!(matches!(lost.reason, LossReason::Gone(_)), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn no_renewal_is_ever_sent_after_a_release_or_a_drop() {
    for answer_after in [0, 130, 400] {
        for moment in (900..=1_500).step_by(7) {
            for dropped in [false, true] {
                let nodes = extending(move |_| Plan::Answer(ms(answer_after), Ok(Reply::Extended)));
                let (lease, _) = acquire(&nodes, true).await;
                let handle = lease.handle();
                sleep(ms(moment)).await;
                if dropped {
                    drop(lease);
                } else {
                    assert_eq!(lease.release().await, ReleaseOutcome::Released);
                }
                assert!(
                    timeout(3 * TTL, handle.lost()).await.is_err(),
                    "a release is no loss"
                );
                for node in &nodes {
                    let calls = node.calls();
                    let release = calls.iter().position(|call| call.is_release()).unwrap();
                    assert_eq!(release, calls.len() - 1, "{calls:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn max_hold_is_kept_to_the_millisecond() {
    let nodes = extending(|_| at_once(Ok(Reply::Extended)));
    let manager = redlock(&nodes, Redlock::builder());
    let most = ms(7_777);
    let started = Instant::now();
    let request = manager.lock("job").ttl(TTL).max_hold(most);
    let lease = request.acquire().await.unwrap();
    let lost = lease.lost().await;
    assert_eq!(started.elapsed(), most);
    assert_eq!(lost.reason, LossReason::MaxHold);
    // The renewal at 5 s reaches beyond `max_hold`, so it is the last.
    assert_eq!(extensions(&nodes[0]).len(), 5);
}

#[tokio::test(start_paused = true)]
async fn expiring_comes_before_the_end_by_the_lead() {
    let nodes = extending(|_| at_once(fault()));
    let (lease, started) = acquire(&nodes, false).await;
    let lead = ms(500);
    lease.expiring(lead).await;
    assert_eq!(started.elapsed(), VALID - lead);
    assert!(lease.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_loses_its_lease_is_cancelled_before_the_deadline_and_not_much() {
    for watchdog in [false, true] {
        let nodes = extending(|_| at_once(fault()));
        let manager = redlock(&nodes, Redlock::builder());
        let started = Instant::now();
        let request = manager.lock("job").ttl(TTL).watchdog(watchdog);
        let outcome = request.run(|_| std::future::pending::<()>()).await;
        assert!(matches!(outcome, Err(RunError::Lost(_))), "{outcome:?}");
        assert_eq!(started.elapsed(), VALID - TTL / 100);
        assert!(nodes[0].calls().last().unwrap().is_release());
    }
}

/// Extended keys outlive the acquire by more than a TTL (A6).
#[tokio::test(start_paused = true)]
async fn the_clean_up_of_an_extended_lease_lasts_until_the_extended_keys_have_expired() {
    let away = Arc::new(AtomicBool::new(false));
    let nodes = scripted_nodes(3, {
        let away = away.clone();
        move |node, action| match node == 2 && away.load(SeqCst) {
            true => at_once(fault()),
            false => at_once(Ok(yes(action))),
        }
    });
    let (lease, _) = acquire(&nodes, false).await;
    for _ in 0..2 {
        sleep(ms(2_000)).await;
        lease.extend().await.unwrap();
    }
    away.store(true, SeqCst);
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    sleep(ms(200)).await;
    away.store(false, SeqCst);
    let back = Instant::now();
    sleep(TTL).await;
    let last = nodes[2].calls().pop().unwrap();
    assert!(last.is_release() && last.at >= back, "{last:?}");
}
