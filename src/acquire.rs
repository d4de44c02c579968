//! From asking for a lock to having it: attempts (A1-A6), and what comes between them (W1, W2).

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::AcquireError;
use crate::keys::claim::Claim;
use crate::keys::cleanup::Cleanup;
use crate::lease::Lease;
use crate::lease::state::LeaseState;
use crate::options::{LockSettings, RequestParams};
use crate::protocol::quorum::Verdict;
use crate::round::{Nodes, may_retry};
use crate::sys::timer::sleep_until;
use crate::votes::Votes;
use crate::waiting::{Head, Held, Place, Queues, Waiting};

/// Where some of those who wait ask on other settings, what was out of reach so recently is not asked for again on the same settings.
const JUST_NOW: Duration = Duration::from_millis(100);

/// One acquire.
pub(crate) struct Acquire {
    pub(crate) nodes: Nodes,
    pub(crate) cleanup: Cleanup,
    pub(crate) queues: Queues<Arc<Told>>,
    pub(crate) resource: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) settings: LockSettings,
    pub(crate) waiting: Waiting,
}

impl Acquire {
    /// In a single attempt.
    pub(crate) async fn once(mut self) -> Result<Lease, AcquireError> {
        let defeat = match self.attempt().await {
            Ok(lease) => return Ok(lease),
            Err(defeat) => defeat,
        };
        let _ = self.waiting.next_attempt(defeat.quorum(), 0);
        Err(self.failed(defeat))
    }

    /// W1: one of this process at a time.
    pub(crate) async fn queued(mut self) -> Result<Lease, AcquireError> {
        let context = self.cleanup.context().clone();
        let mut place = self.queues.enter(&self.key, self.settings.request_params());
        loop {
            let in_front = place.reach_the_front(self.waiting.end(), &context.runtime).await;
            if !in_front {
                return self.last_question(&place).await;
            }
            if let Some(told) = self.recently_told(&place) {
                // Whoever asked last did so for all whose time is up.
                if self.waiting.is_over() {
                    return Err(self.failed(told.defeat_now()));
                }
                self.waiting.learn(told.out_of_reach_since);
                if !told.defeat.is_for_all() && place.is_mixed() && told.at.elapsed() < JUST_NOW {
                    place.give_way();
                    self.rest(Instant::now() + JUST_NOW).await;
                    continue;
                }
            }
            let mut head = Head::new(&place, &self.nodes, &context);
            head.wait_for_the_others(place.told().is_some(), &mut self.waiting)
                .await;
            let moment = loop {
                head.asks();
                let defeat = match self.attempt().await {
                    Ok(lease) => {
                        head.got();
                        tell_no_outage(&place);
                        return Ok(lease);
                    }
                    Err(defeat) => defeat,
                };
                let moment = self.waiting.next_attempt(defeat.quorum(), fastrand::u32(..));
                self.tell(&place, &defeat);
                let Some(moment) = moment else {
                    return Err(self.failed(defeat));
                };
                // What is out of reach for this one may be had on the settings of another.
                if !defeat.is_for_all() && place.is_mixed() {
                    break moment;
                }
                head.was_told(&defeat.votes, defeat.round_trip);
                head.wait(moment, &mut self.waiting).await;
            };
            place.give_way();
            self.rest(moment).await;
        }
    }

    /// Waits without a place in front.
    async fn rest(&self, until: Instant) {
        let until = self.waiting.end().map_or(until, |end| until.min(end));
        sleep_until(&self.cleanup.context().runtime, until).await;
    }

    /// Time is up: asks, if nobody in this process has since this one came, for all who have no time left either.
    async fn last_question(mut self, place: &Place<Arc<Told>>) -> Result<Lease, AcquireError> {
        let context = self.cleanup.context().clone();
        let told = |acquire: &Self| {
            let still_held = || {
                place
                    .told()
                    .filter(|told| told.defeat.is_for_all() && place.held_here().is_some())
            };
            acquire.recently_told(place).or_else(still_held)
        };
        if let Some(told) = told(&self) {
            return Err(self.failed(told.defeat_now()));
        }
        let _alone = place
            .last_question(self.settings.node_budget, &context.runtime)
            .await;
        if let Some(told) = told(&self) {
            return Err(self.failed(told.defeat_now()));
        }
        let defeat = match self.attempt().await {
            Ok(lease) => {
                tell_no_outage(place);
                return Ok(lease);
            }
            Err(defeat) => defeat,
        };
        let _ = self.waiting.next_attempt(defeat.quorum(), 0);
        self.tell(place, &defeat);
        Err(self.failed(defeat))
    }

    /// What somebody in this process was told since this one came, if this one would have been told the same.
    fn recently_told(&self, place: &Place<Arc<Told>>) -> Option<Arc<Told>> {
        place.told().filter(|told| {
            let is_for_us = told.defeat.is_for_all() || told.question == self.settings.request_params();
            is_for_us && told.at >= self.waiting.started()
        })
    }

    fn tell(&self, place: &Place<Arc<Told>>, defeat: &Defeat) {
        place.tell(Some(Arc::new(Told {
            at: Instant::now(),
            question: self.settings.request_params(),
            defeat: defeat.clone(),
            out_of_reach_since: self.waiting.out_of_reach_since(),
        })));
    }

    async fn attempt(&self) -> Result<Lease, Defeat> {
        let defeat = match self.attempt_once().await {
            Ok(lease) => return Ok(lease),
            Err(defeat) => defeat,
        };
        let is_worth_another = match defeat.how {
            // Earlier steps of clocks are known now, and own leftovers are deleted ahead of the next attempt.
            How::ClocksMoved | How::InOwnWay => true,
            How::NoQuorum => {
                let (limit, context) = (self.settings.node_budget, self.cleanup.context());
                may_retry(&self.nodes, &defeat.votes, limit, context).await
            }
            How::Held | How::TooLate => false,
        };
        if is_worth_another {
            self.attempt_once().await
        } else {
            Err(defeat)
        }
    }

    async fn attempt_once(&self) -> Result<Lease, Defeat> {
        let (cleanup, settings) = (&self.cleanup, &self.settings);
        let mut claim = Claim::acquire(&self.nodes, cleanup, self.key.clone(), settings);
        // A lost claim is dropped on return, and so cleaned up (A6).
        if claim.verdict().await != Verdict::Won {
            // R5: by whom it was lost may still be open. If a quorum of nodes answers, this waits for no others.
            let round = claim.attempt();
            round.settle(|tally| tally.responsive().is_some()).await;
            let mut votes = round.votes();
            let in_own_way = votes.disregard(|node, owner| cleanup.delete_again(node, owner));
            let how = match votes.responsive() {
                _ if in_own_way => How::InOwnWay,
                true => How::Held,
                false => How::NoQuorum,
            };
            return Err(Defeat::new(how, votes, &mut claim));
        }
        let t0 = claim.t0();
        let (token, votes) = match settings.fencing {
            true => claim.certify(settings).await,
            false => (None, claim.attempt().votes()),
        };
        // A5: checked when everything that had to be awaited has been.
        let clock = &cleanup.context().clock;
        if clock.now() >= t0 + settings.validity {
            return Err(Defeat::new(How::TooLate, votes, &mut claim));
        }
        if settings.fencing && token.is_none() {
            let how = match votes.responsive() {
                true => How::Held,
                false => How::NoQuorum,
            };
            return Err(Defeat::new(how, votes, &mut claim));
        }
        // Some of the nodes may not be what they were when they voted.
        if claim.attempt().void_stale_votes() {
            let votes = claim.attempt().votes();
            return Err(Defeat::new(How::NoQuorum, votes, &mut claim));
        }
        // Where nodes' clocks were put forward meanwhile, it may be later than that for them.
        let expiries = claim.expiries(&votes, settings);
        let kept = expiries.quorum_until(|node| self.nodes[node].clock_advanced());
        if clock.now() >= t0 + kept {
            let defeat = Defeat::new(How::ClocksMoved, votes, &mut claim);
            // Ahead of the next attempt in every pipeline, or that would run into it.
            let _ = claim.release().await;
            return Err(defeat);
        }
        let round_trip = claim.attempt().round_trip();
        let (holding, held_by) = self.queues.got(&self.key, self.nodes.len(), round_trip);
        claim.won(Arc::new(holding));
        let state = LeaseState::new(self.resource.clone(), *settings, votes, token, expiries, claim);
        let lease = Lease::start(state);
        let held: Weak<LeaseState> = Arc::downgrade(lease.state());
        held_by.is(held);
        Ok(lease)
    }

    fn failed(&self, defeat: Defeat) -> AcquireError {
        let (resource, waiting) = (self.resource.clone(), &self.waiting);
        let (attempts, waited, votes) = (waiting.attempts(), waiting.waited(), defeat.votes);
        if let (How::NoQuorum, Some(conflict)) = (defeat.how, votes.conflict()) {
            return AcquireError::OtherNodes {
                resource,
                attempts,
                waited,
                conflict,
            };
        }
        match defeat.how {
            How::Held => AcquireError::Held {
                resource,
                attempts,
                waited,
                votes,
            },
            How::NoQuorum | How::InOwnWay => AcquireError::NoQuorum {
                resource,
                attempts,
                waited,
                votes,
            },
            How::TooLate | How::ClocksMoved => AcquireError::TooLate {
                resource,
                attempts,
                waited,
                votes,
            },
        }
    }
}

impl Held for LeaseState {
    fn until(&self) -> Instant {
        // None of the time is left once it has ended.
        self.instant(self.now() + self.remaining())
    }
}

/// The lock was got: nobody is to be told of an outage that is over.
fn tell_no_outage(place: &Place<Arc<Told>>) {
    place.tell(place.told().filter(|told| told.defeat.quorum()));
}

/// What whoever is in front of a queue was told last.
pub(crate) struct Told {
    at: Instant,
    question: RequestParams,
    defeat: Defeat,
    out_of_reach_since: Option<Instant>,
}

impl Told {
    /// As it would be told now.
    fn defeat_now(&self) -> Defeat {
        Defeat {
            votes: self.defeat.votes.aged(self.at.elapsed()),
            ..self.defeat
        }
    }
}

/// A lost attempt.
#[derive(Clone)]
struct Defeat {
    how: How,
    votes: Votes,
    /// How long the nodes took that answered.
    round_trip: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Held,
    NoQuorum,
    /// A6: a quorum may be had once the nodes have deleted what this process has left there.
    InOwnWay,
    TooLate,
    /// The same, by the clocks of the nodes, which were put forward meanwhile or since they were last heard of.
    ClocksMoved,
}

impl Defeat {
    fn new(how: How, votes: Votes, claim: &mut Claim) -> Defeat {
        Defeat {
            how,
            votes,
            round_trip: claim.attempt().round_trip(),
        }
    }

    /// Whether it would have been the same whatever the settings: somebody else has it.
    fn is_for_all(&self) -> bool {
        self.how == How::Held
    }

    /// Whether a quorum of nodes answers.
    fn quorum(&self) -> bool {
        self.how != How::NoQuorum || !self.votes.out_of_reach()
    }
}
