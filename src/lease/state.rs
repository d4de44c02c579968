//! The state of one lease: its deadline, and how it ends.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{ExtendError, LossReason, Lost, Votes};
use crate::keys::claim::Claim;
use crate::keys::late_grants::LateGrants;
use crate::node::Reply;
use crate::options::Terms;
use crate::protocol::expiry::Expiries;
use crate::protocol::token::FencingToken;
use crate::round::{Answer, Before, Home, Nodes, Outstanding, Round};
use crate::sys::clock::{Moment, Watched};
use crate::sys::mutex::lock;
use crate::sys::runtime::Runtime;
use crate::sys::timer::sleep_until;

/// One lease, shared by its owner, its handles, its watchdog, and what follows its renewals up.
pub(crate) struct LeaseState {
    pub(crate) resource: Arc<str>,
    pub(crate) terms: Terms,
    /// What the nodes said when it was acquired.
    pub(crate) votes: Votes,
    /// F6: the same from beginning to end.
    pub(crate) token: Option<FencingToken>,
    /// A5: `t0`.
    pub(crate) started: Moment,
    nodes: Nodes,
    /// Grants that were not waited for, and how it was with each node before.
    late_grants: (LateGrants, Vec<Before>),
    /// What stands on the nodes. Taken out when the lease is over; no extension can be sent after that (E2).
    claim: Mutex<Option<Claim>>,
    home: Home,
    jumps: watch::Receiver<u64>,
    state: watch::Sender<State>,
    /// Until it ends.
    watched: Mutex<Option<Watched>>,
}

/// What can change about a lease.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Until when a quorum of nodes keeps the key, as far as is known.
    pub(crate) deadline: Moment,
    /// What that was before clocks jumped, and how long this machine had been suspended by then.
    renewed: (Moment, Duration),
    expiries: Expiries,
    /// How many jumps are taken into account.
    jumps: u64,
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

impl LeaseState {
    pub(crate) fn new(
        resource: Arc<str>,
        terms: Terms,
        votes: Votes,
        token: Option<FencingToken>,
        expiries: Expiries,
        mut claim: Claim,
    ) -> Self {
        let started = claim.t0();
        let deadline = started + terms.most(terms.believable);
        let home = claim.home().clone();
        let hold = LeaseState {
            resource,
            terms,
            votes,
            token,
            started,
            nodes: claim.nodes().clone(),
            late_grants: claim.take_late_grants(),
            claim: Mutex::new(Some(claim)),
            jumps: home.clock.jumps(),
            watched: Mutex::new(Some(home.clock.lease())),
            state: watch::Sender::new(State {
                phase: Phase::Held,
                deadline,
                renewed: (deadline, home.clock.slept()),
                expiries,
                jumps: 0,
                last_failure: None,
            }),
            home,
        };
        hold.look_at_clocks();
        hold
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Notice of jumps: deadlines are to be looked at anew, and timers to be set anew.
    pub(crate) fn jumps(&self) -> watch::Receiver<u64> {
        self.jumps.clone()
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.look_at_clocks();
        self.state.borrow().deadline
    }

    /// How long it is held for, unless it is extended; zero once it is over.
    pub(crate) fn remaining(&self) -> Duration {
        self.look_at_clocks();
        let state = self.state.borrow();
        match state.phase {
            Phase::Held => state.deadline.since(self.home.clock.now()),
            Phase::Lost(_) | Phase::Released => Duration::ZERO,
        }
    }

    /// Held, and not past the deadline.
    pub(crate) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) fn now(&self) -> Moment {
        self.home.clock.now()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.home.runtime
    }

    /// When it is `moment`, for timers. Wrong after a jump.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.home.clock.instant(moment)
    }

    /// Where nodes' clocks have been put forward, keys expire earlier there.
    fn look_at_clocks(&self) {
        let jumps = *self.jumps.borrow();
        if self.state.borrow().jumps == jumps {
            return;
        }
        self.state.send_if_modified(|state| {
            state.jumps = jumps;
            let (late_grants, before) = &self.late_grants;
            for node in late_grants.nodes() {
                state
                    .expiries
                    .confirm(node, self.terms.believable, before[node].advanced);
            }
            let before = state.deadline;
            state.deadline = before.min(self.kept_until(&state.expiries));
            state.deadline < before
        });
    }

    fn kept_until(&self, expiries: &Expiries) -> Moment {
        self.started + self.terms.most(expiries.quorum_until(|node| self.advanced(node)))
    }

    fn advanced(&self, node: usize) -> Duration {
        self.nodes[node].clock_advanced()
    }

    /// Whether no extension can move the deadline any more.
    pub(crate) fn is_capped(&self) -> bool {
        self.cap().is_some_and(|cap| self.deadline() >= cap)
    }

    fn cap(&self) -> Option<Moment> {
        self.terms
            .max_hold
            .and_then(|most| self.started.checked_add(most))
    }

    /// E1: asks all nodes.
    pub(crate) fn send_extension(&self) -> Result<Round, ExtendError> {
        self.expire_if_due();
        // E2: the claim is locked while sending, so that the deletion of a release is always behind it in every lane.
        let round = self
            .claim()
            .as_mut()
            .filter(|_| self.is_held())
            .map(|claim| claim.extend(&self.terms, self.terms.node_budget.min(self.remaining())));
        round.ok_or_else(|| {
            self.expire_if_due();
            self.how_it_ended()
        })
    }

    /// An extension was confirmed by a quorum.
    pub(crate) fn renewed(&self, round: &Round) -> Result<(), ExtendError> {
        // A confirmation that comes after the deadline does not bring back a lease that was announced as lost.
        self.expire_if_due();
        let slept = self.home.clock.slept();
        let renewed = self.state.send_if_modified(|state| {
            // Nor one that somebody may have seen to be over since.
            let held = matches!(state.phase, Phase::Held) && self.home.clock.now() < state.deadline;
            if held {
                for (node, answer) in round.answers().enumerate() {
                    if answer == Some(&Ok(Reply::Extended)) {
                        self.confirm(&mut state.expiries, node, round);
                    }
                }
                state.deadline = state.deadline.max(self.kept_until(&state.expiries));
                state.renewed = (state.deadline, slept);
                state.last_failure = None;
            }
            held
        });
        if renewed {
            return Ok(());
        }
        self.expire_if_due();
        Err(self.how_it_ended())
    }

    /// An extension was not confirmed. That changes nothing (E1).
    pub(crate) fn not_renewed(&self, votes: Votes) -> ExtendError {
        self.state.send_if_modified(|state| {
            state.last_failure = Some(votes.clone());
            false
        });
        ExtendError::NoQuorum { votes }
    }

    /// So many nodes say that they do not have it that no quorum can.
    pub(crate) fn gone(&self, votes: Votes) -> ExtendError {
        self.end_as(LossReason::Gone(votes))
    }

    /// One more node has confirmed the extension.
    pub(crate) fn renewed_late(&self, node: usize, round: &Round) {
        self.state.send_if_modified(|state| {
            self.confirm(&mut state.expiries, node, round);
            false
        });
    }

    fn confirm(&self, expiries: &mut Expiries, node: usize, round: &Round) {
        let until = round.t0.since(self.started) + self.terms.believable;
        expiries.confirm(node, until, round.before[node].advanced);
    }

    /// E4: sets the key again on a node that has lost it. `None` once the lease is over.
    pub(crate) fn heal(&self, node: usize) -> Option<Outstanding> {
        // E2: as for extensions.
        self.claim()
            .as_mut()
            .filter(|_| self.is_held())
            .map(|claim| claim.heal(node, &self.terms))
    }

    /// What a node has answered to that.
    pub(crate) fn healed(&self, node: usize, answer: &Answer) {
        let (resource, node_name) = (&*self.resource, &**self.nodes[node].name());
        match answer {
            Ok(Reply::Granted { .. }) => tracing::info!(resource, node = node_name, "key set again"),
            other => tracing::debug!(resource, node = node_name, answer = ?other, "key not set again"),
        }
        if let Some(claim) = self.claim().as_mut() {
            claim.healed(node, answer);
        }
    }

    /// E3: lost if the deadline has passed.
    pub(crate) fn expire_if_due(&self) {
        self.look_at_clocks();
        let reason = {
            let state = self.state.borrow();
            if !matches!(state.phase, Phase::Held) || self.home.clock.now() < state.deadline {
                return;
            }
            self.expiry(&state)
        };
        self.end_as(reason);
    }

    /// Why it is lost when its deadline passes.
    fn expiry(&self, state: &State) -> LossReason {
        if self.cap().is_some_and(|cap| state.deadline >= cap) {
            return LossReason::MaxHold;
        }
        let (undisturbed, slept) = state.renewed;
        let slept = self.home.clock.slept().saturating_sub(slept);
        let awake = self.home.clock.now().checked_sub(slept);
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
        lock(&self.watched).take();
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
        let mut jumps = self.jumps();
        loop {
            // Before it is looked at: what changes from here on is noticed.
            jumps.mark_unchanged();
            self.look_at_clocks();
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
                // R4: the timer has stood still, or the deadline has moved.
                _ = jumps.changed() => {}
                // E3: a timer, whatever the nodes do or do not say.
                () = sleep_until(&self.home.runtime, self.instant(due)) => {
                    self.expire_if_due();
                    let now = self.state.borrow();
                    // Unless it has been renewed, or has ended, at the last moment.
                    if matches!(now.phase, Phase::Held) && now.deadline == deadline {
                        return Lost { resource: self.resource.clone(), reason: self.expiry(&now) };
                    }
                }
            }
        }
    }

    fn claim(&self) -> MutexGuard<'_, Option<Claim>> {
        lock(&self.claim)
    }
}
