//! The results for people.

use std::fmt::Write as _;
use std::time::Duration;

use super::Results;
use super::findings::findings;
use super::round_trips::Node;
use crate::nodes::counted;
use crate::report::harmless;

const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 100.0];

pub(crate) fn text(results: &Results) -> String {
    let mut text = String::new();
    let plan = &results.plan;
    let shown = humantime::format_duration;
    let _ = writeln!(
        text,
        "{}, {} needed for a lock; {}\nTTL {}: a node has {} to answer\nall times in milliseconds",
        counted(results.nodes.len()),
        results.quorum(),
        match plan.fencing {
            true => "with fencing tokens",
            false => "without fencing tokens",
        },
        shown(plan.ttl),
        shown(plan.ttl / 10),
    );
    text.push_str(&nodes(results));
    text.push_str(&one_task(results));
    text.push_str(&throughput(results));
    text.push_str(&hand_over(results));
    text.push_str("\nWhat it means\n");
    for finding in findings(results) {
        let mark = if finding.is_advice { "! " } else { "  " };
        let wrapped = wrapped(&harmless(&finding.text), 108);
        let _ = writeln!(text, "{mark}{}", wrapped.join("\n    "));
    }
    if results.interrupted.is_some() {
        text.push_str("\nPARTIAL: it was interrupted.\n");
    }
    text
}

fn nodes(results: &Results) -> String {
    let mut table = Table::new(&[
        "round trip",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "with token p50",
        "p99",
        "failed",
        "in verdict",
    ]);
    for node in &results.nodes {
        let mut row = vec![node.name.to_string()];
        row.extend(PERCENTILES.map(|p| cell(node.plain.percentile(p))));
        row.extend([50.0, 99.0].map(|p| cell(node.fenced.percentile(p))));
        let part = results.part(&node.name);
        let all = part.heard + part.not_waited_for + part.faults.values().sum::<u64>();
        row.push(node.failures.count().to_string());
        row.push(match all {
            0 => "-".to_owned(),
            all => format!("{:.0} %", 100.0 * part.heard as f64 / all as f64),
        });
        table.rows.push(row);
    }
    let untimed = |node: &Node| node.plain.count() == 0 || (results.plan.fencing && node.fenced.count() == 0);
    match results.nodes.iter().any(untimed) {
        true => format!("{}-: nothing was timed; why is said below\n", table.text()),
        false => table.text(),
    }
}

fn one_task(results: &Results) -> String {
    let Some(one) = results.pairs.first() else {
        return String::new();
    };
    let mut table = Table::new(&["one task", "p50", "p90", "p99", "p99.9", "max", "count", "failed"]);
    for (what, latencies) in [("acquire", &one.acquire), ("release", &one.release)] {
        let mut row = vec![what.to_owned()];
        row.extend(PERCENTILES.map(|p| cell(latencies.percentile(p))));
        row.push(latencies.count().to_string());
        let failed = one.failures.iter().filter(|(operation, _, _)| *operation == what);
        row.push(failed.map(|(_, _, failed)| failed.count).sum::<u64>().to_string());
        table.rows.push(row);
    }
    table.text()
}

fn throughput(results: &Results) -> String {
    if results.pairs.len() < 2 {
        return String::new();
    }
    let mut table = Table::new(&[
        "tasks",
        "locks/s",
        "acquire p50",
        "p99",
        "max",
        "release p50",
        "p99",
        "max",
        "own CPU",
        "failed",
    ]);
    for pairs in &results.pairs {
        let mut row = vec![pairs.tasks.to_string(), whole(pairs.per_second()).to_string()];
        for latencies in [&pairs.acquire, &pairs.release] {
            row.extend([50.0, 99.0, 100.0].map(|p| cell(latencies.percentile(p))));
        }
        row.push(format!("{:.0} %", pairs.cpu_percent()));
        row.push(pairs.failures.count().to_string());
        table.rows.push(row);
    }
    table.text()
}

fn hand_over(results: &Results) -> String {
    let Some(all) = &results.hand_over else {
        return String::new();
    };
    let plan = &results.plan;
    let title = format!("hand-over, {} waiters", plan.waiters);
    let mut table = Table::new(&[&title, "p50", "p90", "p99", "p99.9", "max"]);
    for (what, latencies) in [
        ("wait", &all.wait),
        ("held", &all.held),
        ("released to next grant", &all.gap),
    ] {
        let mut row = vec![what.to_owned()];
        row.extend(PERCENTILES.map(|p| cell(latencies.percentile(p))));
        table.rows.push(row);
    }
    let (least, most) = (all.grants.iter().min(), all.grants.iter().max());
    let fair = all
        .unfairness()
        .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "{}{} grants a second, {} to {} for each waiter (most / mean {fair}); {} failed\n",
        table.text(),
        whole(all.per_second()),
        least.copied().unwrap_or_default(),
        most.copied().unwrap_or_default(),
        all.failures.count(),
    )
}

/// Milliseconds, to three or four digits.
pub(crate) fn ms(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    match ms {
        _ if ms < 10.0 => format!("{ms:.3}"),
        _ if ms < 100.0 => format!("{ms:.2}"),
        _ if ms < 1_000.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

fn cell(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "-".to_owned(), ms)
}

/// A rate as it is shown everywhere.
pub(crate) fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Lines no longer than this, as far as words are.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Columns under a line of heads, with an empty line above.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Table {
        Table {
            head: head.iter().map(|&head| head.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .chain([&self.head])
                .filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = "\n".to_owned();
        for row in [&self.head].into_iter().chain(&self.rows) {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(text, "{cell:<width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.push('\n');
        }
        text
    }
}
