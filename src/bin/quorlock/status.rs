//! `quorlock status`: shows which nodes are up, and why the others are not.

use std::fmt::Write as _;
use std::time::Duration;

use quorlock::ConnectError;
use quorlock::node::Fault;
use serde_json::{Value, json};

use crate::args::Status;
use crate::event::{millis, short};
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::{fault, nodes, out};

struct Line {
    node: String,
    up: bool,
    fault: Option<Fault>,
    warnings: Vec<String>,
}

impl Line {
    /// Returns the time until the node gives locks. `None` if it is down, or another list of nodes is in use.
    fn ready_in(&self) -> Option<Duration> {
        let gives = self.up && !matches!(self.fault, Some(Fault::OtherNodes(_)));
        gives.then_some(match self.fault {
            Some(Fault::Restarted { remaining, .. } | Fault::Replaced { remaining }) => remaining,
            _ => Duration::ZERO,
        })
    }
}

/// Whether the nodes give locks.
struct Verdict {
    quorum: usize,
    up: usize,
    /// How many nodes give locks now.
    ready: usize,
    /// The time until a quorum gives locks. `None` if too few nodes will.
    quorum_in: Option<Duration>,
}

impl Verdict {
    fn of(lines: &[Line]) -> Verdict {
        let quorum = nodes::quorum(lines.len());
        let mut ready_in: Vec<Duration> = lines.iter().filter_map(Line::ready_in).collect();
        ready_in.sort_unstable();
        Verdict {
            quorum,
            up: lines.iter().filter(|line| line.up).count(),
            ready: ready_in.iter().filter(|time| time.is_zero()).count(),
            quorum_in: ready_in.get(quorum - 1).copied(),
        }
    }

    /// Returns the verdict for programs.
    fn name(&self) -> &'static str {
        match self.quorum_in {
            Some(Duration::ZERO) => "quorum",
            Some(_) => "restart_guard",
            None => "no_quorum",
        }
    }

    fn words(&self) -> String {
        match self.quorum_in {
            Some(Duration::ZERO) => "quorum".to_owned(),
            Some(time) => format!(
                "NO QUORUM YET: {} of them give locks now, a quorum does in {} (restart guard)",
                self.ready,
                short(time)
            ),
            None => "NO QUORUM".to_owned(),
        }
    }

    fn code(&self) -> u8 {
        match self.quorum_in {
            Some(Duration::ZERO) => exit::OK,
            _ => exit::NO_QUORUM,
        }
    }
}

pub(crate) async fn status(arguments: Status, report: &Report) -> Result<u8, Failure> {
    let urls = nodes::urls(&arguments.nodes)?;
    let mut builder = nodes::builder(&arguments.nodes, &urls)?
        .observe()
        .key_prefix(&arguments.key_prefix);
    if let Some(window) = arguments.guard_window {
        builder = builder.guard_window(window);
    }
    let (lines, failure) = match builder.connect().await {
        Ok(redlock) => (redlock.nodes().into_iter().map(line).collect(), None),
        Err(error) => (explained(&error), Some(nodes::not_connected(&error))),
    };
    if lines.is_empty()
        && let Some(failure) = failure
    {
        return Err(failure);
    }
    let verdict = Verdict::of(&lines);
    out::print(report, || document(&lines, &verdict), || text(&lines, &verdict))?;
    Ok(failure.map_or(verdict.code(), |failure| failure.code))
}

fn line(node: quorlock::NodeStatus) -> Line {
    let (up, fault, warnings) = match nodes::warnings(node.state) {
        Ok(warnings) => (true, node.left_out, warnings),
        Err(fault) => (false, Some(fault), Vec::new()),
    };
    Line {
        node: node.name.to_string(),
        up,
        fault,
        warnings,
    }
}

/// Returns each node's fault after a failed connect. Empty if the error has none.
fn explained(error: &ConnectError) -> Vec<Line> {
    let (ConnectError::NoQuorum { votes, .. } | ConnectError::Misconfigured(votes)) = error else {
        return Vec::new();
    };
    votes
        .iter()
        .map(|vote| {
            let fault = vote
                .answer
                .as_ref()
                .and_then(|answer| answer.as_ref().err())
                .cloned();
            Line {
                node: vote.node.to_string(),
                up: fault.is_none(),
                fault,
                warnings: Vec::new(),
            }
        })
        .collect()
}

fn document(lines: &[Line], verdict: &Verdict) -> Value {
    let node = |line: &Line| {
        json!({
            "node": line.node, "up": line.up, "reason": line.fault.as_ref().map(fault::kind),
            "trouble": line.fault.as_ref().map(Fault::to_string), "warnings": line.warnings,
        })
    };
    let nodes: Vec<_> = lines.iter().map(node).collect();
    json!({
        "nodes": nodes, "up": verdict.up, "ready": verdict.ready, "quorum": verdict.quorum,
        "verdict": verdict.name(), "quorum_in_ms": verdict.quorum_in.map(millis),
    })
}

fn text(lines: &[Line], verdict: &Verdict) -> String {
    let mut text = String::new();
    for line in lines {
        let _ = match (line.up, &line.fault) {
            (true, None) => writeln!(text, "{}: up", line.node),
            (true, Some(fault)) => writeln!(text, "{}: up, but {fault}", line.node),
            (false, Some(fault)) => writeln!(text, "{}: {fault}", line.node),
            (false, None) => writeln!(text, "{}: unknown", line.node),
        };
        for warning in &line.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
    }
    let (up, quorum) = (verdict.up, verdict.quorum);
    let _ = writeln!(
        text,
        "{up} of {} nodes up, {quorum} needed: {}",
        lines.len(),
        verdict.words()
    );
    let conflict = lines.iter().find_map(|line| match &line.fault {
        Some(Fault::OtherNodes(conflict)) => Some(conflict),
        _ => None,
    });
    if let Some(conflict) = conflict {
        let _ = writeln!(text, "{conflict}");
    }
    text
}
