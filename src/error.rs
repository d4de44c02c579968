//! One error per operation, with what each node said.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Fault, ListConflict, OwnerToken, Reply};
use crate::options::OptionError;
use crate::protocol::quorum::{Vote, quorum};
use crate::sys::runtime::Unfit;

/// What each node said in one round.
///
/// `Display` sums up in one line: the counts first, then each node that did not say yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Votes(Vec<NodeVote>);

/// What one node said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeVote {
    /// The node's name: an address without credentials.
    pub node: Arc<str>,
    /// Its answer, or `None` if the round was settled before it came.
    pub answer: Option<Result<Reply, Fault>>,
}

impl NodeVote {
    fn vote(&self) -> Option<Vote> {
        self.answer.as_ref().map(vote)
    }
}

/// What an answer means in any round: grants, extensions and deletions are "yes".
pub(crate) fn vote(answer: &Result<Reply, Fault>) -> Vote {
    match answer {
        Ok(Reply::Granted { .. } | Reply::Raised { .. } | Reply::Extended | Reply::Released { .. }) => {
            Vote::Yes
        }
        Ok(Reply::Held { .. } | Reply::Missing | Reply::Foreign) => Vote::No,
        Err(_) => Vote::Fault,
    }
}

impl Votes {
    pub(crate) fn new(votes: Vec<NodeVote>) -> Self {
        Votes(votes)
    }

    /// The same, so much later.
    pub(crate) fn aged(&self, age: Duration) -> Votes {
        let mut votes = self.clone();
        for vote in &mut votes.0 {
            if let Some(Ok(Reply::Held {
                remaining: Some(left),
                ..
            })) = &mut vote.answer
            {
                *left = left.saturating_sub(age);
            }
        }
        votes
    }

    /// Takes refusals by tokens for which `is_own_leftover` holds for faults. Returns whether a quorum may be had without them.
    pub(crate) fn disregard(&mut self, mut is_own_leftover: impl FnMut(usize, OwnerToken) -> bool) -> bool {
        let mut own = 0;
        for (node, vote) in self.0.iter_mut().enumerate() {
            if let Some(Ok(Reply::Held {
                holder: Some(holder), ..
            })) = vote.answer
                && is_own_leftover(node, holder)
            {
                vote.answer = Some(Err(Fault::OwnLeftover));
                own += 1;
            }
        }
        own > 0 && self.yes() + self.outstanding() + own >= self.quorum()
    }

    /// The same, but for what the node has said since.
    pub(crate) fn correct(&mut self, node: usize, answer: Result<Reply, Fault>) {
        self.0[node].answer = Some(answer);
    }

    /// Whether a quorum of nodes answered, whatever they said (R5).
    pub(crate) fn responsive(&self) -> bool {
        self.yes() + self.no() >= self.quorum()
    }

    /// Whether no quorum of nodes is there, as far as they were heard. Those that are left out because they have restarted are
    /// there, and will vote (R2).
    pub(crate) fn out_of_reach(&self) -> bool {
        let gone = |vote: &&NodeVote| {
            let answer = vote.answer.as_ref();
            answer.is_some_and(|answer| matches!(answer, Err(fault) if !fault.is_temporary()))
        };
        self.0.len() - self.0.iter().filter(gone).count() < self.quorum()
    }

    /// Whether a node has failed like that.
    pub(crate) fn any_fault(&self, is_it: impl Fn(&Fault) -> bool) -> bool {
        let answers = self.0.iter().filter_map(|vote| vote.answer.as_ref());
        answers.filter_map(|answer| answer.as_ref().err()).any(is_it)
    }

    /// The other list of nodes that is in use, if that is why nodes gave no vote.
    pub(crate) fn conflict(&self) -> Option<Arc<ListConflict>> {
        self.0.iter().find_map(|vote| match &vote.answer {
            Some(Err(Fault::OtherNodes(conflict))) => Some(conflict.clone()),
            _ => None,
        })
    }

    /// The nodes' votes, in the order in which the nodes were configured.
    pub fn iter(&self) -> impl Iterator<Item = &NodeVote> {
        self.0.iter()
    }

    /// How many nodes did what was asked.
    pub fn yes(&self) -> usize {
        self.count(Some(Vote::Yes))
    }

    /// How many nodes answered and declined.
    pub fn no(&self) -> usize {
        self.count(Some(Vote::No))
    }

    /// How many nodes gave no vote because of a fault.
    pub fn faults(&self) -> usize {
        self.count(Some(Vote::Fault))
    }

    /// How many nodes were not waited for, because the others had settled the round.
    pub fn outstanding(&self) -> usize {
        self.count(None)
    }

    /// How many "yes" it takes: N/2 + 1 of the configured nodes.
    pub fn quorum(&self) -> usize {
        quorum(self.0.len())
    }

    /// The longest time until a holder's key expires, of those that were seen and do expire.
    pub fn longest_remaining(&self) -> Option<Duration> {
        self.0
            .iter()
            .filter_map(|vote| match vote.answer {
                Some(Ok(Reply::Held { remaining, .. })) => remaining,
                _ => None,
            })
            .max()
    }

    fn count(&self, wanted: Option<Vote>) -> usize {
        self.0.iter().filter(|vote| vote.vote() == wanted).count()
    }
}

impl fmt::Display for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let declined = |wanted: fn(Reply) -> bool| {
            self.0
                .iter()
                .filter(|vote| matches!(vote.answer, Some(Ok(reply)) if wanted(reply)))
                .count()
        };
        let counts = [
            (self.yes(), "yes"),
            (declined(|reply| matches!(reply, Reply::Held { .. })), "held"),
            (declined(|reply| reply == Reply::Missing), "missing"),
            (declined(|reply| reply == Reply::Foreign), "taken over"),
            (self.faults(), "faulty"),
            (self.outstanding(), "not waited for"),
        ];
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} node{plural}, quorum {}:", self.0.len(), self.quorum())?;
        let mut separator = " ";
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        // What has as good as ended is not worth a word.
        if let Some(remaining) = self.longest_remaining().filter(|time| time.as_millis() > 0) {
            write!(f, " (held for at most {} more)", short(remaining))?;
        }
        for vote in &self.0 {
            if let Some(Err(fault)) = &vote.answer {
                write!(f, "; {}: {fault}", vote.node)?;
            }
        }
        Ok(())
    }
}

/// A duration as a person wants it: milliseconds are precise enough.
fn short(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
    ))
}

fn tries(attempts: u32, waited: Duration) -> String {
    let plural = if attempts == 1 { "" } else { "s" };
    format!("{attempts} attempt{plural} in {}", short(waited))
}

/// [`Redlock::connect`](crate::Redlock::connect) failed. Nothing is held anywhere.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option, a URL or the list of nodes makes no sense. Nothing was contacted.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A node that answers may not vote, so the list of nodes is wrong: replicas, cluster members and duplicates are
    /// refused rather than left out.
    #[error("misconfigured: {}", unfit(.0))]
    Misconfigured(Votes),
    /// No quorum of nodes could be reached in time.
    #[error("no quorum of nodes within {}: {}", short(*.waited), missing(.votes))]
    NoQuorum {
        /// How long was waited.
        waited: Duration,
        /// What each node ran into. Nodes without an answer are up.
        votes: Votes,
    },
    /// Other clients use another list of nodes on some of these nodes, and did so for as long as was waited.
    #[error(transparent)]
    OtherNodes(Arc<ListConflict>),
    /// Not called within a tokio runtime.
    #[error("not within a tokio runtime: connect needs one to run its connections on")]
    NoRuntime,
    /// The tokio runtime was built without a part that connections need.
    #[error(
        "the tokio runtime was built without {needs}: build it with .enable_all(), for connections and leases need input, \
         output and timers"
    )]
    IncompleteRuntime {
        /// What its builder was not told: `enable_time` or `enable_io`.
        needs: &'static str,
    },
}

impl From<Unfit> for ConnectError {
    fn from(unfit: Unfit) -> ConnectError {
        match unfit {
            Unfit::Missing => ConnectError::NoRuntime,
            Unfit::BuiltWithout(needs) => ConnectError::IncompleteRuntime { needs },
        }
    }
}

fn missing(votes: &Votes) -> String {
    let up = votes.outstanding();
    let mut text = format!("{up} of {} are up, {} are needed", votes.0.len(), votes.quorum());
    for vote in votes.iter() {
        if let Some(Err(fault)) = &vote.answer {
            text.push_str(&format!("; {}: {fault}", vote.node));
        }
    }
    text
}

fn unfit(votes: &Votes) -> String {
    let reasons: Vec<String> = votes
        .iter()
        .filter_map(|vote| match &vote.answer {
            Some(Err(Fault::Unfit(unfit))) => Some(format!("{}: {unfit}", vote.node)),
            _ => None,
        })
        .collect();
    reasons.join("; ")
}

/// A lock was not acquired.
///
/// Whatever the attempts may have left on nodes is being deleted in the background until the nodes confirm, or the TTL
/// has passed; [`Redlock::shutdown`](crate::Redlock::shutdown) waits for that.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// An option or the resource's name makes no sense. Nothing was sent.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A quorum of nodes answered, and the lock is held (or was contended, and nobody got it in this attempt).
    #[error("{resource:?} is held by someone else ({}): {votes}", tries(*.attempts, *.waited))]
    Held {
        /// What was to be locked.
        resource: Arc<str>,
        /// How many attempts were made.
        attempts: u32,
        /// How long they took altogether.
        waited: Duration,
        /// What the nodes said in the last attempt.
        votes: Votes,
    },
    /// Fewer than a quorum of nodes answered: nobody can get any lock now. This is not "held".
    #[error("no quorum for {resource:?} ({}): {votes}", tries(*.attempts, *.waited))]
    NoQuorum {
        /// What was to be locked.
        resource: Arc<str>,
        /// How many attempts were made.
        attempts: u32,
        /// How long they took altogether.
        waited: Duration,
        /// What the nodes said in the last attempt.
        votes: Votes,
    },
    /// Other clients use another list of nodes on some of these nodes: no lock is taken as long as they do.
    #[error("{resource:?} was not locked ({}): {conflict}", tries(*.attempts, *.waited))]
    OtherNodes {
        /// What was to be locked.
        resource: Arc<str>,
        /// How many attempts were made.
        attempts: u32,
        /// How long they took altogether.
        waited: Duration,
        /// Both lists.
        conflict: Arc<ListConflict>,
    },
    /// A quorum granted the lock, but so late that nothing was left of its validity: by the clock of this machine, or by those
    /// of nodes that were put forward meanwhile. Use a longer TTL, or look for what stops this process from running.
    #[error("{resource:?} was granted too late to be valid ({}): {votes}", tries(*.attempts, *.waited))]
    TooLate {
        /// What was to be locked.
        resource: Arc<str>,
        /// How many attempts were made.
        attempts: u32,
        /// How long they took altogether.
        waited: Duration,
        /// What the nodes said in the last attempt.
        votes: Votes,
    },
    /// [`Redlock::shutdown`](crate::Redlock::shutdown) was called.
    #[error("this Redlock is shut down")]
    ShutDown,
    /// The tokio runtime that the manager was connected on has ended, and its connections with it.
    #[error(
        "the tokio runtime that this Redlock was connected on has ended, and its connections with it: connect on a runtime \
         that lives for as long as locks are taken"
    )]
    RuntimeEnded,
}

impl AcquireError {
    /// What the nodes said in the last attempt, where there was one.
    pub fn votes(&self) -> Option<&Votes> {
        match self {
            AcquireError::Held { votes, .. }
            | AcquireError::NoQuorum { votes, .. }
            | AcquireError::TooLate { votes, .. } => Some(votes),
            AcquireError::Options(_)
            | AcquireError::OtherNodes { .. }
            | AcquireError::ShutDown
            | AcquireError::RuntimeEnded => None,
        }
    }
}

/// A lease was not extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// No quorum confirmed. Nothing has changed: the old deadline stands, and extending may be tried again until then.
    #[error("not extended, the old deadline stands: {votes}")]
    NoQuorum {
        /// What the nodes said.
        votes: Votes,
    },
    /// The lease is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The lease was released, or dropped.
    #[error("the lease has been released")]
    Released,
}

/// A lease is lost: stop what it protected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease on {resource:?} lost: {reason}")]
#[non_exhaustive]
pub struct Lost {
    /// What was locked.
    pub resource: Arc<str>,
    /// How it was lost.
    pub reason: LossReason,
}

/// How a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// Its deadline passed before a renewal came through.
    Expired {
        /// What the nodes said in the last failed renewal, if there was one.
        last_failure: Option<Votes>,
    },
    /// A quorum of nodes answered that the key is gone, or someone else's: deleted by hand, evicted, or lost with a
    /// node's memory.
    Gone(Votes),
    /// [`max_hold`](crate::LockRequest::max_hold) was reached.
    MaxHold,
    /// The machine was suspended, and the lease expired meanwhile.
    Suspended {
        /// For how long since the last renewal.
        slept: Duration,
    },
    /// The clocks of so many nodes were put forward that no quorum of them can be trusted to keep the key for the rest of its
    /// time: keys expire by the node's clock. A renewal that was tried at once, if there was time for it, did not come through.
    ClockPutForward {
        /// Whose clocks.
        nodes: Vec<Arc<str>>,
    },
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Expired { last_failure: None } => f.write_str("it expired"),
            LossReason::Expired {
                last_failure: Some(votes),
            } => {
                write!(f, "it expired; the last renewal failed: {votes}")
            }
            LossReason::Gone(votes) => write!(f, "a quorum no longer knows it: {votes}"),
            LossReason::Suspended { slept } => {
                write!(
                    f,
                    "it expired while this machine was suspended, for {}",
                    short(*slept)
                )
            }
            LossReason::ClockPutForward { nodes } => {
                write!(
                    f,
                    "it expired early: clocks were put forward on {}",
                    nodes.join(", ")
                )
            }
            LossReason::MaxHold => f.write_str("it was held for as long as allowed (max_hold)"),
        }
    }
}

/// What became of a lease that was released (L1). A value, not an error: whatever it says, this lease is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it may say that the lease had been lost before it was released"]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// A quorum still held it, and deleted it.
    Released,
    /// It was over before: the deadline had passed, or a quorum no longer knew it.
    AlreadyGone,
    /// Too many nodes gave no answer to tell. They are asked again in the background until the TTL has passed.
    Uncertain(Votes),
}

impl fmt::Display for ReleaseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseOutcome::Released => f.write_str("released"),
            ReleaseOutcome::AlreadyGone => f.write_str("already gone: the lease had ended before"),
            ReleaseOutcome::Uncertain(votes) => write!(f, "release not confirmed by a quorum: {votes}"),
        }
    }
}

/// A scoped run did not come to its end under the lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired; the work was not started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost; the work was cancelled (its future dropped) before the deadline.
    #[error(transparent)]
    Lost(#[from] Lost),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(remaining: &[u64]) -> Votes {
        let vote = |(number, &millis): (usize, &u64)| NodeVote {
            node: format!("n{number}").into(),
            answer: Some(Ok(Reply::Held {
                remaining: Some(Duration::from_millis(millis)),
                holder: None,
                listeners: 0,
            })),
        };
        Votes::new(remaining.iter().enumerate().map(vote).collect())
    }

    #[test]
    fn votes_are_summed_up_in_words_that_fit_their_number() {
        for (votes, words) in [
            (held(&[0]), "1 node, quorum 1: 1 held"),
            (
                held(&[0, 1_500]),
                "2 nodes, quorum 2: 2 held (held for at most 1s 500ms more)",
            ),
        ] {
            assert_eq!(votes.to_string(), words);
        }
    }
}
