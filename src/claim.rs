//! What may stand on the nodes in our name, and its removal whatever happens (A6, L1, L2).

mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::certify::certify;
use crate::error::{self, NodeVote, ReleaseOutcome, Votes};
use crate::janitor::{Janitor, LastWord, Leftover, Told, as_found};
use crate::node::{Action, Fencing, News, OwnerToken, Reply, Request};
use crate::options::Terms;
use crate::protocol::expiry::Expiries;
use crate::protocol::fencing;
use crate::protocol::quorum::{Standing, Vote, quorum};
use crate::protocol::token::FencingToken;
use crate::round::{Answer, Before, Home, Nodes, Outstanding, Round, ask};
use crate::stragglers::{Stragglers, counter};
use crate::sys::clock::Moment;

/// A node gets this long to confirm a release (but no longer than the TTL), even where the budget of an attempt is shorter:
/// a late answer is as good as an early one, and better than `Uncertain`.
const RELEASE_BUDGET: Duration = Duration::from_secs(1);
/// How wrong the estimate of a node's clock may be that its refusal of late requests rests on (A9).
const LATE_BY: Duration = Duration::from_millis(100);

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
    asked: Action,
    /// Where it may be, once that is settled.
    won_on: Option<Vec<Whereabouts>>,
    /// The lease's, once there is one.
    token: Option<FencingToken>,
    /// F4: what is known of the nodes' counters, once there is a token; nothing before.
    counters: Vec<Option<FencingToken>>,
    /// The acquire on its way to nodes that were not waited for.
    under_way: Option<AbortOnDropHandle<()>>,
    stragglers: Stragglers,
    /// The release, once it is sent: tells where the token is no more.
    release: Option<Round>,
    /// It is being given up, and that is what is announced.
    given_up: Option<Option<News>>,
    /// W1: the next of this process, once the lock was won.
    heirs: Option<Arc<dyn Heirs>>,
}

/// Those of this process who wait for a lock that is held here.
pub(crate) trait Heirs: Send + Sync {
    /// The lock is about to be given up: what those elsewhere are to be told.
    fn news(&self) -> News;

    /// What deletes it has been sent: whoever asks from here on is behind that, on every node.
    fn freed(&self);

    /// A node has told so many who listen elsewhere.
    fn told(&self, node: usize, listeners: u32);
}

impl Claim {
    /// Sends an acquire to all nodes, under a token of its own (A1). A drop from here on cleans up.
    pub(crate) fn acquire(nodes: &Nodes, janitor: &Janitor, key: Arc<str>, terms: &Terms) -> Claim {
        let owner = janitor.home().owner();
        let action = Action::Acquire {
            ttl: terms.ttl,
            fencing: terms.fencing.then(|| counting(nodes, terms)),
            guard: terms.guard,
        };
        let request = Request {
            key: key.clone(),
            owner,
            action,
        };
        let acquire = Round::new(nodes, terms.node_budget, janitor.home());
        let mut claim = Claim {
            nodes: nodes.clone(),
            janitor: janitor.clone(),
            key,
            owner,
            release_budget: terms.node_budget.max(terms.ttl.min(RELEASE_BUDGET)),
            until: gone_by(acquire.started, terms.node_budget, terms.ttl),
            acquire,
            asked: action,
            won_on: None,
            token: None,
            counters: Vec::new(),
            under_way: None,
            stragglers: Stragglers::default(),
            release: None,
            given_up: None,
            heirs: None,
        };
        // Not before there is a claim that cleans up: a node of somebody's own making may panic half way.
        claim.acquire.send(|_| request.clone());
        claim
    }

    /// When the acquire was sent.
    pub(crate) fn t0(&self) -> Moment {
        self.acquire.t0
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn home(&self) -> &Home {
        self.janitor.home()
    }

    /// Who grants it yet, and how it was with each node before it was asked to. Once, when it is won.
    pub(crate) fn take_stragglers(&mut self) -> (Stragglers, Vec<Before>) {
        (self.stragglers.clone(), std::mem::take(&mut self.acquire.before))
    }

    /// E1: until when the nodes that gave these votes keep what was acquired.
    pub(crate) fn expiries(&self, votes: &Votes, terms: &Terms) -> Expiries {
        let mut expiries = Expiries::new(self.nodes.len());
        for (node, vote) in votes.iter().enumerate() {
            if vote
                .answer
                .as_ref()
                .is_some_and(|answer| error::vote(answer) == Vote::Yes)
            {
                expiries.confirm(node, terms.believable, self.acquire.before[node].advanced);
            }
        }
        expiries
    }

    /// The acquire under way.
    pub(crate) fn attempt(&mut self) -> &mut Round {
        &mut self.acquire
    }

    /// F2, F3: the token for what the acquire was granted, if a quorum certifies one; and what the nodes have said.
    pub(crate) async fn certify(&mut self, terms: &Terms) -> (Option<FencingToken>, Votes) {
        let until = self.acquire.started + terms.believable;
        let (key, owner) = (self.key.clone(), self.owner);
        let request = |action| Request {
            key: key.clone(),
            owner,
            action,
        };
        let (token, votes) = certify(&mut self.acquire, request, terms.node_budget, until).await;
        if token.is_some() {
            let counter = |vote: &NodeVote| vote.answer.as_ref().and_then(counter);
            self.counters = votes.iter().map(counter).collect();
            self.token = token;
        }
        (token, votes)
    }

    /// The acquire won. It is still sent to nodes in whose lanes it waits: a lease on a bare quorum would not outlive the
    /// loss of a single node.
    pub(crate) fn won(&mut self, heirs: Arc<dyn Heirs>) {
        self.heirs = Some(heirs);
        let mut won_on = self.whereabouts();
        won_on.shrink_to_fit();
        // A8: nodes that have not answered yet may be asked once more.
        for Whereabouts { node, last_word } in &mut won_on {
            last_word.is_sent_twice |= last_word.connection.is_some() && self.acquire.answer(*node).is_none();
        }
        self.won_on = Some(won_on);
        let outstanding = self.acquire.take_outstanding();
        self.acquire.forget_answers();
        if !outstanding.is_empty() {
            let hearing = self.stragglers.hear(outstanding, &self.janitor.home().runtime);
            self.under_way = Some(hearing);
        }
    }

    /// Sends an extension to all nodes (E1), which are given `budget` to answer.
    pub(crate) fn extend(&mut self, terms: &Terms, budget: Duration) -> Round {
        let (ttl, guarded) = (terms.ttl, terms.guard.is_some());
        let request = self.request(Action::Extend { ttl, guarded });
        let round = Round::start(&self.nodes, &request, budget, self.janitor.home());
        self.until = self.until.max(gone_by(round.started, budget, ttl));
        round
    }

    /// E4: sets the key again on a node that does not have it, for a lease whose extension a quorum of others has just
    /// confirmed. Ordered before the deletion, as everything that is sent under this token.
    pub(crate) fn heal(&mut self, node: usize, terms: &Terms) -> Outstanding {
        let action = Action::Heal {
            ttl: terms.ttl,
            fencing: self.token.map(|token| (counting(&self.nodes, terms), token)),
        };
        let (sent, budget) = (Instant::now(), terms.node_budget);
        if let Some(won_on) = &mut self.won_on {
            won_on.retain(|place| place.node != node);
            let connection = self.nodes[node].connection();
            let last_word = LastWord {
                from: sent + budget + LATE_BY,
                connection,
                is_sent_twice: connection.is_some(),
            };
            won_on.push(Whereabouts { node, last_word });
        }
        self.until = self.until.max(gone_by(sent, budget, terms.ttl));
        ask(
            &self.nodes,
            node,
            self.request(action),
            budget,
            self.janitor.home(),
        )
    }

    /// F4: what a node has answered to that.
    pub(crate) fn healed(&mut self, node: usize, answer: &Answer) {
        self.know(node, counter(answer));
    }

    /// F4: counters only rise, in whatever order they are heard of. Nothing is kept where there are no tokens.
    fn know(&mut self, node: usize, counter: Option<FencingToken>) {
        if let Some(known) = self.counters.get_mut(node) {
            *known = counter.max(*known);
        }
    }

    /// L1: compare-and-delete on all nodes; returns when the outcome is known. Nodes that have not answered by then are
    /// seen to in the background, as they are if this future is dropped.
    pub(crate) async fn release(mut self) -> ReleaseOutcome {
        self.acquire.abandon();
        self.let_stragglers_go();
        let mut round = Round::new(&self.nodes, self.release_budget, self.janitor.home());
        self.give_up();
        round.send(|node| self.release_request(node));
        self.say_that_it_is_free();
        let round = self.release.insert(round);
        round.settle(|tally| tally.standing() != Standing::Pending).await;
        match round.tally().standing() {
            Standing::Confirmed => ReleaseOutcome::Released,
            Standing::Refused => ReleaseOutcome::AlreadyGone,
            Standing::Unclear | Standing::Pending => ReleaseOutcome::Uncertain(round.votes()),
        }
    }

    /// Where the acquire may have set, or may yet set, the key.
    fn whereabouts(&self) -> Vec<Whereabouts> {
        let sent = self.acquire.started;
        let late = sent + self.acquire.budget + LATE_BY;
        let numbered = self.acquire.answers().enumerate();
        let possible = numbered.filter_map(|(node, answer)| {
            let from = match answer {
                Some(_) if self.acquire.was_sent_twice(node) => late,
                Some(Ok(Reply::Granted { .. })) => sent,
                None => late,
                Some(Err(fault)) if fault.may_have_executed() => late,
                Some(_) => return None,
            };
            let last_word = LastWord {
                from,
                connection: self.acquire.before[node].connection,
                is_sent_twice: self.acquire.was_sent_twice(node),
            };
            Some(Whereabouts { node, last_word })
        });
        possible.collect()
    }

    /// F4: carries the largest counter that is known, unless the node is known to have it. So the nodes agree again, and the
    /// next acquire needs one round.
    fn release_request(&self, node: usize) -> Request {
        let highest = self.counters.iter().flatten().max().copied();
        let known = self.counters.get(node).copied().flatten();
        self.request(Action::Release {
            counter: highest.filter(|_| known != highest),
            news: self.given_up.flatten(),
        })
    }

    /// The acquire is sent no more where it was not, and what stragglers have said is taken in.
    fn let_stragglers_go(&mut self) {
        if self.under_way.take().is_none() {
            return;
        }
        for (node, counter) in self.stragglers.heard() {
            self.know(node, counter);
        }
    }

    /// W2: settles what is announced when the key is deleted. Nothing, if nobody can have taken it for held: to be told of each
    /// lost attempt would have everybody ask in vain.
    fn give_up(&mut self) {
        self.given_up = Some(match &self.heirs {
            Some(heirs) => Some(heirs.news()),
            None => (self.whereabouts().len() >= quorum(self.nodes.len())).then_some(News::GivenBack),
        });
    }

    fn say_that_it_is_free(&mut self) {
        if let Some(heirs) = &self.heirs {
            heirs.freed();
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

/// W1: a deletion that whoever asks next is to be behind. Once as many of these as there are in `Freed` are dropped, the lock is
/// free.
struct Unsent(Arc<Freed>);

struct Freed {
    heirs: Arc<dyn Heirs>,
    awaited: AtomicUsize,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if self.0.awaited.fetch_sub(1, Relaxed) == 1 {
            self.0.heirs.freed();
        }
    }
}

/// A node where the token may be.
struct Whereabouts {
    node: usize,
    /// Before, it may be on its way still.
    last_word: LastWord,
}

impl Drop for Claim {
    /// A6: ordered after everything that was sent under this token.
    fn drop(&mut self) {
        if self.given_up.is_none() {
            self.give_up();
        }
        let left = self.won_on.take().unwrap_or_else(|| self.whereabouts());
        // Before anything is asked, so that nothing sends the acquire once more behind the deletion.
        self.acquire.abandon();
        self.let_stragglers_go();
        let mut release = self.release.take();
        // Where a release was sent, that has been said. If a node of somebody's own making panicked meanwhile, it has not.
        let heirs = self.heirs.clone().filter(|_| release.is_none());
        // A quorum, and this one: the others are not waited for, unless they are as quick.
        let awaited = AtomicUsize::new(left.len().min(quorum(self.nodes.len())) + 1);
        let freed = heirs.map(|heirs| Unsent(Arc::new(Freed { heirs, awaited })));
        let sent = release.as_ref().map(|release| release.started);
        let mut under_way = release.as_mut().map(Round::take_outstanding).unwrap_or_default();
        for Whereabouts { node, last_word } in left {
            let answer = release.as_ref().and_then(|release| release.answer(node));
            let reply = answer.and_then(|answer| as_found(answer.clone()).ok());
            let is_gone = |(reply, sent)| last_word.is_said(&reply, &*self.nodes[node], sent);
            if let (Some(heirs), Some(Reply::Released { listeners })) = (&self.heirs, reply) {
                heirs.told(node, listeners);
            }
            if reply.zip(sent).is_some_and(is_gone) {
                continue;
            }
            let leftover = Leftover {
                request: Arc::new(self.release_request(node)),
                asked: under_way
                    .iter()
                    .position(|call| call.number == node)
                    .zip(sent)
                    .map(|(at, sent)| (sent, under_way.swap_remove(at).call)),
                unsent: freed
                    .as_ref()
                    .map(|freed| -> Box<dyn Send> { Box::new(Unsent(freed.0.clone())) }),
                told: self
                    .heirs
                    .clone()
                    .map(|heirs| -> Told { Box::new(move |listeners| heirs.told(node, listeners)) }),
                until: self.until,
                last_word,
            };
            self.janitor.remove(node, leftover);
        }
    }
}

/// F1, F5.
fn counting(nodes: &Nodes, terms: &Terms) -> Fencing {
    Fencing {
        seed: seed(nodes),
        retention: terms.retention,
    }
}

/// F5: one seed for all nodes.
fn seed(nodes: &Nodes) -> FencingToken {
    let clocks = nodes.iter().filter_map(|node| node.clock()).collect();
    let own = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    fencing::seed(clocks, u64::try_from(own.as_micros()).unwrap_or(u64::MAX))
}

/// When a key has expired by itself: what sets or extends it acts at most a budget late (A9), and then it lives for a TTL.
fn gone_by(sent: Instant, budget: Duration, ttl: Duration) -> Instant {
    sent + budget + ttl
}
