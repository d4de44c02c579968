//! Requests to a node, and its replies.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::announcement::{ReleaseNotice, WaitNotice};
use super::fault::Fault;
use super::owner::OwnerToken;
use crate::period::DoneMark;
use crate::protocol::token::FencingToken;

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The lock's key on the node, prefix included.
    pub key: Arc<str>,
    /// The attempt that the lock belongs to.
    pub owner: OwnerToken,
    /// What to do.
    pub action: Action,
}

/// What to do with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set the key to the owner token if it is free. If the own token is there already, that counts as granted.
    Acquire {
        /// Expiry to set.
        ttl: Duration,
        /// How to count the grant. The key and its counter change in one step. `None` counts nothing.
        fencing: Option<Fencing>,
        /// A node whose memory began less than this (and up to 5 s more) ago may have forgotten a lock that is still held: it answers
        /// [`Fault::Restarted`]. `None` asks whatever it may have forgotten.
        guard: Option<Duration>,
    },
    /// Set the key to the owner token if it is free, for a lease that a quorum of other nodes is known to hold. This is no grant, so
    /// it is not counted. Refused when late, like an acquire.
    Heal {
        /// Expiry to set.
        ttl: Duration,
        /// How to start a missing counter, and the lease's token, to which a lower counter is raised. `None` if the lease has no
        /// token.
        fencing: Option<(Fencing, FencingToken)>,
    },
    /// If the key holds the owner token, raise its counter to `token`, if it is lower. A missing counter stays missing.
    Raise {
        /// The token to be issued.
        token: FencingToken,
    },
    /// If the key holds the owner token, let it expire `ttl` from now; never earlier than it would have.
    Extend {
        /// Expiry to set.
        ttl: Duration,
        /// Whether the confirmation of a node whose memory has just begun counts for nothing: it answers
        /// [`Fault::Restarted`], although it has extended the key. Other clients may still use the server that was there before.
        guarded: bool,
    },
    /// If the key holds the owner token, delete it, or let it expire at `keep_until`. Raise its counter to `counter` in any case,
    /// if it is there and lower.
    Release {
        /// The largest counter that is known; `None` where no token was issued.
        counter: Option<FencingToken>,
        /// The announcement, if the key was deleted, or expires earlier now. `None` announces nothing: the lock was never held.
        notice: Option<ReleaseNotice>,
        /// Until when the key must stay; never longer than it would have. `None`, or a moment that has passed: not at all.
        keep_until: Option<Instant>,
    },
    /// If the key holds the owner token, return the mark of the last period in which the resource's work was done.
    Mark {
        /// The mark to set first. `None` only reads.
        set: Option<SetMark>,
    },
    /// Announce to all listeners that a process waits for the lock. The key is not read.
    Announce(WaitNotice),
}

impl Action {
    /// Returns for how long from now a release keeps its key. `None`: not at all.
    pub(crate) fn keeps_for(&self) -> Option<Duration> {
        match self {
            Action::Release { keep_until, .. } => keep_until.and_then(time_left),
            _ => None,
        }
    }
}

/// Returns the time until a moment. `None` if it has passed.
pub(crate) fn time_left(until: Instant) -> Option<Duration> {
    Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

/// A mark to set (L5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMark {
    /// The mark.
    pub mark: DoneMark,
    /// How long the node keeps it.
    pub ttl: Duration,
    /// The latest plausible end, in milliseconds since 1970. A stored mark of the same length that ends later than the new one
    /// stays, up to this end. One that ends later than that comes from a clock that was wrong.
    pub latest_plausible_ms: u64,
}

/// How a node counts the grants of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fencing {
    /// The value that a missing counter starts from, unless the node's clock differs by more than a second. The same for all nodes.
    pub seed: FencingToken,
    /// How long a counter lives from when it is started; `None`: for ever.
    pub retention: Option<Duration>,
}

/// A node's reply, or why there is none.
pub(crate) type Answer = Result<Reply, Fault>;

/// A node's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// Acquire, heal: the key is ours.
    Granted {
        /// The counter after this grant; `None` if the request asked for none.
        counter: Option<FencingToken>,
    },
    /// Acquire, heal: the key holds another token.
    Held {
        /// Until it expires; `None` if it never does.
        remaining: Option<Duration>,
        /// That token; `None` if it is none of this library's.
        holder: Option<OwnerToken>,
    },
    /// Raise: the key is ours.
    Raised {
        /// The counter: at least the token that it was to be raised to.
        counter: FencingToken,
    },
    /// Extend: done.
    Extended,
    /// Release: the key was ours, and is deleted or kept as asked.
    Released {
        /// Whether any subscriber received the announcement.
        notified: bool,
    },
    /// Mark: the key is ours.
    Mark {
        /// The mark that is there now. `None` if there is none.
        mark: Option<DoneMark>,
    },
    /// Announce: done, or not allowed.
    Announced,
    /// Raise, extend, release or mark: there is no such key. Raise: or there is no counter.
    Missing,
    /// Raise, extend, release or mark: the key holds another token.
    Foreign,
}
