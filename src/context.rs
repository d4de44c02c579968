//! What all parts of one manager share: its runtime and clock, and what it knows of its nodes' clocks and silences.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::node::{ClientId, Node, OwnerToken};
use crate::sys::clock::Clock;
use crate::sys::runtime::Runtime;

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Clock,
    /// Cancelled once the manager takes no new locks.
    pub(crate) closed: CancellationToken,
    /// How far each node's clock is known to have been put forward, in microseconds.
    advanced: Arc<[AtomicU64]>,
    /// Until when each node counts as unresponsive, in microseconds since `began`; zero if it does not.
    unresponsive: Arc<[AtomicU64]>,
    began: Instant,
    owners: Owners,
    /// The number of this manager in its owner tokens.
    pub(crate) client: ClientId,
}

pub(crate) type Owners = Arc<dyn Fn() -> OwnerToken + Send + Sync>;

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(
        runtime: Runtime,
        clock: Clock,
        nodes: usize,
        client: ClientId,
        owners: Owners,
    ) -> Self {
        Context {
            runtime,
            clock,
            closed: CancellationToken::new(),
            advanced: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            unresponsive: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            began: Instant::now(),
            owners,
            client,
        }
    }

    fn since_began(&self, moment: Instant) -> u64 {
        u64::try_from((moment - self.began).as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns a new owner token, for one attempt (A1).
    pub(crate) fn owner(&self) -> OwnerToken {
        (self.owners)()
    }

    /// Runs `work` on the manager's runtime: for `limit` at most, and until the manager is closed.
    pub(crate) fn in_background(&self, limit: Duration, work: impl Future<Output: Send> + Send + 'static) {
        // The timer is created in the task: the caller may be polled where there are no timers.
        let limited = async move { timeout(limit, work).await.ok() };
        let closed = self.closed.clone();
        self.runtime.spawn(closed.run_until_cancelled_owned(limited));
    }

    /// Records how far a node's clock was put forward, as its answers have shown.
    pub(crate) fn observe_clock(&self, number: usize, node: &dyn Node) {
        let advanced = u64::try_from(node.clock_advanced().as_micros()).unwrap_or(u64::MAX);
        if self.advanced[number].fetch_max(advanced, Relaxed) < advanced {
            self.clock.jumped();
        }
    }

    pub(crate) fn mark_responsive(&self, node: usize) {
        self.unresponsive[node].store(0, Relaxed);
    }

    pub(crate) fn mark_unresponsive(&self, node: usize, until: Instant) {
        self.unresponsive[node].store(self.since_began(until), Relaxed);
    }

    pub(crate) fn is_unresponsive(&self, node: usize) -> bool {
        self.since_began(Instant::now()) < self.unresponsive[node].load(Relaxed)
    }
}
