//! Work that is done once in a period: asks the nodes whether it is done, and marks it (L5).

use std::time::{Duration, SystemTime};

use super::LeaseHandle;
use super::state::LeaseState;
use crate::error::PeriodError;
use crate::node::{Action, Reply, SetMark};
use crate::period::{DoneMark, Period};
use crate::protocol::quorum::{Verdict, quorum};
use crate::round::Round;
use crate::sys::timer::timeout;

/// How long to wait for all nodes (the TTL, if that is shorter).
const BUDGET: Duration = Duration::from_secs(1);

impl LeaseHandle {
    /// Asks the nodes whether this resource's work is [marked as done](Self::mark_done) in `period`, or in a later one of the same
    /// length. Waits for all nodes, for a second (the TTL, if that is shorter); then for a quorum, for a node budget. If some nodes
    /// lack the mark, sets it there, which takes as long again.
    ///
    /// Ask under the lock: as long as the lease is held, no other holder marks a period. The mark is lost if every node that has
    /// it loses its data. It expires one period after its end. A mark of another length replaces it: use one length per resource.
    ///
    /// # Errors
    /// [`PeriodError`] if no quorum of nodes answers that it has the lock, and none of them has the mark.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_done(&self, period: Period) -> Result<bool, PeriodError> {
        let now = SystemTime::now();
        let round = ask(&self.state, None).await;
        let marks: Vec<Option<DoneMark>> = (0..round.answers().len())
            .filter_map(|node| match round.reply(node) {
                Some(Reply::Mark { mark }) => Some(mark.filter(|mark| period.is_done_by(*mark, now))),
                _ => None,
            })
            .collect();
        let Some(latest) = marks.iter().flatten().max_by_key(|mark| mark.end_ms) else {
            return match marks.len() >= quorum(round.answers().len()) {
                true => Ok(false),
                false => Err(PeriodError::NoQuorum { votes: round.votes() }),
            };
        };
        // Nodes that were down when the period was marked, or have lost the mark, get it now.
        if marks.iter().any(|mark| mark.as_ref() != Some(latest)) {
            let repaired = mark_all(&self.state, period, *latest).await;
            tracing::debug!(resource = self.resource(), ?repaired, "mark set on more nodes");
        }
        Ok(true)
    }

    /// Marks this resource's work as done in `period`, on all nodes. Call it when the work has succeeded, before the release. A mark
    /// of a later period stays.
    ///
    /// # Errors
    /// [`PeriodError`] if no quorum of nodes confirms. A later holder may then do the work once more in this period. It may be
    /// tried again as long as the lease is held.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have the mark. A later holder that meets one of them takes the work for done.
    pub async fn mark_done(&self, period: Period) -> Result<(), PeriodError> {
        mark_all(&self.state, period, period.mark()).await
    }
}

async fn mark_all(lease: &LeaseState, period: Period, mark: DoneMark) -> Result<(), PeriodError> {
    let now = SystemTime::now();
    let set = SetMark {
        mark,
        ttl: mark.ttl(now),
        latest_plausible_ms: period.latest_plausible_mark(now).end_ms,
    };
    let votes = ask(lease, Some(set)).await.votes();
    match votes.yes() >= votes.quorum() {
        true => Ok(()),
        false => Err(PeriodError::NoQuorum { votes }),
    }
}

/// Reads the mark on all nodes, or sets it.
async fn ask(lease: &LeaseState, set: Option<SetMark>) -> Round {
    let settings = &lease.settings;
    let budget = settings.node_budget.max(settings.ttl.min(BUDGET));
    let mut round = lease.ask(Action::Mark { set }, budget);
    // All nodes are heard, but a quorum does not wait for long for one that hangs.
    let all = round.settle(|_| false);
    if timeout(lease.runtime(), BUDGET.min(budget), all).await.is_none() {
        round.settle(|tally| tally.verdict() != Verdict::Pending).await;
    }
    round
}
