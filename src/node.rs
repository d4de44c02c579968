//! The port: what a lock needs of a node, whatever is behind it.
//!
//! Letters with a number (A9, F5) are the rules in `docs/design.md`.
//!
//! [`crate::Redlock::connect`] fills it with Redis and Valkey masters. Implement [`Node`] yourself to put something else
//! behind it, for instance a simulated node in a test (see [`RedlockBuilder::custom_nodes`](crate::RedlockBuilder::custom_nodes)).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use uuid::Uuid;

pub use crate::news::{
    Listener, Listening, ReleaseKind, ReleaseNotice, Sender, Successor, Turn, WaitNotice, WaiterId,
};
use crate::protocol::token::FencingToken;

/// One independent vote: a single Redis or Valkey master, never a replica and never a member of a cluster.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// How to call this node in messages: an address without credentials.
    fn name(&self) -> &Arc<str>;

    /// Sends `request`, and gives the answer.
    ///
    /// * **Time** is kept by the caller: it waits for `budget`, then drops the future (T3).
    /// * **Order.** The request takes its place *during this call*, not when the future is first polled: requests are
    ///   executed in the order in which `call` was called, as long as the connection lasts (T1).
    /// * **Dropping the future** does not take back what was sent (T3). What was not sent yet is dropped with it.
    /// * **Lateness.** An acquire that would be executed later than `budget` from now is refused by the node (A9).
    /// * A node that is known to be out of reach answers [`Fault::Disconnected`] at once (A3).
    ///
    /// Called within a tokio runtime.
    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// Over which connection requests are sent, as a number that rises with each change. What is sent over one is executed in the
    /// order in which it was sent, or not at all: so a deletion that has found nothing shows that nothing sent before it will
    /// come. `None`, where that is not known, has it asked for again until nothing can come any more (A6).
    fn connection(&self) -> Option<u64> {
        None
    }

    /// A number that rises whenever votes that the node has given before must not count any more: it turned out to be another
    /// server, or to have lost its memory.
    fn epoch(&self) -> u64 {
        0
    }

    /// The node's own clock as far as it is known, in microseconds since 1970. Missing counters start from it (F5); it
    /// need not be exact.
    fn clock(&self) -> Option<u64> {
        None
    }

    /// How far the node's clock is known to have been put forward since it was first heard of, against the clock of this
    /// machine; it never falls. Keys expire by the node's clock, so each of them ends that much earlier.
    ///
    /// Asked for after each answer.
    fn clock_advanced(&self) -> Duration {
        Duration::ZERO
    }

    /// Why the node would give no lock now that wants this guard, although it may be up: for instance
    /// [`Fault::Restarted`], if it may have forgotten something that it was told within the last `guard`.
    fn left_out(&self, guard: Option<Duration>) -> Option<Fault> {
        let _ = guard;
        None
    }

    /// Completes once votes of this node count again that do not only because this process was stopped. `None` if that is not the
    /// case.
    fn overdue(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// W2: tells `listener` of releases of `key` on this node, and of processes that wait for it, until what is returned is dropped. `None` if
    /// it never can; then those who wait have to ask.
    ///
    /// Called within a tokio runtime.
    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        let _ = (key, listener);
        None
    }

    /// What is known of the node's state right now.
    fn status(&self) -> NodeState {
        NodeState::Up { warnings: Vec::new() }
    }
}

/// What is known of a node without asking it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// The first connection has not been settled yet.
    Connecting,
    /// Connected, probed, votes.
    Up {
        /// What is wrong with the node's settings although it may vote, for instance an eviction policy.
        warnings: Vec<String>,
    },
    /// Out of reach, or refused by the probe. Tried again in the background.
    Down(Fault),
}

/// What to ask of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The lock's key on the node, prefix included.
    pub key: Arc<str>,
    /// Whose lock it is.
    pub owner: OwnerToken,
    /// What to do.
    pub action: Action,
}

/// What to do with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set the key to the owner token if it is free. Finding the own token there counts as granted (A7).
    Acquire {
        /// Expiry to set.
        ttl: Duration,
        /// How to count the grant (F1); the key and its counter change in one step. `None` counts nothing.
        fencing: Option<Fencing>,
        /// A node whose memory began less than this (and up to 5 s more) ago may have forgotten a lock that is still held: it answers
        /// [`Fault::Restarted`]. `None` asks whatever it may have forgotten.
        guard: Option<Duration>,
    },
    /// Set the key to the owner token if it is free, for a lease that a quorum of other nodes is known to hold (E4). Not a
    /// grant, and so not counted. Refused when late, like an acquire (A9).
    Heal {
        /// Expiry to set.
        ttl: Duration,
        /// With it goes the lease's token, which the counter is raised to if it is lower (F4). A counter that is missing is
        /// started as by an acquire (F5), for other tokens may have been issued since. `None` where there are no tokens.
        fencing: Option<(Fencing, FencingToken)>,
    },
    /// If the key holds the owner token, raise its counter to `token`, if it is lower (F3). A missing counter stays missing.
    Raise {
        /// The token to be issued.
        token: FencingToken,
    },
    /// If the key holds the owner token, let it expire `ttl` from now; never earlier than it would have (E1).
    Extend {
        /// Expiry to set.
        ttl: Duration,
        /// Whether the confirmation of a node whose memory has just begun counts for nothing: it answers
        /// [`Fault::Restarted`], although it has extended the key. Other clients may still use the server that was there before.
        guarded: bool,
    },
    /// If the key holds the owner token, delete it (L1). Whoever holds it, raise its counter to `counter`, if it is there and
    /// lower (F4).
    Release {
        /// The largest counter that is known; `None` where no token was issued.
        counter: Option<FencingToken>,
        /// W2: what is announced if the key was deleted. `None` for a lock that was never had.
        notice: Option<ReleaseNotice>,
    },
    /// Announce to all who listen that a process waits for the lock (W2). The key is not looked at.
    Announce(WaitNotice),
}

/// How a node counts the grants of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fencing {
    /// F5: what a missing counter starts from, unless the node's clock disagrees by more than a second. The same for all
    /// nodes.
    pub seed: FencingToken,
    /// How long a counter lives from when it is started; `None`: for ever.
    pub retention: Option<Duration>,
}

/// A node's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Acquire, heal: the key is ours.
    Granted {
        /// F1: the counter after this grant; `None` where none was asked for.
        counter: Option<FencingToken>,
    },
    /// Acquire, heal: the key holds another token.
    Held {
        /// Until it expires; `None` if it never does.
        remaining: Option<Duration>,
        /// W3: that token; `None` if it is none of this library's.
        holder: Option<OwnerToken>,
    },
    /// Raise: the key is ours.
    Raised {
        /// The counter, now at least what it was to be raised to.
        counter: FencingToken,
    },
    /// Extend: done.
    Extended,
    /// Release: the key was ours and is deleted.
    Released {
        /// Whether anybody was told.
        heard: bool,
    },
    /// Announce: done, or not allowed.
    Announced,
    /// Raise, extend or release: there is no such key. Raise: or there is no counter.
    Missing,
    /// Raise, extend or release: the key holds another token.
    Foreign,
}

/// The random value of a lock key: one per attempt, proves ownership.
///
/// It is a capability, so `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerToken(Uuid);

impl OwnerToken {
    /// A1: a fresh token (UUID v4) from the system's random source.
    pub fn random() -> Self {
        OwnerToken(Uuid::new_v4())
    }

    /// The value as it stands on the nodes: 36 characters.
    pub fn value(&self) -> String {
        self.0.hyphenated().to_string()
    }

    /// The token with this value, if it is one.
    pub fn from_value(value: &str) -> Option<Self> {
        // As it stands on the nodes, and in no other of the ways to write it.
        let token = (value.len() == 36).then(|| Uuid::try_parse(value).ok())??;
        Some(OwnerToken(token))
    }

    /// Returns the token in hyphenated form.
    pub(crate) fn text(&self) -> [u8; 36] {
        let mut buffer = [0; 36];
        self.0.hyphenated().encode_lower(&mut buffer);
        buffer
    }
}

impl From<u128> for OwnerToken {
    /// One of your own choice, for tests. Whoever knows it can delete the lock.
    fn from(number: u128) -> Self {
        OwnerToken(Uuid::from_u128(number))
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}

/// Why a node did not give a vote. Never "held", and never "absent" (R5).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// There was no connection, so nothing was sent.
    #[error("not connected: {reason}")]
    Disconnected {
        /// What the last try to connect ran into.
        reason: Arc<str>,
    },
    /// The node answers, but may not vote. Nothing was sent.
    #[error("may not vote: {0}")]
    Unfit(Unfit),
    /// No answer within the node's budget. The request may have been executed, or may yet be.
    #[error("no answer within {}", humantime::format_duration(*after))]
    Timeout {
        /// The budget.
        after: Duration,
    },
    /// The connection ended before the answer. The request may have been executed.
    #[error("connection lost: {reason}")]
    ConnectionLost {
        /// What the transport said.
        reason: Arc<str>,
    },
    /// The node's memory began or was restored a short while ago, so it may have forgotten locks that are still held: it gives
    /// none, and confirms none at first.
    #[error(
        "its memory began or was restored {} ago, so it may have forgotten locks: counts for none for another {} (restart guard)",
        seconds(*ago),
        seconds(*remaining)
    )]
    Restarted {
        /// How long ago its memory began, or was restored by a restart that kept the data.
        ago: Duration,
        /// Until what it may have forgotten has expired.
        remaining: Duration,
    },
    /// The node has another memory than this client took it for: it was emptied, replaced or put back to an older state. It
    /// did nothing, and is looked at anew.
    #[error("has lost its memory, or is another server by now: looked at anew")]
    OtherMemory,
    /// Another client still uses the server that was at this address before, or may do so for a while: this one gives no locks,
    /// and confirms none, until then.
    #[error("another client may rely on what was stored here before (the data was lost, or the name led to another server): counts for none for another {} at least", seconds(*remaining))]
    Replaced {
        /// Until the other client's registration ends, unless it goes on.
        remaining: Duration,
    },
    /// Not all nodes could be told which list of nodes this client uses, so clients with another list get a moment to be met:
    /// the node gives no locks until then.
    #[error("not every node knows this client for certain yet, so clients with another list of nodes get time to be met: gives no locks for another {}", seconds(*remaining))]
    Unsettled {
        /// Until then.
        remaining: Duration,
    },
    /// The list of nodes that this client uses is not registered on the node yet, or was not confirmed for too long: its vote does
    /// not count. Nothing was sent, or only what needs no vote.
    #[error("this client's list of nodes is not registered there yet: its vote does not count")]
    Unregistered,
    /// Other clients use another list of nodes, so this client takes no locks.
    #[error("another list of nodes is in use")]
    OtherNodes(Arc<ListConflict>),
    /// The request reached the node after its time and was refused (A9).
    #[error("reached the node too late, and was refused there")]
    TooLate,
    /// The key still holds what an earlier attempt or lease of this client has left there. The node was asked once more to delete it.
    #[error(
        "still holds what an earlier attempt or lease of this client has left there: it is being deleted"
    )]
    OwnLeftover,
    /// The key holds something other than a lock, so this lock name collides with a data key.
    #[error("the key holds other data than a lock (WRONGTYPE): pick another lock name or key prefix")]
    WrongType,
    /// The server is at its memory limit.
    #[error("server out of memory (OOM)")]
    OutOfMemory,
    /// The server has become a replica.
    #[error("server is read-only (READONLY): it is a replica now")]
    ReadOnly,
    /// The server has become a replica, has lost its master, and answers nothing meanwhile (`replica-serve-stale-data no`).
    #[error(
        "server refuses all commands (MASTERDOWN): it has become a replica, and its master is out of reach; make it a master \
         again (REPLICAOF NO ONE), or name another node"
    )]
    MasterDown,
    /// The server has fewer replicas than `min-replicas-to-write`.
    #[error(
        "server refuses writes (NOREPLICAS): it has fewer replicas than its min-replicas-to-write; set that to 0, for a node \
         needs none"
    )]
    NoReplicas,
    /// The server is still loading its data.
    #[error("server is loading its data (LOADING)")]
    Loading,
    /// The server refuses writes, for it cannot persist them.
    #[error("server cannot persist and refuses writes (MISCONF)")]
    CannotPersist,
    /// The server is blocked by a script that runs for too long.
    #[error("server is busy with a script (BUSY)")]
    Busy,
    /// Authentication is missing or wrong.
    #[error("authentication failed ({code})")]
    Auth {
        /// `NOAUTH` or `WRONGPASS`.
        code: &'static str,
    },
    /// The user lacks a permission (ACL).
    #[error("no permission (NOPERM): the user needs {needs}")]
    NoPermission {
        /// The permissions that a lock needs.
        needs: &'static str,
    },
    /// A cluster member, and its cluster is down.
    #[error("cluster member, and the cluster is down (CLUSTERDOWN)")]
    ClusterDown,
    /// The script could not be run by its digest nor by its text.
    #[error("server does not keep the script (NOSCRIPT)")]
    NoScript,
    /// Any other error reply.
    #[error("server error: {message}")]
    Server {
        /// The reply, shortened, without the owner token.
        message: Arc<str>,
    },
    /// An answer that makes no sense.
    #[error("unintelligible answer: {detail}")]
    Protocol {
        /// What was wrong with it.
        detail: Arc<str>,
    },
}

/// Two clients that take different nodes for one set. Both could have a quorum, so the later one takes no locks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this client's list of nodes is [{}], but another list of nodes is in use: [{}], last by {user}. Two lists can give one lock \
     to two clients. Stop all clients of one of the lists, and try again in {}; `quorlock members` shows who uses which",
    ours.join(", "),
    theirs.join(", "),
    seconds(*.remaining)
)]
#[non_exhaustive]
pub struct ListConflict {
    /// The addresses of this client's nodes.
    pub ours: Vec<Arc<str>>,
    /// The addresses of the other client's nodes.
    pub theirs: Vec<Arc<str>>,
    /// The client that used the other list last: executable, host, process id.
    pub user: Arc<str>,
    /// When the other list is forgotten, unless it is used again.
    pub remaining: Duration,
}

impl Fault {
    /// Whether the node is there, and will vote once some time has passed.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(
            self,
            Fault::Restarted { .. } | Fault::Replaced { .. } | Fault::Unsettled { .. } | Fault::OwnLeftover
        )
    }

    /// Whether the request may have been executed in spite of the fault, now or later.
    ///
    /// `false` only where that is certain: it was not sent, or the node said no.
    pub fn may_have_executed(&self) -> bool {
        matches!(
            self,
            Fault::Timeout { .. }
                | Fault::ConnectionLost { .. }
                | Fault::Server { .. }
                | Fault::Protocol { .. }
        )
    }
}

/// As exact as is of interest, and not shorter than it is.
fn seconds(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(
        u64::try_from(duration.as_millis())
            .unwrap_or(u64::MAX)
            .div_ceil(100)
            .saturating_mul(100),
    ))
}

/// Why a server that answers may not vote (R1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// A replica can be behind its master, so it cannot be a vote.
    #[error("it is a replica, not a master")]
    Replica,
    /// Members of a cluster are not independent of each other.
    #[error("it is a member of a cluster; a Redlock node must be a master of its own")]
    ClusterMember,
    /// Sentinels hold no keys.
    #[error("it is a sentinel")]
    Sentinel,
    /// The same server is already in the set under another address: it would vote twice.
    #[error("it is the same server as {other} (same run id)")]
    Duplicate {
        /// The name under which it is already in the set.
        other: Arc<str>,
    },
    /// Redis 6.2 is the oldest that can restrict channels, and the oldest that the tests run on.
    #[error("its version {version} is too old; Redis 6.2 or later, or Valkey, is needed")]
    TooOld {
        /// As reported.
        version: Arc<str>,
    },
    /// Other data stands where the node's record should.
    #[error(
        "the key {key:?} holds other data than the record of a node: another version's, or not quorlock's; use another key prefix, or delete it"
    )]
    OtherRecord {
        /// The record's key.
        key: Arc<str>,
    },
    /// All requests are scripts.
    #[error(
        "it runs no scripts ({reply}), and every request is one: do not rename or disable EVAL and EVALSHA"
    )]
    NoScripts {
        /// What it said to one.
        reply: Arc<str>,
    },
    /// The probe could not be read.
    #[error("its INFO could not be read: {detail}")]
    Unreadable {
        /// What was missing.
        detail: Arc<str>,
    },
}
