//! Acquires the lock, and reports why it waits.

use std::time::Duration;

use quorlock::node::{Fault, NodeState};
use quorlock::{AcquireError, Lease, LockRequest, NodeVote, Redlock};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::args::Wait;
use crate::event::{Event, Obstacle};
use crate::exit::{self, Failure};
use crate::format::millis;
use crate::holder;
use crate::nodes::quorum;
use crate::report::Report;

/// How often the nodes' states are read during a wait. Reading them sends nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Acquires the lock. Without `wait`, tries once. As cancel safe as the library's acquire.
pub(crate) async fn acquire(
    redlock: &Redlock,
    resource: &str,
    request: LockRequest,
    wait: Option<Wait>,
    report: &Report,
) -> Result<Lease, Failure> {
    let started = Instant::now();
    let first = match request.clone().try_acquire().await {
        Ok(lease) => return Ok(lease),
        Err(error) => error,
    };
    let Some((wait, obstacle)) = wait.zip(obstacle(&first)) else {
        return Err(not_acquired(&identified(redlock, first).await));
    };
    let request = match wait {
        Wait::Forever => request.forever(),
        Wait::Within(limit) => request.within(limit.saturating_sub(started.elapsed())),
    };
    tokio::select! {
        biased;
        lease = request.acquire() => match lease {
            Ok(lease) => Ok(lease),
            Err(error) => Err(not_acquired(&identified(redlock, error).await)),
        },
        never = report_obstacle(redlock, resource, obstacle, report) => match never {},
    }
}

/// Completes the error by who holds the lock.
async fn identified(redlock: &Redlock, mut error: AcquireError) -> AcquireError {
    if let AcquireError::Held { holder, .. } = &mut error
        && let Some(known) = holder.take()
    {
        *holder = Some(redlock.identify(known).await);
    }
    error
}

/// Reports the obstacle, and again when its kind changes.
async fn report_obstacle(
    redlock: &Redlock,
    resource: &str,
    mut first: Obstacle,
    report: &Report,
) -> std::convert::Infallible {
    if let Obstacle::Held(_, holder) = &mut first
        && let Some(known) = holder.take()
    {
        *holder = Some(redlock.identify(known).await);
    }
    let held = match &first {
        Obstacle::Held(votes, _) => Some(votes.clone()),
        Obstacle::NoQuorum(_) => None,
    };
    let mut reported = first;
    report.event(&Event::Waiting {
        resource,
        why: &reported,
    });
    loop {
        sleep(POLL_INTERVAL).await;
        let now = match (too_few(redlock), &held) {
            (Some(words), _) => Obstacle::NoQuorum(words),
            // Another client may hold it by now.
            (None, Some(votes)) => Obstacle::Held(votes.clone(), None),
            // Enough nodes are up. Only the acquire shows whether the lock is held.
            (None, None) => continue,
        };
        if !now.is_like(&reported) {
            report.event(&Event::Waiting { resource, why: &now });
            reported = now;
        }
    }
}

/// Returns which nodes are down. `None` if the others are a quorum.
fn too_few(redlock: &Redlock) -> Option<String> {
    let nodes = redlock.nodes();
    let down: Vec<String> = nodes
        .iter()
        .filter_map(|node| match &node.state {
            NodeState::Down(fault) => Some(format!("{}: {fault}", node.name)),
            _ => None,
        })
        .collect();
    (nodes.len() - down.len() < quorum(nodes.len())).then(|| {
        format!(
            "{} of {} nodes down; {}",
            down.len(),
            nodes.len(),
            down.join("; ")
        )
    })
}

/// Returns the obstacle that another attempt would wait for. `None` if waiting is useless.
fn obstacle(error: &AcquireError) -> Option<Obstacle> {
    match error {
        AcquireError::Held { votes, holder, .. } => Some(Obstacle::Held(votes.clone(), holder.clone())),
        AcquireError::NoQuorum { votes, .. } | AcquireError::TooLate { votes, .. } => {
            Some(Obstacle::NoQuorum(votes.to_string()))
        }
        AcquireError::OtherNodes { conflict, .. } => Some(Obstacle::NoQuorum(conflict.to_string())),
        _ => None,
    }
}

fn is_guarded(vote: &NodeVote) -> bool {
    matches!(vote.answer, Some(Err(Fault::Restarted { .. })))
}

fn not_acquired(error: &AcquireError) -> Failure {
    let (code, advice) = match error {
        AcquireError::Config(_) => (exit::USAGE, ""),
        AcquireError::Held { .. } => (exit::HELD, "; try again later, or use a longer --wait"),
        AcquireError::OtherNodes { .. } => (exit::MISCONFIGURED, ""),
        AcquireError::NoQuorum { votes, .. } if votes.iter().any(is_guarded) => (
            exit::NO_QUORUM,
            "; nodes in the restart guard give locks later: use a longer --wait, or --no-restart-guard if no lock can be held",
        ),
        _ => (exit::NO_QUORUM, ""),
    };
    let mut failure = Failure::new(code, format!("{error}{advice}"));
    if let AcquireError::Held {
        resource,
        holder,
        votes,
        ..
    } = error
    {
        failure.details = json!({
            "resource": &**resource, "holder": holder.as_ref().map(holder::document),
            "remaining_ms": votes.longest_remaining().map(millis),
        });
    }
    failure
}
