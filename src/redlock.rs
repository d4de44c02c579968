//! The manager: a set of nodes, and attempts to lock on them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio_util::sync::DropGuard;

use crate::acquire::{Acquire, SharedFailure};
use crate::context::Context;
use crate::error::{AcquireError, RunError};
use crate::keys::cleanup::Cleanup;
use crate::lease::{Lease, LeaseHandle};
use crate::node::{Fault, NodeState, Nodes};
use crate::options::{self, LockOptions, Wait};
use crate::sys::under_way::{End, UnderWay};
use crate::waiting::{Queues, Retry};

/// A set of independent Redis or Valkey masters on which locks are held.
///
/// Make one per process and clone it freely: clones share their connections, one per node, and a second one while anybody waits
/// for a lock that is held in another process. It lives on the tokio runtime
/// that it was connected on; locks may be taken from others too, and without one. When that runtime ends, its leases can no longer
/// be extended, and calls say so.
#[derive(Clone)]
pub struct Redlock {
    inner: Arc<Inner>,
}

struct Inner {
    nodes: Nodes,
    prefix: String,
    defaults: LockOptions,
    cleanup: Cleanup,
    acquires: Arc<UnderWay<Result<Lease, AcquireError>>>,
    queues: Queues<Arc<SharedFailure>>,
    _open: DropGuard,
}

/// One node of a set, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its name: an address without credentials.
    pub name: Arc<str>,
    /// What is known of it.
    pub state: NodeState,
    /// Why it gives no new locks although it is up, for a lock with the manager's own TTL and window: the restart guard
    /// ([`Fault::Restarted`](crate::node::Fault::Restarted)), or what other clients use
    /// ([`Fault::Replaced`](crate::node::Fault::Replaced), [`Fault::Unsettled`](crate::node::Fault::Unsettled),
    /// [`Fault::Unregistered`](crate::node::Fault::Unregistered), [`Fault::OtherNodes`](crate::node::Fault::OtherNodes)).
    pub left_out: Option<Fault>,
}

impl Redlock {
    pub(crate) fn from_parts(
        nodes: Nodes,
        prefix: String,
        defaults: LockOptions,
        context: Context,
    ) -> Redlock {
        let acquires = Arc::new(UnderWay::new());
        context.runtime.watch(context.clock.look_out(), {
            let acquires = Arc::downgrade(&acquires);
            move || {
                if let Some(acquires) = acquires.upgrade() {
                    acquires.end(End::RuntimeEnded);
                }
            }
        });
        let queues = Queues::new(&nodes, &context.runtime, context.closed.clone());
        let cleanup = Cleanup::new(&nodes, context);
        Redlock {
            inner: Arc::new(Inner {
                nodes,
                prefix,
                defaults,
                cleanup,
                acquires,
                _open: queues.until_closed(),
                queues,
            }),
        }
    }

    /// Begins to lock `resource`: any UTF-8 text of 1 to [`MAX_RESOURCE_BYTES`](crate::MAX_RESOURCE_BYTES) bytes.
    ///
    /// Nothing happens before [`acquire`](LockRequest::acquire), [`try_acquire`](LockRequest::try_acquire) or
    /// [`run`](LockRequest::run).
    pub fn lock(&self, resource: impl AsRef<str>) -> LockRequest {
        LockRequest {
            redlock: self.clone(),
            resource: resource.as_ref().into(),
            options: self.inner.defaults.clone(),
        }
    }

    /// The nodes, in the order in which they were configured.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        // The defaults were checked when the manager was made.
        let guard = self
            .inner
            .defaults
            .settings()
            .ok()
            .and_then(|settings| settings.guard);
        let status = |node: &Arc<dyn crate::node::Node>| NodeStatus {
            name: node.name().clone(),
            state: node.status(),
            left_out: node.left_out(guard),
        };
        self.inner.nodes.iter().map(status).collect()
    }

    /// Refuses new locks from now on, and ends every acquire under way with [`AcquireError::ShutDown`], also those whose futures
    /// are kept and not polled. Then waits until everything that dropped leases, lost attempts and cancelled calls left on nodes is
    /// deleted or has expired: at most for the longest TTL in use, and a node budget and a second more.
    ///
    /// Leases still held stay held; release them first. Call this before the runtime ends, for clean-ups end with it.
    ///
    /// # Cancel safety
    /// Cancel safe; the clean-ups go on.
    pub async fn shutdown(&self) {
        self.inner.acquires.end(End::ShutDown);
        self.inner.queues.close();
        self.inner.cleanup.finished().await;
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("nodes", &self.inner.nodes)
            .finish_non_exhaustive()
    }
}

/// A lock about to be taken. Settings made here override the manager's.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before acquire, try_acquire or run"]
pub struct LockRequest {
    redlock: Redlock,
    resource: Arc<str>,
    options: LockOptions,
}

impl LockRequest {
    /// How long the lock lives on the nodes if it is not renewed. Default 30 s; 10 ms to 365 days, in whole milliseconds, and no longer
    /// than the manager's [`guard_window`](crate::RedlockBuilder::guard_window) or its own TTL.
    ///
    /// A crashed holder blocks the resource for this long. Shorter means more renewals, and less time to bridge a pause
    /// of this process or of the network.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// How long a single node may take to answer. Default a tenth of the TTL.
    pub fn node_budget(mut self, budget: Duration) -> Self {
        self.options.node_budget = Some(budget);
        self
    }

    /// Keeps trying for this long (default 10 s), the last time at its very end. An attempt under way is finished, which
    /// takes one node budget longer, or two where a fencing token needs a second round; two more after a stop of this process.
    pub fn within(mut self, limit: Duration) -> Self {
        self.options.wait = Wait::Within(limit);
        self
    }

    /// Keeps trying for as long as it takes, provided that a quorum of nodes answers: an outage of more than a TTL (and
    /// more than 10 s) ends it with [`AcquireError::NoQuorum`]. Nodes that are left out for having restarted
    /// ([`restart_guard`](crate::RedlockBuilder::restart_guard)) are no outage.
    pub fn forever(mut self) -> Self {
        self.options.wait = Wait::Forever;
        self
    }

    /// Whether a background task renews the lease every third of its TTL. On by default.
    pub fn watchdog(mut self, on: bool) -> Self {
        self.options.watchdog = on;
        self
    }

    /// The lease is lost after this long, however often it is renewed: a bound for holders that are stuck. Off by default.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.options.max_hold = Some(most);
        self
    }

    /// `false` takes the lock without counting: there is no [fencing token](LeaseHandle::fencing_token). On by default.
    ///
    /// All users of a resource should agree: whoever takes it without fencing is not seen by the tokens of the others.
    pub fn fencing(mut self, on: bool) -> Self {
        self.options.fencing = on;
        self
    }

    /// How long each node keeps a resource's counter, from when it was started. Default 24 hours, or ten times the TTL if
    /// that is longer; at least ten times the TTL, and 5 seconds. [`Duration::MAX`] keeps it for ever, one small key for every resource
    /// that was ever locked.
    ///
    /// A counter that has expired starts again from the node's clock, and so ahead of where it was: the order of tokens then
    /// rests on clocks that agree to within this time.
    pub fn counter_retention(mut self, retention: Duration) -> Self {
        self.options.retention = Some(retention);
        self
    }

    /// Acquires the lock, trying for as long as set by [`within`](Self::within) or [`forever`](Self::forever).
    ///
    /// Those who wait for the same resource with the same manager (or a clone of it) get it in the order in which they came, and
    /// only the first of them asks the nodes. `attempts` in errors counts an acquire's own. Who waits for somebody in another
    /// process is told of the release by the nodes, and does not poll; processes take turns.
    ///
    /// # Errors
    /// [`AcquireError::Held`] if somebody else has it, [`AcquireError::NoQuorum`] if too few nodes answer: each with what
    /// every node said. [`AcquireError::RuntimeEnded`] once the runtime is gone that the manager was connected on.
    ///
    /// # Cancel safety
    /// Cancel safe at any point: whatever was set on nodes is deleted in the background.
    ///
    /// While it waits, it has its place among those of this process who want the lock, and those behind it wait until it has had
    /// its turn. So poll it, spawn it, or drop it: a future that is kept and not polled, as `select!` on `&mut future` may leave
    /// one, holds all of them up.
    pub async fn acquire(self) -> Result<Lease, AcquireError> {
        let inner = &self.redlock.inner;
        let settings = self.options.settings()?;
        let key = options::key(&inner.prefix, &self.resource)?;
        let acquire = Acquire {
            nodes: inner.nodes.clone(),
            cleanup: inner.cleanup.clone(),
            queues: inner.queues.clone(),
            resource: self.resource.clone(),
            key,
            settings,
            retry: Retry::new(self.options.wait, self.options.backoff, settings.ttl),
        };
        let call = match self.options.wait {
            // A single attempt does not wait, for its turn neither.
            Wait::Try => acquire.once().boxed(),
            Wait::Within(_) | Wait::Forever => acquire.queued().boxed(),
        };
        let outcome = inner.acquires.run(call).await;
        outcome.unwrap_or_else(|end| match end {
            End::ShutDown => Err(AcquireError::ShutDown),
            End::RuntimeEnded => Err(AcquireError::RuntimeEnded),
        })
    }

    /// Acquires the lock in a single attempt: the answer comes normally after one round trip, and within a
    /// node budget; within two where a fencing token needs a second round. (A node that fails in the middle of that may cost
    /// one more. So may what an earlier attempt has left on nodes: it is deleted first. After a stop of this process, it may take two
    /// more: the client looks at its nodes first, and makes the attempt again.)
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(mut self) -> Result<Lease, AcquireError> {
        self.options.wait = Wait::Try;
        self.acquire().await
    }

    /// Runs `work` under the lock: acquires it, renews it while `work` runs, releases it afterwards. If the lease is lost,
    /// `work` is cancelled (its future dropped) shortly *before* the deadline.
    ///
    /// ```no_run
    /// # async fn rebuild() -> u32 { 0 }
    /// # async fn example(redlock: quorlock::Redlock) -> Result<(), quorlock::RunError> {
    /// let report = redlock.lock("nightly").run(|lease| async move {
    ///     println!("held for {:?} more unless renewed", lease.remaining());
    ///     rebuild().await
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancelling takes effect where `work` awaits. Work that blocks its thread goes on past the deadline.
    ///
    /// # Errors
    /// [`RunError::Acquire`] if `work` was never started, [`RunError::Lost`] if it was cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases the lock in the background.
    pub async fn run<F, W>(self, work: F) -> Result<W::Output, RunError>
    where
        F: FnOnce(LeaseHandle) -> W,
        W: Future,
    {
        let lease = self.acquire().await?;
        // Timers are late by up to a millisecond or two.
        let lead = (lease.ttl() / 100).max(Duration::from_millis(2));
        let outcome = tokio::select! {
            biased;
            lost = lease.expiring(lead) => Err(RunError::Lost(lost)),
            output = work(lease.handle()) => Ok(output),
        };
        let released = lease.release().await;
        tracing::debug!(%released, "scoped run over");
        outcome
    }

    /// Runs work that may fail as [`run`](Self::run) does, and returns one `Result` instead of two: the work's own error, or a
    /// [`RunError`] converted into it.
    ///
    /// ```no_run
    /// # async fn rebuild() -> std::io::Result<u32> { Ok(0) }
    /// # async fn example(redlock: quorlock::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// let pages = redlock.lock("nightly").try_run(|_lease| async { Ok::<_, Box<dyn std::error::Error>>(rebuild().await?) }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What the work returned, or as [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn try_run<F, W, T, E>(self, work: F) -> Result<T, E>
    where
        F: FnOnce(LeaseHandle) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<RunError>,
    {
        self.run(work).await?
    }
}
