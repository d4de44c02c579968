//! The state of one lease: its deadline, and how it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::error::{ExtendError, LossReason, Lost, Votes};
use crate::options::Terms;
use crate::protocol::quorum::Standing;
use crate::protocol::token::FencingToken;
use crate::round::Round;
use crate::timer::sleep_until;

/// One lease, shared by its owner, its handles and its watchdog.
pub(crate) struct Hold {
    pub(crate) resource: Arc<str>,
    pub(crate) terms: Terms,
    /// What the nodes said when it was acquired.
    pub(crate) votes: Votes,
    /// F6: the same from beginning to end.
    pub(crate) token: Option<FencingToken>,
    /// A5: `t0`.
    pub(crate) started: Instant,
    /// What stands on the nodes. Taken out when the lease is over; no extension can be sent after that (E2).
    claim: Mutex<Option<Claim>>,
    home: Handle,
    state: watch::Sender<State>,
}

/// What can change about a lease.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) deadline: Instant,
    last_failure: Option<Votes>,
}

/// A lease starts as held and ends once.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Held,
    Lost(Lost),
    /// Released or dropped by its owner. Not a loss: `lost()` stays silent.
    Released,
}

impl Hold {
    pub(crate) fn new(
        resource: Arc<str>,
        terms: Terms,
        votes: Votes,
        token: Option<FencingToken>,
        claim: Claim,
        home: Handle,
    ) -> Self {
        let started = claim.sent();
        let deadline = capped(&terms, started, started + terms.believable);
        Hold {
            resource,
            terms,
            votes,
            token,
            started,
            claim: Mutex::new(Some(claim)),
            home,
            state: watch::Sender::new(State {
                phase: Phase::Held,
                deadline,
                last_failure: None,
            }),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.state.borrow().deadline
    }

    /// Held, and not past the deadline.
    pub(crate) fn is_held(&self) -> bool {
        let state = self.state.borrow();
        matches!(state.phase, Phase::Held) && Instant::now() < state.deadline
    }

    /// Whether no extension can move the deadline any more.
    pub(crate) fn is_capped(&self) -> bool {
        self.cap().is_some_and(|cap| self.deadline() >= cap)
    }

    fn cap(&self) -> Option<Instant> {
        self.terms
            .max_hold
            .and_then(|most| self.started.checked_add(most))
    }

    /// E1. Returns when it was sent.
    ///
    /// Cancel safe: an extension that was sent may take effect on the nodes, but the deadline stays where it was.
    pub(crate) async fn extend(&self) -> Result<Instant, ExtendError> {
        let mut round = self.send_extension()?;
        round.settle(|tally| tally.standing() != Standing::Pending).await;
        match round.tally().standing() {
            Standing::Confirmed => self.renew(round.started).map(|()| round.started),
            // E3: at once.
            Standing::Refused => Err(self.end_as(LossReason::Gone(round.votes()))),
            Standing::Unclear | Standing::Pending => {
                let votes = round.votes();
                self.state.send_if_modified(|state| {
                    state.last_failure = Some(votes.clone());
                    false
                });
                Err(ExtendError::NoQuorum { votes })
            }
        }
    }

    fn send_extension(&self) -> Result<Round, ExtendError> {
        self.expire_if_due();
        // E2: the claim is locked while sending, so that the deletion of a release is always behind it in every lane.
        let round = self.claim().as_mut().filter(|_| self.is_held()).map(|claim| {
            let left = self.deadline().saturating_duration_since(Instant::now());
            claim.extend(self.terms.ttl, self.terms.node_budget.min(left))
        });
        round.ok_or_else(|| {
            self.expire_if_due();
            self.how_it_ended()
        })
    }

    /// An extension sent at `sent` was confirmed.
    fn renew(&self, sent: Instant) -> Result<(), ExtendError> {
        // A confirmation that comes after the deadline does not bring back a lease that was announced as lost.
        self.expire_if_due();
        let renewed = self.state.send_if_modified(|state| {
            let held = matches!(state.phase, Phase::Held);
            if held {
                let deadline = capped(&self.terms, self.started, sent + self.terms.believable);
                state.deadline = state.deadline.max(deadline);
                state.last_failure = None;
            }
            held
        });
        if renewed { Ok(()) } else { Err(self.how_it_ended()) }
    }

    /// E3: lost if the deadline has passed.
    pub(crate) fn expire_if_due(&self) {
        let reason = {
            let state = self.state.borrow();
            if !matches!(state.phase, Phase::Held) || Instant::now() < state.deadline {
                return;
            }
            self.expiry(&state)
        };
        self.end_as(reason);
    }

    /// Why it is lost when its deadline passes.
    fn expiry(&self, state: &State) -> LossReason {
        match self.cap() {
            Some(cap) if state.deadline >= cap => LossReason::MaxHold,
            _ => LossReason::Expired {
                last_failure: state.last_failure.clone(),
            },
        }
    }

    /// Ends it as lost, unless it has ended already; returns how it did end.
    fn end_as(&self, reason: LossReason) -> ExtendError {
        let lost = Lost {
            resource: self.resource.clone(),
            reason,
        };
        if self.leave_held(Phase::Lost(lost.clone())) {
            tracing::warn!(resource = &*self.resource, reason = %lost.reason, "lease lost");
            // A6: what is left on the nodes is deleted at once.
            drop(self.take_claim());
        }
        self.how_it_ended()
    }

    /// Ends it as released. What is then to be deleted, or `None` if it has ended before.
    pub(crate) fn end(&self) -> Option<Claim> {
        self.expire_if_due();
        if self.leave_held(Phase::Released) {
            self.take_claim()
        } else {
            None
        }
    }

    /// Whether it was this call that ended it.
    fn leave_held(&self, end: Phase) -> bool {
        self.state.send_if_modified(|state| {
            let held = matches!(state.phase, Phase::Held);
            if held {
                state.phase = end;
            }
            held
        })
    }

    /// Out of the lock before it is dropped: that sends.
    fn take_claim(&self) -> Option<Claim> {
        self.claim().take()
    }

    fn how_it_ended(&self) -> ExtendError {
        match &self.state.borrow().phase {
            Phase::Lost(lost) => ExtendError::Lost(lost.clone()),
            Phase::Held | Phase::Released => ExtendError::Released,
        }
    }

    /// Waits until the lease is lost, or has no more than `lead` left. For ever if it is released first.
    pub(crate) async fn lost_or_within(&self, lead: Duration) -> Lost {
        let mut changes = self.subscribe();
        loop {
            let state = changes.borrow_and_update().clone();
            let due = match state.phase {
                Phase::Lost(lost) => return lost,
                Phase::Released => std::future::pending().await,
                Phase::Held => state.deadline.checked_sub(lead).unwrap_or(self.started),
            };
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                // E3: a timer, whatever the nodes do or do not say.
                () = sleep_until(&self.home, due) => {
                    self.expire_if_due();
                    let now = self.state.borrow();
                    // Unless it has been renewed, or has ended, at the last moment.
                    if matches!(now.phase, Phase::Held) && now.deadline == state.deadline {
                        return Lost { resource: self.resource.clone(), reason: self.expiry(&now) };
                    }
                }
            }
        }
    }

    fn claim(&self) -> MutexGuard<'_, Option<Claim>> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// E5: no deadline beyond `max_hold`.
fn capped(terms: &Terms, started: Instant, deadline: Instant) -> Instant {
    match terms.max_hold.and_then(|most| started.checked_add(most)) {
        Some(cap) => deadline.min(cap),
        None => deadline,
    }
}
