//! Nodes whose votes do not count because this process did not run for a while, and count again in a moment.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use crate::context::Context;
use crate::node::{Fault, Node, NodeState, Nodes};
use crate::protocol::quorum::quorum;
use crate::sys::timer::sleep_until;
use crate::votes::Votes;

/// Returns whether another request may have more success. A process that was stopped for longer than other clients rely on looks at
/// its nodes again as soon as it runs, and until then their votes do not count. If `votes` are of such a moment, this waits until a
/// quorum counts again, but not longer than `limit`.
pub(crate) async fn may_retry(nodes: &Nodes, votes: &Votes, limit: Duration, context: &Context) -> bool {
    if !votes.any_fault(|fault| *fault == Fault::Unregistered) {
        return false;
    }
    let counts = |node: &&Arc<dyn Node>| {
        matches!(node.status(), NodeState::Up { .. }) && node.left_out(None).is_none()
    };
    let enough = || nodes.iter().filter(counts).count() >= quorum(nodes.len());
    let mut overdue: FuturesUnordered<_> = nodes.iter().filter_map(|node| node.overdue()).collect();
    let looked = async { while !enough() && overdue.next().await.is_some() {} };
    tokio::select! {
        biased;
        () = looked => {}
        () = sleep_until(&context.runtime, Instant::now() + limit) => {}
    }
    enough()
}
