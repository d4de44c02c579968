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

/// How many nodes may still fail.
pub(super) fn missing(results: &Results) -> Vec<Finding> {
    let (all, quorum) = (results.nodes.len(), results.quorum());
    let missing: Vec<&Node> = results
        .nodes
        .iter()
        .filter(|node| node.trouble.is_some())
        .collect();
    let there = all - missing.len();
    let spare = there.saturating_sub(quorum);
    let may_fail = match spare {
        0 => "none may fail".to_owned(),
        1 => "one may fail".to_owned(),
        spare => format!("{spare} may fail"),
    };
    if all == 1 && missing.is_empty() {
        return vec![note(
            "spare_nodes",
            "There is one node, and no lock without it.".to_owned(),
        )];
    }
    if missing.is_empty() {
        let mut text =
            format!("All {all} nodes are there, and a lock needs {quorum} of them: {may_fail} at any time.");
        if all % 2 == 0 {
            text.push_str(&format!(" With {} nodes it would be as many.", all - 1));
        }
        return vec![note("spare_nodes", text)];
    }
    let missing = missing.iter().map(|node| {
        let trouble = node.trouble.as_deref().unwrap_or_default();
        advice(
            "node_missing",
            format!(
                "{} is missing ({trouble}). {there} of {all} nodes are left, and a lock needs {quorum}: {may_fail} besides.",
                node.name
            ),
        )
    });
    missing.collect()
}

pub(super) fn slow(results: &Results) -> Vec<Finding> {
    let measured: Vec<(&Node, Duration)> = results
        .nodes
        .iter()
        .filter_map(|node| Some((node, node.plain.median()?)))
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
    let fast = measured.len() - slow.len();
    let felt = match fast >= results.quorum() {
        true => format!(
            "Locks do not wait for it while {} others are up.",
            results.quorum()
        ),
        false => format!(
            "Locks wait for it, for only {fast} nodes are faster and {} are needed.",
            results.quorum()
        ),
    };
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

/// Whether nodes answer well within the time that they have.
pub(super) fn budget(results: &Results) -> Vec<Finding> {
    let (ttl, budget) = (results.plan.ttl, results.plan.ttl / 10);
    let shown = humantime::format_duration;
    let room = |took: Duration| budget.as_secs_f64() / took.as_secs_f64().max(1e-9);
    let mut found: Vec<Finding> = results
        .nodes
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
    let slowest = results
        .nodes
        .iter()
        .filter_map(|node| node.plain.percentile(99.0))
        .max();
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
