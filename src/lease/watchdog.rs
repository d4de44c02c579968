//! The only long-lived task of a lease: renews it (E2), and ends it at its deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep_until;

use super::deletion::DeletionWatch;
use super::renew::renew;
use super::state::{LeaseState, Phase};

/// From when on a lease listens for deletions: locks that are held for a moment cost no connections. A lease that renews as often
/// as this does not listen at all.
const LISTENS_AFTER: Duration = Duration::from_secs(1);
/// Longest time after a renewal until an announced deletion causes the next one.
const DOUBT: Duration = Duration::from_secs(1);

/// Renews the lease until it ends.
pub(crate) async fn watch(lease: Arc<LeaseState>) {
    let ttl = lease.settings.ttl;
    let mut changes = lease.subscribe();
    let mut jumps = lease.jumps();
    let mut next = lease.started + ttl / 3;
    let listens_from = lease.started + LISTENS_AFTER;
    let is_slow = ttl / 3 > LISTENS_AFTER;
    let mut deletion: Option<DeletionWatch> = None;
    let mut renewed = lease.started;
    // A deletion was announced: also a lease whose deadline cannot move asks the nodes.
    let mut is_doubted = false;
    let mut latest = lease.started + lease.settings.cap_at_max_hold(lease.settings.validity);
    loop {
        // First, so that no change after this is missed.
        jumps.mark_unchanged();
        let deadline = lease.deadline();
        if !matches!(changes.borrow_and_update().phase, Phase::Held) {
            return;
        }
        // If nodes' clocks were put forward, the deadline came nearer. The next renewal comes earlier by the same time, so that it
        // is in time while a quorum has the key.
        next = next.checked_sub(latest.since(deadline)).unwrap_or(lease.started);
        latest = deadline;
        tokio::select! {
            biased;
            _ = changes.changed() => continue,
            // The timers have stood still, or the deadline has moved (R4).
            _ = jumps.changed() => continue,
            // Another client says that it has deleted a key, or may have done so before this one listened: the nodes tell. Forged
            // announcements cause a renewal a second at most.
            () = announced(deletion.as_ref()) => {
                next = next.min(lease.now().max(renewed + (ttl / 30).min(DOUBT)));
                is_doubted = true;
            }
            // Lost at the deadline, whatever else happens (E3).
            () = sleep_until(lease.instant(deadline)) => lease.expire_if_due(),
            () = sleep_until(lease.instant(listens_from)), if is_slow && deletion.is_none() => {
                deletion = Some(DeletionWatch::of(&lease));
            }
            () = sleep_until(lease.instant(next)), if !lease.is_capped() || is_doubted => {
                let renewal = tokio::select! {
                    biased;
                    _ = changes.wait_for(|state| !matches!(state.phase, Phase::Held)) => return,
                    renewal = renew(&lease) => renewal,
                };
                (renewed, is_doubted) = (lease.now(), false);
                next = match renewal {
                    // From when it was sent, so that slow answers do not add up (E2).
                    Ok(sent) => sent + ttl / 3,
                    Err(_) => {
                        // Quickly, but not in step with the other leases of an outage (E2).
                        lease.now() + (ttl / 30).mul_f64(0.5 + fastrand::f64())
                    }
                };
            }
        }
    }
}

/// Waits until a deletion is announced. For ever without a watch.
async fn announced(deletion: Option<&DeletionWatch>) {
    match deletion {
        Some(deletion) => deletion.announced().await,
        None => std::future::pending().await,
    }
}
