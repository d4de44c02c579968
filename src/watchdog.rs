//! Renews one lease (E2), and notices its end; the only long-lived task of a lease.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use crate::hold::{Hold, Phase};

/// Renews `hold` until it ends.
pub(crate) async fn watch(hold: Arc<Hold>) {
    let ttl = hold.terms.ttl;
    let mut changes = hold.subscribe();
    let mut next = hold.started + ttl / 3;
    loop {
        let deadline = {
            let state = changes.borrow_and_update();
            match state.phase {
                Phase::Held => state.deadline,
                Phase::Lost(_) | Phase::Released => return,
            }
        };
        tokio::select! {
            biased;
            _ = changes.changed() => continue,
            // E3: whatever else happens, lost at the deadline.
            () = sleep_until(deadline) => hold.expire_if_due(),
            () = sleep_until(next), if !hold.is_capped() => {
                let renewal = tokio::select! {
                    biased;
                    _ = changes.wait_for(|state| !matches!(state.phase, Phase::Held)) => return,
                    renewal = hold.extend() => renewal,
                };
                next = match renewal {
                    // E2: from the send, so that slow answers do not add up.
                    Ok(sent) => sent + ttl / 3,
                    Err(failure) => {
                        tracing::debug!(resource = &*hold.resource, %failure, "renewal failed");
                        // E2: quickly, but not all leases of an outage in step.
                        Instant::now() + (ttl / 30).mul_f64(0.5 + fastrand::f64())
                    }
                };
            }
        }
    }
}
