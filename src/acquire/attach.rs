//! Goes on with a lease that another process has detached, or releases it (H6).

use std::sync::Arc;

use tokio::time::Instant;
use tracing::Span;

use crate::error::{AttachError, LossReason, Lost, ReleaseOutcome};
use crate::keys::claim::Claim;
use crate::keys::cleanup::Cleanup;
use crate::lease::state::{LeaseState, Taken};
use crate::lease::{DetachedLease, Lease};
use crate::node::Nodes;
use crate::options::LockSettings;
use crate::protocol::quorum::Standing;
use crate::sys::spans;
use crate::waiting::{QueueId, Queues};

use super::{SharedFailure, start};

/// A detached lease, and what it takes to go on with it.
pub(crate) struct Attach<'a> {
    pub(crate) nodes: &'a Nodes,
    pub(crate) cleanup: &'a Cleanup,
    pub(crate) queues: &'a Queues<Arc<SharedFailure>>,
    pub(crate) key: Arc<str>,
    pub(crate) settings: LockSettings,
    pub(crate) detached: &'a DetachedLease,
}

impl Attach<'_> {
    /// Asks the nodes to keep the lock. If a quorum confirms, the lease is held from before the request was sent (E1).
    pub(crate) async fn attach(self) -> Result<Lease, AttachError> {
        let (settings, began) = (self.settings, Instant::now());
        // Deletes nothing if it is dropped before the lease is confirmed.
        let mut claim = self.claim();
        let mut round = claim.extend(&settings, settings.node_budget);
        round.settle(|tally| tally.standing() != Standing::Pending).await;
        round.void_stale_votes();
        let votes = round.votes();
        match round.tally().standing() {
            Standing::Confirmed => {}
            Standing::Refused => return Err(self.lost(LossReason::Gone(votes)).into()),
            Standing::Unclear | Standing::Pending => return Err(AttachError::NoQuorum { votes }),
        }
        let expiries = claim.expiries(&votes, &settings);
        if claim.context().clock.now() >= claim.kept_until(&expiries) {
            return Err(AttachError::NoQuorum { votes });
        }
        let id = QueueId::new(&self.key, &settings);
        let (holder, slot) = self.queues.got(id, round.round_trip());
        claim.take_over(Some(Arc::new(holder)));
        let (resource, token) = (self.detached.resource.clone(), self.detached.token);
        claim.hold(spans::hold(
            &Span::current(),
            &resource,
            settings.label,
            token.map(u64::from),
        ));
        let taken = Taken::now(1, began.elapsed());
        let state = LeaseState::new(resource, settings, votes, token, expiries, claim, taken);
        Ok(start(state, slot))
    }

    /// Deletes the keys, as a release does.
    pub(crate) async fn release(self) -> ReleaseOutcome {
        let mut claim = self.claim();
        claim.take_over(None);
        claim.release().await
    }

    fn claim(&self) -> Claim {
        let DetachedLease { owner, token, .. } = *self.detached;
        Claim::of_detached(
            self.nodes,
            self.cleanup,
            self.key.clone(),
            owner,
            token,
            &self.settings,
        )
    }

    fn lost(&self, reason: LossReason) -> Lost {
        Lost {
            resource: self.detached.resource.clone(),
            reason,
        }
    }
}
