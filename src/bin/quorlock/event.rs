//! Events, as text for people and as JSON for programs.

use std::time::{Duration, Instant, SystemTime};

use quorlock::node::Reply;
use quorlock::{
    FencingToken, Holder, LossReason, Lost, NodeVote, Period, PeriodError, ReleaseOutcome, Votes,
};
use serde_json::{Value, json};

use crate::holder;
use crate::job::NOT_OURS;
use crate::nodes::counted;

/// How important an event is. The options set the least important that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    Error,
    Warning,
    /// Printed by default.
    Notice,
    /// With `-v`.
    Detail,
    /// With `-vv`.
    Trifle,
}

#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// The lock cannot be acquired yet, for a new reason.
    Waiting {
        resource: &'a str,
        why: &'a Obstacle,
    },
    Acquired {
        resource: &'a str,
        votes: &'a Votes,
        token: Option<FencingToken>,
        valid: Duration,
    },
    /// The period of `--once-per` is done: the command is not run.
    Done {
        resource: &'a str,
        period: Period,
    },
    Started {
        pid: u32,
    },
    Renewed {
        resource: &'a str,
        valid: Duration,
    },
    /// The lease is lost, or about to be. The command is being stopped.
    Lost {
        lost: &'a Lost,
        deadline: Instant,
        /// How long this process did not run. `None` if it ran often enough.
        paused: Option<Duration>,
    },
    /// The guard has ended the command, because this process did not run in time.
    HeldUp {
        resource: &'a str,
    },
    /// All processes of the command have ended.
    Stopped {
        killed: bool,
    },
    /// Processes of the command are left after KILL.
    NotStopped {
        /// `false` if they belong to another user, so that no signal reached them.
        ours: bool,
    },
    /// The command has ended with 0, but no quorum of nodes has marked the period as done.
    NotMarked {
        resource: &'a str,
        period: Period,
        why: &'a PeriodError,
    },
    Released {
        resource: &'a str,
        outcome: &'a ReleaseOutcome,
    },
    /// What `bench` will do to the nodes.
    Plan {
        keys: &'a str,
        nodes: usize,
        parts: usize,
        length: Duration,
        /// `None` without fencing tokens.
        counters_expire_after: Option<Duration>,
    },
    Measuring {
        what: &'a str,
        part: usize,
        parts: usize,
    },
    Log {
        weight: Weight,
        text: &'a str,
    },
    Failure {
        code: u8,
        message: &'a str,
        details: &'a Value,
    },
}

/// Why a lock cannot be acquired yet.
#[derive(Clone, Debug)]
pub(crate) enum Obstacle {
    Held(Votes, Option<Holder>),
    /// Too few nodes vote. Contains the reason, for people.
    NoQuorum(String),
}

impl Obstacle {
    pub(crate) fn is_like(&self, other: &Obstacle) -> bool {
        matches!(self, Obstacle::Held(..)) == matches!(other, Obstacle::Held(..))
    }
}

impl Event<'_> {
    pub(crate) fn weight(&self) -> Weight {
        match self {
            Event::Failure { .. }
            | Event::Lost { .. }
            | Event::HeldUp { .. }
            | Event::NotStopped { .. }
            | Event::NotMarked { .. } => Weight::Error,
            Event::Released { outcome, .. } if **outcome != ReleaseOutcome::Released => Weight::Warning,
            Event::Waiting { .. } | Event::Done { .. } | Event::Stopped { .. } | Event::Plan { .. } => {
                Weight::Notice
            }
            Event::Acquired { .. }
            | Event::Started { .. }
            | Event::Released { .. }
            | Event::Measuring { .. } => Weight::Detail,
            Event::Renewed { .. } => Weight::Trifle,
            Event::Log { weight, .. } => *weight,
        }
    }

    /// Returns the lines for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = match self {
            Event::Waiting { resource, why } => match why {
                Obstacle::Held(votes, holder) => {
                    let by = holder.as_ref().map_or("another client".to_owned(), holder::words);
                    format!(
                        "waiting: {resource} is held by {by}{}",
                        until(votes.longest_remaining())
                    )
                }
                Obstacle::NoQuorum(words) => format!("waiting: no quorum of nodes: {words}"),
            },
            Event::Acquired {
                resource,
                votes,
                token,
                valid,
            } => {
                let rest = match votes.outstanding() {
                    0 => String::new(),
                    outstanding => format!(" ({outstanding} not waited for)"),
                };
                let token = token.map_or_else(String::new, |token| format!(", fencing token {token}"));
                let (yes, all) = (votes.yes(), votes.iter().count());
                let mut lines = vec![format!(
                    "acquired {resource}: {yes} of {all} nodes{rest}, valid {}{token}",
                    short(*valid)
                )];
                lines.extend(
                    votes
                        .iter()
                        .map(|vote| format!("  {}: {}", vote.node, answer(vote))),
                );
                return lines;
            }
            Event::Done { resource, period } => {
                format!(
                    "{resource} is done until {}: the command was not run",
                    utc(period.end())
                )
            }
            Event::NotMarked {
                resource,
                period,
                why,
            } => format!(
                "{resource} is done until {}, but this could not be noted, so another run may repeat it: {why}",
                utc(period.end())
            ),
            Event::Started { pid } => format!("started the command, pid {pid}"),
            Event::Renewed { resource, valid } => format!("renewed {resource}, valid {}", short(*valid)),
            Event::Lost {
                lost,
                deadline,
                paused,
            } => {
                let Lost { resource, reason, .. } = lost;
                let verb = if *deadline > Instant::now() {
                    "losing"
                } else {
                    "lost"
                };
                match reason {
                    LossReason::MaxHold => {
                        format!("held {resource} for as long as --max-hold allows: stopping the command")
                    }
                    LossReason::Gone(votes) => {
                        format!(
                            "lost {resource}: stopping the command; a quorum of nodes no longer has the lock (broken by an operator, deleted, or lost by the nodes): {votes}"
                        )
                    }
                    LossReason::Expired { .. } if paused.is_some() => {
                        format!(
                            "lost {resource}: stopping the command; quorlock did not run for {} (Ctrl-Z, STOP or \
                             an overloaded machine), and the lease ended meanwhile",
                            short(paused.unwrap_or_default())
                        )
                    }
                    LossReason::Expired {
                        last_failure: Some(votes),
                    } => {
                        format!(
                            "{verb} {resource}: stopping the command; the lease could not be renewed: {votes}"
                        )
                    }
                    LossReason::Expired { .. } => {
                        format!("{verb} {resource}: stopping the command; the lease was not renewed in time")
                    }
                    other => format!("{verb} {resource}: stopping the command; {other}"),
                }
            }
            Event::HeldUp { resource } => format!(
                "lost {resource}: quorlock did not run in time, so its guard stopped the command; is this machine overloaded?"
            ),
            Event::Stopped { killed: false } => "the command has ended on TERM".to_owned(),
            Event::Stopped { killed: true } => "the command was killed".to_owned(),
            Event::NotStopped { ours: true } => {
                "a process of the command did not end on KILL: it may go on without the lock".to_owned()
            }
            Event::NotStopped { ours: false } => {
                format!("the command cannot be stopped, and goes on without the lock: {NOT_OURS}")
            }
            Event::Released { resource, outcome } => match outcome {
                ReleaseOutcome::Released => format!("released {resource}"),
                ReleaseOutcome::AlreadyGone => format!(
                    "the lock on {resource} was gone before its release: another client may have held it while the command ran"
                ),
                other => format!("{resource}: {other}; the keys that are left expire by themselves"),
            },
            Event::Plan {
                keys,
                nodes,
                parts,
                length,
                counters_expire_after,
            } => {
                let counters = counters_expire_after
                    .map(|time| format!("; their counters expire within {}", short(time)))
                    .unwrap_or_default();
                format!(
                    "{parts} measurements on {}, for about {}: takes locks {keys} and releases them{counters}. \
                     The nodes are busy meanwhile; Ctrl-C ends it early",
                    counted(*nodes),
                    short(*length),
                )
            }
            Event::Measuring { what, part, parts } => format!("measuring {what} ({part} of {parts})"),
            Event::Log { weight, text } => match weight {
                Weight::Error => format!("error: {text}"),
                Weight::Warning => format!("warning: {text}"),
                _ => (*text).to_owned(),
            },
            Event::Failure { message, .. } => (*message).to_owned(),
        };
        vec![line]
    }

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
            Event::Acquired {
                resource,
                votes,
                token,
                valid,
            } => json!({
                "event": "acquired", "resource": resource, "fencing_token": token.map(u64::from),
                "quorum": votes.quorum(), "nodes": nodes(votes),
                "valid_ms": millis(*valid), "valid_until": at(Instant::now() + *valid),
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
                    LossReason::MaxHold => ("max_hold", None),
                    LossReason::Expired { .. } if paused.is_some() => ("paused", None),
                    LossReason::Gone(votes) => ("gone", Some(votes)),
                    LossReason::Expired { last_failure } => ("not_renewed", last_failure.as_ref()),
                    LossReason::Suspended { .. } => ("suspended", None),
                    LossReason::ClockPutForward { .. } => ("clock_put_forward", None),
                    _ => ("other", None),
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
            Event::Released { resource, outcome } => {
                let (outcome, votes) = match outcome {
                    ReleaseOutcome::Released => ("released", None),
                    ReleaseOutcome::AlreadyGone => ("already_gone", None),
                    ReleaseOutcome::Uncertain(votes) => ("uncertain", Some(votes)),
                    _ => ("other", None),
                };
                json!({"event": "released", "resource": resource, "outcome": outcome, "nodes": votes.map(nodes)})
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

/// Formats a duration, to the millisecond.
pub(crate) fn short(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(millis(duration)))
}

/// Formats when a held lock ends, in brackets. Empty if that is unknown, or in less than a millisecond.
fn until(remaining: Option<Duration>) -> String {
    let held = |remaining| format!(" (for at most {} more unless renewed)", short(remaining));
    let remaining = remaining.filter(|remaining| millis(*remaining) > 0);
    remaining.map(held).unwrap_or_default()
}

fn answer(vote: &NodeVote) -> String {
    match &vote.answer {
        Some(Ok(Reply::Held { .. })) => "held by another client".to_owned(),
        Some(Ok(reply)) => word(*reply).to_owned(),
        Some(Err(fault)) => fault.to_string(),
        None => "not waited for".to_owned(),
    }
}

fn word(reply: Reply) -> &'static str {
    match reply {
        Reply::Granted { .. } => "granted",
        Reply::Raised { .. } => "raised",
        Reply::Held { .. } => "held",
        Reply::Extended => "extended",
        Reply::Released { .. } => "released",
        Reply::Mark { .. } => "mark",
        Reply::Announced => "announced",
        Reply::Missing => "missing",
        Reply::Foreign => "taken_over",
        _ => "other",
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

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a moment as RFC 3339, to the second.
pub(crate) fn utc(moment: SystemTime) -> String {
    humantime::format_rfc3339_seconds(moment).to_string()
}

/// Formats a moment as RFC 3339, to the millisecond, as all documents for programs do.
pub(crate) fn time(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment).to_string()
}

/// Formats an instant as RFC 3339.
pub(crate) fn at(instant: Instant) -> String {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let moment = match instant.checked_duration_since(now) {
        Some(ahead) => wall.checked_add(ahead),
        None => wall.checked_sub(now - instant),
    };
    time(moment.unwrap_or(wall))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_about_to_end_is_not_said_to_be_held_for_no_time() {
        assert_eq!(
            until(Some(Duration::from_millis(1_500))),
            " (for at most 1s 500ms more unless renewed)"
        );
        for nothing in [None, Some(Duration::ZERO), Some(Duration::from_micros(900))] {
            assert_eq!(until(nothing), "");
        }
    }

    #[test]
    fn one_node_is_not_several() {
        for (nodes, words) in [(1, "on 1 node,"), (5, "on 5 nodes,")] {
            let plan = Event::Plan {
                keys: "k",
                nodes,
                parts: 3,
                length: Duration::ZERO,
                counters_expire_after: None,
            };
            assert!(plan.lines()[0].contains(words), "{:?}", plan.lines());
        }
    }
}
