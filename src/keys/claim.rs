//! The keys that may stand on the nodes under one owner token, and their deletion whatever happens (A6, L1, L2).

mod deletion;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Span;

use super::cleanup::Cleanup;
use super::late_grants::{LateGrants, counter};
use super::pending_delete::DeleteHorizon;
use crate::context::Context;
use crate::node::{Action, Answer, Fencing, Nodes, OwnerToken, ReleaseKind, ReleaseNotice, Request};
use crate::options::LockSettings;
use crate::protocol::expiry::Expiries;
use crate::protocol::fencing;
use crate::protocol::quorum::Vote;
use crate::protocol::token::FencingToken;
use crate::round::{NodeBaseline, Outstanding, Round, ask};
use crate::sys::clock::Moment;
use crate::votes::{NodeVote, Votes};

/// Shortest time for a node to confirm a release (the TTL, if that is shorter). A late confirmation is better than an
/// uncertain outcome.
const RELEASE_BUDGET: Duration = Duration::from_secs(1);
/// Shortest time that a late request is reckoned with, although the node should refuse it by then (A9): the clocks may part meanwhile.
const LATE_BY: Duration = Duration::from_millis(100);

/// An owner token that may stand in the lock's key on some nodes. Dropping it deletes these keys.
pub(crate) struct Claim {
    nodes: Nodes,
    cleanup: Cleanup,
    key: Arc<str>,
    owner: OwnerToken,
    release_budget: Duration,
    /// When the keys have expired by themselves on every node.
    expired_at: Instant,
    /// The acquire. Its answers tell where keys may be, until the lock is won.
    acquire: Round,
    action: Action,
    /// Where keys may be, once the lock is won.
    won_on: Option<Vec<PossibleKey>>,
    /// The lease's fencing token, once there is one.
    token: Option<FencingToken>,
    /// The largest known counter of each node. Empty before there is a token.
    counters: Vec<Option<FencingToken>>,
    /// Collects the grants of nodes that the attempt did not wait for.
    collecting: Option<AbortOnDropHandle<()>>,
    late_grants: LateGrants,
    /// The release, once it is sent. Its answers tell where the key is gone.
    release: Option<Round>,
    /// Until when the keys stay after the release (L4). `None`: not at all.
    keep_until: Option<Instant>,
    /// What the deletion announces, once that is decided. The inner `None` announces nothing.
    given_up: Option<Option<ReleaseNotice>>,
    /// The span of the lease, once the lock was won.
    span: Span,
    /// The waiters of this process, once the lock was won.
    observer: Option<Arc<dyn ReleaseObserver>>,
}

/// The waiters of this process for a lock that is held here.
pub(crate) trait ReleaseObserver: Send + Sync {
    /// The lock is about to be given up. Returns the announcement for other processes.
    fn notice(&self) -> ReleaseNotice;

    /// The deletions have been sent: a later acquire of this process is ordered after them on every node.
    fn freed(&self);

    /// A node has notified a subscriber of the release.
    fn notified(&self);
}

impl Claim {
    /// Sends an acquire to all nodes, under a new owner token (A1). From then on, dropping the claim cleans up.
    pub(crate) fn acquire(nodes: &Nodes, cleanup: &Cleanup, key: Arc<str>, settings: &LockSettings) -> Claim {
        let owner = cleanup.context().owner();
        let action = Action::Acquire {
            ttl: settings.ttl,
            fencing: settings.fencing.then(|| counting(nodes, settings)),
            guard: settings.guard,
        };
        let request = Request {
            key: key.clone(),
            owner,
            action,
        };
        let mut claim = Claim::unsent(nodes, cleanup, key, owner, action, settings);
        // After the claim was made, which cleans up: a user's implementation of `Node` may panic half way.
        claim.acquire.send(|_| request.clone());
        claim
    }

    /// Returns a claim whose acquire is not sent.
    fn unsent(
        nodes: &Nodes,
        cleanup: &Cleanup,
        key: Arc<str>,
        owner: OwnerToken,
        action: Action,
        settings: &LockSettings,
    ) -> Claim {
        let acquire = Round::new(nodes, settings.node_budget, cleanup.context());
        Claim {
            nodes: nodes.clone(),
            cleanup: cleanup.clone(),
            key,
            owner,
            release_budget: settings.node_budget.max(settings.ttl.min(RELEASE_BUDGET)),
            expired_at: expired_at(acquire.started, settings.node_budget, settings.ttl),
            acquire,
            action,
            won_on: None,
            token: None,
            counters: Vec::new(),
            collecting: None,
            late_grants: LateGrants::default(),
            release: None,
            keep_until: None,
            given_up: None,
            span: Span::none(),
            observer: None,
        }
    }

    /// Returns a claim on the keys of a lease that another process has detached. Deletes nothing until it is taken over.
    pub(crate) fn of_detached(
        nodes: &Nodes,
        cleanup: &Cleanup,
        key: Arc<str>,
        owner: OwnerToken,
        token: Option<FencingToken>,
        settings: &LockSettings,
    ) -> Claim {
        let unsent = Action::Extend {
            ttl: settings.ttl,
            guarded: settings.guard.is_some(),
        };
        let mut claim = Claim::unsent(nodes, cleanup, key, owner, unsent, settings);
        (claim.token, claim.counters) = (token, vec![None; nodes.len()]);
        claim.won_on = Some(Vec::new());
        claim
    }

    /// The keys are this claim's from now on, on whichever nodes they are.
    pub(crate) fn take_over(&mut self, observer: Option<Arc<dyn ReleaseObserver>>) {
        self.observer = observer;
        let from = Instant::now();
        let horizon = DeleteHorizon {
            from,
            connection: None,
            is_sent_twice: false,
        };
        let nodes = 0..self.nodes.len();
        self.won_on = Some(nodes.map(|node| PossibleKey { node, horizon }).collect());
        if self.observer.is_none() {
            self.given_up = Some(Some(ReleaseNotice {
                kind: ReleaseKind::Free,
                turn: None,
            }));
        }
    }

    /// Leaves the keys to another process: deletes nothing. Acquires of slow nodes go on.
    pub(crate) fn detach(mut self) {
        self.won_on = Some(Vec::new());
        self.collecting.take().map(AbortOnDropHandle::detach);
    }

    /// The lease begins: what happens to the keys belongs to its span.
    pub(crate) fn hold(&mut self, span: Span) {
        self.span = span;
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Returns when the acquire was sent.
    pub(crate) fn t0(&self) -> Moment {
        self.acquire.t0
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn context(&self) -> &Context {
        self.cleanup.context()
    }

    /// Returns the late grants, and each node's state before it was asked. To be called once, when the lock is won.
    pub(crate) fn take_late_grants(&mut self) -> (LateGrants, Vec<NodeBaseline>) {
        (self.late_grants.clone(), std::mem::take(&mut self.acquire.before))
    }

    /// Returns until when the nodes with these votes keep the key.
    pub(crate) fn expiries(&self, votes: &Votes, settings: &LockSettings) -> Expiries {
        let mut expiries = Expiries::new(self.nodes.len());
        for (node, vote) in votes.iter().enumerate() {
            if vote.vote() == Some(Vote::Yes) {
                expiries.confirm(node, settings.validity, self.acquire.before[node].advanced);
            }
        }
        expiries
    }

    /// Returns until when a quorum of nodes keeps the key, counting steps of their clocks up to now.
    pub(crate) fn kept_until(&self, expiries: &Expiries) -> Moment {
        self.t0() + expiries.quorum_until(|node| self.nodes[node].clock_advanced())
    }

    /// Returns the acquire's round.
    pub(crate) fn attempt(&mut self) -> &mut Round {
        &mut self.acquire
    }

    /// Returns the request that acquires the lock.
    pub(crate) fn acquire_request(&self) -> Request {
        self.request(self.action)
    }

    fn request(&self, action: Action) -> Request {
        Request {
            key: self.key.clone(),
            owner: self.owner,
            action,
        }
    }

    /// Returns the nodes' answers to the acquire so far, in their order.
    pub(crate) fn answers(&self) -> impl ExactSizeIterator<Item = Option<&Answer>> {
        self.acquire.answers()
    }

    pub(crate) fn owner(&self) -> OwnerToken {
        self.owner
    }

    /// Returns whether this client is deleting a key with this owner token on the node.
    pub(crate) fn is_deleting(&self, node: usize, owner: OwnerToken) -> bool {
        self.cleanup.is_deleting(node, owner)
    }

    /// A quorum has certified this fencing token, with these answers.
    pub(crate) fn certified(&mut self, token: FencingToken, votes: &Votes) {
        let counter = |vote: &NodeVote| vote.answer.as_ref().and_then(counter);
        self.counters = votes.iter().map(counter).collect();
        self.token = Some(token);
    }

    /// The lock was won. Acquires that are still queued for slow nodes are sent all the same: a lease on a bare quorum would not
    /// outlive the loss of a single node.
    pub(crate) fn won(&mut self, observer: Arc<dyn ReleaseObserver>) {
        self.observer = Some(observer);
        let mut won_on = self.possible_keys();
        won_on.shrink_to_fit();
        // Nodes that have not answered yet may be asked once more (A8).
        for PossibleKey { node, horizon } in &mut won_on {
            horizon.is_sent_twice |= horizon.connection.is_some() && self.acquire.answer(*node).is_none();
        }
        self.won_on = Some(won_on);
        let outstanding = self.acquire.take_outstanding();
        self.acquire.forget_answers();
        if !outstanding.is_empty() {
            let collecting = self
                .late_grants
                .collect(outstanding, &self.cleanup.context().runtime);
            self.collecting = Some(collecting);
        }
    }

    /// Keeps the keys for this time from when the acquire was sent, also if the lock is released earlier (L4).
    pub(crate) fn keep_for(&mut self, least: Duration) {
        self.keep_until = Some(self.acquire.started + least);
    }

    /// Sends an extension to all nodes (E1), each of which has `budget` to answer.
    pub(crate) fn extend(&mut self, settings: &LockSettings, budget: Duration) -> Round {
        let (ttl, guarded) = (settings.ttl, settings.guard.is_some());
        let request = self.request(Action::Extend { ttl, guarded });
        let round = Round::start(&self.nodes, &request, budget, self.cleanup.context());
        self.expired_at = self.expired_at.max(expired_at(round.started, budget, ttl));
        round
    }

    /// Sets the key again on a node that has lost it (E4). Only for a lease whose extension a quorum has just confirmed. The
    /// request is ordered before the deletion, as everything that is sent under this owner token.
    pub(crate) fn heal(&mut self, node: usize, settings: &LockSettings) -> Outstanding {
        let action = Action::Heal {
            ttl: settings.ttl,
            fencing: self.token.map(|token| (counting(&self.nodes, settings), token)),
        };
        let (sent, budget) = (Instant::now(), settings.node_budget);
        if let Some(won_on) = &mut self.won_on {
            won_on.retain(|place| place.node != node);
            let connection = self.nodes[node].connection();
            let horizon = DeleteHorizon {
                from: sent + budget + late_by(self.nodes[node].late_by()),
                connection,
                is_sent_twice: connection.is_some(),
            };
            won_on.push(PossibleKey { node, horizon });
        }
        self.expired_at = self.expired_at.max(expired_at(sent, budget, settings.ttl));
        ask(
            &self.nodes,
            node,
            self.request(action),
            budget,
            self.cleanup.context(),
        )
    }

    /// Takes in a node's answer to that.
    pub(crate) fn healed(&mut self, node: usize, answer: &Answer) {
        self.record_counter(node, counter(answer));
    }

    /// Keeps the node's counter, if it is larger than the known one: answers may come out of order (F4). Without a fencing token,
    /// keeps nothing.
    fn record_counter(&mut self, node: usize, counter: Option<FencingToken>) {
        if let Some(known) = self.counters.get_mut(node) {
            *known = counter.max(*known);
        }
    }
}

/// A node where the key may stand.
struct PossibleKey {
    node: usize,
    /// Until then, the acquire may still arrive.
    horizon: DeleteHorizon,
}

/// Returns how long after its budget a request may still act, if the node's clock is known so well.
fn late_by(known: Option<Duration>) -> Duration {
    known.unwrap_or_default().max(LATE_BY)
}

/// Returns how a node is to count this grant, and to start a missing counter.
fn counting(nodes: &Nodes, settings: &LockSettings) -> Fencing {
    Fencing {
        seed: seed(nodes),
        retention: settings.retention,
    }
}

/// Returns the value from which missing counters start: one for all nodes, from the median of their clocks (F5).
fn seed(nodes: &Nodes) -> FencingToken {
    let clocks = nodes.iter().filter_map(|node| node.clock()).collect();
    let own = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    fencing::seed(clocks, u64::try_from(own.as_micros()).unwrap_or(u64::MAX))
}

/// Returns when a key has expired by itself. A request that sets or extends it is executed at most a budget late (A9), and the key
/// then lives for a TTL.
fn expired_at(sent: Instant, budget: Duration, ttl: Duration) -> Instant {
    sent + budget + ttl
}
