//! What operators ask and do: holders, lists of locks, locks that are broken; and leases that outlive a process.

use std::sync::Arc;
use std::time::Duration;

use super::Redlock;
use crate::acquire::attach::Attach;
use crate::error::{AttachError, ReleaseOutcome};
use crate::inspect::{Inspection, Inspector, Locks};
use crate::lease::{DetachedLease, Lease};
use crate::node::{Fault, Holder, OwnerToken};
use crate::options::{self, ConfigError, LockOptions};
use crate::sys::metrics::OutcomeGuard;
use crate::votes::Votes;

impl Redlock {
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

    /// Writes a key that expires to each node, and deletes it. Returns how long the write took, or why the node refuses writes now,
    /// in the order of [`nodes`](Self::nodes). A node that does not answer within two seconds is a fault.
    ///
    /// # Cancel safety
    /// Cancel safe: what was written expires within ten seconds.
    #[doc(hidden)]
    pub async fn check_writes(&self) -> Vec<Result<Duration, Fault>> {
        self.inspector().check_writes().await
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
        let release = self.detached(detached)?;
        let pending = OutcomeGuard::release(None);
        let outcome = release.release().await;
        pending.ended(outcome.kind());
        tracing::debug!(target: "quorlock::lease", resource = detached.resource(), outcome = outcome.kind(), "detached lease released");
        Ok(outcome)
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
}
