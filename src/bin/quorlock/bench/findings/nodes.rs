//! What the figures say of single nodes.

use std::time::Duration;

use super::super::Results;
use super::super::round_trips::Node;
use super::super::text::ms;
use super::{Finding, advice, note, tasks, times};

/// A node that takes so many times as long as the others is slow,
const SLOW: f64 = 3.0;
/// if the difference is one that a network makes, and not a busy processor.
const NOTICEABLE: Duration = Duration::from_micros(500);
/// What a node may take should be so many times what the slowest hundredth of its answers takes.
const ROOM: f64 = 10.0;

/// What locks can expect of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Its vote.
    Votes,
    /// Nothing: it is not there. Why.
    Missing(String),
    /// Nothing: it usually takes so long, which is longer than it may.
    Late(Duration),
    /// Nothing: it is there, and no request to it came to a good end. What came of the first.
    Silent(String),
    /// That was not found out.
    Unknown,
}

impl Standing {
    fn of(results: &Results, node: &Node) -> Standing {
        if let Some(trouble) = &node.trouble {
            return Standing::Missing(trouble.clone());
        }
        let taken = match results.plan.fencing {
            true => &node.fenced,
            false => &node.plain,
        };
        let part = results.part(&node.name);
        match taken.median().or(node.first) {
            Some(usual) if usual >= results.plan.ttl / 10 => return Standing::Late(usual),
            None if part.heard == 0 => {}
            _ if part.heard + part.not_waited_for == 0 && !part.faults.is_empty() => {}
            _ => return Standing::Votes,
        }
        let failed = node
            .failures
            .iter()
            .next()
            .map(|(_, _, failed)| failed.first.clone());
        let fault = || part.faults.keys().next().map(|kind| (*kind).to_owned());
        failed.or_else(fault).map_or(Standing::Unknown, Standing::Silent)
    }

    fn told(&self, results: &Results, node: &Node) -> Option<Finding> {
        let (name, shown) = (&node.name, humantime::format_duration);
        let (code, text) = match self {
            // It was not waited for.
            Standing::Unknown | Standing::Votes if results.interrupted.is_some() => return None,
            Standing::Votes if node.plain.count() > 0 => return None,
            Standing::Unknown | Standing::Votes => (
                "node_unmeasured",
                format!(
                    "{name} is up, but was not measured: there was no time, or it was not up yet then. A longer --duration helps."
                ),
            ),
            Standing::Missing(trouble) => ("node_missing", format!("{name} is missing ({trouble}).")),
            Standing::Silent(first) => (
                "node_silent",
                format!("{name} is up, but no lock got its vote. The first: {first}"),
            ),
            Standing::Late(usual) => (
                "node_late",
                format!(
                    "{name} does not answer in time: it usually takes {} ms, and with a TTL of {} a node has {} (a tenth). Use a TTL of {} or more, or bring the node nearer.",
                    ms(*usual),
                    shown(results.plan.ttl),
                    shown(results.plan.ttl / 10),
                    shown(enough(*usual))
                ),
            ),
        };
        Some(advice(code, text))
    }
}

/// Those that locks can count on.
fn voting(results: &Results) -> Vec<&Node> {
    let votes = |node: &&Node| Standing::of(results, node) == Standing::Votes;
    results.nodes.iter().filter(votes).collect()
}

/// Whether what it failed at is told with its standing.
pub(super) fn is_silent(results: &Results, node: &Node) -> bool {
    matches!(Standing::of(results, node), Standing::Silent(_))
}

/// Those with the standing that is asked for.
fn count(results: &Results, is: fn(&Standing) -> bool) -> usize {
    let standings = results.nodes.iter().map(|node| Standing::of(results, node));
    standings.filter(is).count()
}

/// Nodes that locks cannot count on, and how many of the others may still fail.
pub(super) fn standing(results: &Results) -> Vec<Finding> {
    let nodes = results.nodes.iter();
    let mut found: Vec<Finding> = nodes
        .filter_map(|node| Standing::of(results, node).told(results, node))
        .collect();
    let unknown = count(results, |standing| *standing == Standing::Unknown);
    let voting = voting(results).len();
    found.push(match results.interrupted {
        Some(_) => spare(results, voting + unknown, 0),
        None => spare(results, voting, unknown),
    });
    found
}

fn spare(results: &Results, voting: usize, unknown: usize) -> Finding {
    let (all, quorum) = (results.nodes.len(), results.quorum());
    let Some(spare) = voting.checked_sub(quorum) else {
        return too_few(results, voting, unknown);
    };
    let may_fail = match spare {
        0 => "none may fail".to_owned(),
        1 => "one may fail".to_owned(),
        spare => format!("{spare} may fail"),
    };
    if voting < all {
        return advice(
            "spare_nodes",
            format!("{voting} of {all} nodes vote in time, and a lock needs {quorum}: {may_fail} besides."),
        );
    }
    if all == 1 {
        return note(
            "spare_nodes",
            "There is one node, and no lock without it.".to_owned(),
        );
    }
    let even = match all % 2 {
        0 => format!(" With {} nodes it would be as many.", all - 1),
        _ => String::new(),
    };
    note(
        "spare_nodes",
        format!(
            "All {all} nodes are there, and a lock needs {quorum} of them: {may_fail} at any time.{even}"
        ),
    )
}

fn too_few(results: &Results, voting: usize, unknown: usize) -> Finding {
    let (all, quorum) = (results.nodes.len(), results.quorum());
    let counted = match voting {
        0 => format!("None of {all} nodes votes"),
        1 => format!("Only one of {all} nodes votes"),
        voting => format!("Only {voting} of {all} nodes vote"),
    };
    let late = count(results, |standing| matches!(standing, Standing::Late(_)));
    let came_about = results.pairs.iter().any(|pairs| pairs.acquire.count() > 0);
    let verdict = if voting + unknown >= quorum {
        "whether that is a quorum is not known of the others"
    } else if voting + late >= quorum && came_about {
        // What is late usually is in time now and then.
        "that is no quorum, and a lock is had by luck"
    } else {
        "that is no quorum, and no lock can be had"
    };
    advice(
        "no_quorum",
        format!("{counted} in time, and a lock needs {quorum}: {verdict}."),
    )
}

/// Nodes that answer in time, but much later than the others.
pub(super) fn slow(results: &Results) -> Vec<Finding> {
    let voting = voting(results);
    let measured: Vec<(&Node, Duration)> = voting
        .iter()
        .filter_map(|node| Some((*node, node.plain.median()?)))
        .collect();
    let usual = |node: &Node| {
        let mut others: Vec<Duration> = measured
            .iter()
            .filter(|(other, _)| other.name != node.name)
            .map(|(_, median)| *median)
            .collect();
        others.sort_unstable();
        others.get(others.len() / 2).copied()
    };
    let slow: Vec<(&Node, Duration, Duration)> = measured
        .iter()
        .filter_map(|&(node, median)| Some((node, median, usual(node)?)))
        .filter(|(_, median, usual)| {
            median.as_secs_f64() >= SLOW * usual.as_secs_f64() && *median >= *usual + NOTICEABLE
        })
        .collect();
    let felt = felt(results, measured.len() - slow.len());
    slow.iter()
        .map(|(node, median, usual)| {
            let times = times(median.as_secs_f64() / usual.as_secs_f64());
            let text = format!(
                "{} is slow: {} ms, {times} x as long as the others. {felt}",
                node.name,
                ms(*median)
            );
            advice("slow_node", text)
        })
        .collect()
}

/// Whether locks wait for slow nodes, if so many are known to be faster.
fn felt(results: &Results, fast: usize) -> String {
    let quorum = results.quorum();
    // They may be as fast.
    let unmeasured = results
        .nodes
        .iter()
        .filter(|node| node.plain.count() == 0)
        .filter(|node| matches!(Standing::of(results, node), Standing::Votes | Standing::Unknown))
        .count();
    if fast >= quorum {
        format!("Locks do not wait for it while {quorum} others are up.")
    } else if fast + unmeasured >= quorum {
        format!(
            "Whether locks wait for it is not known: {quorum} are needed, {fast} are faster, and {unmeasured} were not measured."
        )
    } else {
        format!("Locks wait for it, for only {fast} nodes are faster and {quorum} are needed.")
    }
}

/// Whether nodes answer well within the time that they have.
pub(super) fn budget(results: &Results) -> Vec<Finding> {
    let (ttl, budget) = (results.plan.ttl, results.plan.ttl / 10);
    let shown = humantime::format_duration;
    let room = |took: Duration| budget.as_secs_f64() / took.as_secs_f64().max(1e-9);
    let voting = voting(results);
    let mut found: Vec<Finding> = voting
        .iter()
        .filter_map(|node| Some((node, node.plain.percentile(99.0)?)))
        .filter(|(_, took)| room(*took) < ROOM)
        .map(|(node, took)| {
            advice(
                "node_budget",
                format!(
                    "{} takes {} ms for one answer in a hundred, and with a TTL of {} a node has {} (a tenth). Use a TTL of {} or more, or bring the node nearer.",
                    node.name,
                    ms(took),
                    shown(ttl),
                    shown(budget),
                    shown(enough(took))
                ),
            )
        })
        .collect();
    let busiest = results
        .pairs
        .iter()
        .max_by_key(|pairs| pairs.acquire.percentile(99.0));
    if let Some((pairs, took)) = busiest.and_then(|pairs| Some((pairs, pairs.acquire.percentile(99.0)?)))
        && room(took) < ROOM
        && found.is_empty()
    {
        found.push(advice(
            "node_budget",
            format!(
                "With {}, one acquire in a hundred takes {} ms, and with a TTL of {} a node has {} to answer. Use a TTL of {} or more, or fewer tasks.",
                tasks(pairs.tasks),
                ms(took),
                shown(ttl),
                shown(budget),
                shown(enough(took))
            ),
        ));
    }
    let slowest = voting.iter().filter_map(|node| node.plain.percentile(99.0)).max();
    if let (true, Some(took)) = (found.is_empty(), slowest) {
        found.push(note(
            "node_budget",
            format!(
                "With a TTL of {} a node has {} to answer (a tenth): {} x what the slowest takes for one answer in a hundred.",
                shown(ttl),
                shown(budget),
                times(room(took))
            ),
        ));
    }
    found
}

/// The TTL with which what a node has is well above what it takes; in whole seconds.
fn enough(took: Duration) -> Duration {
    Duration::from_secs((took.as_secs_f64() * 10.0 * ROOM).ceil() as u64)
}

pub(super) fn fencing(results: &Results) -> Option<Finding> {
    // Node by node, for they differ by more than this.
    let mut costs: Vec<f64> = results
        .nodes
        .iter()
        .filter_map(|node| Some(node.fenced.median()?.as_secs_f64() - node.plain.median()?.as_secs_f64()))
        .collect();
    costs.sort_unstable_by(f64::total_cmp);
    let cost = costs.get(costs.len() / 2).copied().filter(|cost| *cost > 0.0)?;
    Some(note(
        "fencing_cost",
        format!(
            "Fencing tokens cost {} ms for each lock, on the usual node.",
            ms(Duration::from_secs_f64(cost))
        ),
    ))
}

pub(super) fn settings(results: &Results) -> Vec<Finding> {
    let warnings = |node: &Node| -> Vec<Finding> {
        let warnings = node.warnings.iter();
        warnings
            .map(|warning| advice("node_settings", format!("{}: {warning}", node.name)))
            .collect()
    };
    results.nodes.iter().flat_map(warnings).collect()
}
