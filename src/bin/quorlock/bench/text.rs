//! The results for people.

use std::fmt::Write as _;

use indicatif::HumanCount;

use super::Results;
use super::findings::findings;
use super::tally::{Latencies, PERCENTILES, ms};
use crate::format::counted;
use crate::report::escape_control_characters;

/// The first column's width, unless a node's name is longer.
const NAMES: usize = 24;

pub(crate) fn text(results: &Results) -> String {
    let mut text = format!("{}; times in milliseconds\n", title(results));
    tables(results, &mut text);
    text.push('\n');
    for finding in findings(results) {
        let mark = if finding.is_advice { '!' } else { ' ' };
        let _ = writeln!(text, "{mark} {}", escape_control_characters(&finding.text));
    }
    text
}

/// Returns a line that says what was measured.
pub(crate) fn title(results: &Results) -> String {
    let args = &results.plan.args;
    format!(
        "{}{}, {} needed for a lock; {} fencing tokens; TTL {}",
        results.interrupted.map_or("", |_| "PARTIAL (interrupted): "),
        counted(results.nodes.len(), "node"),
        results.quorum(),
        if args.no_fencing { "without" } else { "with" },
        humantime::format_duration(args.ttl)
    )
}

fn tables(results: &Results, text: &mut String) {
    let names = results.nodes.iter().map(|node| node.name.chars().count());
    let width = names.fold(NAMES, usize::max);
    let head = PERCENTILES.map(|(name, _)| name.to_owned());
    let mut line = |name: &str, cells: &[String], more: &[&str]| {
        if cells == head {
            text.push('\n');
        }
        let _ = write!(text, "{name:width$}");
        for cell in cells.iter().map(String::as_str).chain(more.iter().copied()) {
            let _ = write!(text, "{cell:>10}");
        }
        text.push('\n');
    };
    line("round trip", &head, &[]);
    for node in &results.nodes {
        line(&node.name, &cells(&node.plain), &[]);
        if node.fenced.count() > 0 {
            line("  with token", &cells(&node.fenced), &[]);
        }
    }
    for load in &results.loads {
        line(&load.name(), &head, &["a second", "own CPU"]);
        let (rate, cpu) = (whole(load.per_second), format!("{:.0} %", load.cpu_percent));
        line("acquire", &cells(&load.acquire), &[&rate, &cpu]);
        line("release", &cells(&load.release), &[]);
        if load.contended {
            line("released to next grant", &cells(&load.gap), &[]);
        }
    }
}

fn cells(latencies: &Latencies) -> [String; 5] {
    PERCENTILES.map(|(_, percent)| latencies.percentile(percent).map_or("-".to_owned(), ms))
}

fn whole(rate: f64) -> String {
    HumanCount(rate.round() as u64).to_string()
}
