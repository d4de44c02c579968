//! One renewal of a lease on all nodes (E1), and the repair of nodes that have lost the key (E4).

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use super::state::{LeaseState, Phase};
use crate::error::ExtendError;
use crate::node::Reply;
use crate::protocol::quorum::Standing;
use crate::round::Round;
use crate::sys::clock::Moment;

/// Renews a lease. Returns the moment before the extension was sent, from which the new TTL counts (E1).
///
/// Cancel safe: an extension that was sent may take effect on the nodes, but the deadline stays where it was.
pub(crate) async fn renew(lease: &Arc<LeaseState>) -> Result<Moment, ExtendError> {
    let mut round = extension(lease).await?;
    if round.tally().standing() == Standing::Unclear {
        let votes = round.votes();
        // Kept as the last failure, if the lease expires meanwhile.
        let failure = lease.not_renewed(votes.clone());
        if !lease.may_retry(&votes).await {
            return Err(failure);
        }
        round = extension(lease).await?;
    }
    match round.tally().standing() {
        Standing::Confirmed => {
            lease.renewed(&round)?;
            let sent = round.t0;
            // Only now, when a quorum has just confirmed. A lease that may be lost is never brought back (E4).
            if !round.answers().all(|answer| answer == Some(&Ok(Reply::Extended))) {
                round
                    .context()
                    .clone()
                    .runtime
                    .spawn(follow_up(lease.clone(), round));
            }
            Ok(sent)
        }
        // A loss is announced at once (E3).
        Standing::Refused => Err(lease.gone(round.votes())),
        Standing::Unclear | Standing::Pending => Err(lease.not_renewed(round.votes())),
    }
}

/// Sends one extension, and waits until enough nodes have answered.
async fn extension(lease: &Arc<LeaseState>) -> Result<Round, ExtendError> {
    let mut round = lease.send_extension()?;
    round.settle(|tally| tally.standing() != Standing::Pending).await;
    round.void_stale_votes();
    Ok(round)
}

/// Hears nodes that the renewal did not wait for, and sets the key again where it is missing. Ends when the nodes' budget is
/// over, or the lease has ended.
async fn follow_up(lease: Arc<LeaseState>, mut round: Round) {
    let budget = round.budget;
    let mut changes = lease.subscribe();
    let mut heals = FuturesUnordered::new();
    let mut known: Vec<usize> = (0..round.answers().len()).collect();
    known.retain(|node| round.answer(*node).is_some());
    let end = round.until(round.started + budget);
    tokio::pin!(end);
    loop {
        for node in known.drain(..) {
            match round.reply(node) {
                Some(Reply::Extended) if !round.is_stale(node) => lease.renewed_late(node, &round),
                // A node that has failed may have the key.
                Some(Reply::Missing) => heals.extend(lease.heal(node).map(|asked| timeout(budget, asked))),
                _ => {}
            }
        }
        tokio::select! {
            biased;
            _ = changes.wait_for(|state| !matches!(state.phase, Phase::Held)) => return,
            Some(healed) = heals.next() => if let Ok((node, answer)) = healed {
                lease.healed(node, &answer);
            },
            Some(node) = round.next_answer() => known.push(node),
            () = &mut end, if !round.is_over() => round.abandon(),
            else => return,
        }
    }
}
