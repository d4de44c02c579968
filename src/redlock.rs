//! The manager: a set of nodes, and requests for locks on them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio_util::sync::DropGuard;

use crate::acquire::attach::Attach;
use crate::acquire::{Acquire, SharedFailure};
use crate::clients::Clients;
use crate::context::Context;
use crate::error::{AcquireError, AttachError, ReleaseOutcome, RunError};
use crate::inspect::{Inspection, Inspector, Locks};
use crate::keys::cleanup::Cleanup;
use crate::lease::{DetachedLease, Lease, LeaseHandle};
use crate::node::{Fault, Holder, NodeState, Nodes, OwnerToken};
use crate::options::{self, ConfigError, LockOptions, Wait};
use crate::sys::running_calls::{End, RunningCalls};
use crate::votes::Votes;
use crate::waiting::{Queues, Retry};

/// A set of independent Redis or Valkey masters that hold locks.
///
/// Create one per process and clone it freely. Clones share one connection per node, and a second one while a task waits for
/// another process, or a lease that was renewed is held.
///
/// It uses the tokio runtime that it was connected on. Locks may be taken from other runtimes, and without one. When its
/// runtime ends, leases can no longer be extended, and calls return an error.
#[derive(Clone)]
pub struct Redlock {
    inner: Arc<Inner>,
}

struct Inner {
    nodes: Nodes,
    prefix: String,
    defaults: LockOptions,
    cleanup: Cleanup,
    acquires: Arc<RunningCalls<Result<Lease, AcquireError>>>,
    queues: Queues<Arc<SharedFailure>>,
    clients: Clients,
    _open: DropGuard,
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node's name: an address without credentials.
    pub name: Arc<str>,
    /// Whether it is connected and may vote.
    pub state: NodeState,
    /// Why it gives no new locks although it is up, with the manager's own TTL and guard window; `None` if nothing prevents it.
    ///
    /// The restart guard ([`Fault::Restarted`](crate::node::Fault::Restarted)), or what other clients use
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
        let acquires = Arc::new(RunningCalls::new());
        context.runtime.watch(context.clock.watch_for_suspension(), {
            let acquires = Arc::downgrade(&acquires);
            move || {
                if let Some(acquires) = acquires.upgrade() {
                    acquires.end(End::RuntimeEnded);
                }
            }
        });
        let queues = Queues::new(&nodes, &context.runtime, context.closed.clone());
        let clients = Clients::new(&nodes, &context);
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
                clients,
            }),
        }
    }

    /// Returns a request to lock `resource`: any UTF-8 text of 1 to [`MAX_RESOURCE_BYTES`](crate::MAX_RESOURCE_BYTES) bytes.
    ///
    /// Nothing is sent before [`acquire`](LockRequest::acquire), [`try_acquire`](LockRequest::try_acquire) or
    /// [`run`](LockRequest::run).
    pub fn lock(&self, resource: impl AsRef<str>) -> LockRequest {
        LockRequest {
            redlock: self.clone(),
            resource: resource.as_ref().into(),
            options: self.inner.defaults.clone(),
        }
    }

    /// Returns the nodes' states, in the order in which the nodes were configured.
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

    /// Reads from all nodes who has a lock, without taking it. Takes three seconds at most: a node that does not answer within two
    /// is a fault.
    ///
    /// The answer may be out of date when it arrives: use it to look, not to decide whether to write.
    ///
    /// # Errors
    /// [`ConfigError`] if the name is invalid.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn inspect(&self, resource: impl AsRef<str>) -> Result<Inspection, ConfigError> {
        let resource: Arc<str> = resource.as_ref().into();
        let key = options::key(&self.inner.prefix, &resource)?;
        Ok(self.inspector().inspect(resource, key).await)
    }

    /// Lists the locks under the prefix whose names match a pattern of Redis (`*` for all), from all nodes, without taking them.
    /// Needs the right `+scan`.
    ///
    /// Memory does not grow with the number of locks. Each node is busy for less than a millisecond at a time.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorlock::Redlock) {
    /// let mut locks = redlock.locks("*");
    /// while let Some(lock) = locks.next().await {
    ///     println!("{}: {}", lock.resource, lock.status);
    /// }
    /// # }
    /// ```
    pub fn locks(&self, pattern: &str) -> Locks {
        Locks::new(self.inspector(), pattern, false)
    }

    /// As [`locks`](Self::locks), with locks that are not held and of which only a counter of fencing tokens is left.
    pub fn locks_and_counters(&self, pattern: &str) -> Locks {
        Locks::new(self.inspector(), pattern, true)
    }

    /// Takes a lock away from its holder: deletes its keys where they hold `owner`, which [`inspect`](Self::inspect) has shown.
    /// Another holder's keys stay.
    ///
    /// A lease with a watchdog ends as [`Gone`](crate::LossReason::Gone). It learns of the break at once if it was renewed before and
    /// its client may subscribe, otherwise with its next renewal. A holder that hangs does not notice, and may go on to write
    /// when it wakes up: only a store that checks fencing tokens refuses that.
    ///
    /// Returns each node's answer, after two seconds at most: [`Released`](crate::node::Reply::Released) if it deleted the key,
    /// [`Missing`](crate::node::Reply::Missing), or [`Foreign`](crate::node::Reply::Foreign) for another owner's key. If less than
    /// a quorum deleted it, the lease goes on, and sets the key again.
    ///
    /// # Errors
    /// [`ConfigError`] if the name is invalid.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the deletions back.
    pub async fn break_lock(
        &self,
        resource: impl AsRef<str>,
        owner: OwnerToken,
    ) -> Result<Votes, ConfigError> {
        let key = options::key(&self.inner.prefix, resource.as_ref())?;
        Ok(self.inspector().break_lock(key, owner).await)
    }

    /// Goes on with a lease that was [detached](Lease::detach), here or in another process: asks the nodes to keep the lock for its
    /// TTL from now. The lease has the same fencing token.
    ///
    /// Use it in one process at a time. If two go on with one lease, both hold the lock.
    ///
    /// # Errors
    /// [`AttachError::Lost`] if the lock is no longer this lease's; [`AttachError::NoQuorum`] if too few nodes answered.
    ///
    /// # Cancel safety
    /// Cancel safe: nodes may keep the lock for longer.
    pub async fn attach(&self, detached: &DetachedLease) -> Result<Lease, AttachError> {
        self.detached(detached)?.attach().await
    }

    /// Releases a lease that was [detached](Lease::detach), here or in another process.
    ///
    /// # Errors
    /// [`ConfigError`] if its name or TTL is invalid for this manager.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background.
    pub async fn release_detached(&self, detached: &DetachedLease) -> Result<ReleaseOutcome, ConfigError> {
        Ok(self.detached(detached)?.release().await)
    }

    fn detached<'a>(&'a self, detached: &'a DetachedLease) -> Result<Attach<'a>, ConfigError> {
        let inner = &self.inner;
        let options = LockOptions {
            ttl: Some(detached.ttl()),
            fencing: detached.fencing_token().is_some(),
            ..inner.defaults.clone()
        };
        Ok(Attach {
            nodes: &inner.nodes,
            cleanup: &inner.cleanup,
            queues: &inner.queues,
            key: options::key(&inner.prefix, detached.resource())?,
            settings: options.settings()?,
            detached,
        })
    }

    /// Returns the holder with its description, if a node has it. Takes a second at most. The nodes are not asked again for five
    /// seconds.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn identify(&self, holder: Holder) -> Holder {
        self.inner.clients.identify(holder).await
    }

    fn inspector(&self) -> Inspector {
        Inspector {
            nodes: self.inner.nodes.clone(),
            prefix: (*self.inner.prefix).into(),
            clients: self.inner.clients.clone(),
            context: self.inner.cleanup.context().clone(),
        }
    }

    /// Refuses new locks, ends running acquires with [`AcquireError::ShutDown`], and waits until leftovers on nodes are gone.
    ///
    /// Acquires end even if their futures are kept and not polled. Leftovers come from dropped leases, lost attempts and
    /// cancelled calls. They are deleted, or expire: after the longest TTL in use, a node budget and a second at most.
    ///
    /// Leases that are held stay held; release them first. Call this before the runtime ends: deletions end with it.
    ///
    /// # Cancel safety
    /// Cancel safe; the deletions go on.
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

/// A request for a lock. Its settings override the manager's.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before acquire, try_acquire or run"]
pub struct LockRequest {
    redlock: Redlock,
    resource: Arc<str>,
    options: LockOptions,
}

impl LockRequest {
    /// Sets how long the lock lives on the nodes if it is not renewed. Default 30 s; 10 ms to 365 days, rounded down to
    /// milliseconds. At most the manager's [`guard_window`](crate::RedlockBuilder::guard_window), or its own TTL if longer.
    ///
    /// A crashed holder blocks the resource for this long. A shorter TTL needs more renewals, and bridges shorter pauses of
    /// this process or the network.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how long one node may take to answer. Default a tenth of the TTL.
    pub fn node_budget(mut self, budget: Duration) -> Self {
        self.options.node_budget = Some(budget);
        self
    }

    /// Keeps trying for this time, with a last attempt at its end. Default 10 s.
    ///
    /// The last attempt takes up to one node budget longer; two if a fencing token needs a second round. It takes two more
    /// after a stop of this process.
    pub fn within(mut self, limit: Duration) -> Self {
        self.options.wait = Wait::Within(limit);
        self
    }

    /// Keeps trying as long as a quorum of nodes answers. An outage of more than a TTL (and more than 10 s) ends it with
    /// [`AcquireError::NoQuorum`].
    ///
    /// Nodes that the [`restart_guard`](crate::RedlockBuilder::restart_guard) leaves out are no outage.
    pub fn forever(mut self) -> Self {
        self.options.wait = Wait::Forever;
        self
    }

    /// Sets whether a background task renews the lease every third of its TTL. On by default.
    pub fn watchdog(mut self, on: bool) -> Self {
        self.options.watchdog = on;
        self
    }

    /// Ends the lease as lost after this time, however often it is renewed: a limit for holders that hang. Off by default.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.options.max_hold = Some(most);
        self
    }

    /// Sets whether the lease gets a [fencing token](LeaseHandle::fencing_token). On by default; `false` counts nothing.
    ///
    /// All users of a resource should agree: a lease without a token is not ordered with the others.
    pub fn fencing(mut self, on: bool) -> Self {
        self.options.fencing = on;
        self
    }

    /// Sets how long each node keeps a resource's counter after it was started. Default 24 hours, or ten TTLs if that is
    /// longer; at least ten TTLs, and 5 seconds. [`Duration::MAX`] keeps it for ever: one small key for each resource that was
    /// ever locked.
    ///
    /// An expired counter starts again from the node's clock, ahead of its old value. Tokens then rise only if clocks agree to
    /// within this time.
    pub fn counter_retention(mut self, retention: Duration) -> Self {
        self.options.retention = Some(retention);
        self
    }

    /// Acquires the lock. Keeps trying as set by [`within`](Self::within) or [`forever`](Self::forever).
    ///
    /// Tasks that wait for one resource through one manager (or its clones) get the lock in the order in which they came. Only
    /// the first of them asks the nodes; `attempts` in errors counts an acquire's own. The nodes notify waiters of releases by
    /// other processes, so waiters do not poll. Processes take turns.
    ///
    /// # Errors
    /// [`AcquireError::Held`] if the lock is held, [`AcquireError::NoQuorum`] if too few nodes vote: both have every node's
    /// answer. [`AcquireError::RuntimeEnded`] if the manager's runtime has ended.
    ///
    /// # Cancel safety
    /// Cancel safe at any point: keys that were set on nodes are deleted in the background.
    ///
    /// A waiting acquire has a place in the queue of this process, and the tasks behind it wait for it. So poll it, spawn it,
    /// or drop it. A future that is kept and not polled, as after `select!` on `&mut future`, holds all of them up.
    pub async fn acquire(self) -> Result<Lease, AcquireError> {
        let inner = &self.redlock.inner;
        let settings = self.options.settings()?;
        let key = options::key(&inner.prefix, &self.resource)?;
        let acquire = Acquire {
            nodes: inner.nodes.clone(),
            cleanup: inner.cleanup.clone(),
            queues: inner.queues.clone(),
            clients: inner.clients.clone(),
            resource: self.resource.clone(),
            key,
            settings,
            retry: Retry::new(self.options.wait, self.options.backoff, settings.ttl),
        };
        let call = match self.options.wait {
            // A single attempt does not queue.
            Wait::Try => acquire.once().boxed(),
            Wait::Within(_) | Wait::Forever => acquire.queued().boxed(),
        };
        let outcome = inner.acquires.run(call).await;
        outcome.unwrap_or_else(|end| match end {
            End::ShutDown => Err(AcquireError::ShutDown),
            End::RuntimeEnded => Err(AcquireError::RuntimeEnded),
        })
    }

    /// Acquires the lock in a single attempt. The answer normally comes after one round trip, and within a node budget.
    ///
    /// Each of these may add a node budget: a second round for the fencing token; a node that fails during that round;
    /// leftovers of an earlier attempt, which are deleted first. After a stop of this process, the client checks its nodes and
    /// repeats the attempt, which may add two.
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

    /// Runs `work` under the lock: acquires it, renews it while `work` runs, and releases it afterwards. If the lease is lost,
    /// `work` is cancelled (its future is dropped) shortly *before* the deadline.
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
    /// The cancellation takes effect when `work` awaits. Work that blocks its thread goes on past the deadline.
    ///
    /// # Errors
    /// [`RunError::Acquire`] if `work` was not started, [`RunError::Lost`] if it was cancelled.
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
        tracing::debug!(%released, "scoped run ended");
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
