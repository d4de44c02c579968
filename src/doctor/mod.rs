//! What makes a set of nodes unfit for locks: judges facts, and asks nothing itself.
//!
//! Entry points: [`judge`] for all that `quorlock doctor` reports, [`settings`] for the warnings of each connection. `facts.rs` has
//! what was read, `info.rs` a server's INFO; `node.rs` judges one node, `set.rs` all together, `rights.rs` the user, `faults.rs` why
//! a node does not vote. Nothing here is asynchronous, and nothing reads a clock.

mod facts;
mod faults;
mod finding;
mod info;
mod node;
mod rights;
mod set;
pub(crate) mod settings;

pub(crate) use facts::{Clock, Endless, Lists, NodeFacts, ServerFacts, SetFacts};
pub use finding::{Finding, Severity};
pub(crate) use info::Info;
pub(crate) use rights::{CHANNEL, KEY, Lack, MISSING, Need, RIGHTS, SELECT};

/// Judges a set of nodes. Returns the findings about each node, in the order of the nodes, then those about the set. What matters
/// most is first.
pub(crate) fn judge(facts: &SetFacts) -> Vec<Finding> {
    let mut findings = set::judge(facts);
    for node in &facts.nodes {
        let mut of_node = node::judge(node, facts.budget(), &facts.prefix);
        of_node.extend(set::clock(facts, node));
        findings.extend(of_node.into_iter().map(|finding| finding.on(&node.name)));
    }
    let place = |finding: &Finding| {
        let node = facts
            .nodes
            .iter()
            .position(|node| finding.node.as_ref() == Some(&node.name));
        node.unwrap_or(facts.nodes.len())
    };
    findings.sort_by_key(|finding| (place(finding), finding.severity));
    findings
}

#[cfg(test)]
mod tests;
