//! Renews a lease on all nodes (E1), and gives the key back to nodes that have lost it (E4).

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use super::state::{LeaseState, Phase};
use crate::error::ExtendError;
use crate::node::Reply;
use crate::protocol::quorum::Standing;
use crate::round::Round;
use crate::sys::clock::Moment;

/// E1: counted from before the send, which is returned.
///
/// Cancel safe: an extension that was sent may take effect on the nodes, but the deadline stays where it was.
pub(crate) async fn renew(hold: &Arc<LeaseState>) -> Result<Moment, ExtendError> {
    let mut round = extension(hold).await?;
    if round.tally().standing() == Standing::Unclear {
        let may_retry = round.may_retry();
        if may_retry.await {
            round = extension(hold).await?;
        }
    }
    match round.tally().standing() {
        Standing::Confirmed => {
            hold.renewed(&round)?;
            let sent = round.t0;
            // E4: only now, when a quorum has just confirmed. A lease that may be lost is never brought back.
            if !round.answers().all(|answer| answer == Some(&Ok(Reply::Extended))) {
                round.home().clone().runtime.spawn(follow_up(hold.clone(), round));
            }
            Ok(sent)
        }
        // E3: at once.
        Standing::Refused => Err(hold.gone(round.votes())),
        Standing::Unclear | Standing::Pending => Err(hold.not_renewed(round.votes())),
    }
}

/// An extension that all nodes were asked for, and how it stands.
async fn extension(hold: &Arc<LeaseState>) -> Result<Round, ExtendError> {
    let mut round = hold.send_extension()?;
    round.settle(|tally| tally.standing() != Standing::Pending).await;
    round.void_stale_votes();
    Ok(round)
}

/// Hears those who were not waited for, and heals. Nobody waits for it: it ends when the nodes' time is up, or the lease is over.
async fn follow_up(hold: Arc<LeaseState>, mut round: Round) {
    let budget = round.budget;
    let mut changes = hold.subscribe();
    let mut heals = FuturesUnordered::new();
    let mut known: Vec<usize> = (0..round.answers().len()).collect();
    known.retain(|node| round.answer(*node).is_some());
    let end = round.until(round.started + budget);
    tokio::pin!(end);
    loop {
        for node in known.drain(..) {
            match round.reply(node) {
                Some(Reply::Extended) if !round.is_stale(node) => hold.renewed_late(node, &round),
                // Not those who have failed: it is not known whether they have the key.
                Some(Reply::Missing) => heals.extend(hold.heal(node).map(|asked| timeout(budget, asked))),
                _ => {}
            }
        }
        tokio::select! {
            biased;
            _ = changes.wait_for(|state| !matches!(state.phase, Phase::Held)) => return,
            Some(healed) = heals.next() => if let Ok((node, answer)) = healed {
                hold.healed(node, &answer);
            },
            Some(node) = round.hear() => known.push(node),
            () = &mut end, if !round.is_over() => round.abandon(),
            else => return,
        }
    }
}
