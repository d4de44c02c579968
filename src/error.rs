//! One error per operation, with what each node said.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Fault, ListConflict};
use crate::options::OptionError;
use crate::sys::runtime::Unfit;
use crate::votes::{Votes, short};

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
    let mut text = format!(
        "{up} of {} are up, {} are needed",
        votes.iter().count(),
        votes.quorum()
    );
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
#[derive(Clone, Debug, thiserror::Error)]
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
    /// Returns whether the lock is held, which is no outage: [`AcquireError::Held`].
    pub fn is_held(&self) -> bool {
        matches!(self, AcquireError::Held { .. })
    }

    /// Returns whether the same call may succeed later. `false` if an option makes no sense, or the manager has ended.
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self,
            AcquireError::Options(_) | AcquireError::ShutDown | AcquireError::RuntimeEnded
        )
    }

    /// Returns the nodes' answers to the last attempt; `None` if there was no attempt that nodes could answer.
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
