//! `quorlock doctor`: says everything that makes the nodes unfit for locks.

use std::fmt::Write as _;

use quorlock::{CheckUp, CheckedNode, Finding, Severity};
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::exit::{self, Failure};
use crate::format::counted;
use crate::report::{Report, escape_control_characters};
use crate::{locking, nodes, out};

pub(crate) async fn doctor(arguments: Doctor, report: &Report) -> Result<u8, Failure> {
    locking::check_window(&arguments.times, true, report);
    let builder = nodes::builder_for(&arguments.existing)?;
    let found = locking::with_times(builder, &arguments.times)
        .check_up()
        .await
        .map_err(|error| nodes::not_connected(&error))?;
    out::print(report, || document(&found), || text(&found))?;
    Ok(code(&found, arguments.strict))
}

fn count(found: &CheckUp, severity: Severity) -> usize {
    let findings = found.findings.iter();
    findings.filter(|finding| finding.severity == severity).count()
}

fn code(found: &CheckUp, strict: bool) -> u8 {
    match () {
        () if !found.has_quorum_in_reach() => exit::NO_QUORUM,
        () if count(found, Severity::Error) > 0 => exit::FINDINGS,
        () if strict && !found.findings.is_empty() => exit::FINDINGS,
        () => exit::OK,
    }
}

fn document(found: &CheckUp) -> Value {
    let node = |node: &CheckedNode| json!({"node": &*node.name, "version": node.version, "in_reach": node.is_in_reach});
    let finding = |finding: &Finding| {
        json!({
            "code": finding.code, "severity": finding.severity.name(), "node": finding.node.as_deref(),
            "seen": finding.seen, "advice": finding.advice,
        })
    };
    let nodes: Vec<_> = found.nodes.iter().map(node).collect();
    let findings: Vec<_> = found.findings.iter().map(finding).collect();
    json!({
        "nodes": nodes, "findings": findings, "quorum": nodes::quorum(found.nodes.len()),
        "quorum_in_reach": found.has_quorum_in_reach(), "errors": count(found, Severity::Error),
        "warnings": count(found, Severity::Warning), "unknown": count(found, Severity::Unknown),
    })
}

fn text(found: &CheckUp) -> String {
    let mut text = String::new();
    let is_shared = |finding: &Finding| {
        found.nodes.len() > 1 && finding.node.is_some() && is_on_each_node(found, finding)
    };
    for node in &found.nodes {
        let version = node
            .version
            .as_ref()
            .map(|version| format!(" (version {version})"));
        let heading = format!("{}{}", node.name, version.unwrap_or_default());
        let is_own = |finding: &&Finding| finding.node.as_ref() == Some(&node.name) && !is_shared(finding);
        group(&mut text, &heading, found.findings.iter().filter(is_own));
    }
    let first = found.nodes.first().map(|node| &node.name);
    let on_each = |finding: &&Finding| finding.node.as_ref() == first && is_shared(finding);
    group(&mut text, "each node", found.findings.iter().filter(on_each));
    let of_set = |finding: &&Finding| finding.node.is_none();
    group(
        &mut text,
        "the set of nodes",
        found.findings.iter().filter(of_set),
    );
    let _ = writeln!(text, "{}", verdict(found));
    text
}

/// Returns whether the same was found on all nodes.
fn is_on_each_node(found: &CheckUp, finding: &Finding) -> bool {
    let has_it = |node: &CheckedNode| {
        let mut findings = found.findings.iter();
        findings.any(|other| {
            let is_same =
                (other.code, &other.seen, &other.advice) == (finding.code, &finding.seen, &finding.advice);
            other.node.as_ref() == Some(&node.name) && is_same
        })
    };
    found.nodes.iter().all(has_it)
}

/// Writes findings under a heading. Writes nothing if there are none.
fn group<'a>(text: &mut String, heading: &str, findings: impl Iterator<Item = &'a Finding>) {
    let mut findings = findings.peekable();
    if findings.peek().is_some() {
        let _ = writeln!(text, "{}", escape_control_characters(heading));
    }
    for finding in findings {
        let seen = escape_control_characters(&finding.seen);
        let advice = escape_control_characters(&finding.advice);
        let _ = writeln!(text, "  {}: {seen} [{}]", finding.severity.name(), finding.code);
        let _ = writeln!(text, "    {advice}");
    }
}

fn verdict(found: &CheckUp) -> String {
    let found_any = |severity, thing| {
        let count = count(found, severity);
        (count > 0).then(|| counted(count, thing))
    };
    let mut found_words: Vec<String> = [(Severity::Error, "error"), (Severity::Warning, "warning")]
        .into_iter()
        .filter_map(|(severity, thing)| found_any(severity, thing))
        .collect();
    if found_words.is_empty() {
        found_words.push("nothing found".to_owned());
    }
    let nodes = counted(found.nodes.len(), "node");
    let unchecked =
        found_any(Severity::Unknown, "thing").map(|things| format!("; {things} could not be checked"));
    let out_of_reach = match found.has_quorum_in_reach() {
        true => "",
        false => "; NO QUORUM IS IN REACH",
    };
    let words = found_words.join(", ");
    format!(
        "{words} on {nodes}{}{out_of_reach}",
        unchecked.unwrap_or_default()
    )
}
