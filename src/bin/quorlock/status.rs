//! `quorlock status`: shows which nodes are up, and why the others are not.

use std::fmt::Write as _;
use std::time::Duration;

use quorlock::node::Fault;
use quorlock::{ConnectError, NodeStatus, Redlock};
use serde_json::{Value, json};

use crate::args::Status;
use crate::exit::{self, Failure};
use crate::format::{millis, short};
use crate::report::Report;
use crate::{locking, nodes, out};

/// A node's state, and how long a write took.
pub(crate) struct Line {
    pub(crate) node: String,
    pub(crate) up: bool,
    /// Why the node is down, or gives no locks.
    pub(crate) fault: Option<Fault>,
    pub(crate) warnings: Vec<String>,
    /// `None` if the write failed.
    pub(crate) write: Option<Duration>,
}

impl Line {
    /// Returns the state in words.
    pub(crate) fn words(&self) -> String {
        match (self.up, &self.fault) {
            (true, None) => "up".to_owned(),
            (true, Some(fault)) => format!("up, but {fault}"),
            (false, Some(fault)) => fault.to_string(),
            (false, None) => "unknown".to_owned(),
        }
    }

    /// Returns whether nothing is wrong with the node.
    pub(crate) fn is_good(&self) -> bool {
        self.up && self.fault.is_none()
    }

    /// Returns the time until the node gives locks. `None` if it is down or refuses writes, or another list of nodes is in use.
    pub(crate) fn ready_in(&self) -> Option<Duration> {
        match &self.fault {
            _ if !self.up => None,
            None => Some(Duration::ZERO),
            Some(fault) => fault.gives_locks_in(),
        }
    }
}

/// Whether the nodes give locks.
pub(crate) struct Verdict {
    quorum: usize,
    up: usize,
    /// How many nodes give locks now.
    ready: usize,
    /// The time until a quorum gives locks. `None` if too few nodes will.
    quorum_in: Option<Duration>,
}

impl Verdict {
    pub(crate) fn of(lines: &[Line]) -> Verdict {
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

    fn gives(&self) -> String {
        match self.ready {
            1 => "1 of them gives".to_owned(),
            ready => format!("{ready} of them give"),
        }
    }

    pub(crate) fn words(&self) -> String {
        match self.quorum_in {
            Some(Duration::ZERO) => "quorum".to_owned(),
            Some(time) => format!(
                "NO QUORUM YET: {} locks now, a quorum does in {} (restart guard)",
                self.gives(),
                short(time)
            ),
            None if self.ready == self.up => "NO QUORUM".to_owned(),
            None => format!("NO QUORUM: {} locks now", self.gives()),
        }
    }

    /// Returns whether a quorum gives locks now.
    pub(crate) fn is_quorum(&self) -> bool {
        self.quorum_in == Some(Duration::ZERO)
    }

    fn code(&self) -> u8 {
        match self.is_quorum() {
            true => exit::OK,
            false => exit::NO_QUORUM,
        }
    }
}

pub(crate) async fn status(arguments: Status, report: &Report) -> Result<u8, Failure> {
    locking::check_window(&arguments.times, true, report);
    let builder = nodes::builder_for(&arguments.existing)?.observe();
    let (redlock, error) = locking::with_times(builder, &arguments.times)
        .connect_without_quorum()
        .await
        .map_err(|error| nodes::not_connected(&error))?;
    let lines = lines(&redlock).await;
    let verdict = Verdict::of(&lines);
    out::print(report, || document(&lines, &verdict), || text(&lines, &verdict))?;
    Ok(match error {
        Some(ConnectError::Misconfigured(_)) => exit::MISCONFIGURED,
        _ if arguments.all && verdict.ready < lines.len() => exit::NO_QUORUM,
        _ => verdict.code(),
    })
}

/// Writes to each node, and returns its state then.
pub(crate) async fn lines(redlock: &Redlock) -> Vec<Line> {
    // First, so that a node that is down has no time of a write.
    let written = redlock.check_writes().await;
    let nodes = redlock.nodes().into_iter().zip(written);
    nodes.map(|(node, written)| line(node, written)).collect()
}

fn line(node: NodeStatus, written: Result<Duration, Fault>) -> Line {
    let write = written.as_ref().ok().copied();
    let (up, fault, warnings) = match nodes::warnings(node.state) {
        // The guard and other clients' lists are over sooner or later, a refused write is not.
        Ok(warnings) => (true, written.err().or(node.left_out), warnings),
        Err(fault) => (false, Some(fault), Vec::new()),
    };
    Line {
        node: node.name.to_string(),
        up,
        fault,
        warnings,
        write: write.filter(|_| up),
    }
}

pub(crate) fn document(lines: &[Line], verdict: &Verdict) -> Value {
    let node = |line: &Line| {
        json!({
            "node": line.node, "up": line.up, "reason": line.fault.as_ref().map(Fault::kind),
            "trouble": line.fault.as_ref().map(Fault::to_string), "warnings": line.warnings,
        })
    };
    let nodes: Vec<_> = lines.iter().map(node).collect();
    json!({
        "nodes": nodes, "up": verdict.up, "ready": verdict.ready, "quorum": verdict.quorum,
        "verdict": verdict.name(), "quorum_in_ms": verdict.quorum_in.map(millis),
    })
}

pub(crate) fn text(lines: &[Line], verdict: &Verdict) -> String {
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{}: {}", line.node, line.words());
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
    if lines
        .iter()
        .any(|line| matches!(line.fault, Some(Fault::Unfit(_))))
    {
        let _ = writeln!(
            text,
            "a node may not vote: clients that are connected go on without it, new ones get no locks until it is corrected"
        );
    }
    let conflict = lines.iter().find_map(|line| match &line.fault {
        Some(Fault::OtherNodes(conflict)) => Some(conflict),
        _ => None,
    });
    if let Some(conflict) = conflict {
        let _ = writeln!(text, "{conflict}");
    }
    text
}
