//! Judges the nodes together.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::{Clock, NodeFacts, SetFacts};
use super::finding::Finding;
use crate::node::Fault;
use crate::protocol::quorum::quorum;

/// A node whose clock is further from the others' starts counters from its own clock, in microseconds (F5).
const CLOCKS_AGREE: i64 = 1_000_000;
/// How many names a finding lists.
const MOST_NAMES: usize = 3;

/// Returns the findings about the set.
pub(super) fn judge(facts: &SetFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = number(facts.nodes.len()).into_iter().collect();
    findings.extend(hosts(facts));
    findings.extend(memories(facts));
    findings.extend(lists(facts));
    findings.extend(endless(facts));
    findings
}

fn number(nodes: usize) -> Option<Finding> {
    let survived = nodes - quorum(nodes);
    match nodes {
        1 | 2 => Some(Finding::warning(
            "too_few_nodes",
            format!("{nodes} of {nodes} nodes are needed: locks survive the loss of none"),
            "use three or five nodes",
        )),
        _ if nodes.is_multiple_of(2) => Some(Finding::warning(
            "even_number",
            format!(
                "{nodes} nodes survive the loss of {survived}, as many as {} do",
                nodes - 1
            ),
            "use an odd number of nodes",
        )),
        _ => None,
    }
}

/// Warns about machines with several nodes.
fn hosts(facts: &SetFacts) -> Vec<Finding> {
    let mut hosts: BTreeMap<&Arc<str>, Vec<&str>> = BTreeMap::new();
    for node in &facts.nodes {
        // A server that is there twice was told.
        let is_told = matches!(node.down, Some(Fault::Unfit(_)));
        let host = node.server.as_ref().ok().and_then(|server| server.host.as_ref());
        if let Some(host) = host.filter(|_| !is_told) {
            hosts.entry(host).or_default().push(&node.name);
        }
    }
    let shared = hosts.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    let finding = |(host, nodes): (&Arc<str>, Vec<&str>)| {
        Finding::warning(
            "same_host",
            format!(
                "{} nodes are on {host}, and fail together: {}",
                nodes.len(),
                nodes.join(", ")
            ),
            "run each node on a machine of its own",
        )
    };
    shared.map(finding).collect()
}

/// Finds nodes that have the record of another node: one is a copy of the other.
fn memories(facts: &SetFacts) -> Vec<Finding> {
    let known = |node: &NodeFacts| {
        Some((
            node.server.as_ref().ok()?.memory?,
            node.info()?.text("run_id")?.to_owned(),
        ))
    };
    let mut seen: BTreeMap<_, (String, Arc<str>)> = BTreeMap::new();
    let mut findings = Vec::new();
    for node in &facts.nodes {
        let Some((memory, run_id)) = known(node) else {
            continue;
        };
        match seen.get(&memory) {
            Some((other_run, other)) if *other_run != run_id => findings.push(
                Finding::warning(
                    "copied_data",
                    format!("it has the record of {other}, so one is a copy of the other: the copy begins a new memory"),
                    "do not copy the data of nodes",
                )
                .on(&node.name),
            ),
            Some(_) => {}
            None => drop(seen.insert(memory, (run_id, node.name.clone()))),
        }
    }
    findings
}

fn lists(facts: &SetFacts) -> Vec<Finding> {
    let conflict = facts.nodes.iter().find_map(|node| match &node.left_out {
        Some(Fault::OtherNodes(conflict)) => Some(conflict),
        _ => None,
    });
    let shown = |nodes: &Vec<Arc<str>>| format!("[{}]", nodes.join(", "));
    let advice = "let all clients use the same list; `quorlock members` shows who uses which";
    let mut findings = Vec::new();
    let several = facts.lists.in_use.len() > 1;
    match conflict {
        Some(_) if several => {
            let lists: Vec<String> = facts.lists.in_use.iter().map(shown).collect();
            let seen = format!(
                "{} lists of nodes are in use: {}",
                lists.len(),
                lists.join(" and ")
            );
            findings.push(Finding::error("several_lists", seen, advice));
        }
        Some(conflict) => {
            let theirs = shown(&conflict.theirs);
            let seen = format!("clients use another list of nodes than this one: {theirs}");
            findings.push(Finding::error("other_list_of_nodes", seen, advice));
        }
        None if several => findings.push(Finding::warning(
            "several_names",
            "clients call nodes by different names: a node that loses its data counts as two for a while",
            "use the same names in all clients; `quorlock members` shows who uses which",
        )),
        None => {}
    }
    findings.extend(unread(
        facts,
        &facts.lists.faults,
        "the lists of nodes in use",
        "+eval",
    ));
    findings
}

fn endless(facts: &SetFacts) -> Vec<Finding> {
    let (locks, mut findings) = (&facts.endless.locks, Vec::new());
    if !locks.is_empty() {
        let names: Vec<&str> = locks.iter().take(MOST_NAMES).map(|name| &**name).collect();
        let more = if locks.len() > MOST_NAMES { ", ..." } else { "" };
        let seen = format!(
            "{} of locks without an expiry, which nobody can take: {}{more}",
            super::node::counted(locks.len() as u64, "key"),
            names.join(", ")
        );
        let advice = "`quorlock locks --leaked` shows them: find out whose they are, then delete them";
        findings.push(Finding::warning("lock_without_expiry", seen, advice));
    }
    if facts.endless.is_partial {
        let advice = "`quorlock locks --leaked` looks at all of them";
        findings.push(Finding::unknown("some locks", "there are too many", advice));
    }
    findings.extend(unread(
        facts,
        &facts.endless.faults,
        "locks without an expiry",
        "+scan",
    ));
    findings
}

/// Tells what could not be read of nodes, unless the reason was told: the node is down, or refuses writes.
fn unread(facts: &SetFacts, faults: &[(Arc<str>, Fault)], what: &str, right: &str) -> Vec<Finding> {
    let is_new =
        |node: &NodeFacts, fault: &Fault| node.down.is_none() && node.write.as_ref().err() != Some(fault);
    let told = faults.iter().filter(|(name, fault)| {
        let mut nodes = facts.nodes.iter().filter(|node| node.name == *name);
        nodes.any(|node| is_new(node, fault))
    });
    let finding = |(name, fault): &(Arc<str>, Fault)| {
        let (why, advice) = match fault {
            Fault::NoPermission { .. } => ("no permission".to_owned(), format!("give the user {right}")),
            fault => (fault.to_string(), "ask again".to_owned()),
        };
        Finding::unknown(what, why, advice).on(name)
    };
    told.map(finding).collect()
}

/// Judges a node's clock beside those of the other nodes.
pub(super) fn clock(facts: &SetFacts, node: &NodeFacts) -> Option<Finding> {
    let of = |node: &NodeFacts| node.server.as_ref().ok()?.clock;
    let own = of(node)?;
    let mut all: Vec<Clock> = facts.nodes.iter().filter_map(of).collect();
    all.sort_by_key(|clock| clock.ahead);
    let median = all[(all.len() - 1) / 2];
    let (apart, within) = (own.ahead - median.ahead, own.within + median.within);
    let shown = |micros: i64| format!("{:.3} s", micros as f64 / 1e6);
    if apart.abs() - within > CLOCKS_AGREE {
        let direction = if apart > 0 { "ahead of" } else { "behind" };
        let seen = format!(
            "its clock is {} {direction} the other nodes' (known to {})",
            shown(apart.abs()),
            shown(within)
        );
        let advice =
            "let NTP slew it: a step ends locks early, and tokens after a loss of data start from clocks";
        return Some(Finding::warning("clock_off", seen, advice));
    }
    (apart.abs() + within > CLOCKS_AGREE).then(|| {
        let why = format!("answers are so slow that it is known only to {}", shown(within));
        Finding::unknown("its clock", why, "ask from a machine that is nearer")
    })
}
