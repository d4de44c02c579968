//! A call that is dropped at any of its polls leaves no more behind than one that ends.

use std::sync::Arc;
use std::time::Duration;

use quorlock::{AcquireError, Redlock, ReleaseOutcome};
use tokio::time::{Instant, sleep};

use crate::nodes::{Server, ms, redlock};
use crate::polled::polled;

const TTL: Duration = ms(60_000);

/// Returns servers with different latencies, so that calls are polled several times.
fn servers() -> Vec<Arc<Server>> {
    (0..5)
        .map(|number| Server::new(number, move || ms(1 + 3 * number as u64)))
        .collect()
}

/// Asserts that all keys were deleted, and that none had to expire.
fn assert_clean(servers: &[Arc<Server>], polls: usize) {
    for server in servers {
        assert_eq!(server.keys(), 0, "{server:?} after {polls} polls");
        assert_eq!(
            server.expired(),
            0,
            "{server:?} after {polls} polls: a key expired"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_at_any_poll_leaves_nothing() {
    let mut most = 0;
    for polls in 0.. {
        let servers = servers();
        let manager = redlock(&servers, Redlock::builder().ttl(TTL));
        let started = Instant::now();
        let acquired = polled(manager.lock("job").acquire(), polls).await;
        let done = acquired.is_some();
        drop(acquired);
        manager.shutdown().await;
        assert!(started.elapsed() < ms(1_000));
        assert_clean(&servers, polls);
        if done {
            most = polls;
            break;
        }
    }
    assert!(most > 3, "the acquire ended after {most} polls");
}

/// The future is kept and not polled again; the shutdown ends it (L3).
#[tokio::test(start_paused = true)]
async fn an_acquire_kept_at_any_poll_leaves_nothing_after_a_shutdown() {
    for polls in 0.. {
        let servers = servers();
        let manager = redlock(&servers, Redlock::builder().ttl(TTL));
        let mut kept = Box::pin(manager.lock("job").acquire());
        let acquired = polled(&mut kept, polls).await;
        let started = Instant::now();
        manager.shutdown().await;
        assert!(started.elapsed() < ms(1_000), "after {polls} polls");
        if acquired.is_some() {
            break;
        }
        assert_clean(&servers, polls);
        assert!(matches!(kept.await, Err(AcquireError::ShutDown)));
    }
}

/// The second round raises counters (F3).
#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_while_counters_are_raised_leaves_nothing() {
    let mut raised = 0;
    for polls in 0.. {
        let servers = servers();
        for (server, counter) in servers.iter().zip([7, 3, 9, 8, 1]) {
            server.set_counter("quorlock:job", counter);
        }
        let manager = redlock(&servers, Redlock::builder().ttl(TTL));
        let acquired = polled(manager.lock("job").acquire(), polls).await;
        let done = acquired.is_some();
        drop(acquired);
        manager.shutdown().await;
        assert_clean(&servers, polls);
        raised += usize::from(!done && servers.iter().any(|server| server.raised() > 0));
        if done {
            break;
        }
    }
    assert!(raised > 0, "never dropped after a raise was sent");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_waits_dropped_at_any_poll_leaves_the_holder_alone() {
    for polls in 0..60 {
        let servers = servers();
        let holder = redlock(&servers, Redlock::builder().ttl(TTL));
        let lease = holder.lock("job").acquire().await.unwrap();
        let waiter = redlock(&servers, Redlock::builder().ttl(TTL));
        let waiting = waiter.lock("job").forever().acquire();
        assert!(polled(waiting, polls).await.is_none());
        waiter.shutdown().await;
        sleep(ms(100)).await;
        assert!(servers.iter().all(|server| server.keys() == 1));
        assert!(lease.is_held());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        holder.shutdown().await;
        assert_clean(&servers, polls);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_at_any_poll_goes_on() {
    for polls in 0.. {
        let servers = servers();
        let manager = redlock(&servers, Redlock::builder().ttl(TTL));
        let lease = manager.lock("job").acquire().await.unwrap();
        let handle = lease.handle();
        let done = polled(lease.release(), polls).await;
        assert!(!handle.is_held());
        manager.shutdown().await;
        assert_clean(&servers, polls);
        if done.is_some() {
            assert!(polls > 3);
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_dropped_at_any_poll_leaves_the_lease_as_it_was() {
    for polls in 0.. {
        let servers = servers();
        let manager = redlock(&servers, Redlock::builder().ttl(TTL).watchdog(false));
        let lease = manager.lock("job").acquire().await.unwrap();
        let before = lease.deadline();
        sleep(ms(100)).await;
        let done = polled(lease.extend(), polls).await;
        assert!(lease.is_held());
        assert_eq!(lease.deadline() > before, done.is_some());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        manager.shutdown().await;
        assert_clean(&servers, polls);
        if done.is_some() {
            assert!(polls > 3);
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_dropped_at_any_poll_leaves_nothing() {
    for polls in 0.. {
        let servers = servers();
        let manager = redlock(&servers, Redlock::builder().ttl(TTL));
        let running = manager.lock("job").run(|_| async {
            sleep(ms(50)).await;
            7
        });
        let done = polled(running, polls).await;
        manager.shutdown().await;
        assert_clean(&servers, polls);
        if let Some(outcome) = done {
            assert_eq!(outcome.unwrap(), 7);
            assert!(polls > 6);
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_dropped_at_any_poll_lets_the_clean_ups_go_on() {
    for polls in 0..5 {
        let servers = servers();
        let manager = redlock(&servers, Redlock::builder().ttl(TTL));
        drop(manager.lock("job").acquire().await.unwrap());
        polled(manager.shutdown(), polls).await;
        sleep(ms(200)).await;
        assert_clean(&servers, polls);
    }
}
