//! The log: which event at which level, in which span, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{LossReason, Redlock, ReleaseOutcome};
use tokio::time::sleep;
use tracing::Instrument;

use crate::log::Log;
use crate::nodes::{ScriptedNode, at_once, ms, redlock, scripted_nodes, yes};

pub(crate) const TTL: Duration = ms(3_000);

/// Nodes that refuse the lock so many times, and do not extend while `out` is set.
pub(crate) fn nodes(refusals: usize, out: &Arc<AtomicBool>) -> Vec<Arc<ScriptedNode>> {
    let (out, asked) = (out.clone(), Arc::new(AtomicUsize::new(0)));
    scripted_nodes(3, move |node, action| match action {
        Action::Acquire { .. } if asked.fetch_add(1, SeqCst) < 3 * refusals => at_once(Ok(Reply::Held {
            remaining: Some(ms(1_000)),
            holder: None,
        })),
        Action::Extend { .. } if node > 0 && out.load(SeqCst) => at_once(Err(Fault::Disconnected {
            reason: "away".into(),
        })),
        other => at_once(Ok(yes(other))),
    })
}

/// Returns the lines of this library, without what changes from run to run.
fn lines(log: &Log) -> Vec<String> {
    let text = log.text();
    let ours = text.lines().filter(|line| line.contains("quorlock::"));
    let short = |line: &str| {
        let (_, line) = line.trim().split_once(' ').unwrap();
        let changes = ["token=", "wait_ms=", "remaining_ms=", "held_ms="];
        changes.iter().fold(line.trim().to_owned(), |line, name| {
            let mut parts = line.split(name);
            let first = parts.next().unwrap().to_owned();
            parts.fold(first, |line, part| {
                let value = part.trim_start_matches(|c: char| c.is_ascii_digit());
                format!("{line}{name}_{value}")
            })
        })
    };
    ours.map(short).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_two_spans_of_its_callers() {
    let (log, _guard) = Log::start();
    let out = Arc::new(AtomicBool::new(false));
    let redlock = redlock(&nodes(1, &out), Redlock::builder().ttl(TTL));
    let job = async {
        let lease = redlock.lock("nightly").acquire().await.unwrap();
        assert_eq!((lease.attempts(), lease.renewals()), (2, 0));
        sleep(ms(1_500)).await;
        assert_eq!(lease.renewals(), 1);
        lease
    };
    let lease = job.instrument(tracing::info_span!("job")).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let votes = "yes=0 no=3 faults=0";
    let (acquire, hold) = (
        r#"job:acquire{resource="nightly""#,
        r#"job:hold{resource="nightly" token=_}"#,
    );
    assert_eq!(
        lines(&log),
        [
            format!(
                r#"TRACE {acquire}}}:attempt{{outcome="held" {votes}}}: quorlock::acquire: attempt ended outcome="held" {votes} votes=3 nodes, quorum 2: 3 held (expires in 1s unless renewed)"#
            ),
            format!(
                r#"TRACE {acquire}}}:attempt{{outcome="acquired" yes=3 no=0 faults=0}}: quorlock::acquire: attempt ended outcome="acquired" yes=3 no=0 faults=0 votes=3 nodes, quorum 2: 3 yes"#
            ),
            format!(
                r#"DEBUG {acquire} outcome="acquired" attempts=2 wait_ms=_}}: quorlock::acquire: acquired token=_ attempts=2 wait_ms=_"#
            ),
            format!(
                r#"TRACE {hold}:renew{{outcome="renewed"}}: quorlock::lease::renew: renewed resource="nightly""#
            ),
            format!(r#"DEBUG {hold}:release{{outcome="released"}}: quorlock::lease: released held_ms=_"#),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_loss_and_what_came_before_it_are_warnings_told_once() {
    let (log, _guard) = Log::start();
    let out = Arc::new(AtomicBool::new(false));
    let redlock = redlock(&nodes(0, &out), Redlock::builder().ttl(TTL));
    let lease = redlock.lock("nightly").acquire().await.unwrap();
    out.store(true, SeqCst);
    sleep(ms(1_500)).await;
    out.store(false, SeqCst);
    sleep(ms(1_500)).await;
    out.store(true, SeqCst);
    let lost = lease.lost().await;
    assert!(matches!(lost.reason, LossReason::Expired { .. }), "{lost}");
    let warnings: Vec<String> = lines(&log)
        .into_iter()
        .filter(|line| line.starts_with("WARN"))
        .collect();
    let hold = r#"WARN hold{resource="nightly" token=_}"#;
    let cause = "3 nodes, quorum 2: 1 yes, 2 faulty; node1: not connected: away; node2: not connected: away";
    let failed = format!(
        r#"{hold}:renew{{outcome="no_quorum"}}: quorlock::lease::renew: renewal failed resource="nightly" yes=1 no=0 faults=2 remaining_ms=_ cause={cause}"#
    );
    assert_eq!(
        warnings,
        [
            failed.clone(),
            format!(
                r#"{hold}:renew{{outcome="renewed"}}: quorlock::lease::renew: renewed again resource="nightly""#
            ),
            failed,
            format!(
                r#"{hold}: quorlock::lease::state::ending: lease lost resource="nightly" reason="not_renewed" held_ms=_ cause=it expired; the last renewal failed: {cause}"#
            ),
        ]
    );
}
