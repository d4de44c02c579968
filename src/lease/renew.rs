//! One renewal of a lease on all nodes (E1), and the repair of nodes that have lost the key (E4).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;
use tracing::{Instrument, Span};

use super::state::{LeaseState, Phase};
use crate::error::ExtendError;
use crate::node::Reply;
use crate::protocol::quorum::Standing;
use crate::round::Round;
use crate::sys::clock::Moment;
use crate::sys::{metrics, millis, spans};

/// Renews a lease. Returns the moment before the extension was sent, from which the new TTL counts (E1).
///
/// Cancel safe: an extension that was sent may take effect on the nodes, but the deadline stays where it was.
pub(crate) async fn renew(lease: &Arc<LeaseState>) -> Result<Moment, ExtendError> {
    let span = spans::renew(&lease.span());
    renew_now(lease)
        .inspect(|outcome| log(lease, outcome))
        .instrument(span)
        .await
}

/// Logs the outcome, in the span of the renewal. A failure is a warning if the renewal before was none, and so is the next success.
fn log(lease: &LeaseState, outcome: &Result<Moment, ExtendError>) {
    let resource = &*lease.resource;
    let name = match outcome {
        Ok(_) => "renewed",
        Err(ExtendError::NoQuorum { .. }) => "no_quorum",
        Err(ExtendError::Lost(_) | ExtendError::Released) => "ended",
    };
    Span::current().record("outcome", name);
    metrics::renewal(lease.settings.label, name);
    let fails = matches!(outcome, Err(ExtendError::NoQuorum { .. }));
    let failed = lease.renewal_fails.swap(fails, Relaxed);
    match outcome {
        Ok(_) if failed => tracing::warn!(resource, "renewed again"),
        Ok(_) => tracing::trace!(resource, "renewed"),
        Err(ExtendError::NoQuorum { votes }) if !failed => {
            let (yes, no, faults) = (votes.yes(), votes.no(), votes.faults());
            let remaining_ms = millis(lease.remaining());
            tracing::warn!(resource, yes, no, faults, remaining_ms, cause = %votes, "renewal failed");
        }
        // Told already, or told as the end of the lease.
        Err(_) => {}
    }
}

async fn renew_now(lease: &Arc<LeaseState>) -> Result<Moment, ExtendError> {
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
                    .spawn(follow_up(lease.clone(), round).instrument(lease.span()));
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
            Some(healed) = heals.next() => match healed {
                Ok((node, answer)) => lease.healed(node, &answer),
                Err(_) => metrics::heal("failed"),
            },
            Some(node) = round.next_answer() => known.push(node),
            () = &mut end, if !round.is_over() => round.abandon(),
            else => return,
        }
    }
}
