//! Ways to two holders at a time, each on real servers. Whatever happens to nodes, addresses, data and lists of nodes: while
//! one client holds a lock, no other client gets it, and tokens rise from grant to grant.
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

/// The TTL and the guard's window. Short: what must not happen after the guard either shows soon.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);
/// The same for tests in which the lease of the first client has to outlast what is done to the nodes.
pub(crate) const WIDE: Duration = Duration::from_secs(30);
/// How long connecting may take before a client is refused.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Longer than the guard and two periods of looking at nodes and names.
const LONG_ENOUGH: Duration = Duration::from_secs(6);
/// Between two attempts.
const STEP: Duration = Duration::from_millis(20);

/// The grants of one lock, in their order.
#[derive(Clone, Default)]
pub(crate) struct Holders(Arc<Mutex<Vec<Grant>>>);

struct Grant {
    holder: String,
    /// `None` once it is known to be over.
    lease: Option<LeaseHandle>,
    token: Option<FencingToken>,
}

impl Holders {
    /// Records a grant. Call it as soon as the lock is acquired.
    ///
    /// An overlap of two leases begins with a grant. So looking at all earlier leases at each grant finds every overlap.
    pub(crate) fn record(&self, holder: &str, lease: &Lease) {
        let token = lease.fencing_token();
        let mut grants = self.0.lock().unwrap();
        for earlier in grants.iter() {
            let valid = earlier.lease.as_ref().filter(|earlier| earlier.is_held());
            assert!(
                valid.is_none() || !lease.is_held(),
                "two holders of {}: {} with token {:?} has {:?} left, and {holder} got it with token {token:?} ({})",
                lease.resource(),
                earlier.holder,
                earlier.token,
                valid.map(|earlier| earlier.remaining()),
                lease.votes(),
            );
            assert!(
                earlier.token.is_none() || earlier.token < token,
                "{} had token {:?} before, and {holder} got {token:?}",
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

    /// Drops the handles of leases that are over.
    fn forget_ended(&self) {
        let mut grants = self.0.lock().unwrap();
        for grant in grants.iter_mut() {
            grant.lease = grant.lease.take().filter(|lease| lease.is_held());
        }
    }
}

/// A client that connects when it first wants a lock. If it is refused, it connects anew with the next attempt.
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

    /// One attempt. The error is what its user is told.
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

    /// Tries to get the lock of a lease until that lease is over, at most for longer than the guard lasts.
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

    /// Acquires the lock, which is to be had sooner or later.
    pub(crate) async fn acquire(&mut self, resource: &str, holders: &Holders) -> Lease {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.try_acquire(resource, holders).await {
                Ok(lease) => return lease,
                Err(error) => assert!(Instant::now() < give_up, "{} never got it: {error}", self.name),
            }
            sleep(STEP).await;
        }
    }

    /// Acquires and releases the lock.
    pub(crate) async fn succeed(&mut self, resource: &str, holders: &Holders) {
        let lease = self.acquire(resource, holders).await;
        drop(lease.release().await);
    }

    /// Ends the client. Nothing of it is left then: neither leases nor what else would keep its connections.
    pub(crate) async fn end(mut self, holders: &Holders) {
        holders.forget_ended();
        if let Some(redlock) = self.redlock.take() {
            redlock.shutdown().await;
        }
    }
}

/// Settings with short windows. Leases are renewed.
pub(crate) fn short<U: AsRef<str>>(urls: &[U]) -> RedlockBuilder {
    let builder = Redlock::builder().urls(urls).ttl(WINDOW).guard_window(WINDOW);
    builder.connect_timeout(CONNECT_WITHIN)
}

/// Settings with wide windows. Leases are not renewed, so that nothing brings keys back that nodes have lost.
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

/// Takes the lock of the first three nodes while the third is away, which is back when this returns: two nodes know of it.
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

/// A line of `INFO`.
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
