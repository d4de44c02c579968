//! A request for one lock.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::Span;

use super::inner::Inner;
use crate::acquire::Acquire;
use crate::error::{AcquireError, Lost, RunError};
use crate::lease::{Lease, LeaseHandle};
use crate::options::{self, ConfigError, LockOptions, Wait};
use crate::period::Period;
use crate::sys::running_calls::End;
use crate::waiting::Retry;

/// A request for a lock. Its settings override the manager's.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before acquire, try_acquire or run"]
pub struct LockRequest {
    redlock: Arc<Inner>,
    resource: Arc<str>,
    options: LockOptions,
}

impl LockRequest {
    pub(super) fn new(redlock: Arc<Inner>, resource: Arc<str>) -> LockRequest {
        LockRequest {
            options: redlock.defaults.clone(),
            redlock,
            resource,
        }
    }

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

    /// Keeps the lock for at least this time, counted from the start of the attempt that acquired it, however early the lease is
    /// released or dropped. Off by default; at most the TTL.
    ///
    /// For a scheduled job that is shorter than the difference between the hosts' clocks. The process need not live on: nodes let
    /// the lock expire. [Detaching](Lease::detach) a lease ends its minimum hold.
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.options.min_hold = least;
        self
    }

    /// Adds a label to this request's metrics and to its spans in the log, such as `invoices` for the locks of all invoices. A
    /// constant, because a label for each resource would be too many.
    pub fn label(mut self, label: &'static str) -> Self {
        self.options.label = Some(label);
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
        let inner = &self.redlock;
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
            caller: Span::current(),
        };
        let is_queued = self.options.wait != Wait::Try;
        let outcome = inner.acquires.run(acquire.run(is_queued)).await;
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
        let outcome = run_under(&lease, work).await;
        let _ = lease.release().await;
        Ok(outcome?)
    }

    /// Runs work once in each period of this length, in whichever process comes first: acquires the lock, asks whether the work is
    /// [done](LeaseHandle::is_done) in the period that contains this call, or since, and if not, runs it as [`run`](Self::run)
    /// does. If it returns `Ok`, marks the period as done in which it began. Returns `None` if the work is done already.
    ///
    /// Periods are counted from 1970, in UTC: see [`Period`]. Use one length for a resource. The work is run again if it fails, if
    /// the lease is lost, or if the nodes lose the mark with their data. [`min_hold`](Self::min_hold) holds if the work is run.
    ///
    /// ```no_run
    /// # async fn rebuild() -> std::io::Result<u32> { Ok(0) }
    /// # async fn example(redlock: quorlock::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3_600);
    /// let report = redlock.lock("nightly").forever();
    /// match report.run_once_per(DAY, |_lease| async { Ok::<_, Box<dyn std::error::Error>>(rebuild().await?) }).await? {
    ///     Some(pages) => println!("{pages} pages"),
    ///     None => println!("another host has done it today"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What the work returned, or as [`run`](Self::run). [`RunError::PeriodUnknown`] if the work was not started for that reason,
    /// [`RunError::NotMarked`] if it was done and not marked. [`ConfigError::Period`] if the length is not in whole seconds from 1 s
    /// to 365 days, [`ConfigError::MinHold`] if a minimum hold is longer than the TTL.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run). If the future is dropped after the work, the period may be marked or not.
    pub async fn run_once_per<F, W, T, E>(mut self, length: Duration, work: F) -> Result<Option<T>, E>
    where
        F: FnOnce(LeaseHandle) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<RunError>,
    {
        let period = Period::containing(SystemTime::now(), length)
            .ok_or(AcquireError::Config(ConfigError::Period { length }))
            .map_err(RunError::Acquire)?;
        self.options
            .settings()
            .map_err(AcquireError::Config)
            .map_err(RunError::Acquire)?;
        // Not for work that turns out to be done.
        let min_hold = std::mem::take(&mut self.options.min_hold);
        let lease = self.acquire().await.map_err(RunError::Acquire)?;
        let once = async {
            if lease.is_done(period).await.map_err(RunError::PeriodUnknown)? {
                return Ok(None);
            }
            lease
                .min_hold(min_hold)
                .map_err(AcquireError::Config)
                .map_err(RunError::Acquire)?;
            let period = period.or_later(SystemTime::now());
            let output = run_under(&lease, work).await.map_err(RunError::Lost)??;
            lease.mark_done(period).await.map_err(RunError::NotMarked)?;
            Ok(Some(output))
        };
        let outcome = once.await;
        let _ = lease.release().await;
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

/// Runs work until it is done, or until shortly before the lease ends.
async fn run_under<F, W>(lease: &Lease, work: F) -> Result<W::Output, Lost>
where
    F: FnOnce(LeaseHandle) -> W,
    W: Future,
{
    // Timers are late by up to a millisecond or two.
    let lead = (lease.ttl() / 100).max(Duration::from_millis(2));
    let outcome = match lease.remaining() <= lead {
        // The work may begin without awaiting anything.
        true => Err(lease.expiring(lead).await),
        false => tokio::select! {
            biased;
            lost = lease.expiring(lead) => Err(lost),
            output = work(lease.handle()) => Ok(output),
        },
    };
    if let Err(lost) = &outcome {
        // The work has ended for this reason, and so does the lease: as lost, not as released.
        lease.state().end_as(lost.reason.clone());
    }
    outcome
}
