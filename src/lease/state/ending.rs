//! How a lease ends, once: lost, released or dropped.

use std::time::Duration;

use super::{LeaseState, Phase, State};
use crate::error::{ExtendError, LossReason, Lost};
use crate::keys::claim::Claim;
use crate::sys::metrics;
use crate::sys::mutex::lock;
use crate::sys::timer::sleep_until;

impl LeaseState {
    /// Ends the lease as lost if its deadline has passed (E3).
    pub(crate) fn expire_if_due(&self) {
        self.apply_clock_steps();
        let reason = {
            let state = self.state.borrow();
            if !matches!(state.phase, Phase::Held) || self.context.clock.now() < state.deadline {
                return;
            }
            self.expiry(&state)
        };
        self.end_as(reason);
    }

    /// Returns the reason for a loss at the deadline.
    fn expiry(&self, state: &State) -> LossReason {
        if self.cap().is_some_and(|cap| state.deadline >= cap) {
            return LossReason::MaxHold;
        }
        let (undisturbed, slept) = state.renewed;
        let slept = self.context.clock.slept().saturating_sub(slept);
        let awake = self.context.clock.now().checked_sub(slept);
        if state.deadline < undisturbed {
            let nodes = state.expiries.shortened(|node| self.advanced(node));
            return LossReason::ClockPutForward {
                nodes: nodes.map(|node| self.nodes[node].name().clone()).collect(),
            };
        }
        if !slept.is_zero() && awake.is_some_and(|awake| awake < state.deadline) {
            return LossReason::Suspended { slept };
        }
        LossReason::Expired {
            last_failure: state.last_failure.clone(),
        }
    }

    /// Ends the lease as lost, unless it has ended already. Returns how it ended.
    pub(crate) fn end_as(&self, reason: LossReason) -> ExtendError {
        let lost = Lost {
            resource: self.resource.clone(),
            reason,
        };
        let span = self.span();
        if self.leave_held(Phase::Lost(lost.clone())) {
            let (resource, reason, held_ms) = (&*self.resource, lost.reason.kind(), self.held_ms());
            metrics::lost(self.settings.label, reason);
            span.in_scope(|| tracing::warn!(resource, reason, held_ms, cause = %lost.reason, "lease lost"));
            // Deletes the keys at once (A6).
            drop(self.take_claim());
        }
        self.how_it_ended()
    }

    /// Ends the lease as released. Returns the claim on its keys; `None` if the lease had ended already.
    pub(crate) fn end(&self) -> Option<Claim> {
        self.expire_if_due();
        if self.leave_held(Phase::Released) {
            self.take_claim()
        } else {
            None
        }
    }

    /// Ends the lease. Returns whether this call did; false if it had ended already.
    fn leave_held(&self, end: Phase) -> bool {
        lock(&self.lease_count).take();
        let has_ended = self.state.send_if_modified(|state| {
            let held = matches!(state.phase, Phase::Held);
            if held {
                state.phase = end;
            }
            held
        });
        if has_ended {
            metrics::hold_ended(self.settings.label, self.now().since(self.started));
        }
        has_ended
    }

    /// Takes the claim out, so that it is dropped, which sends requests, without the lock.
    fn take_claim(&self) -> Option<Claim> {
        self.claim().take()
    }

    pub(super) fn how_it_ended(&self) -> ExtendError {
        match &self.state.borrow().phase {
            Phase::Lost(lost) => ExtendError::Lost(lost.clone()),
            Phase::Held | Phase::Released => ExtendError::Released,
        }
    }

    /// Waits until the lease is lost, or has no more than `lead` left. Never returns if it is released first.
    pub(crate) async fn lost_or_within(&self, lead: Duration) -> Lost {
        let mut changes = self.subscribe();
        let mut jumps = self.jumps();
        loop {
            // First, so that no change after this is missed.
            jumps.mark_unchanged();
            self.apply_clock_steps();
            let deadline = {
                let state = changes.borrow_and_update();
                match &state.phase {
                    Phase::Lost(lost) => return lost.clone(),
                    Phase::Released => None,
                    Phase::Held => Some(state.deadline),
                }
            };
            let Some(deadline) = deadline else {
                return std::future::pending().await;
            };
            let due = deadline.checked_sub(lead).unwrap_or(self.started);
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                // The timer has stood still, or the deadline has moved (R4).
                _ = jumps.changed() => {}
                // By a timer, so also when no node answers (E3).
                () = sleep_until(&self.context.runtime, self.instant(due)) => {
                    self.expire_if_due();
                    let now = self.state.borrow();
                    // It may have been renewed, or ended, at the last moment.
                    if matches!(now.phase, Phase::Held) && now.deadline == deadline {
                        return Lost { resource: self.resource.clone(), reason: self.expiry(&now) };
                    }
                }
            }
        }
    }

    /// Waits until the lease is lost, released or dropped.
    pub(crate) async fn ended(&self) {
        let mut changes = self.subscribe();
        tokio::select! {
            _ = self.lost_or_within(Duration::ZERO) => {}
            _ = changes.wait_for(|state| matches!(state.phase, Phase::Released)) => {}
        }
    }
}
