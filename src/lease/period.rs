//! Work that is done once in a period: asks the nodes whether it is done, and marks it (L5).

use std::time::{Duration, SystemTime};

use super::LeaseHandle;
use super::state::LeaseState;
use crate::error::PeriodError;
use crate::node::{Action, DoneMark, Reply};
use crate::period::Period;
use crate::round::Round;

/// Shortest time for a node to answer (the TTL, if that is shorter).
const BUDGET: Duration = Duration::from_secs(1);

impl LeaseHandle {
    /// Asks the nodes whether this resource's work is [marked as done](Self::mark_done) in `period`. Takes one round trip to the
    /// slowest node that answers within a node budget.
    ///
    /// Ask under the lock: as long as the lease is held, no other holder marks the period. The mark is lost if every node loses
    /// its data that has it.
    ///
    /// # Errors
    /// [`PeriodError`] if no quorum of nodes answers that it has the lock, and none of them has the mark.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_done(&self, period: Period) -> Result<bool, PeriodError> {
        let round = ask(&self.state, None).await;
        let marks: Vec<bool> = (0..round.answers().len())
            .filter_map(|node| match round.reply(node) {
                Some(Reply::Done { until_ms }) => Some(until_ms.is_some_and(|mark| period.is_done_by(mark))),
                _ => None,
            })
            .collect();
        let is_done = marks.contains(&true);
        if !is_done && marks.len() < round.votes().quorum() {
            return Err(PeriodError::NoQuorum { votes: round.votes() });
        }
        // Nodes that were down when the period was marked, or have lost the mark, get it now.
        if is_done && marks.contains(&false) {
            let repaired = self.mark_done(period).await;
            tracing::debug!(resource = self.resource(), ?repaired, "mark set on more nodes");
        }
        Ok(is_done)
    }

    /// Marks this resource's work as done in `period`, on all nodes. Call it when the work has succeeded, before the release.
    ///
    /// # Errors
    /// [`PeriodError`] if no quorum of nodes confirms. A later holder may then do the work once more in this period. It may be
    /// tried again as long as the lease is held.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have the mark. A later holder that meets one of them takes the work for done.
    pub async fn mark_done(&self, period: Period) -> Result<(), PeriodError> {
        let mark = DoneMark {
            until_ms: period.mark(),
            ttl: period.mark_ttl(SystemTime::now()),
        };
        let votes = ask(&self.state, Some(mark)).await.votes();
        match votes.yes() >= votes.quorum() {
            true => Ok(()),
            false => Err(PeriodError::NoQuorum { votes }),
        }
    }
}

/// Reads the mark on all nodes, or sets it. Waits for all nodes that answer in time.
async fn ask(lease: &LeaseState, mark: Option<DoneMark>) -> Round {
    let settings = &lease.settings;
    let budget = settings.node_budget.max(settings.ttl.min(BUDGET));
    let mut round = lease.ask(Action::Done { mark }, budget);
    round.settle(|_| false).await;
    round
}
