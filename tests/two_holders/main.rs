//! Known ways to two holders at once, on real servers. Whatever happens to nodes, addresses, data and lists, no other client gets
//! a held lock, and tokens rise.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod databases;
mod disks;
mod growing;
mod lists;
mod losses;
mod moved;
mod names;
mod replaced;
mod replicas;
mod tokens;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorlock::node::NodeState;
use quorlock::testbed::{Data, TestNode, Testbed};
use quorlock::{FencingToken, Lease, LeaseHandle, Redlock, RedlockBuilder};
use tokio::time::sleep;

use common::{PATIENCE, eventually};

/// The TTL and the guard window. Short, so that a violation shows soon.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);
/// The same, where the first lease must outlast all changes to the nodes.
pub(crate) const WIDE: Duration = Duration::from_secs(30);
/// After this, a client counts as refused.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Longer than the guard and two look periods.
const LONG_ENOUGH: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
pub(crate) struct Holders(Arc<Mutex<Vec<Grant>>>);

struct Grant {
    holder: String,
    /// `None` once the lease is known to have ended.
    lease: Option<LeaseHandle>,
    token: Option<FencingToken>,
}

impl Holders {
    /// Records a new lease, and checks that every earlier one has ended. Each overlap begins with a grant, so this finds all.
    pub(crate) fn record(&self, holder: &str, lease: &Lease) {
        let token = lease.fencing_token();
        let mut grants = self.0.lock().unwrap();
        for earlier in grants.iter() {
            let valid = earlier.lease.as_ref().filter(|earlier| earlier.is_held());
            assert!(
                valid.is_none() || !lease.is_held(),
                "two holders of {}: {} with token {:?} has {:?} left, and {holder} got the lock with token {token:?} ({})",
                lease.resource(),
                earlier.holder,
                earlier.token,
                valid.map(|earlier| earlier.remaining()),
                lease.votes(),
            );
            assert!(
                earlier.token.is_none() || earlier.token < token,
                "tokens did not rise: {} had {:?}, and then {holder} got {token:?}",
                earlier.holder,
                earlier.token,
            );
        }
        grants.push(Grant {
            holder: holder.to_owned(),
            lease: Some(lease.handle()),
            token,
        });
    }

    fn forget_ended(&self) {
        let mut grants = self.0.lock().unwrap();
        for grant in grants.iter_mut() {
            grant.lease = grant.lease.take().filter(|lease| lease.is_held());
        }
    }
}

/// A client that connects for its first attempt, and after each refusal.
pub(crate) struct Client<'a> {
    name: &'static str,
    builder: Box<dyn Fn() -> RedlockBuilder + 'a>,
    redlock: Option<Redlock>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(name: &'static str, builder: impl Fn() -> RedlockBuilder + 'a) -> Self {
        Client {
            name,
            builder: Box::new(builder),
            redlock: None,
        }
    }

    pub(crate) async fn connected(name: &'static str, builder: impl Fn() -> RedlockBuilder + 'a) -> Self {
        let redlock = Some(builder().connect().await.unwrap());
        let client = Client::new(name, builder);
        Client { redlock, ..client }
    }

    pub(crate) fn redlock(&self) -> &Redlock {
        self.redlock.as_ref().unwrap()
    }

    /// Makes one attempt. The error is the message for the user.
    pub(crate) async fn try_acquire(&mut self, resource: &str, holders: &Holders) -> Result<Lease, String> {
        if self.redlock.is_none() {
            let connected = (self.builder)().connect().await;
            self.redlock = Some(connected.map_err(|error| error.to_string())?);
        }
        let attempt = self.redlock().lock(resource).try_acquire().await;
        let lease = attempt.map_err(|error| error.to_string())?;
        holders.record(self.name, &lease);
        Ok(lease)
    }

    /// Tries to get a lease's lock until that lease ends, or the guard must be over. Returns the new lease; `None` without one.
    pub(crate) async fn contest(&mut self, lease: &LeaseHandle, holders: &Holders) -> Option<Lease> {
        let until = Instant::now() + LONG_ENOUGH;
        while lease.is_held() && Instant::now() < until {
            if let Ok(taken) = self.try_acquire(lease.resource(), holders).await {
                return Some(taken);
            }
            sleep(STEP).await;
        }
        None
    }

    /// Acquires the lock. Panics if that takes too long.
    pub(crate) async fn acquire(&mut self, resource: &str, holders: &Holders) -> Lease {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.try_acquire(resource, holders).await {
                Ok(lease) => return lease,
                Err(error) => assert!(
                    Instant::now() < give_up,
                    "{} did not get the lock in time: {error}",
                    self.name
                ),
            }
            sleep(STEP).await;
        }
    }

    /// Acquires and releases the lock.
    pub(crate) async fn succeed(&mut self, resource: &str, holders: &Holders) {
        let lease = self.acquire(resource, holders).await;
        drop(lease.release().await);
    }

    /// Ends the client, and drops all that would keep its connections.
    pub(crate) async fn end(mut self, holders: &Holders) {
        holders.forget_ended();
        if let Some(redlock) = self.redlock.take() {
            redlock.shutdown().await;
        }
    }
}

/// Short windows. Leases are renewed.
pub(crate) fn short<U: AsRef<str>>(urls: &[U]) -> RedlockBuilder {
    let builder = Redlock::builder().urls(urls).ttl(WINDOW).guard_window(WINDOW);
    builder.connect_timeout(CONNECT_WITHIN)
}

/// Wide windows. Without renewals, no node that lost its key is healed.
pub(crate) fn wide<U: AsRef<str>>(urls: &[U]) -> RedlockBuilder {
    let builder = Redlock::builder().urls(urls).ttl(WIDE).guard_window(WIDE);
    builder.watchdog(false).connect_timeout(CONNECT_WITHIN)
}

/// Waits until a client sees all of its nodes up.
pub(crate) async fn all_up(redlock: &Redlock) {
    eventually("all nodes are up", async || {
        let states = redlock.nodes().into_iter().map(|node| node.state);
        states
            .into_iter()
            .all(|state| matches!(state, NodeState::Up { .. }))
    })
    .await;
}

/// Acquires the lock on two of three nodes. The third one is away meanwhile.
pub(crate) async fn acquire_on_two(
    testbed: &Testbed,
    first: &mut Client<'_>,
    second: &Client<'_>,
    holders: &Holders,
) -> Lease {
    let third = &testbed.nodes()[2];
    third.kill().await.unwrap();
    let lease = first.acquire("job", holders).await;
    third.restart(Data::Keep).await.unwrap();
    all_up(second.redlock()).await;
    lease
}

/// Returns a value from `INFO`; empty without one.
pub(crate) async fn info(node: &TestNode, name: &str) -> String {
    let info = node.command(&["INFO"]).await.unwrap();
    let mut lines = info.as_str().unwrap().lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}

pub(crate) async fn flush(node: &TestNode) {
    let answer = node.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"));
}
