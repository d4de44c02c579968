//! A held lock: deadline, loss signal, extension, release.
//!
//! Entry point: [`Lease`]. `state.rs` has the deadline, `state/ending.rs` the end, `renew.rs` one renewal, `watchdog.rs` the task
//! that renews, `deletion.rs` listens for deletions by other clients, `detached.rs` is a lease that no process has, `period.rs`
//! marks work that is done once in a period. This folder knows nothing of waiting: the lock has been acquired. Rules: E, L, H5.

mod deletion;
mod detached;
mod period;
mod renew;
pub(crate) mod state;
mod watchdog;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::error::{ExtendError, Lost, ReleaseOutcome};
use crate::node::OwnerToken;
use crate::options::ConfigError;
use crate::protocol::token::FencingToken;
use crate::sys::metrics::{self, OutcomeGuard};
use crate::sys::spans;
use crate::votes::Votes;
pub use detached::{DetachedLease, NotAHandle};
use renew::renew;
use state::LeaseState;

/// A lock that is held, until it is released, dropped or lost.
///
/// It is a *lease*: it ends by itself at its [`deadline`](LeaseHandle::deadline), whether this process notices or not. By
/// default a watchdog renews it every third of its TTL. [`lost`](LeaseHandle::lost) tells when that has failed; stop
/// what the lock protects then. Where it matters, let the protected store check as well.
///
/// Dropping a lease releases it in the background; [`release`](Self::release) does so in the foreground and tells how
/// that went. Either way, a later acquire through the same `Redlock` is ordered after the deletion on each node that answers.
/// Everything that needs no ownership is on [`LeaseHandle`], to which a lease dereferences.
#[must_use = "dropping a lease releases the lock"]
pub struct Lease {
    handle: LeaseHandle,
}

impl Lease {
    pub(crate) fn start(state: LeaseState) -> Lease {
        let state = Arc::new(state);
        if state.settings.watchdog {
            let span = state.span();
            state
                .runtime()
                .spawn(watchdog::watch(state.clone()).instrument(span));
        }
        Lease {
            handle: LeaseHandle { state },
        }
    }

    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.handle.state
    }

    /// Returns a handle to this lease, for other tasks.
    pub fn handle(&self) -> LeaseHandle {
        self.handle.clone()
    }

    /// Releases the lock: stops the watchdog, then deletes the key on all nodes if it is still ours. Returns when a
    /// quorum has answered.
    ///
    /// Whatever the outcome, this lease has ended. The outcome is a value and not an error, because no caller can do anything about
    /// it. But after [`AlreadyGone`](ReleaseOutcome::AlreadyGone), the protected work may have overlapped with another holder's.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> ReleaseOutcome {
        let state = &self.handle.state;
        // Without a claim, the lease was lost, and its keys are being deleted since.
        let pending = OutcomeGuard::release(state.settings.label);
        let Some(claim) = state.end() else {
            pending.ended(ReleaseOutcome::AlreadyGone.kind());
            return ReleaseOutcome::AlreadyGone;
        };
        let span = spans::release(claim.span());
        let outcome = claim.release().instrument(span.clone()).await;
        pending.ended(outcome.kind());
        span.in_scope(|| report_release(state, &outcome));
        outcome
    }

    /// Keeps the lock for at least this time, as [`LockRequest::min_hold`](crate::LockRequest::min_hold) does. For work that may turn
    /// out not to be due: call this when it starts. Does nothing once the lease has ended.
    ///
    /// # Errors
    /// [`ConfigError::MinHold`] if it is longer than the TTL.
    pub fn min_hold(&self, least: Duration) -> Result<(), ConfigError> {
        let state = &self.handle.state;
        let ttl = state.settings.ttl;
        if least > ttl {
            return Err(ConfigError::MinHold { min_hold: least, ttl });
        }
        state.keep_for(least);
        Ok(())
    }

    /// Takes the lease out of this process's hands: it is neither renewed nor released any more, and its lock stays held until
    /// its TTL is over. Another process may [go on with it](crate::Redlock::attach). Returns `None` if the lease had ended.
    ///
    /// For locks that outlive a process, such as the steps of a script. If no process goes on with it, the lock blocks the
    /// resource for the rest of the TTL.
    pub fn detach(self) -> Option<DetachedLease> {
        let state = &self.handle.state;
        state.end()?.detach();
        metrics::released(state.settings.label, "detached");
        Some(DetachedLease {
            resource: state.resource.clone(),
            owner: state.owner,
            token: state.token,
            ttl: state.settings.ttl,
        })
    }
}

impl Deref for Lease {
    type Target = LeaseHandle;

    fn deref(&self) -> &LeaseHandle {
        &self.handle
    }
}

impl Drop for Lease {
    /// Releases in the background (L2). Neither blocks nor panics, also outside of a runtime.
    fn drop(&mut self) {
        let state = &self.handle.state;
        if let Some(claim) = state.end() {
            metrics::released(state.settings.label, "dropped");
            let _entered = claim.span().enter();
            tracing::debug!(
                held_ms = state.held_ms(),
                "dropped: is released in the background"
            );
        }
    }
}

/// Logs the outcome of a release, in its span.
fn report_release(state: &LeaseState, outcome: &ReleaseOutcome) {
    Span::current().record("outcome", outcome.kind());
    match outcome {
        ReleaseOutcome::Released => tracing::debug!(held_ms = state.held_ms(), "released"),
        // A loss that nobody knew of.
        ReleaseOutcome::AlreadyGone => {
            let (resource, held_ms) = (&*state.resource, state.held_ms());
            tracing::warn!(resource, held_ms, "gone before it was released");
            metrics::lost(state.settings.label, "gone");
        }
        ReleaseOutcome::Uncertain(votes) => {
            tracing::debug!(held_ms = state.held_ms(), cause = %votes, "release not confirmed");
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("Lease", f)
    }
}

/// A view of a [`Lease`]: may watch and extend it, but not release it. Cheap to clone.
#[derive(Clone)]
pub struct LeaseHandle {
    state: Arc<LeaseState>,
}

impl LeaseHandle {
    /// Returns the locked resource.
    pub fn resource(&self) -> &str {
        &self.state.resource
    }

    /// Returns the value of the lock's keys on the nodes. A client that knows it can delete them.
    pub fn owner(&self) -> OwnerToken {
        self.state.owner
    }

    /// Returns the fencing token. It is larger than the token of every lease on this resource that was acquired before this
    /// attempt began. Extensions do not change it. `None` with [`fencing(false)`](crate::LockRequest::fencing) only.
    ///
    /// Send it with every write, and have the store refuse a token that is smaller than the largest it has seen. No lock can keep a
    /// holder that was paused for longer than its lease from writing; the store can. `docs/stores.md` has patterns for
    /// databases; [`FenceGate`](crate::FenceGate) is one for data in the process.
    ///
    /// ```
    /// # fn show(lease: &quorlock::Lease) {
    /// // As a parameter of a statement that ends in `AND fencing_token <= $1`. NULL, where there is none, updates nothing.
    /// let parameter: Option<i64> = lease.fencing_token().map(i64::from);
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.state.token
    }

    /// Returns the moment at which the lock counts as lost. An extension moves it, to `t0 + TTL - drift` at most, where `t0` is from
    /// before the last successful request was sent.
    ///
    /// It may also come nearer: if the machine was suspended, or if nodes' clocks were put forward.
    /// So call this again instead of keeping the value, or wait for [`lost`](Self::lost) or [`expiring`](Self::expiring).
    pub fn deadline(&self) -> Instant {
        self.state.instant(self.state.deadline()).into_std()
    }

    /// Returns the time until the deadline; zero once the lease has ended.
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Returns whether the lease is held: neither lost nor released, and its deadline has not passed.
    ///
    /// The answer may be out of date when the caller reads it. Use it to give up early, not to justify a write.
    pub fn is_held(&self) -> bool {
        self.state.is_held()
    }

    /// Returns how many attempts it took to acquire the lock; 1 if it was attached.
    pub fn attempts(&self) -> u32 {
        self.state.taken.attempts
    }

    /// Returns how long it took to acquire the lock, from the call on.
    pub fn waited(&self) -> Duration {
        self.state.taken.waited
    }

    /// Returns when the lock was acquired, by this machine's clock.
    pub fn acquired_at(&self) -> SystemTime {
        self.state.taken.at
    }

    /// Returns how often the lease was renewed or extended so far.
    pub fn renewals(&self) -> u64 {
        self.state.renewals()
    }

    /// Returns the TTL that is set on the nodes.
    pub fn ttl(&self) -> Duration {
        self.state.settings.ttl
    }

    /// Returns the nodes' answers to the acquire. Nodes that it did not wait for have none.
    pub fn votes(&self) -> &Votes {
        &self.state.votes
    }

    /// Waits until the lease is lost: at the deadline at the latest, also if no node answers. Earlier if a quorum of nodes denies
    /// the lease, which the watchdog learns with its next renewal, every third of the TTL. Of a
    /// [break](crate::Redlock::break_lock) it learns at once, or in the first second of the lease at the end of that second. Never returns if the
    /// lease is released or dropped first.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(lease: quorlock::Lease) -> Result<(), quorlock::Lost> {
    /// tokio::select! {
    ///     biased; // a loss comes before a result
    ///     lost = lease.lost() => return Err(lost),
    ///     () = work() => {}
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> Lost {
        self.state.lost_or_within(Duration::ZERO).await
    }

    /// Waits until the lease is lost *or has no more than `lead` left*: time to stop the work while the lock is still held.
    ///
    /// With a watchdog, a lease that is renewed in time always has about 60 % of its TTL left. With a longer `lead`, this returns
    /// although nothing is wrong.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn expiring(&self, lead: Duration) -> Lost {
        self.state.lost_or_within(lead).await
    }

    /// Returns a token that is cancelled when the lease ends: when it is lost, as [`lost`](Self::lost) tells, and when it is released or
    /// dropped. For work that is spread over tasks. It is cancelled too when the runtime ends on which the manager was connected.
    ///
    /// Each call starts a task that ends with the lease: call it once, and clone the token.
    pub fn cancellation_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        let (state, cancels) = (self.state.clone(), token.clone().drop_guard());
        self.state.runtime().spawn(async move {
            state.ended().await;
            drop(cancels);
        });
        token
    }

    /// Asks all nodes to keep the lock for a full TTL from now. Returns the time until the new deadline.
    ///
    /// Not needed with a watchdog. Never shortens a lease.
    ///
    /// # Errors
    /// [`ExtendError::NoQuorum`] changes nothing: the old deadline stands, and it may be tried again.
    /// [`ExtendError::Lost`] if the lease has been lost, also if a quorum of nodes says so now.
    ///
    /// # Cancel safety
    /// Cancel safe: nodes may extend, but the deadline stays where it was.
    pub async fn extend(&self) -> Result<Duration, ExtendError> {
        renew(&self.state).await?;
        Ok(self.remaining())
    }

    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("resource", &self.resource())
            .field("held", &self.is_held())
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("LeaseHandle", f)
    }
}
