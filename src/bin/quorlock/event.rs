//! Events: what the tool reports while it works. `text.rs` has them for people, `json.rs` for programs.

mod json;
mod text;

use std::time::{Duration, Instant};

use quorlock::node::Reply;
use quorlock::{Holder, LeaseHandle, Lost, Period, PeriodError, ReleaseOutcome, Votes};
use serde_json::Value;

/// How important an event is. The options set the least important that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    Error,
    Warning,
    /// Printed by default.
    Notice,
    /// With `-v`.
    Detail,
    /// With `-vv`.
    Trifle,
}

#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// The lock cannot be acquired yet, for a new reason.
    Waiting {
        resource: &'a str,
        why: &'a Obstacle,
    },
    Acquired {
        lease: &'a LeaseHandle,
    },
    /// The period of `--once-per` is done: the command is not run.
    Done {
        resource: &'a str,
        period: Period,
    },
    Started {
        pid: u32,
    },
    Renewed {
        resource: &'a str,
        valid: Duration,
    },
    /// The lease is lost, or about to be. The command is being stopped.
    Lost {
        lost: &'a Lost,
        deadline: Instant,
        /// How long this process did not run. `None` if it ran often enough.
        paused: Option<Duration>,
    },
    /// The guard has ended the command, because this process did not run in time.
    HeldUp {
        resource: &'a str,
    },
    /// All processes of the command have ended.
    Stopped {
        killed: bool,
    },
    /// Processes of the command are left after KILL.
    NotStopped {
        /// `false` if they belong to another user, so that no signal reached them.
        ours: bool,
    },
    /// The command has ended with 0, but no quorum of nodes has marked the period as done.
    NotMarked {
        resource: &'a str,
        period: Period,
        why: &'a PeriodError,
    },
    Released {
        lease: &'a LeaseHandle,
        outcome: &'a ReleaseOutcome,
    },
    /// What `bench` will do to the nodes.
    Plan {
        keys: &'a str,
        nodes: usize,
        parts: usize,
        length: Duration,
        /// `None` without fencing tokens.
        counters_expire_after: Option<Duration>,
    },
    Measuring {
        what: &'a str,
        part: usize,
        parts: usize,
    },
    Log {
        weight: Weight,
        text: &'a str,
    },
    Failure {
        code: u8,
        message: &'a str,
        details: &'a Value,
    },
}

/// Why a lock cannot be acquired yet.
#[derive(Clone, Debug)]
pub(crate) enum Obstacle {
    Held(Votes, Option<Holder>),
    /// Too few nodes vote. Contains the reason, for people.
    NoQuorum(String),
}

impl Obstacle {
    pub(crate) fn is_like(&self, other: &Obstacle) -> bool {
        matches!(self, Obstacle::Held(..)) == matches!(other, Obstacle::Held(..))
    }
}

impl Event<'_> {
    pub(crate) fn weight(&self) -> Weight {
        match self {
            Event::Failure { .. }
            | Event::Lost { .. }
            | Event::HeldUp { .. }
            | Event::NotStopped { .. }
            | Event::NotMarked { .. } => Weight::Error,
            Event::Released { outcome, .. } if **outcome != ReleaseOutcome::Released => Weight::Warning,
            Event::Waiting { .. } | Event::Done { .. } | Event::Stopped { .. } | Event::Plan { .. } => {
                Weight::Notice
            }
            Event::Acquired { .. }
            | Event::Started { .. }
            | Event::Released { .. }
            | Event::Measuring { .. } => Weight::Detail,
            Event::Renewed { .. } => Weight::Trifle,
            Event::Log { weight, .. } => *weight,
        }
    }
}

fn word(reply: Reply) -> &'static str {
    match reply {
        Reply::Granted { .. } => "granted",
        Reply::Raised { .. } => "raised",
        Reply::Held { .. } => "held",
        Reply::Extended => "extended",
        Reply::Released { .. } => "released",
        Reply::Mark { .. } => "mark",
        Reply::Announced => "announced",
        Reply::Missing => "missing",
        Reply::Foreign => "taken_over",
        _ => "other",
    }
}
