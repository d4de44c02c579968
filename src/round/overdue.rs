//! Nodes whose votes do not count because this process did not run for a while, and count again in a moment.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use crate::context::Context;
use crate::node::Fault;
use crate::node::Nodes;
use crate::protocol::quorum::quorum;
use crate::sys::timer::sleep_until;
use crate::votes::Votes;

/// Whether another request may have more success. A process that was stopped for longer than other clients rely on looks at its
/// nodes again as soon as it runs, and until then their votes do not count. If `votes` are of such a moment, waits until a
/// quorum counts again, but not longer than `limit`.
pub(crate) async fn may_retry(nodes: &Nodes, votes: &Votes, limit: Duration, context: &Context) -> bool {
    if !votes.any_fault(|fault| *fault == Fault::Unregistered) {
        return false;
    }
    let mut overdue: FuturesUnordered<_> = nodes.iter().filter_map(|node| node.overdue()).collect();
    let missing = quorum(nodes.len()).saturating_sub(nodes.len() - overdue.len());
    let looked = async {
        for _ in 0..missing {
            overdue.next().await;
        }
    };
    tokio::select! {
        biased;
        () = looked => {}
        () = sleep_until(&context.runtime, Instant::now() + limit) => {}
    }
    true
}
