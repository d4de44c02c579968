//! Renews one lease (E2), and notices its end; the only long-lived task of a lease.

use std::sync::Arc;

use tokio::time::sleep_until;

use super::renew::renew;
use super::state::{LeaseState, Phase};

/// Renews `hold` until it ends.
pub(crate) async fn watch(hold: Arc<LeaseState>) {
    let ttl = hold.terms.ttl;
    let mut changes = hold.subscribe();
    let mut jumps = hold.jumps();
    let mut next = hold.started + ttl / 3;
    let mut latest = hold.started + hold.terms.most(hold.terms.believable);
    loop {
        // Before it is looked at: what changes from here on is noticed.
        jumps.mark_unchanged();
        let deadline = hold.deadline();
        if !matches!(changes.borrow_and_update().phase, Phase::Held) {
            return;
        }
        // What nodes' clocks that were put forward have taken off, the next renewal comes earlier by: as long as a quorum has
        // the key, that is made good in time. For a large step that is at once, for many small ones not each time.
        next = next.checked_sub(latest.since(deadline)).unwrap_or(hold.started);
        latest = deadline;
        tokio::select! {
            biased;
            _ = changes.changed() => continue,
            // R4: the timers have stood still, or the deadline has moved.
            _ = jumps.changed() => continue,
            // E3: whatever else happens, lost at the deadline.
            () = sleep_until(hold.instant(deadline)) => hold.expire_if_due(),
            () = sleep_until(hold.instant(next)), if !hold.is_capped() => {
                let renewal = tokio::select! {
                    biased;
                    _ = changes.wait_for(|state| !matches!(state.phase, Phase::Held)) => return,
                    renewal = renew(&hold) => renewal,
                };
                next = match renewal {
                    // E2: from the send, so that slow answers do not add up.
                    Ok(sent) => sent + ttl / 3,
                    Err(failure) => {
                        tracing::debug!(resource = &*hold.resource, %failure, "renewal failed");
                        // E2: quickly, but not all leases of an outage in step.
                        hold.now() + (ttl / 30).mul_f64(0.5 + fastrand::f64())
                    }
                };
            }
        }
    }
}
