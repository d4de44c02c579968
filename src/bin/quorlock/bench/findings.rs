//! Findings about the nodes and the TTL, with advice.

use std::time::Duration;

use super::Results;
use super::round_trips::Node;
use super::tally::{Failures, ms};
use humantime::format_duration as shown;

/// A slow node takes at least this many times as long as the usual node.
const SLOW: u32 = 3;
/// A slow node also takes at least this much longer. A busy processor can explain less.
const NOTICEABLE: Duration = Duration::from_micros(500);
/// How many times longer than the 99th percentile the node budget should be.
const ROOM: u32 = 10;

#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) is_advice: bool,
    /// The finding's name, for programs.
    pub(crate) code: &'static str,
    pub(crate) text: String,
}

fn finding(is_advice: bool, code: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        is_advice,
        code,
        text: text.into(),
    }
}

fn advice(code: &'static str, text: impl Into<String>) -> Finding {
    finding(true, code, text)
}

pub(crate) fn findings(results: &Results) -> Vec<Finding> {
    let mut all = Vec::new();
    if cfg!(debug_assertions) {
        let text = "This build is not optimised and several times slower: build quorlock with --release.";
        all.push(advice("unoptimised_build", text));
    }
    let mut voting = Vec::new();
    for node in &results.nodes {
        match trouble(results, node) {
            Some(trouble) => all.push(trouble),
            None => voting.push(node),
        }
    }
    all.push(spare(results, voting.len()));
    all.extend(slow(results, &voting));
    all.extend(budget(results, &voting));
    let of_loads = results.loads.iter().map(|load| (load.name(), &load.failures));
    let of_nodes = voting.iter().map(|node| (node.name.to_string(), &node.failures));
    all.extend(of_loads.chain(of_nodes).flat_map(failures));
    for node in &results.nodes {
        let warnings = node.state.iter().flatten();
        all.extend(warnings.map(|warning| advice("node_settings", format!("{}: {warning}", node.name))));
    }
    all
}

/// Says why locks cannot count on a node's vote. `None` if they can.
fn trouble(results: &Results, node: &Node) -> Option<Finding> {
    let (name, plan) = (&node.name, &results.plan);
    if let Err(fault) = &node.state {
        let text = format!("{name} is missing ({fault}).");
        return Some(advice("node_missing", text));
    }
    let taken = [&node.fenced, &node.plain][usize::from(plan.args.no_fencing)];
    // Failed votes are the last, and their messages are about this node alone.
    let failed = node.failures.iter().last();
    match taken.median().or(node.first) {
        Some(usual) if usual >= plan.args.ttl / 10 => {
            let facts = format!("{name} is too slow to vote: it usually takes {} ms", ms(usual));
            Some(advice("node_late", budgeted(plan.args.ttl, &facts, usual)))
        }
        None if results.interrupted.is_none() || failed.is_some() => {
            let no_time = "there was no time, use a longer --duration";
            let why = failed.map_or(no_time, |(_, _, _, words)| words);
            let text = format!("{name} is up, but was not measured: {why}");
            Some(advice("node_unmeasured", text))
        }
        _ => None,
    }
}

/// Says how many nodes may fail.
fn spare(results: &Results, voting: usize) -> Finding {
    let (all, quorum) = (results.nodes.len(), results.quorum());
    let counted = format!("{voting} of {all} nodes vote in time, and a lock needs {quorum}");
    match voting.checked_sub(quorum) {
        None => advice("no_quorum", format!("{counted}: that is no quorum.")),
        Some(0) => advice("spare_nodes", format!("{counted}: none of them may fail.")),
        Some(spare) => finding(
            false,
            "spare_nodes",
            format!("{counted}: {spare} of them may fail."),
        ),
    }
}

/// Names the slow nodes among those that vote, and says whether locks wait for them.
fn slow(results: &Results, voting: &[&Node]) -> Vec<Finding> {
    let measured = voting
        .iter()
        .filter_map(|node| Some((node.plain.median()?, &node.name)));
    let mut measured: Vec<_> = measured.collect();
    measured.sort_unstable();
    let Some(&(usual, _)) = measured.get(measured.len().saturating_sub(1) / 2) else {
        return Vec::new();
    };
    let fast = measured.partition_point(|(took, _)| *took < (usual * SLOW).max(usual + NOTICEABLE));
    let quorum = results.quorum();
    let felt = match fast >= quorum {
        true => format!("Locks do not wait for it while {quorum} others are up."),
        false => format!("Locks wait for it: only {fast} nodes are faster, and {quorum} are needed."),
    };
    let usual = ms(usual);
    let to_advice = |(took, name): &(Duration, _)| {
        let took = ms(*took);
        advice(
            "slow_node",
            format!("{name} is slow: {took} ms; the usual node takes {usual} ms. {felt}"),
        )
    };
    measured[fast..].iter().map(to_advice).collect()
}

/// Says whether the TTL leaves nodes enough time. `None` if nothing was timed.
fn budget(results: &Results, voting: &[&Node]) -> Option<Finding> {
    let ttl = results.plan.args.ttl;
    let nodes = voting.iter().map(|node| (node.name.to_string(), &node.plain));
    let loads = results.loads.iter().filter(|load| !load.contended);
    let loads = loads.map(|load| (format!("acquire, {}", load.name()), &load.acquire));
    let (took, what) = nodes
        .chain(loads)
        .filter_map(|(what, latencies)| Some((latencies.percentile(99.0)?, what)))
        .max()?;
    let facts = format!("One answer in a hundred takes {} ms or more ({what})", ms(took));
    Some(match took * ROOM > ttl / 10 {
        true => advice("node_budget", budgeted(ttl, &facts, took)),
        false => finding(
            false,
            "node_budget",
            format!("{facts}. A TTL of {} is long enough.", shown(ttl)),
        ),
    })
}

/// Adds the node budget, and the TTL with a budget of `ROOM` times `took`, in whole seconds.
fn budgeted(ttl: Duration, facts: &str, took: Duration) -> String {
    let enough = Duration::from_secs((took * 10 * ROOM).as_secs_f64().ceil() as u64);
    let (ttl, budget, enough) = (shown(ttl), shown(ttl / 10), shown(enough));
    format!("{facts}, and with a TTL of {ttl} a node has {budget} (a tenth). Use a TTL of {enough} or more.")
}

fn failures((place, failures): (String, &Failures)) -> Vec<Finding> {
    let to_advice = |(operation, kind, count, first)| {
        advice(
            "failures",
            format!("{place}: {operation} failed, {count} x {kind}. The first: {first}"),
        )
    };
    failures.iter().map(to_advice).collect()
}
