//! Simulated nodes: scripted ones (`scripted_node`), and ones that run the lock script (`server`, reached over `line`).

mod line;
mod scripted_node;
mod server;

use std::sync::Arc;
use std::time::Duration;

use quorlock::simulation::{Fault, Node, Reply};
use quorlock::{Redlock, RedlockBuilder};

pub(crate) use line::{DelayedLine, Line};
pub(crate) use scripted_node::{Plan, ScriptedNode, at_once, scripted_nodes, yes};
pub(crate) use server::Server;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) type Answer = Result<Reply, Fault>;

pub(crate) fn redlock<N: Reachable>(nodes: &[Arc<N>], builder: RedlockBuilder) -> Redlock {
    let nodes = nodes.iter().map(|node| node.clone().reach());
    builder.custom_nodes(nodes.collect()).unwrap()
}

/// A simulated node, from which managers can be made.
pub(crate) trait Reachable {
    /// Returns the node as one client reaches it.
    fn reach(self: Arc<Self>) -> Arc<dyn Node>;
}

impl<N: Node> Reachable for N {
    fn reach(self: Arc<Self>) -> Arc<dyn Node> {
        self
    }
}
