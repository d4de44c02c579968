//! The wait for a quorum of nodes, when a manager connects.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ConnectError;
use crate::node::{Fault, Node, NodeState};
use crate::protocol::quorum::quorum;
use crate::redis::{Participation, RedisNode};
use crate::sys::runtime::Runtime;
use crate::sys::timer::sleep_until;
use crate::votes::{NodeVote, Votes};

/// Waits until a quorum of nodes is up, and none is known to be misconfigured.
pub(super) async fn wait_for_quorum(
    nodes: &[Arc<RedisNode>],
    timeout: Duration,
    grace: Duration,
    guard: Option<Duration>,
    participation: Participation,
    runtime: &Runtime,
) -> Result<(), ConnectError> {
    let started = Instant::now();
    let end = started + timeout;
    // A quorum that is lost again does not shorten the wait.
    let mut grace_end = None;
    let mut watches: Vec<watch::Receiver<NodeState>> = nodes.iter().map(|node| node.watch()).collect();
    loop {
        let states: Vec<NodeState> = watches
            .iter_mut()
            .map(|watch| watch.borrow_and_update().clone())
            .collect();
        let up = states
            .iter()
            .filter(|state| matches!(state, NodeState::Up { .. }))
            .count();
        let all_answered = !states.iter().any(|state| matches!(state, NodeState::Connecting));
        let quorum_up = up >= quorum(nodes.len());
        let conflict = nodes.iter().find_map(|node| match node.left_out(None) {
            Some(Fault::OtherNodes(conflict)) if participation == Participation::Full => Some(conflict),
            _ => None,
        });
        // Locks must be available on return, so nodes do not count while other clients may still object to the list.
        let unsettled =
            |node: &&Arc<RedisNode>| matches!(node.left_out(guard), Some(Fault::Unsettled { .. }));
        let settled = up - nodes.iter().filter(unsettled).count().min(up) >= quorum(nodes.len());
        grace_end =
            (settled && conflict.is_none()).then(|| grace_end.unwrap_or_else(|| Instant::now() + grace));
        let end = grace_end.map_or(end, |grace_end| end.min(grace_end));
        let over = Instant::now() >= end;
        if all_answered || over {
            if states
                .iter()
                .any(|state| matches!(state, NodeState::Down(Fault::Unfit(_))))
            {
                return Err(ConnectError::Misconfigured(votes(nodes, &states)));
            }
            match conflict {
                Some(conflict) if over => return Err(ConnectError::OtherNodes(conflict)),
                None if settled || quorum_up && over => return Ok(()),
                _ => {}
            }
            // Waiting does not correct a wrong password.
            let permanently_down = states.iter().filter(|state| is_permanently_down(state)).count();
            if over || nodes.len() - permanently_down < quorum(nodes.len()) {
                return Err(ConnectError::NoQuorum {
                    waited: started.elapsed(),
                    votes: votes(nodes, &states),
                });
            }
        }
        let mut changes: FuturesUnordered<_> = watches.iter_mut().map(|watch| watch.changed()).collect();
        tokio::select! {
            _ = changes.next() => {}
            () = sleep_until(runtime, end) => {}
        }
    }
}

fn is_permanently_down(state: &NodeState) -> bool {
    matches!(
        state,
        NodeState::Down(Fault::Unfit(_) | Fault::Auth { .. } | Fault::NoPermission { .. })
    )
}

fn votes(nodes: &[Arc<RedisNode>], states: &[NodeState]) -> Votes {
    let vote = |(node, state): (&Arc<RedisNode>, &NodeState)| NodeVote {
        node: node.name().clone(),
        answer: match state {
            NodeState::Down(fault) => Some(Err(fault.clone())),
            NodeState::Connecting => Some(Err(Fault::Disconnected {
                reason: "no answer yet".into(),
            })),
            NodeState::Up { .. } => None,
        },
    };
    Votes::new(nodes.iter().zip(states).map(vote).collect())
}
