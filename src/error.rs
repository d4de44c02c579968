//! One error per operation, with each node's answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Fault, Holder, ListConflict};
use crate::options::ConfigError;
use crate::sys::runtime::Unfit;
use crate::votes::{Votes, short};

fn tries(attempts: u32, waited: Duration) -> String {
    let plural = if attempts == 1 { "" } else { "s" };
    format!("{attempts} attempt{plural} in {}", short(waited))
}

fn by(holder: &Option<Holder>) -> String {
    holder
        .as_ref()
        .map_or_else(String::new, |holder| format!(" by {holder}"))
}

/// [`Redlock::connect`](crate::Redlock::connect) failed. No lock was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting, a URL or the list of nodes is invalid. Nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A node that answers may not vote: a replica, a cluster member, or the same server as another node, for instance.
    #[error("some nodes may not vote; correct them, or the list of nodes: {}", unfit(.0))]
    Misconfigured(Votes),
    /// No quorum of nodes came up in time.
    #[error("no quorum of nodes came up within {}: {}", short(*.waited), missing(.votes))]
    NoQuorum {
        /// How long `connect` waited.
        waited: Duration,
        /// Why each node is not up. Nodes without an answer are up.
        votes: Votes,
    },
    /// Other clients used another list of nodes on some of these nodes until the timeout.
    #[error(transparent)]
    OtherNodes(Arc<ListConflict>),
    /// Not called within a tokio runtime.
    #[error("there is no tokio runtime to run connections on: connect within one")]
    NoRuntime,
    /// The tokio runtime was built without a part that connections need.
    #[error(
        "the tokio runtime was built without {needs}, but connections and leases need timers, input and output: build it with \
         .enable_all()"
    )]
    IncompleteRuntime {
        /// The missing method of its builder: `enable_time` or `enable_io`.
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
        "{up} of {} nodes up, {} needed",
        votes.iter().count(),
        votes.quorum()
    );
    // Lists each reason once, with its nodes.
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for vote in votes.iter() {
        let Some(Err(fault)) = &vote.answer else { continue };
        let reason = fault.to_string();
        match reasons.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, nodes)) => nodes.push(&vote.node),
            None => reasons.push((reason, vec![&vote.node])),
        }
    }
    for (reason, nodes) in reasons {
        text.push_str(&format!("; {}: {reason}", nodes.join(", ")));
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
/// Keys that the attempts may have left on nodes are deleted in the background, until the nodes confirm or the TTL has passed.
/// [`Redlock::shutdown`](crate::Redlock::shutdown) waits for that.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A setting or the resource's name is invalid. Nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A quorum of nodes answered, and the lock is held. Or several clients contended for it, and none got it in this attempt.
    #[error("{resource:?} is already held{} ({}): {votes}", by(.holder), tries(*.attempts, *.waited))]
    Held {
        /// The requested resource.
        resource: Arc<str>,
        /// The number of attempts.
        attempts: u32,
        /// How long they took together.
        waited: Duration,
        /// The holder. `None` if no quorum of nodes has the same owner token, or it names no client: it is of quorlock 0.1, or of
        /// another library. The holder's description is looked up in the background. After a single attempt, it may not be known
        /// yet: see [`Redlock::identify`](crate::Redlock::identify).
        holder: Option<Holder>,
        /// The nodes' answers to the last attempt.
        votes: Votes,
    },
    /// Too few nodes voted: an outage, or the restart guard. The lock may be free or held. This is never reported as `Held`.
    #[error("{resource:?} was not locked, because too few nodes voted ({}): {votes}", tries(*.attempts, *.waited))]
    NoQuorum {
        /// The requested resource.
        resource: Arc<str>,
        /// The number of attempts.
        attempts: u32,
        /// How long they took together.
        waited: Duration,
        /// The nodes' answers to the last attempt.
        votes: Votes,
    },
    /// Other clients use another list of nodes on some of these nodes. No lock is taken as long as they do.
    #[error("{resource:?} was not locked ({}): {conflict}", tries(*.attempts, *.waited))]
    OtherNodes {
        /// The requested resource.
        resource: Arc<str>,
        /// The number of attempts.
        attempts: u32,
        /// How long they took together.
        waited: Duration,
        /// Both lists.
        conflict: Arc<ListConflict>,
    },
    /// A quorum granted the lock, but too late: its validity had ended by this machine's clock, or by nodes' clocks that were
    /// put forward meanwhile. Use a longer TTL, or find out what delays this process.
    #[error(
        "{resource:?} was granted too late to be valid, and given back ({}); use a longer TTL, or find out what delays this \
         process: {votes}",
        tries(*.attempts, *.waited)
    )]
    TooLate {
        /// The requested resource.
        resource: Arc<str>,
        /// The number of attempts.
        attempts: u32,
        /// How long they took together.
        waited: Duration,
        /// The nodes' answers to the last attempt.
        votes: Votes,
    },
    /// [`Redlock::shutdown`](crate::Redlock::shutdown) was called.
    #[error("this Redlock was shut down and takes no more locks: connect a new one")]
    ShutDown,
    /// The tokio runtime that the manager was connected on has ended.
    #[error(
        "the tokio runtime that this Redlock was connected on has ended, and the connections with it: connect on a runtime \
         that lives as long as locks are taken"
    )]
    RuntimeEnded,
}

impl AcquireError {
    /// The names of errors that come of the nodes.
    pub(crate) const OF_NODES: [&str; 3] = ["no_quorum", "other_nodes", "too_late"];

    /// Returns the error's name, for logs and programs: `held`, `no_quorum`, `other_nodes`, `too_late`, `config`, `shut_down` or
    /// `runtime_ended`.
    pub fn kind(&self) -> &'static str {
        match self {
            AcquireError::Config(_) => "config",
            AcquireError::Held { .. } => "held",
            AcquireError::NoQuorum { .. } => "no_quorum",
            AcquireError::OtherNodes { .. } => "other_nodes",
            AcquireError::TooLate { .. } => "too_late",
            AcquireError::ShutDown => "shut_down",
            AcquireError::RuntimeEnded => "runtime_ended",
        }
    }

    /// Returns whether the error is [`AcquireError::Held`], which is no outage.
    pub fn is_held(&self) -> bool {
        matches!(self, AcquireError::Held { .. })
    }

    /// Returns whether the same call may succeed later. `false` if a setting is invalid, or the manager has ended.
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self,
            AcquireError::Config(_) | AcquireError::ShutDown | AcquireError::RuntimeEnded
        )
    }

    /// Returns how many attempts were made, and how long they took together. `None` if none was made.
    pub(crate) fn took(&self) -> Option<(u32, Duration)> {
        match self {
            AcquireError::Held { attempts, waited, .. }
            | AcquireError::NoQuorum { attempts, waited, .. }
            | AcquireError::OtherNodes { attempts, waited, .. }
            | AcquireError::TooLate { attempts, waited, .. } => Some((*attempts, *waited)),
            AcquireError::Config(_) | AcquireError::ShutDown | AcquireError::RuntimeEnded => None,
        }
    }

    /// Returns the nodes' answers to the last attempt; `None` if no attempt was made, or for [`AcquireError::OtherNodes`].
    pub fn votes(&self) -> Option<&Votes> {
        match self {
            AcquireError::Held { votes, .. }
            | AcquireError::NoQuorum { votes, .. }
            | AcquireError::TooLate { votes, .. } => Some(votes),
            AcquireError::Config(_)
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
    /// No quorum confirmed. The deadline has not changed; try again until then.
    #[error("the lease was not extended, and keeps its deadline; try again until then: {votes}")]
    NoQuorum {
        /// The nodes' answers.
        votes: Votes,
    },
    /// The lease is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The lease was released, or dropped.
    #[error("the lease was released or dropped, so it was not extended: acquire the lock again")]
    Released,
}

/// A detached lease was not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The lock's name or TTL is invalid for this manager. Nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No quorum confirmed. The lock may be held until its TTL is over; try again until then.
    #[error("no quorum confirmed that the lock is still held; try again until its TTL is over: {votes}")]
    NoQuorum {
        /// The nodes' answers.
        votes: Votes,
    },
    /// The lease is lost: it expired, was released, or another client holds the lock.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A lease is lost: stop the work that it protects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease on {resource:?} lost: {reason}")]
#[non_exhaustive]
pub struct Lost {
    /// The locked resource.
    pub resource: Arc<str>,
    /// Why it was lost.
    pub reason: LossReason,
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed before a renewal was confirmed.
    Expired {
        /// The nodes' answers to the last renewal, if that failed. `None` if not.
        last_failure: Option<Votes>,
    },
    /// So many nodes answered that the key is gone, or another client's, that no quorum can be left. The key was deleted by
    /// hand, evicted, or lost with the nodes' data.
    Gone(Votes),
    /// [`max_hold`](crate::LockRequest::max_hold) was reached.
    MaxHold,
    /// The machine was suspended, and the lease expired meanwhile.
    Suspended {
        /// How long it was suspended since the last renewal.
        slept: Duration,
    },
    /// The clocks of so many nodes were put forward that no quorum is sure to keep the key until the deadline: keys expire by
    /// the node's clock. If time was left, a renewal was tried at once and failed.
    ClockPutForward {
        /// The names of these nodes.
        nodes: Vec<Arc<str>>,
    },
}

impl LossReason {
    /// All names that [`kind`](Self::kind) returns.
    pub(crate) const KINDS: [&'static str; 5] = [
        "not_renewed",
        "gone",
        "max_hold",
        "suspended",
        "clock_put_forward",
    ];

    /// Returns the reason's name, for logs and programs: `not_renewed`, `gone`, `max_hold`, `suspended` or `clock_put_forward`.
    pub fn kind(&self) -> &'static str {
        match self {
            LossReason::Expired { .. } => "not_renewed",
            LossReason::Gone(_) => "gone",
            LossReason::MaxHold => "max_hold",
            LossReason::Suspended { .. } => "suspended",
            LossReason::ClockPutForward { .. } => "clock_put_forward",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Expired { last_failure: None } => f.write_str("it was not renewed before it expired"),
            LossReason::Expired {
                last_failure: Some(votes),
            } => {
                write!(f, "it expired; the last renewal failed: {votes}")
            }
            LossReason::Gone(votes) => write!(f, "a quorum no longer knows it: {votes}"),
            LossReason::Suspended { slept } => {
                write!(
                    f,
                    "it expired while this machine was suspended for {}",
                    short(*slept)
                )
            }
            LossReason::ClockPutForward { nodes } => {
                write!(
                    f,
                    "it expired early, because clocks were put forward on {}",
                    nodes.join(", ")
                )
            }
            LossReason::MaxHold => f.write_str("it was held for the longest time allowed (max_hold)"),
        }
    }
}

/// The outcome of a release. A value, not an error: the lease has ended in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the lease may have been lost before it was released"]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// A quorum still held the key, and deleted it, or lets it expire after the minimum hold.
    Released,
    /// The lease had ended before: the deadline had passed, or a quorum no longer knew it.
    AlreadyGone,
    /// Too few nodes answered to tell. The others are asked again in the background until the TTL has passed.
    Uncertain(Votes),
}

impl ReleaseOutcome {
    /// Returns the outcome's name, for logs and programs: `released`, `already_gone` or `uncertain`.
    pub fn kind(&self) -> &'static str {
        match self {
            ReleaseOutcome::Released => "released",
            ReleaseOutcome::AlreadyGone => "already_gone",
            ReleaseOutcome::Uncertain(_) => "uncertain",
        }
    }
}

impl fmt::Display for ReleaseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseOutcome::Released => f.write_str("released"),
            ReleaseOutcome::AlreadyGone => f.write_str("already gone: another client may hold the lock now"),
            ReleaseOutcome::Uncertain(votes) => write!(f, "release not confirmed by a quorum: {votes}"),
        }
    }
}

/// It is not known whether a resource's work is done in a period, or the period was not marked as done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeriodError {
    /// No quorum of nodes answered that it holds the lock of this lease.
    #[error("no quorum of nodes confirms that this lease has the lock, and tells of the period: {votes}")]
    NoQuorum {
        /// The nodes' answers.
        votes: Votes,
    },
}

/// The work of a scoped run was not done under the lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired, so the work was not started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost, so the work was cancelled (its future dropped) before the deadline.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// It is not known whether the work is done in this period, so it was not started.
    #[error("the work was not started, because it is not known whether it is done already: {0}")]
    PeriodUnknown(PeriodError),
    /// The work has ended well, but no quorum of nodes has marked the period. Another process may do the work again.
    #[error("the work is done, but another process may do it again in this period: {0}")]
    NotMarked(PeriodError),
}
