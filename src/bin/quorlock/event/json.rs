//! Events for programs. `docs/schema/events.json` describes them.

use std::time::Instant;

use quorlock::{LossReason, NodeVote, ReleaseOutcome, Votes};
use serde_json::{Value, json};

use super::{Event, Obstacle, Weight, word};
use crate::format::{at, millis, time};
use crate::holder;

impl Event<'_> {
    /// Returns the object for programs.
    pub(crate) fn json(&self) -> Value {
        match self {
            Event::Waiting { resource, why } => match why {
                Obstacle::Held(votes, holder) => {
                    let remaining = votes.longest_remaining().map(millis);
                    json!({
                        "event": "waiting", "resource": resource, "reason": "held", "nodes": nodes(votes),
                        "remaining_ms": remaining, "holder": holder.as_ref().map(holder::document),
                    })
                }
                Obstacle::NoQuorum(words) => {
                    json!({"event": "waiting", "resource": resource, "reason": "no_quorum", "detail": words})
                }
            },
            Event::Acquired { lease } => json!({
                "event": "acquired", "resource": lease.resource(), "fencing_token": lease.fencing_token().map(u64::from),
                "quorum": lease.votes().quorum(), "nodes": nodes(lease.votes()),
                "valid_ms": millis(lease.remaining()), "valid_until": at(lease.deadline()),
                "attempts": lease.attempts(), "wait_ms": millis(lease.waited()),
            }),
            Event::Done { resource, period } => {
                json!({"event": "done", "resource": resource, "until": time(period.end())})
            }
            Event::NotMarked {
                resource,
                period,
                why,
            } => json!({
                "event": "not_marked", "resource": resource, "until": time(period.end()), "detail": why.to_string(),
            }),
            Event::Started { pid } => json!({"event": "started", "pid": pid}),
            Event::Renewed { resource, valid } => json!({
                "event": "renewed", "resource": resource,
                "valid_ms": millis(*valid), "valid_until": at(Instant::now() + *valid),
            }),
            Event::Lost {
                lost,
                deadline,
                paused,
            } => {
                let (reason, votes) = match &lost.reason {
                    LossReason::Expired { .. } if paused.is_some() => ("paused", None),
                    LossReason::Expired { last_failure } => (lost.reason.kind(), last_failure.as_ref()),
                    LossReason::Gone(votes) => (lost.reason.kind(), Some(votes)),
                    other => (other.kind(), None),
                };
                json!({
                    "event": "lost", "resource": &*lost.resource, "reason": reason, "nodes": votes.map(nodes),
                    "valid_ms": millis(deadline.saturating_duration_since(Instant::now())),
                    "valid_until": at(*deadline),
                })
            }
            Event::HeldUp { resource } => json!({"event": "lost", "resource": resource, "reason": "held_up"}),
            Event::Stopped { killed } => json!({"event": "stopped", "killed": killed}),
            Event::NotStopped { ours } => {
                let reason = if *ours { "unkillable" } else { "other_user" };
                json!({"event": "not_stopped", "reason": reason})
            }
            Event::Released { lease, outcome } => {
                let votes = match outcome {
                    ReleaseOutcome::Uncertain(votes) => Some(votes),
                    _ => None,
                };
                json!({
                    "event": "released", "resource": lease.resource(), "outcome": outcome.kind(), "nodes": votes.map(nodes),
                    "renewals": lease.renewals(),
                })
            }
            Event::Plan {
                keys,
                nodes,
                parts,
                length,
                counters_expire_after,
            } => json!({
                "event": "plan", "keys": keys, "nodes": nodes, "parts": parts, "length_ms": millis(*length),
                "counters_expire_after_ms": counters_expire_after.map(millis),
            }),
            Event::Measuring { what, part, parts } => {
                json!({"event": "measuring", "what": what, "part": part, "parts": parts})
            }
            Event::Log { weight, text } => {
                let level = match weight {
                    Weight::Error => "error",
                    Weight::Warning => "warning",
                    Weight::Notice | Weight::Detail => "info",
                    Weight::Trifle => "debug",
                };
                json!({"event": "log", "level": level, "message": text})
            }
            Event::Failure {
                code,
                message,
                details,
            } => {
                let mut document = json!({"event": "error", "code": code, "message": message});
                for (name, value) in details.as_object().into_iter().flatten() {
                    document[name] = value.clone();
                }
                document
            }
        }
    }
}

fn nodes(votes: &Votes) -> Value {
    let node = |vote: &NodeVote| match &vote.answer {
        Some(Ok(reply)) => json!({"node": &*vote.node, "vote": word(*reply)}),
        Some(Err(fault)) => json!({"node": &*vote.node, "vote": "fault", "detail": fault.to_string()}),
        None => json!({"node": &*vote.node, "vote": null}),
    };
    votes.iter().map(node).collect()
}
