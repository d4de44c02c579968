//! A process that did not run for a while: other clients have stopped relying on it until it has looked at its nodes again.

use std::thread;
use std::time::Duration;

use quorlock::{Redlock, ReleaseOutcome};

use super::testbed;

const TTL: Duration = Duration::from_secs(9);
/// Longer than the look period, a sixth of the guard window.
const STOPPED: Duration = Duration::from_millis(1_700);

async fn connect(urls: Vec<String>, restart_guard: bool) -> Redlock {
    let builder = Redlock::builder().urls(urls).restart_guard(restart_guard);
    let builder = builder.ttl(TTL).guard_window(TTL).watchdog(false);
    builder.connect().await.unwrap()
}

/// The test's only thread, and so the client, too.
fn stop() {
    thread::sleep(STOPPED);
}

#[tokio::test]
async fn a_process_that_was_stopped_gets_a_lock_with_its_first_attempt() {
    let testbed = testbed(5, false).await;
    let redlock = connect(testbed.urls(), false).await;
    let attempt = async || {
        stop();
        let lease = redlock.lock("r").try_acquire().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    };
    attempt().await;
    attempt().await;
    // Nor does a node that hangs change that.
    testbed.nodes()[0].stop().unwrap();
    attempt().await;
    testbed.nodes()[0].resume().unwrap();
    testbed.shutdown().await;
}

#[tokio::test]
async fn a_process_that_was_stopped_extends_its_lease_with_the_first_attempt() {
    let testbed = testbed(5, false).await;
    // Without the guard, renewals count in any case.
    let redlock = connect(testbed.urls(), true).await;
    let lease = redlock.lock("r").forever().acquire().await.unwrap();
    for _ in 0..2 {
        stop();
        lease.extend().await.unwrap();
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    testbed.shutdown().await;
}
