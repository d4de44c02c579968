//! A held lock: deadline, loss signal, extension, release.
//!
//! Entry point: [`Lease`]. `state.rs` has the deadline and the end, `renew.rs` one renewal, `watchdog.rs` the task that renews. This
//! folder knows nothing of waiting: the lock has been acquired. Rules: E, L.

mod renew;
pub(crate) mod state;
mod watchdog;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{ExtendError, Lost, ReleaseOutcome, Votes};
use crate::protocol::token::FencingToken;
use renew::renew;
use state::LeaseState;

/// A lock that is held, until it is released, dropped or lost.
///
/// It is a *lease*: it ends by itself at its [`deadline`](LeaseHandle::deadline), whether this process notices or not. By
/// default a watchdog renews it every third of its TTL. [`lost`](LeaseHandle::lost) tells when that has failed; stop
/// what the lock protects then. Where it matters, let the protected store check as well.
///
/// Dropping a lease releases it in the background; [`release`](Self::release) does so in the foreground and tells how
/// that went. Either way, who asks next with the same manager is behind the deletion on each node that answers. Everything
/// that needs no ownership is on [`LeaseHandle`], to which a lease dereferences.
#[must_use = "dropping a lease releases the lock"]
pub struct Lease {
    handle: LeaseHandle,
}

impl Lease {
    pub(crate) fn start(state: LeaseState) -> Lease {
        let state = Arc::new(state);
        if state.terms.watchdog {
            state.runtime().spawn(watchdog::watch(state.clone()));
        }
        Lease {
            handle: LeaseHandle { state },
        }
    }

    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.handle.state
    }

    /// A handle to this lease, for other tasks.
    pub fn handle(&self) -> LeaseHandle {
        self.handle.clone()
    }

    /// Releases the lock: stops the watchdog, then deletes the key on all nodes if it is still ours. Returns when a
    /// quorum has answered.
    ///
    /// Whatever the outcome, this lease is over. It is a value and not an error, for there is nothing to do about it;
    /// but [`AlreadyGone`](ReleaseOutcome::AlreadyGone) tells that the protected work may have overlapped with
    /// somebody else's.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> ReleaseOutcome {
        match self.handle.state.end() {
            Some(claim) => claim.release().await,
            // It was lost, and is being cleaned up since.
            None => ReleaseOutcome::AlreadyGone,
        }
    }
}

impl Deref for Lease {
    type Target = LeaseHandle;

    fn deref(&self) -> &LeaseHandle {
        &self.handle
    }
}

impl Drop for Lease {
    /// L2. Neither blocks nor panics, also outside of a runtime.
    fn drop(&mut self) {
        drop(self.handle.state.end());
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
    /// What is locked.
    pub fn resource(&self) -> &str {
        &self.state.resource
    }

    /// Tells this lease from earlier ones: larger than the token of any lease on this resource that was acquired before this
    /// attempt began. Stays the same however often the lease is extended. `None` with
    /// [`fencing(false)`](crate::LockRequest::fencing) only.
    ///
    /// Send it with every write, and have the store refuse smaller ones than it has seen. That is what keeps a holder that
    /// was paused for longer than its lease from overwriting the work of the next one; no lock can. `docs/stores.md` has patterns for
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

    /// The moment from which on the lock must be taken for lost. Moves when the lease is extended; never beyond
    /// `t0 + TTL - drift`, with `t0` from before the last successful request was sent.
    ///
    /// It may also come nearer: when the machine was suspended meanwhile, or nodes' clocks turn out to have been put forward.
    /// So ask again rather than keep it, or wait for [`lost`](Self::lost) or [`expiring`](Self::expiring).
    pub fn deadline(&self) -> Instant {
        self.state.instant(self.state.deadline()).into_std()
    }

    /// Time until the deadline; zero once it has passed, or the lease has ended otherwise.
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Whether the lease is neither lost nor released, and its deadline has not passed.
    ///
    /// By the time the answer is looked at, it may be out of date: good for giving up early, no proof for a write.
    pub fn is_held(&self) -> bool {
        self.state.is_held()
    }

    /// The TTL as set on the nodes.
    pub fn ttl(&self) -> Duration {
        self.state.terms.ttl
    }

    /// What the nodes said when the lock was acquired. Those that were not waited for are without an answer.
    pub fn votes(&self) -> &Votes {
        &self.state.votes
    }

    /// Waits until the lease is lost: at the deadline at the latest, whether any node answers or not; earlier when a quorum of
    /// nodes denies it, which is found out at the next renewal, every third of the TTL. If the lease is released or dropped
    /// first, it waits for ever.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(lease: quorlock::Lease) -> Result<(), quorlock::Lost> {
    /// tokio::select! {
    ///     () = work() => {}
    ///     lost = lease.lost() => return Err(lost),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> Lost {
        self.state.lost_or_within(Duration::ZERO).await
    }

    /// Waits until the lease is lost *or has no more than `lead` left*: time to wind up in, as long as it is still held.
    ///
    /// With a watchdog, a lease that is renewed has never less than about 60 % of its TTL left. A longer `lead` than
    /// that would resolve although nothing is wrong.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn expiring(&self, lead: Duration) -> Lost {
        self.state.lost_or_within(lead).await
    }

    /// Asks all nodes to let the lock expire a full TTL from now. Returns the time then left.
    ///
    /// Not needed with a watchdog. Never shortens anything.
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
