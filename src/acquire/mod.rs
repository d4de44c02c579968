//! From asking for a lock to having it: attempts (A1 to A6), and the waits between them (W1, W2).
//!
//! Entry points: [`Acquire::once`] and [`Acquire::queued`]. `split_vote.rs` has the verdict on an attempt, `certify.rs` the fencing
//! token, `attach.rs` goes on with a lease of another process. This folder knows both sides: keys and leases, and waiting.

pub(crate) mod attach;
mod certify;
mod split_vote;

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::clients::Clients;
use crate::error::AcquireError;
use crate::keys::claim::Claim;
use crate::keys::cleanup::Cleanup;
use crate::lease::Lease;
use crate::lease::state::{LeaseState, Taken};
use crate::node::Nodes;
use crate::options::LockSettings;
use crate::protocol::quorum::Verdict;
use crate::round::may_retry;
use crate::sys::metrics::{self, GaugeGuard, Label, OutcomeGuard};
use crate::sys::{millis, spans};
use crate::votes::Votes;
use crate::waiting::{FrontWaiter, HolderSlot, LocalLease, QueueId, Queues, Retry, Ticket};

/// One acquire.
pub(crate) struct Acquire {
    pub(crate) nodes: Nodes,
    pub(crate) cleanup: Cleanup,
    pub(crate) queues: Queues<Arc<SharedFailure>>,
    pub(crate) clients: Clients,
    pub(crate) resource: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) settings: LockSettings,
    pub(crate) retry: Retry,
    /// The span of the caller, to which the lease belongs.
    pub(crate) caller: Span,
}

impl Acquire {
    /// Acquires the lock, or waits for it as long as its settings say, and logs the outcome.
    pub(crate) fn run(self, is_queued: bool) -> BoxFuture<'static, Result<Lease, AcquireError>> {
        let label = self.settings.label;
        let span = spans::acquire(&self.resource, label);
        match is_queued {
            true => reported(self.queued(), label, span),
            // A single attempt does not queue.
            false => reported(self.once(), label, span),
        }
    }

    /// In a single attempt.
    async fn once(mut self) -> Result<Lease, AcquireError> {
        let failure = match self.attempt().await {
            Ok(lease) => return Ok(lease),
            Err(failure) => failure,
        };
        if failure.is_held() {
            metrics::contended(self.settings.label);
        }
        let _ = self.retry.next_attempt(failure.quorum(), 0);
        Err(self.failed(failure))
    }

    /// W1: one of this process at a time.
    async fn queued(mut self) -> Result<Lease, AcquireError> {
        let context = self.cleanup.context().clone();
        let mut ticket = self.queues.enter(self.queue_id());
        let (mut waits, mut is_contended) = (None, false);
        let in_front = {
            let mut turn = pin!(ticket.wait_for_front(self.retry.end(), &context.runtime));
            match turn.as_mut().now_or_never() {
                Some(in_front) => in_front,
                None => {
                    is_contended = true;
                    metrics::contended(self.settings.label);
                    waits = Some(GaugeGuard::waiter(self.settings.label));
                    turn.await
                }
            }
        };
        if !in_front {
            return self.final_attempt(&ticket).await;
        }
        if let Some(shared) = self.recent_failure(&ticket) {
            // The last attempt was made for every waiter whose time is up.
            if self.retry.is_over() {
                return Err(self.failed(shared.failure_now()));
            }
            self.retry.learn(shared.out_of_reach_since);
        }
        let mut front = FrontWaiter::new(&ticket, &self.nodes, &context);
        let has_answer = ticket.shared_failure().is_some();
        if let Some(wait) = front.wait_to_begin(has_answer, &mut self.retry) {
            waits.get_or_insert_with(|| GaugeGuard::waiter(self.settings.label));
            wait.await;
        }
        loop {
            front.attempt_starts();
            let failure = match self.attempt_for_all(&ticket).await {
                Ok(lease) => return Ok(lease),
                Err(failure) => failure,
            };
            let moment = self.retry.next_attempt(failure.quorum(), fastrand::u32(..));
            self.share(&ticket, &failure);
            if failure.is_held() && !std::mem::replace(&mut is_contended, true) {
                metrics::contended(self.settings.label);
            }
            let Some(moment) = moment else {
                return Err(self.failed(failure));
            };
            waits.get_or_insert_with(|| GaugeGuard::waiter(self.settings.label));
            front.refused(&failure.votes, failure.round_trip);
            front.wait(moment, &mut self.retry).await;
        }
    }

    /// Asks once more when time is up, for every waiter of this queue that has no time left. Returns the failure of another waiter
    /// if that one has asked since this one came.
    async fn final_attempt(mut self, ticket: &Ticket<Arc<SharedFailure>>) -> Result<Lease, AcquireError> {
        let context = self.cleanup.context().clone();
        let answer = |acquire: &Self| {
            let still_held = || {
                ticket
                    .shared_failure()
                    .filter(|shared| shared.failure.is_held() && ticket.held_here().is_some())
            };
            acquire.recent_failure(ticket).or_else(still_held)
        };
        if let Some(shared) = answer(&self) {
            return Err(self.failed(shared.failure_now()));
        }
        let _alone = ticket
            .final_attempt(self.settings.node_budget, &context.runtime)
            .await;
        if let Some(shared) = answer(&self) {
            return Err(self.failed(shared.failure_now()));
        }
        let failure = match self.attempt_for_all(ticket).await {
            Ok(lease) => return Ok(lease),
            Err(failure) => failure,
        };
        let _ = self.retry.next_attempt(failure.quorum(), 0);
        self.share(ticket, &failure);
        Err(self.failed(failure))
    }

    /// Returns the last failure of a waiter of this queue, if this one waited already.
    fn recent_failure(&self, ticket: &Ticket<Arc<SharedFailure>>) -> Option<Arc<SharedFailure>> {
        ticket
            .shared_failure()
            .filter(|shared| shared.at >= self.retry.started())
    }

    fn share(&self, ticket: &Ticket<Arc<SharedFailure>>, failure: &AttemptFailure) {
        ticket.share(Some(Arc::new(SharedFailure {
            at: Instant::now(),
            failure: failure.clone(),
            out_of_reach_since: self.retry.out_of_reach_since(),
        })));
    }

    async fn attempt_for_all(&self, ticket: &Ticket<Arc<SharedFailure>>) -> Result<Lease, AttemptFailure> {
        let lease = self.attempt().await?;
        // An outage that another waiter met is over.
        ticket.share(ticket.shared_failure().filter(|shared| shared.failure.quorum()));
        Ok(lease)
    }

    fn queue_id(&self) -> QueueId {
        QueueId::new(&self.key, &self.settings)
    }

    async fn attempt(&self) -> Result<Lease, AttemptFailure> {
        let failure = match self.attempt_once().await {
            Ok(lease) => return Ok(lease),
            Err(failure) => failure,
        };
        let is_worth_another = match failure.kind {
            // Earlier steps of clocks are known now, and own leftovers are deleted ahead of the next attempt.
            FailureKind::ClocksMoved | FailureKind::BlockedByOwnKeys => true,
            FailureKind::NoQuorum => {
                let (limit, context) = (self.settings.node_budget, self.cleanup.context());
                may_retry(&self.nodes, &failure.votes, limit, context).await
            }
            FailureKind::Held | FailureKind::TooLate => false,
        };
        if is_worth_another {
            self.attempt_once().await
        } else {
            Err(failure)
        }
    }

    async fn attempt_once(&self) -> Result<Lease, AttemptFailure> {
        let (span, began) = (spans::attempt(), Instant::now());
        let judging = span.in_scope(|| {
            self.judge(Claim::acquire(
                &self.nodes,
                &self.cleanup,
                self.key.clone(),
                &self.settings,
            ))
        });
        // Boxed: a waiter has no room for an attempt while it makes none.
        let outcome = judging.boxed().instrument(span.clone()).await;
        span.in_scope(|| report_attempt(&outcome, self.settings.label, began.elapsed()));
        outcome
    }

    /// Waits for the verdict on an attempt.
    async fn judge(&self, mut claim: Claim) -> Result<Lease, AttemptFailure> {
        let (cleanup, settings) = (&self.cleanup, &self.settings);
        // A lost claim is dropped on return, and so cleaned up (A6).
        if split_vote::verdict(&mut claim).await != Verdict::Won {
            // R5: by whom it was lost may still be open. If a quorum of nodes answers, this waits for no others.
            let round = claim.attempt();
            round.settle(|tally| tally.responsive().is_some()).await;
            let mut votes = round.votes();
            let blocked_by_own_keys =
                votes.mark_own_leftovers(|node, owner| cleanup.delete_again(node, owner));
            if let Some(holder) = votes.holder() {
                self.clients.look_up(holder);
            }
            let kind = match votes.responsive() {
                _ if blocked_by_own_keys => FailureKind::BlockedByOwnKeys,
                true => FailureKind::Held,
                false => FailureKind::NoQuorum,
            };
            return Err(AttemptFailure::new(kind, votes, &mut claim));
        }
        let t0 = claim.t0();
        let (token, votes) = match settings.fencing {
            true => certify::certify(&mut claim, settings).await,
            false => (None, claim.attempt().votes()),
        };
        // A5: checked when everything that had to be awaited has been.
        let clock = &cleanup.context().clock;
        if clock.now() >= t0 + settings.validity {
            return Err(AttemptFailure::new(FailureKind::TooLate, votes, &mut claim));
        }
        if settings.fencing && token.is_none() {
            let kind = match votes.responsive() {
                true => FailureKind::Held,
                false => FailureKind::NoQuorum,
            };
            return Err(AttemptFailure::new(kind, votes, &mut claim));
        }
        // Some of the nodes may not be what they were when they voted.
        if claim.attempt().void_stale_votes() {
            let votes = claim.attempt().votes();
            return Err(AttemptFailure::new(FailureKind::NoQuorum, votes, &mut claim));
        }
        // Where nodes' clocks were put forward meanwhile, it may be later than that for them.
        let expiries = claim.expiries(&votes, settings);
        if clock.now() >= claim.kept_until(&expiries) {
            let failure = AttemptFailure::new(FailureKind::ClocksMoved, votes, &mut claim);
            // Ahead of the next attempt in every pipeline, or that would run into it.
            let _ = claim.release().await;
            return Err(failure);
        }
        let round_trip = claim.attempt().round_trip();
        let (holder, slot) = self.queues.got(self.queue_id(), round_trip);
        claim.won(Arc::new(holder));
        if !settings.min_hold.is_zero() {
            claim.keep_for(settings.min_hold);
        }
        let token_value = token.map(u64::from);
        claim.hold(spans::hold(
            &self.caller,
            &self.resource,
            settings.label,
            token_value,
        ));
        let taken = Taken::now(self.retry.attempts() + 1, self.retry.waited());
        let state = LeaseState::new(
            self.resource.clone(),
            *settings,
            votes,
            token,
            expiries,
            claim,
            taken,
        );
        Ok(start(state, slot))
    }

    fn failed(&self, failure: AttemptFailure) -> AcquireError {
        let (resource, retry) = (self.resource.clone(), &self.retry);
        let (attempts, waited, votes) = (retry.attempts(), retry.waited(), failure.votes);
        if let (FailureKind::NoQuorum, Some(conflict)) = (failure.kind, votes.conflict()) {
            return AcquireError::OtherNodes {
                resource,
                attempts,
                waited,
                conflict,
            };
        }
        match failure.kind {
            FailureKind::Held => AcquireError::Held {
                resource,
                attempts,
                waited,
                holder: votes.holder().and_then(|token| self.clients.holder(token)),
                votes,
            },
            FailureKind::NoQuorum | FailureKind::BlockedByOwnKeys => AcquireError::NoQuorum {
                resource,
                attempts,
                waited,
                votes,
            },
            FailureKind::TooLate | FailureKind::ClocksMoved => AcquireError::TooLate {
                resource,
                attempts,
                waited,
                votes,
            },
        }
    }
}

/// Logs and counts the outcome of an acquire, in its span.
fn reported<F>(acquiring: F, label: Label, span: Span) -> BoxFuture<'static, Result<Lease, AcquireError>>
where
    F: Future<Output = Result<Lease, AcquireError>> + Send + 'static,
{
    // Boxed first: a block that awaits what it has captured is twice as large.
    let acquiring = acquiring.boxed();
    let counted = async move {
        let pending = OutcomeGuard::acquire(label);
        let outcome = acquiring.await;
        pending.ended(outcome.as_ref().map_or_else(AcquireError::kind, |_| "acquired"));
        log(&outcome);
        outcome
    };
    counted.instrument(span).boxed()
}

fn log(outcome: &Result<Lease, AcquireError>) {
    let span = Span::current();
    match outcome {
        Ok(lease) => {
            let (attempts, wait_ms) = (lease.attempts(), millis(lease.waited()));
            span.record("outcome", "acquired")
                .record("attempts", attempts)
                .record("wait_ms", wait_ms);
            let token = lease.fencing_token().map(u64::from);
            tracing::debug!(token, attempts, wait_ms, "acquired");
        }
        Err(error) => {
            span.record("outcome", error.kind());
            if let Some((attempts, waited)) = error.took() {
                span.record("attempts", attempts)
                    .record("wait_ms", millis(waited));
            }
            tracing::debug!(outcome = error.kind(), cause = %error, "not acquired");
        }
    }
}

/// Logs and counts the outcome of an attempt, in its span.
fn report_attempt(outcome: &Result<Lease, AttemptFailure>, label: Label, took: Duration) {
    let (outcome, votes) = match outcome {
        Ok(lease) => ("acquired", lease.votes()),
        Err(failure) => (failure.kind.name(), &failure.votes),
    };
    metrics::attempt(label, outcome, took);
    let (yes, no, faults) = (votes.yes(), votes.no(), votes.faults());
    Span::current()
        .record("outcome", outcome)
        .record("yes", yes)
        .record("no", no)
        .record("faults", faults);
    tracing::trace!(outcome, yes, no, faults, %votes, "attempt ended");
}

/// Starts the lease, and tells the waiters of this process of it.
fn start(state: LeaseState, slot: HolderSlot<Arc<SharedFailure>>) -> Lease {
    let lease = Lease::start(state);
    let held: Weak<LeaseState> = Arc::downgrade(lease.state());
    slot.set_lease(held);
    lease
}

impl LocalLease for LeaseState {
    fn until(&self) -> Instant {
        // None of the time is left once it has ended.
        self.instant(self.now() + self.remaining())
    }
}

/// The last failure of the first waiter of a queue.
pub(crate) struct SharedFailure {
    at: Instant,
    failure: AttemptFailure,
    out_of_reach_since: Option<Instant>,
}

impl SharedFailure {
    /// As it would be told now.
    fn failure_now(&self) -> AttemptFailure {
        AttemptFailure {
            votes: self.failure.votes.aged(self.at.elapsed()),
            ..self.failure
        }
    }
}

/// A lost attempt.
#[derive(Clone)]
struct AttemptFailure {
    kind: FailureKind,
    votes: Votes,
    /// How long the nodes took that answered.
    round_trip: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    Held,
    NoQuorum,
    /// A6: a quorum may be had once the nodes have deleted what this process has left there.
    BlockedByOwnKeys,
    TooLate,
    /// The same, by the clocks of the nodes, which were put forward meanwhile or since they were last heard of.
    ClocksMoved,
}

impl FailureKind {
    fn name(self) -> &'static str {
        match self {
            FailureKind::Held => "held",
            FailureKind::NoQuorum => "no_quorum",
            FailureKind::BlockedByOwnKeys => "own_leftovers",
            FailureKind::TooLate => "too_late",
            FailureKind::ClocksMoved => "clocks_moved",
        }
    }
}

impl AttemptFailure {
    fn new(kind: FailureKind, votes: Votes, claim: &mut Claim) -> AttemptFailure {
        AttemptFailure {
            kind,
            votes,
            round_trip: claim.attempt().round_trip(),
        }
    }

    fn is_held(&self) -> bool {
        self.kind == FailureKind::Held
    }

    /// Whether a quorum of nodes answers.
    fn quorum(&self) -> bool {
        self.kind != FailureKind::NoQuorum || !self.votes.out_of_reach()
    }
}
