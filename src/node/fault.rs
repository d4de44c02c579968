//! Why a node gave no vote.

use std::sync::Arc;
use std::time::Duration;

use crate::sys::millis;

/// Why a node gave no vote. A lock that is held, or a key that is missing, is no fault.
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
    #[error("this client is new, and a client with another list of nodes may not know of it yet: the node gives it no locks for another {}", seconds(*remaining))]
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
    /// The request reached the node after its time and was refused.
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
    /// Returns the fault's name, for programs.
    #[doc(hidden)]
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Disconnected { .. } => "not_connected",
            Fault::Unfit(_) => "may_not_vote",
            Fault::Timeout { .. } => "timeout",
            Fault::ConnectionLost { .. } => "connection_lost",
            Fault::Restarted { .. } => "restart_guard",
            Fault::OtherMemory => "other_memory",
            Fault::Replaced { .. } => "replaced",
            Fault::Unsettled { .. } => "unsettled",
            Fault::Unregistered => "unregistered",
            Fault::OtherNodes(_) => "other_list_of_nodes",
            Fault::TooLate => "too_late",
            Fault::WrongType => "wrong_type",
            Fault::OutOfMemory => "out_of_memory",
            Fault::ReadOnly => "read_only",
            Fault::MasterDown => "master_down",
            Fault::NoReplicas => "no_replicas",
            Fault::Loading => "loading",
            Fault::CannotPersist => "cannot_persist",
            Fault::Busy => "busy",
            Fault::Auth { .. } => "auth",
            Fault::NoPermission { .. } => "no_permission",
            Fault::ClusterDown => "cluster_down",
            Fault::NoScript => "no_script",
            Fault::Server { .. } => "server_error",
            Fault::Protocol { .. } => "protocol",
            Fault::OwnLeftover => "other",
        }
    }

    /// Returns how long it takes until the node gives locks, if that is a matter of time only.
    #[doc(hidden)]
    pub fn gives_locks_in(&self) -> Option<Duration> {
        match self {
            Fault::Restarted { remaining, .. }
            | Fault::Replaced { remaining }
            | Fault::Unsettled { remaining } => Some(*remaining),
            _ => None,
        }
    }

    /// Returns whether the node is there, and will vote once some time has passed.
    pub(crate) fn is_temporary(&self) -> bool {
        self.gives_locks_in().is_some() || matches!(self, Fault::OwnLeftover)
    }

    /// Returns whether the request may have been executed in spite of the fault, or may yet be. `false` is certain: the request was
    /// not sent, or the node refused it.
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

/// Returns a duration for people, rounded up to a tenth of a second.
fn seconds(duration: Duration) -> humantime::FormattedDuration {
    let tenths = millis(duration).div_ceil(100);
    humantime::format_duration(Duration::from_millis(tenths.saturating_mul(100)))
}

/// Why a server that answers may not vote.
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
