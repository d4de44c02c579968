//! Simulated nodes: scripted ones (`puppet`), and ones that run the lock script (`server`, reached over `line`).

mod line;
mod puppet;
mod server;

use std::sync::Arc;
use std::time::Duration;

use quorlock::simulation::{Fault, Node, Reply};
use quorlock::{Redlock, RedlockBuilder};

pub(crate) use line::{Line, Way};
pub(crate) use puppet::{Plan, Puppet, at_once, puppets, yes};
pub(crate) use server::Server;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) type Answer = Result<Reply, Fault>;

pub(crate) fn redlock<N: Reach>(nodes: &[Arc<N>], builder: RedlockBuilder) -> Redlock {
    let nodes = nodes.iter().map(|node| node.clone().reach());
    builder.custom_nodes(nodes.collect()).unwrap()
}

/// A simulated node, from which managers can be made.
pub(crate) trait Reach {
    /// Returns the node as one client reaches it.
    fn reach(self: Arc<Self>) -> Arc<dyn Node>;
}

impl<N: Node> Reach for N {
    fn reach(self: Arc<Self>) -> Arc<dyn Node> {
        self
    }
}
