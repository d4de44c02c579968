//! The facts that were read of a set of nodes.

use std::sync::Arc;
use std::time::Duration;

use super::info::Info;
use super::rights::Lack;
use crate::node::Fault;
use crate::protocol::memory::MemoryId;

/// The part of a TTL that a node may take to answer (A3).
const BUDGET_IN_TTL: u32 = 10;

#[derive(Debug)]
pub(crate) struct SetFacts {
    pub(crate) nodes: Vec<NodeFacts>,
    pub(crate) ttl: Duration,
    pub(crate) prefix: Arc<str>,
    pub(crate) lists: Lists,
    pub(crate) endless: Endless,
}

/// The lists of nodes in use.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) in_use: Vec<Vec<Arc<str>>>,
    /// Nodes that could not be asked for them, and why.
    pub(crate) faults: Vec<(Arc<str>, Fault)>,
}

/// Locks whose keys never expire.
#[derive(Debug, Default)]
pub(crate) struct Endless {
    pub(crate) locks: Vec<Arc<str>>,
    /// Whether there were too many locks to look at all of them.
    pub(crate) is_partial: bool,
    /// Nodes whose locks could not be listed, and why.
    pub(crate) faults: Vec<(Arc<str>, Fault)>,
}

#[derive(Debug)]
pub(crate) struct NodeFacts {
    pub(crate) name: Arc<str>,
    /// Why the node may not vote or is out of reach. `None` if it is up.
    pub(crate) down: Option<Fault>,
    /// Why it gives no new locks although it is up.
    pub(crate) left_out: Option<Fault>,
    /// How long a write took, or why it was refused.
    pub(crate) write: Result<Duration, Fault>,
    /// The server's own facts, read over another connection; or why there was none.
    pub(crate) server: Result<ServerFacts, Fault>,
}

#[derive(Debug, Default)]
pub(crate) struct ServerFacts {
    /// The server's IP address, or one name for all addresses of this machine. `None` if it is not known.
    pub(crate) host: Option<Arc<str>>,
    /// Addresses of the node's name that lead to another server.
    pub(crate) elsewhere: Vec<String>,
    /// `None` if the server does not show it to this user.
    pub(crate) info: Option<Info>,
    /// The settings with `appendfsync` in their name. Empty if the server does not show them.
    pub(crate) fsync: Vec<(String, String)>,
    /// The memory in the node's record. `None` without a record.
    pub(crate) memory: Option<MemoryId>,
    /// The shortest of several.
    pub(crate) round_trip: Duration,
    pub(crate) clock: Option<Clock>,
    pub(crate) lacks: Vec<Lack>,
    /// The longest delay of each event that the server has watched, in milliseconds. `None` if it does not show them.
    pub(crate) delays: Option<Vec<(String, i64)>>,
    /// How many sentinels watch the server. `None` if it does not tell.
    pub(crate) sentinels: Option<i64>,
}

/// A node's clock, compared with this machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// How far it is ahead, in microseconds; negative for behind.
    pub(crate) ahead: i64,
    /// How far that may be wrong, in microseconds.
    pub(crate) within: i64,
}

impl SetFacts {
    /// Returns how long a node may take to answer.
    pub(crate) fn budget(&self) -> Duration {
        self.ttl / BUDGET_IN_TTL
    }
}

impl NodeFacts {
    /// Returns whether the server answers at all.
    pub(crate) fn is_in_reach(&self) -> bool {
        !matches!(self.server, Err(Fault::Disconnected { .. }))
    }

    pub(crate) fn info(&self) -> Option<&Info> {
        self.server.as_ref().ok()?.info.as_ref()
    }
}
