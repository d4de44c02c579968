//! What is counted and measured: each event once, however it comes about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use metrics_exporter_prometheus::PrometheusBuilder;
use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{FenceGate, FencingToken, LossReason, Redlock, ReleaseOutcome, RunError};
use tokio::time::{sleep, timeout};

use crate::counted::counted;
use crate::nodes::{Plan, ScriptedNode, at_once, ms, redlock, scripted_nodes, yes};

/// Does `work`, and returns what was counted.
async fn counts(work: impl Future<Output = ()>) -> BTreeMap<String, f64> {
    let recorder = PrometheusBuilder::new().build_recorder();
    {
        let _recording = metrics::set_default_local_recorder(&recorder);
        work.await;
    }
    counted(&recorder.handle())
}

/// Asserts that nothing else was counted.
fn assert_counts(counts: &BTreeMap<String, f64>, expected: &[(&str, f64)]) {
    let nonzero = counts.iter().filter(|(_, value)| **value != 0.0);
    let found: Vec<(&str, f64)> = nonzero.map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(found, expected);
}

fn count(counts: &BTreeMap<String, f64>, name: &str) -> f64 {
    counts.get(name).copied().unwrap_or_default()
}

fn away() -> Fault {
    Fault::Disconnected {
        reason: "away".into(),
    }
}

/// Three nodes that refuse the lock once.
fn refusing() -> Vec<Arc<ScriptedNode>> {
    let asked = Arc::new(AtomicUsize::new(0));
    scripted_nodes(3, move |_, action| match action {
        Action::Acquire { .. } if asked.fetch_add(1, SeqCst) < 3 => at_once(Ok(Reply::Held {
            remaining: Some(ms(1_000)),
            holder: None,
        })),
        other => at_once(Ok(yes(other))),
    })
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_held_at_first() {
    let counts = counts(async {
        let redlock = redlock(&refusing(), Redlock::builder().ttl(ms(3_000)));
        let lease = redlock.lock("nightly").label("jobs").acquire().await.unwrap();
        sleep(ms(1_500)).await;
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        redlock.shutdown().await;
    });
    assert_counts(
        &counts.await,
        &[
            ("acquire_seconds_count acquired jobs", 1.0),
            ("acquires_total acquired jobs", 1.0),
            ("attempt_seconds_count acquired jobs", 1.0),
            ("attempt_seconds_count held jobs", 1.0),
            ("attempts_total acquired jobs", 1.0),
            ("attempts_total held jobs", 1.0),
            ("contended_acquires_total jobs", 1.0),
            ("hold_seconds_count jobs", 1.0),
            ("releases_total released jobs", 1.0),
            ("renewals_total renewed jobs", 1.0),
        ],
    );
}

/// Once for all: by the timer, by a renewal, or by the release, which may be the first to learn of it.
#[tokio::test(start_paused = true)]
async fn each_loss_is_counted_once() {
    let (out, gone) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_out, is_gone) = (out.clone(), gone.clone());
    let nodes = scripted_nodes(3, move |node, action| match action {
        Action::Extend { .. } if node > 0 && is_out.load(SeqCst) => at_once(Err(away())),
        Action::Extend { .. } | Action::Release { .. } if is_gone.load(SeqCst) => at_once(Ok(Reply::Missing)),
        other => at_once(Ok(yes(other))),
    });
    let counts = counts(async {
        let redlock = redlock(&nodes, Redlock::builder().ttl(ms(3_000)));
        let expires = redlock.lock("expires").acquire().await.unwrap();
        out.store(true, SeqCst);
        assert!(matches!(expires.lost().await.reason, LossReason::Expired { .. }));
        out.store(false, SeqCst);
        assert_eq!(expires.release().await, ReleaseOutcome::AlreadyGone);

        let deleted = redlock.lock("deleted").acquire().await.unwrap();
        gone.store(true, SeqCst);
        assert!(matches!(deleted.lost().await.reason, LossReason::Gone(_)));
        gone.store(false, SeqCst);
        drop(deleted);

        let unnoticed = redlock.lock("unnoticed").acquire().await.unwrap();
        gone.store(true, SeqCst);
        assert_eq!(unnoticed.release().await, ReleaseOutcome::AlreadyGone);
        gone.store(false, SeqCst);

        // The work ends shortly before the lease does.
        let run = redlock.lock("run").max_hold(ms(1_000)).run(|_| sleep(ms(10_000)));
        assert!(matches!(run.await, Err(RunError::Lost(_))));
        redlock.shutdown().await;
    })
    .await;
    let of = |name| count(&counts, name);
    assert_eq!(of("leases_lost_total not_renewed"), 1.0);
    assert_eq!(of("leases_lost_total gone"), 2.0);
    assert_eq!(of("leases_lost_total max_hold"), 1.0);
    assert_eq!(of("releases_total already_gone"), 3.0);
    assert_eq!(of("hold_seconds_count"), of("acquires_total acquired"));
    assert_eq!(of("leases_held"), 0.0);
    // One of them fails at first, and both nodes are asked again by each retry.
    assert!(of("renewals_total no_quorum") >= 1.0);
    assert_eq!(of("renewals_total ended"), 1.0);
    assert!(of("node_faults_total node1 not_connected") >= 2.0);
}

/// A future that is dropped has an outcome, too.
#[tokio::test(start_paused = true)]
async fn what_is_given_up_is_counted() {
    let hangs = Arc::new(AtomicBool::new(true));
    let hung = hangs.clone();
    let nodes = scripted_nodes(3, move |_, action| match action {
        Action::Acquire { .. } if hung.load(SeqCst) => Plan::Never,
        Action::Release { .. } => Plan::Answer(ms(50), Ok(yes(action))),
        other => at_once(Ok(yes(other))),
    });
    let counts = counts(async {
        let redlock = redlock(&nodes, Redlock::builder().ttl(ms(30_000)));
        let waiting = timeout(ms(100), redlock.lock("r").acquire()).await;
        assert!(waiting.is_err());
        hangs.store(false, SeqCst);
        drop(redlock.lock("dropped").acquire().await.unwrap());
        let lease = redlock.lock("given up").acquire().await.unwrap();
        assert!(timeout(ms(10), lease.release()).await.is_err());
        let _ = redlock.lock("detached").acquire().await.unwrap().detach();
        redlock.shutdown().await;
    });
    assert_counts(
        &counts.await,
        &[
            ("acquire_seconds_count acquired", 3.0),
            ("acquire_seconds_count cancelled", 1.0),
            ("acquires_total acquired", 3.0),
            ("acquires_total cancelled", 1.0),
            ("attempt_seconds_count acquired", 3.0),
            ("attempts_total acquired", 3.0),
            ("hold_seconds_count", 3.0),
            ("releases_total detached", 1.0),
            ("releases_total dropped", 2.0),
        ],
    );
}

/// Gauges tell what there is now.
#[tokio::test(start_paused = true)]
async fn leases_waiters_and_leftovers_are_counted_while_there_are_any() {
    let held = Arc::new(AtomicBool::new(false));
    let is_held = held.clone();
    let nodes = scripted_nodes(3, move |node, action| match action {
        Action::Acquire { .. } if is_held.load(SeqCst) => at_once(Ok(Reply::Held {
            remaining: None,
            holder: None,
        })),
        Action::Release { .. } if node == 0 => Plan::Never,
        other => at_once(Ok(yes(other))),
    });
    let (mut stays, mut waits) = (None, None);
    let counts = counts(async {
        let redlock = redlock(&nodes, Redlock::builder().ttl(ms(30_000)));
        let first = redlock.lock("a").acquire().await.unwrap();
        stays = Some(redlock.lock("b").acquire().await.unwrap());
        held.store(true, SeqCst);
        // One asks the nodes, and two are behind it.
        waits = Some([(); 3].map(|()| tokio::spawn(redlock.lock("b").forever().acquire())));
        let given_up = timeout(ms(100), redlock.lock("b").acquire()).await;
        assert!(given_up.is_err());
        let _ = first.release().await;
    })
    .await;
    let of = |name| count(&counts, name);
    assert_eq!(
        (of("leases_held"), of("waiters"), of("leftover_keys")),
        (1.0, 3.0, 1.0)
    );
    assert_eq!(of("contended_acquires_total"), 4.0);
    drop((stays, waits));
}

/// The nodes' counters differ, so the token takes a second round; and a node that has lost a key gets it again.
#[tokio::test(start_paused = true)]
async fn second_rounds_and_heals_are_counted() {
    let has_key = Arc::new(AtomicBool::new(false));
    let nodes = scripted_nodes(3, move |node, action| match action {
        Action::Acquire { .. } if node > 0 => at_once(Ok(Reply::Granted {
            counter: FencingToken::new(5 + node as u64),
        })),
        Action::Extend { .. } if node == 2 && !has_key.swap(true, SeqCst) => at_once(Ok(Reply::Missing)),
        other => at_once(Ok(yes(other))),
    });
    let counts = counts(async {
        let redlock = redlock(&nodes, Redlock::builder().ttl(ms(3_000)));
        let lease = redlock.lock("r").acquire().await.unwrap();
        sleep(ms(1_500)).await;
        let _ = lease.release().await;
    })
    .await;
    let of = |name| count(&counts, name);
    assert_eq!(
        (of("token_second_rounds_total"), of("heals_total healed")),
        (1.0, 1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn refused_writes_are_counted() {
    let counts = counts(async {
        let (old, new) = (FencingToken::new(1).unwrap(), FencingToken::new(2).unwrap());
        let mut gate = FenceGate::new();
        gate.admit(new).unwrap();
        assert!(gate.admit(old).is_err());
        gate.admit(new).unwrap();
        quorlock::count_stale_write();
    });
    assert_counts(&counts.await, &[("stale_writes_refused_total", 2.0)]);
}
