//! The state of one lease: its deadline, and how it ends.

mod ending;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use crate::context::Context;
use crate::error::{ExtendError, LossReason, Lost};
use crate::keys::claim::Claim;
use crate::keys::late_grants::LateGrants;
use crate::node::{Action, Answer, Nodes, OwnerToken, Reply, Request};
use crate::options::LockSettings;
use crate::protocol::expiry::Expiries;
use crate::protocol::token::FencingToken;
use crate::round::{NodeBaseline, Outstanding, Round, may_retry};
use crate::sys::clock::{LeaseCount, Moment};
use crate::sys::metrics::{self, GaugeGuard};
use crate::sys::millis;
use crate::sys::mutex::lock;
use crate::sys::runtime::Runtime;
use crate::votes::Votes;

/// One lease. Shared by its owner, its handles, its watchdog, and the tasks that follow up renewals.
pub(crate) struct LeaseState {
    pub(crate) resource: Arc<str>,
    /// The lock's key on the nodes, and its value.
    pub(super) key: Arc<str>,
    pub(super) owner: OwnerToken,
    pub(crate) settings: LockSettings,
    /// The nodes' answers to the acquire.
    pub(crate) votes: Votes,
    /// Never changes (F6). `None` with fencing off.
    pub(crate) token: Option<FencingToken>,
    /// `t0`: from before the acquire was sent (A5).
    pub(crate) started: Moment,
    pub(crate) taken: Taken,
    nodes: Nodes,
    /// Grants that came late, and each node's state before it was asked.
    late_grants: (LateGrants, Vec<NodeBaseline>),
    /// The keys on the nodes. Taken out when the lease ends: from then on, no extension can be sent (E2).
    claim: Mutex<Option<Claim>>,
    context: Context,
    jumps: watch::Receiver<u64>,
    state: watch::Sender<State>,
    /// Whether the log says that renewals fail.
    pub(super) renewal_fails: AtomicBool,
    /// Keeps the clock watched until the lease ends.
    lease_count: Mutex<Option<(LeaseCount, GaugeGuard)>>,
}

/// The attempts and the time that a lease took to acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) attempts: u32,
    pub(crate) waited: Duration,
    pub(crate) at: SystemTime,
}

impl Taken {
    pub(crate) fn now(attempts: u32, waited: Duration) -> Taken {
        let at = SystemTime::now();
        Taken { attempts, waited, at }
    }
}

/// What can change about a lease.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Until when a quorum of nodes is known to keep the key.
    pub(crate) deadline: Moment,
    /// The deadline that the last renewal set, and how long this machine had been suspended by then.
    renewed: (Moment, Duration),
    expiries: Expiries,
    /// The number of clock jumps that `deadline` takes into account.
    jumps: u64,
    last_failure: Option<Votes>,
    pub(crate) renewals: u64,
}

/// A lease starts as held and ends once.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Held,
    Lost(Lost),
    /// Released or dropped by its owner. This is no loss, so `lost()` does not return.
    Released,
}

impl LeaseState {
    pub(crate) fn new(
        resource: Arc<str>,
        settings: LockSettings,
        votes: Votes,
        token: Option<FencingToken>,
        expiries: Expiries,
        mut claim: Claim,
        taken: Taken,
    ) -> Self {
        let started = claim.t0();
        let deadline = started + settings.cap_at_max_hold(settings.validity);
        let context = claim.context().clone();
        let lease = LeaseState {
            resource,
            key: claim.key().clone(),
            owner: claim.owner(),
            settings,
            votes,
            token,
            started,
            taken,
            nodes: claim.nodes().clone(),
            late_grants: claim.take_late_grants(),
            claim: Mutex::new(Some(claim)),
            jumps: context.clock.jumps(),
            renewal_fails: AtomicBool::new(false),
            lease_count: Mutex::new(Some((
                context.clock.count_lease(),
                GaugeGuard::lease(settings.label),
            ))),
            state: watch::Sender::new(State {
                phase: Phase::Held,
                deadline,
                renewed: (deadline, context.clock.slept()),
                expiries,
                jumps: 0,
                last_failure: None,
                renewals: 0,
            }),
            context,
        };
        lease.apply_clock_steps();
        lease
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Returns a receiver that changes when a clock has jumped. Deadlines and timers must then be computed anew.
    pub(crate) fn jumps(&self) -> watch::Receiver<u64> {
        self.jumps.clone()
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.apply_clock_steps();
        self.state.borrow().deadline
    }

    /// Returns the time until the deadline; zero once the lease has ended.
    pub(crate) fn remaining(&self) -> Duration {
        self.apply_clock_steps();
        let state = self.state.borrow();
        match state.phase {
            Phase::Held => state.deadline.since(self.context.clock.now()),
            Phase::Lost(_) | Phase::Released => Duration::ZERO,
        }
    }

    /// Returns whether the lease is held and its deadline has not passed.
    pub(crate) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(super) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn now(&self) -> Moment {
        self.context.clock.now()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.context.runtime
    }

    /// Returns the timers' instant for a moment. A clock jump makes it wrong.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.context.clock.instant(moment)
    }

    /// Brings the deadline forward if nodes' clocks were put forward: keys expire earlier there.
    fn apply_clock_steps(&self) {
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
                    .confirm(node, self.settings.validity, before[node].advanced);
            }
            let before = state.deadline;
            state.deadline = before.min(self.kept_until(&state.expiries));
            state.deadline < before
        });
    }

    fn kept_until(&self, expiries: &Expiries) -> Moment {
        self.started
            + self
                .settings
                .cap_at_max_hold(expiries.quorum_until(|node| self.advanced(node)))
    }

    fn advanced(&self, node: usize) -> Duration {
        self.nodes[node].clock_advanced()
    }

    /// Returns whether `max_hold` keeps every extension from moving the deadline.
    pub(crate) fn is_capped(&self) -> bool {
        self.cap().is_some_and(|cap| self.deadline() >= cap)
    }

    fn cap(&self) -> Option<Moment> {
        self.settings
            .max_hold
            .and_then(|most| self.started.checked_add(most))
    }

    /// Sends an extension to all nodes (E1).
    pub(crate) fn send_extension(&self) -> Result<Round, ExtendError> {
        self.expire_if_due();
        // The claim is locked while sending, so that a deletion is ordered after the extension on every node (E2).
        let round = self
            .claim()
            .as_mut()
            .filter(|_| self.is_held())
            .map(|claim| claim.extend(&self.settings, self.settings.node_budget.min(self.remaining())));
        round.ok_or_else(|| {
            self.expire_if_due();
            self.how_it_ended()
        })
    }

    /// Keeps the keys for this time from `t0` on (L4). Does nothing once the lease has ended.
    pub(super) fn keep_for(&self, least: Duration) {
        if let Some(claim) = self.claim().as_mut() {
            claim.keep_for(least);
        }
    }

    /// Sends a request under the lease's owner token to all nodes.
    pub(super) fn ask(&self, action: Action, budget: Duration) -> Round {
        let request = Request {
            key: self.key.clone(),
            owner: self.owner,
            action,
        };
        Round::start(&self.nodes, &request, budget, &self.context)
    }

    /// Returns whether an extension that failed with these votes is worth another attempt; see [`may_retry`].
    pub(crate) async fn may_retry(&self, votes: &Votes) -> bool {
        let limit = self.settings.node_budget.min(self.remaining());
        may_retry(&self.nodes, votes, limit, &self.context).await
    }

    /// A quorum has confirmed an extension.
    pub(crate) fn renewed(&self, round: &Round) -> Result<(), ExtendError> {
        // A confirmation after the deadline does not bring back a lease that was announced as lost.
        self.expire_if_due();
        let slept = self.context.clock.slept();
        let renewed = self.state.send_if_modified(|state| {
            // Check again under the lock: another task may have observed the expiry.
            let held = matches!(state.phase, Phase::Held) && self.context.clock.now() < state.deadline;
            if held {
                for (node, answer) in round.answers().enumerate() {
                    if answer == Some(&Ok(Reply::Extended)) {
                        self.confirm(&mut state.expiries, node, round);
                    }
                }
                state.deadline = state.deadline.max(self.kept_until(&state.expiries));
                state.renewed = (state.deadline, slept);
                state.renewals += 1;
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

    /// No quorum has confirmed an extension. The deadline stays (E1).
    pub(crate) fn not_renewed(&self, votes: Votes) -> ExtendError {
        self.state.send_if_modified(|state| {
            state.last_failure = Some(votes.clone());
            false
        });
        ExtendError::NoQuorum { votes }
    }

    pub(super) fn renewals(&self) -> u64 {
        self.state.borrow().renewals
    }

    /// So many nodes deny the lease that no quorum can be left (E3).
    pub(crate) fn gone(&self, votes: Votes) -> ExtendError {
        self.end_as(LossReason::Gone(votes))
    }

    /// One more node has confirmed an extension after the verdict.
    pub(crate) fn renewed_late(&self, node: usize, round: &Round) {
        self.state.send_if_modified(|state| {
            self.confirm(&mut state.expiries, node, round);
            false
        });
    }

    fn confirm(&self, expiries: &mut Expiries, node: usize, round: &Round) {
        let until = round.t0.since(self.started) + self.settings.validity;
        expiries.confirm(node, until, round.before[node].advanced);
    }

    /// Sends a request to set the key again on a node that has lost it (E4). `None` once the lease has ended.
    pub(crate) fn heal(&self, node: usize) -> Option<Outstanding> {
        // Under the claim's lock, as extensions are.
        self.claim()
            .as_mut()
            .filter(|_| self.is_held())
            .map(|claim| claim.heal(node, &self.settings))
    }

    /// Takes in a node's answer to that.
    pub(crate) fn healed(&self, node: usize, answer: &Answer) {
        let (resource, node_name) = (&*self.resource, &**self.nodes[node].name());
        let is_set = matches!(answer, Ok(Reply::Granted { .. }));
        metrics::heal(if is_set { "healed" } else { "failed" });
        match answer {
            Ok(Reply::Granted { .. }) => tracing::info!(resource, node = node_name, "key set again"),
            other => tracing::debug!(resource, node = node_name, answer = ?other, "key not set again"),
        }
        if let Some(claim) = self.claim().as_mut() {
            claim.healed(node, answer);
        }
    }

    /// Returns the lease's span. A disabled one, once the lease has ended.
    pub(crate) fn span(&self) -> Span {
        self.claim()
            .as_ref()
            .map_or_else(Span::none, |claim| claim.span().clone())
    }

    /// Returns how long the lease has been held, in milliseconds.
    pub(crate) fn held_ms(&self) -> u64 {
        millis(self.now().since(self.started))
    }

    fn claim(&self) -> MutexGuard<'_, Option<Claim>> {
        lock(&self.claim)
    }
}
