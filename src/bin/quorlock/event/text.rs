//! Events for people.

use std::time::{Duration, Instant};

use quorlock::node::Reply;
use quorlock::{LossReason, Lost, NodeVote, ReleaseOutcome};

use super::{Event, Obstacle, Weight, word};
use crate::format::{counted, millis, short, utc};
use crate::holder;
use crate::job::NOT_OURS;

impl Event<'_> {
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
            Event::Acquired { lease } => {
                let votes = lease.votes();
                let rest = match votes.outstanding() {
                    0 => String::new(),
                    outstanding => format!(" ({outstanding} not waited for)"),
                };
                let token = lease.fencing_token();
                let token = token.map_or_else(String::new, |token| format!(", fencing token {token}"));
                let waited = match lease.attempts() {
                    1 => String::new(),
                    attempts => format!(", waited {} ({attempts} attempts)", short(lease.waited())),
                };
                let (yes, all) = (votes.yes(), votes.iter().count());
                let mut lines = vec![format!(
                    "acquired {}: {yes} of {all} nodes{rest}, valid {}{token}{waited}",
                    lease.resource(),
                    short(lease.remaining())
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
            Event::Released { lease, outcome } => match (outcome, lease.resource()) {
                (ReleaseOutcome::Released, resource) => {
                    format!(
                        "released {resource} ({})",
                        counted(lease.renewals() as usize, "renewal")
                    )
                }
                (ReleaseOutcome::AlreadyGone, resource) => format!(
                    "the lock on {resource} was gone before its release: another client may have held it while the command ran"
                ),
                (other, resource) => {
                    format!("{resource}: {other}; the keys that are left expire by themselves")
                }
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
                    counted(*nodes, "node"),
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
}

/// Formats when a held lock ends, in brackets. Empty if that is unknown, or in less than a millisecond.
fn until(remaining: Option<Duration>) -> String {
    let held = |remaining| format!(" (expires in {} unless renewed)", short(remaining));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_about_to_end_is_not_said_to_be_held_for_no_time() {
        assert_eq!(
            until(Some(Duration::from_millis(1_500))),
            " (expires in 1s 500ms unless renewed)"
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
