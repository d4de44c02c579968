//! What the figures mean, in plain words.

use std::time::Duration;

use super::Results;
use super::pairs::Pairs;
use super::round_trips::Node;
use super::text::{grouped, ms};

/// A node that takes so many times as long as the others is slow,
const SLOW: f64 = 3.0;
/// if the difference is one that a network makes, and not a busy processor.
const NOTICEABLE: Duration = Duration::from_micros(500);
/// What a node may take should be so many times what the slowest hundredth of its answers takes.
const ROOM: f64 = 10.0;
/// Whoever gets a lock so much more often than the mean has an advantage.
const UNFAIR: f64 = 1.5;

/// Something to know, or to do something about.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) is_advice: bool,
    /// For programs.
    pub(crate) code: &'static str,
    pub(crate) text: String,
}

fn note(code: &'static str, text: String) -> Finding {
    Finding {
        is_advice: false,
        code,
        text,
    }
}

fn advice(code: &'static str, text: String) -> Finding {
    Finding {
        is_advice: true,
        code,
        text,
    }
}

pub(crate) fn findings(results: &Results) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(build());
    all.extend(cost(results));
    all.extend(missing(results));
    all.extend(slow(results));
    all.extend(budget(results));
    all.extend(fencing(results));
    all.extend(throughput(&results.pairs));
    all.extend(hand_over(results));
    all.extend(failures(results));
    all.extend(settings(results));
    all
}

fn build() -> Option<Finding> {
    cfg!(debug_assertions).then(|| {
        advice(
            "unoptimised_build",
            "This is an unoptimised build of quorlock, and several times slower than it could be. Build it with --release.".to_owned(),
        )
    })
}

fn cost(results: &Results) -> Option<Finding> {
    let one = results.pairs.first()?;
    let (acquire, release) = (one.acquire.median()?, one.release.median()?);
    let (rarely, longest) = (one.acquire.percentile(99.0)?, one.acquire.max()?);
    Some(note(
        "cost",
        format!(
            "A lock costs {} ms: {} to acquire it, {} to release it (medians). One acquire in a hundred takes more than {} ms; the longest took {}.",
            ms(acquire + release),
            ms(acquire),
            ms(release),
            ms(rarely),
            ms(longest)
        ),
    ))
}

/// How many nodes may still fail.
fn missing(results: &Results) -> Vec<Finding> {
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

fn slow(results: &Results) -> Vec<Finding> {
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
fn budget(results: &Results) -> Vec<Finding> {
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

fn fencing(results: &Results) -> Option<Finding> {
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

fn throughput(pairs: &[Pairs]) -> Option<Finding> {
    let best = pairs
        .iter()
        .max_by(|a, b| a.per_second().total_cmp(&b.per_second()))?;
    if pairs.len() < 2 || best.done() == 0 {
        return None;
    }
    let rate = |pairs: &Pairs| grouped(pairs.per_second() as u64);
    let mut text = format!(
        "This process takes and releases up to {} locks a second, with {}; one after the other, {}.",
        rate(best),
        tasks(best.tasks),
        rate(&pairs[0])
    );
    if best.cpu_percent() >= 80.0 {
        text.push_str(&format!(
            " It is busy for {:.0} % of a processor then: the limit is here as much as on the nodes.",
            best.cpu_percent()
        ));
    }
    Some(note("throughput", text))
}

fn hand_over(results: &Results) -> Vec<Finding> {
    let Some(all) = &results.hand_over else {
        return Vec::new();
    };
    let (Some(gap), Some(held), Some(unfairness)) = (all.gap.median(), all.held.median(), all.unfairness())
    else {
        return Vec::new();
    };
    let mut found = vec![note(
        "hand_over",
        format!(
            "A lock that is waited for in the same process goes from one to the next in {} ms. Held for {} ms each time, it changes hands {} times a second.",
            ms(gap),
            ms(held),
            grouped(all.per_second() as u64)
        ),
    )];
    if unfairness > UNFAIR {
        found.push(advice(
            "unfair",
            format!("One of the waiters got the lock {unfairness:.1} x as often as the mean."),
        ));
    }
    found
}

fn failures(results: &Results) -> Vec<Finding> {
    let mut found = Vec::new();
    let with_tasks = results
        .pairs
        .iter()
        .map(|pairs| (tasks(pairs.tasks), &pairs.failures));
    let handed = results
        .hand_over
        .iter()
        .map(|all| ("hand-over".to_owned(), &all.failures));
    let of_nodes = results
        .nodes
        .iter()
        .map(|node| (node.name.to_string(), &node.failures));
    for (place, failures) in with_tasks.chain(handed).chain(of_nodes) {
        for (operation, kind, failed) in failures.iter() {
            let (count, first) = (grouped(failed.count), &failed.first);
            found.push(advice(
                "failures",
                format!("{place}: {operation} failed, {count} x {kind}. The first: {first}"),
            ));
        }
    }
    for node in &results.nodes {
        let part = results.part(&node.name);
        // One that is known to be away has been named.
        let faults = part
            .faults
            .iter()
            .filter(|(kind, _)| node.trouble.is_none() || **kind != "not_connected");
        let faults: Vec<String> = faults
            .map(|(kind, count)| format!("{} x {kind}", grouped(*count)))
            .collect();
        if !faults.is_empty() {
            found.push(advice(
                "node_faults",
                format!(
                    "{} gave no vote for some of the locks: {}.",
                    node.name,
                    faults.join(", ")
                ),
            ));
        }
    }
    found
}

fn settings(results: &Results) -> Vec<Finding> {
    let warnings = |node: &Node| -> Vec<Finding> {
        let warnings = node.warnings.iter();
        warnings
            .map(|warning| advice("node_settings", format!("{}: {warning}", node.name)))
            .collect()
    };
    results.nodes.iter().flat_map(warnings).collect()
}

pub(crate) fn tasks(number: usize) -> String {
    match number {
        1 => "one task".to_owned(),
        _ => format!("{} tasks", grouped(number as u64)),
    }
}

/// A ratio as a person wants it: two digits are precise enough.
fn times(ratio: f64) -> String {
    if ratio < 10.0 {
        return format!("{ratio:.1}");
    }
    let unit = 10_f64.powf(ratio.log10().floor() - 1.0);
    grouped(((ratio / unit).round() * unit) as u64)
}
