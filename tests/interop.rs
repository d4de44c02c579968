//! With an empty key prefix, locks are shared with other clients: here with `rslock`, on the same five nodes.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::Duration;

use common::{ask, eventually, unguarded};
use quorlock::testbed::Testbed;
use quorlock::{AcquireError, Lease, Redlock, ReleaseOutcome};
use rslock::{Lock, LockError, LockManager};

const RESOURCE: &str = "shared";
const TTL: Duration = Duration::from_secs(30);

struct Both {
    testbed: Testbed,
    ours: Redlock,
    theirs: LockManager,
}

impl Both {
    async fn start() -> Both {
        let testbed = Testbed::start(5).await.unwrap();
        let builder = unguarded(testbed.urls()).key_prefix("").ttl(TTL);
        let ours = builder.connect().await.unwrap();
        let theirs = LockManager::new(testbed.urls());
        Both {
            testbed,
            ours,
            theirs,
        }
    }

    async fn lock_ours(&self) -> Result<Lease, AcquireError> {
        self.ours.lock(RESOURCE).acquire().await
    }

    async fn lock_theirs(&self) -> Result<Lock, LockError> {
        self.theirs.lock(RESOURCE, TTL).await
    }

    async fn values(&self) -> Vec<Option<Vec<u8>>> {
        let mut values = Vec::new();
        for url in self.testbed.urls() {
            values.push(ask(&url, &[b"GET", RESOURCE.as_bytes()]).await.unwrap());
        }
        values
    }

    async fn copies(&self) -> usize {
        self.values().await.iter().flatten().count()
    }

    async fn free(&self) {
        eventually("the lock is free", || async { self.copies().await == 0 }).await;
    }

    async fn spread(&self) {
        eventually("the lock is on all nodes", || async { self.copies().await == 5 }).await;
    }
}

#[tokio::test]
async fn ours_excludes_theirs_until_it_is_released() {
    let both = Both::start().await;
    for _ in 0..3 {
        let lease = both.lock_ours().await.unwrap();
        both.spread().await;
        let refused = both.lock_theirs().await;
        assert!(matches!(refused, Err(LockError::Unavailable)), "{refused:?}");
        // Failed attempts of `rslock` delete only their own token.
        assert_eq!(both.copies().await, 5);
        assert!(lease.extend().await.is_ok());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        both.free().await;

        let lock = both.lock_theirs().await.unwrap();
        both.theirs.unlock(&lock).await;
        both.free().await;
    }
    both.testbed.shutdown().await;
}

#[tokio::test]
async fn theirs_excludes_ours_until_it_is_released() {
    let both = Both::start().await;
    for fencing in [true, false] {
        let lock = both.lock_theirs().await.unwrap();
        both.spread().await;
        let before = both.values().await;
        let request = both.ours.lock(RESOURCE).fencing(fencing);
        let refused = request.clone().try_acquire().await;
        match &refused {
            Err(AcquireError::Held { votes, .. }) => {
                assert!(votes.no() >= 3);
                assert!(votes.longest_remaining().unwrap() <= TTL);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(both.values().await, before, "quorlock changed keys of rslock");
        assert!(both.theirs.extend(&lock, TTL).await.is_ok());
        both.theirs.unlock(&lock).await;
        both.free().await;

        let lease = request.acquire().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        both.free().await;
    }
    both.testbed.shutdown().await;
}

#[tokio::test]
async fn neither_deletes_the_others_key_after_a_takeover() {
    let both = Both::start().await;
    let short = Duration::from_millis(300);

    // The lease has expired, and `rslock` takes over.
    let request = both.ours.lock(RESOURCE).ttl(short).watchdog(false);
    let lease = request.acquire().await.unwrap();
    lease.lost().await;
    both.free().await;
    let lock = both.lock_theirs().await.unwrap();
    both.spread().await;
    assert!(lease.extend().await.is_err());
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
    assert_eq!(both.copies().await, 5);
    both.theirs.unlock(&lock).await;
    both.free().await;

    // The lock of `rslock` has expired.
    let lock = both.theirs.lock(RESOURCE, short).await.unwrap();
    let lease = both.lock_ours().await.unwrap();
    both.spread().await;
    both.theirs.unlock(&lock).await;
    assert_eq!(both.copies().await, 5);
    assert!(lease.is_held());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    both.testbed.shutdown().await;
}
