//! `quorlock status`: which nodes are up.

use std::fmt::Write as _;

use quorlock::ConnectError;
use quorlock::node::NodeState;
use serde_json::json;

use crate::args::Status;
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::{nodes, out};

/// One node, in words.
struct Line {
    node: String,
    trouble: Option<String>,
    warnings: Vec<String>,
}

pub(crate) async fn status(arguments: Status, report: &Report) -> Result<u8, Failure> {
    let urls = nodes::urls(&arguments.nodes)?;
    let builder = nodes::builder(&arguments.nodes, &urls)?;
    let (lines, failure) = match builder.connect().await {
        Ok(redlock) => (redlock.nodes().into_iter().map(line).collect(), None),
        Err(error) => (explained(&error), Some(nodes::not_connected(&error))),
    };
    if lines.is_empty()
        && let Some(failure) = failure
    {
        return Err(failure);
    }
    let up = lines.iter().filter(|line: &&Line| line.trouble.is_none()).count();
    print(&lines, up, report.is_json())?;
    Ok(failure.map_or(exit::OK, |failure| failure.code))
}

fn line(node: quorlock::NodeStatus) -> Line {
    let (trouble, warnings) = match node.state {
        NodeState::Up { warnings } => (None, warnings),
        NodeState::Down(fault) => (Some(fault.to_string()), Vec::new()),
        NodeState::Connecting => (Some("no answer yet".to_owned()), Vec::new()),
        _ => (Some("unknown".to_owned()), Vec::new()),
    };
    Line {
        node: node.name.to_string(),
        trouble,
        warnings,
    }
}

/// What each node said when no connection came about.
fn explained(error: &ConnectError) -> Vec<Line> {
    let (ConnectError::NoQuorum { votes, .. } | ConnectError::Misconfigured(votes)) = error else {
        return Vec::new();
    };
    votes
        .iter()
        .map(|vote| Line {
            node: vote.node.to_string(),
            trouble: match &vote.answer {
                Some(Err(fault)) => Some(fault.to_string()),
                _ => None,
            },
            warnings: Vec::new(),
        })
        .collect()
}

fn print(lines: &[Line], up: usize, json: bool) -> Result<(), Failure> {
    let quorum = lines.len() / 2 + 1;
    let text = if json {
        let node = |line: &Line| json!({"node": line.node, "up": line.trouble.is_none(), "trouble": line.trouble, "warnings": line.warnings});
        let nodes: Vec<_> = lines.iter().map(node).collect();
        format!("{}\n", json!({"nodes": nodes, "up": up, "quorum": quorum}))
    } else {
        let mut text = String::new();
        for line in lines {
            let _ = match &line.trouble {
                None => writeln!(text, "{}: up", line.node),
                Some(trouble) => writeln!(text, "{}: {trouble}", line.node),
            };
            for warning in &line.warnings {
                let _ = writeln!(text, "  warning: {warning}");
            }
        }
        let verdict = if up >= quorum { "quorum" } else { "NO QUORUM" };
        let _ = writeln!(
            text,
            "{up} of {} nodes up, {quorum} needed: {verdict}",
            lines.len()
        );
        text
    };
    out::print(&text)
}
