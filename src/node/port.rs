//! The port itself, which Redis and Valkey masters implement.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::announcement::{Listener, Listening, ReleaseSink};
use super::client::{ClientId, ClientInfo};
use super::fault::Fault;
use super::inspection::{KeyPage, KeyState};
use super::request::{Reply, Request};

/// The nodes of one set.
pub(crate) type Nodes = Arc<[Arc<dyn Node>]>;

/// Listens to one lock on all nodes that can announce. Called within the manager's runtime.
pub(crate) fn listen_to_all(nodes: &Nodes, key: &Arc<str>, sink: Arc<dyn ReleaseSink>) -> Vec<Listening> {
    let listen =
        |(number, node): (usize, &Arc<dyn Node>)| node.listen(key, Listener::new(number, sink.clone()));
    nodes.iter().enumerate().filter_map(listen).collect()
}

/// One independent vote: a single Redis or Valkey master, never a replica and never a member of a cluster.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// Returns the node's name in messages: an address without credentials.
    fn name(&self) -> &Arc<str>;

    /// Sends `request`, and returns the answer.
    ///
    /// * **Time** is kept by the caller: it waits for `budget`, then drops the future.
    /// * **Order.** The request takes its place *during this call*, not when the future is first polled. As long as the connection
    ///   lasts, requests are executed in the order in which `call` was called.
    /// * **Dropping the future** does not take back a request that was sent. A request that was not sent yet is not sent.
    /// * **Lateness.** The node refuses an acquire that it would execute later than `budget` from now.
    /// * A node that is known to be out of reach answers [`Fault::Disconnected`] at once.
    ///
    /// Called within a tokio runtime.
    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// Returns the number of the connection in use; it rises with each change. Requests over one connection are executed in the
    /// order in which they were sent, or not at all. So if a deletion finds nothing, no request that was sent before it will arrive.
    /// `None` if that is not known: deletions are then repeated until no earlier request can arrive.
    fn connection(&self) -> Option<u64> {
        None
    }

    /// Returns a number that rises whenever earlier votes of the node must not count any more: the node has turned out to be another
    /// server, or to have lost its memory.
    fn epoch(&self) -> u64 {
        0
    }

    /// Returns the node's clock, in microseconds since 1970; `None` if it is not known. It need not be exact: missing counters start
    /// from it.
    fn clock(&self) -> Option<u64> {
        None
    }

    /// Returns how much later than its budget a request that is sent now may still act, because the node's clock is known only so
    /// well. Deletions are repeated until then. `None` if that is not known.
    fn late_by(&self) -> Option<Duration> {
        None
    }

    /// Returns how far the node's clock is known to have been put forward since its first answer, measured by this machine's clock.
    /// Never falls. Keys expire by the node's clock, so they expire that much earlier.
    ///
    /// Called after each answer.
    fn clock_advanced(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns why the node would refuse a lock with this guard now, although it may be up. For instance [`Fault::Restarted`], if it
    /// may have forgotten locks of the last `guard`. `None` if it would not refuse.
    fn left_out(&self, guard: Option<Duration>) -> Option<Fault> {
        let _ = guard;
        None
    }

    /// Returns a future that completes once the node's votes count again, if they do not because this process was stopped for too
    /// long. `None` otherwise.
    fn overdue(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Tells `listener` of releases of `key` on this node, and of processes that wait for it, until the returned value is dropped.
    /// `None` if it never can: waiters then poll.
    ///
    /// Called within a tokio runtime.
    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        let _ = (key, listener);
        None
    }

    /// Returns how a client describes itself on this node. `Ok(None)` if the node knows no such client, or the client does not
    /// tell who it is.
    fn client_info(&self, client: ClientId) -> BoxFuture<'static, Result<Option<ClientInfo>, Fault>> {
        let _ = client;
        std::future::ready(Ok(None)).boxed()
    }

    /// Reads what the node has of these locks, by their keys, without changing anything. Returns a state for each.
    fn inspect(&self, keys: Arc<[Arc<str>]>) -> BoxFuture<'static, Result<Vec<KeyState>, Fault>> {
        let _ = keys;
        std::future::ready(Err(cannot_inspect())).boxed()
    }

    /// Lists the node's keys that match `pattern`: the page that begins at `from`, which is zero for the first one.
    fn scan(&self, pattern: &str, from: u64) -> BoxFuture<'static, Result<KeyPage, Fault>> {
        let _ = (pattern, from);
        std::future::ready(Err(cannot_inspect())).boxed()
    }

    /// Writes a key that expires, and deletes it, to see whether the node accepts writes now. Returns how long the write took.
    fn check_write(&self) -> BoxFuture<'static, Result<Duration, Fault>> {
        std::future::ready(Err(cannot_inspect())).boxed()
    }

    /// Returns the node's state, as far as it is known without asking the node.
    fn status(&self) -> NodeState {
        NodeState::Up { warnings: Vec::new() }
    }
}

fn cannot_inspect() -> Fault {
    Fault::Server {
        message: "this node cannot be inspected".into(),
    }
}

/// A node's state, as far as it is known without asking the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// The first attempt to connect has not ended yet.
    Connecting,
    /// Connected, probed, votes.
    Up {
        /// Settings with which the node may vote, but should not run: for instance an eviction policy.
        warnings: Vec<String>,
    },
    /// Out of reach, or refused by the probe. Tried again in the background.
    Down(Fault),
}
