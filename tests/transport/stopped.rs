//! After a process was stopped, votes count only once it has looked at its nodes again (M3).

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

/// Stops the client, which runs on this thread.
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
    // A node that hangs makes no difference.
    testbed.nodes()[0].stop().unwrap();
    attempt().await;
    testbed.nodes()[0].resume().unwrap();
    testbed.shutdown().await;
}

#[tokio::test]
async fn a_process_that_was_stopped_extends_its_lease_with_the_first_attempt() {
    let testbed = testbed(5, false).await;
    // With the guard off, renewals count in any case.
    let redlock = connect(testbed.urls(), true).await;
    let lease = redlock.lock("r").forever().acquire().await.unwrap();
    for _ in 0..2 {
        stop();
        lease.extend().await.unwrap();
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    testbed.shutdown().await;
}
