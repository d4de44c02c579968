//! What may stand on the nodes in our name, and its removal whatever happens (A6, L1, L2).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::error::ReleaseOutcome;
use crate::node::{Action, Fault, Node, OwnerToken, Reply, Request};
use crate::options::Terms;
use crate::protocol::backoff::Backoff;
use crate::protocol::quorum::Standing;
use crate::round::{Nodes, Round};

/// A node gets this long to confirm a release (but no longer than the TTL), even where the budget of an attempt is shorter:
/// a late answer is as good as an early one, and better than `Uncertain`.
const RELEASE_BUDGET: Duration = Duration::from_secs(1);
/// For one node to confirm one try of a clean-up. Nobody waits for it, so it may be generous.
const CLEAN_UP_BUDGET: Duration = Duration::from_secs(1);
/// Between tries of a clean-up.
const FASTEST: Duration = Duration::from_millis(20);
const SLOWEST: Duration = Duration::from_secs(1);

/// Runs clean-ups on the runtime that the connections live on, and knows which are under way.
#[derive(Clone, Debug)]
pub(crate) struct Janitor {
    runtime: Handle,
    tasks: TaskTracker,
}

impl Janitor {
    pub(crate) fn new(runtime: Handle) -> Self {
        Janitor {
            runtime,
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Waits until every clean-up is done: confirmed by its node, or past the TTL.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn clean_up(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Does nothing, quietly, once the runtime has shut down: there is no connection left to clean up over.
        self.tasks.spawn_on(work, &self.runtime);
    }
}

/// A token that may stand in a key on some nodes. Dropping it has it deleted there.
pub(crate) struct Claim {
    nodes: Nodes,
    janitor: Janitor,
    key: Arc<str>,
    owner: OwnerToken,
    release_budget: Duration,
    /// From when on it has expired everywhere by itself.
    until: Instant,
    /// The acquire: tells where the token may be, until it is won.
    acquire: Round,
    /// Numbers of the nodes where it may be, once that is settled: extensions set no keys.
    won_on: Option<Vec<usize>>,
    /// The release, once it is sent: tells where the token is no more.
    release: Option<Round>,
}

impl Claim {
    /// Sends an acquire to all nodes, under a token of its own (A1). A drop from here on cleans up.
    pub(crate) fn acquire(nodes: &Nodes, janitor: &Janitor, key: Arc<str>, terms: &Terms) -> Claim {
        let owner = OwnerToken::random();
        let action = Action::Acquire {
            ttl: terms.ttl,
            scripted: terms.fencing,
        };
        let request = Request {
            key: key.clone(),
            owner,
            action,
        };
        let acquire = Round::start(nodes, &request, terms.node_budget);
        Claim {
            nodes: nodes.clone(),
            janitor: janitor.clone(),
            key,
            owner,
            release_budget: terms.node_budget.max(terms.ttl.min(RELEASE_BUDGET)),
            until: gone_by(acquire.started, terms.node_budget, terms.ttl),
            acquire,
            won_on: None,
            release: None,
        }
    }

    /// The acquire under way.
    pub(crate) fn attempt(&mut self) -> &mut Round {
        &mut self.acquire
    }

    /// The acquire won, and no more answers to it are waited for.
    pub(crate) fn won(&mut self) {
        self.won_on = Some(self.acquire.numbers_where(may_hold));
        self.acquire.abandon();
    }

    /// Sends an extension to all nodes (E1), which are given `budget` to answer.
    pub(crate) fn extend(&mut self, ttl: Duration, budget: Duration) -> Round {
        let round = Round::start(&self.nodes, &self.request(Action::Extend { ttl }), budget);
        self.until = self.until.max(gone_by(round.started, budget, ttl));
        round
    }

    /// L1: compare-and-delete on all nodes; returns when the outcome is known. Nodes that have not answered by then are
    /// seen to in the background, as they are if this future is dropped.
    pub(crate) async fn release(mut self) -> ReleaseOutcome {
        let round = Round::start(&self.nodes, &self.request(Action::Release), self.release_budget);
        let round = self.release.insert(round);
        round.settle(|tally| tally.standing() != Standing::Pending).await;
        match round.tally().standing() {
            Standing::Confirmed => ReleaseOutcome::Released,
            Standing::Refused => ReleaseOutcome::AlreadyGone,
            Standing::Unclear | Standing::Pending => ReleaseOutcome::Uncertain(round.votes()),
        }
    }

    fn request(&self, action: Action) -> Request {
        Request {
            key: self.key.clone(),
            owner: self.owner,
            action,
        }
    }
}

impl Drop for Claim {
    /// A6: ordered after everything that was sent under this token, on a task of its own.
    fn drop(&mut self) {
        let mut left = self
            .won_on
            .take()
            .unwrap_or_else(|| self.acquire.numbers_where(may_hold));
        let release = self.release.take();
        if let Some(release) = &release {
            left.retain(|number| !release.is_answered(*number));
        }
        if left.is_empty() {
            return;
        }
        let (nodes, request, until) = (self.nodes.clone(), self.request(Action::Release), self.until);
        self.janitor.clean_up(async move {
            if let Some(mut release) = release {
                // Already asked: only those that fail are asked again.
                release.all().await;
                left.retain(|number| !release.is_answered(*number));
            }
            join_all(
                left.into_iter()
                    .map(|number| delete(&nodes[number], &request, until)),
            )
            .await;
        });
    }
}

/// When a key has expired by itself: what sets or extends it acts at most a budget late (A9), and then it lives for a TTL.
fn gone_by(sent: Instant, budget: Duration, ttl: Duration) -> Instant {
    sent + budget + ttl
}

/// Whether the acquire may have set, or may yet set, the key on a node that answered so.
fn may_hold(answer: Option<&Result<Reply, Fault>>) -> bool {
    match answer {
        None | Some(Ok(Reply::Granted)) => true,
        Some(Ok(_)) => false,
        Some(Err(fault)) => fault.may_have_executed(),
    }
}

/// Deletes on one node until it confirms, or the key has expired by itself.
async fn delete(node: &Arc<dyn Node>, request: &Request, until: Instant) {
    let backoff = Backoff::new(FASTEST, SLOWEST);
    for failures in 1.. {
        let fault = match timeout(CLEAN_UP_BUDGET, node.call(request.clone(), CLEAN_UP_BUDGET)).await {
            Ok(Ok(_)) => return,
            Ok(Err(fault)) => fault,
            Err(_) => Fault::Timeout {
                after: CLEAN_UP_BUDGET,
            },
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tracing::debug!(node = node.name(), key = &*request.key, %fault, "clean-up not confirmed; the key has expired");
            return;
        }
        sleep(backoff.delay(failures, fastrand::u32(..)).min(left)).await;
    }
}
