//! A survey as text for Prometheus. `docs/metrics.md` describes it for users.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::iter;
use std::time::{Duration, UNIX_EPOCH};

use crate::status::Line;
use crate::survey::{Findings, Survey};

/// The kinds of leaks that are always told, also if there are none.
const LEAKS: [&str; 3] = ["no_expiry", "wrong_type", "partial"];

pub(super) fn text(survey: &Survey) -> String {
    let mut text = Text::default();
    let of_nodes = |value: fn(&Line) -> Option<f64>| {
        let nodes = survey.nodes.iter();
        nodes.filter_map(move |line| Some((vec![("node", &*line.node)], value(line)?)))
    };
    text.gauge(
        "node_up",
        "1 if the node is connected.",
        of_nodes(|line| Some(flag(line.up))),
    );
    text.gauge(
        "node_gives_locks",
        "1 if the node gives locks.",
        of_nodes(|line| Some(flag(line.ready_in() == Some(Duration::ZERO)))),
    );
    text.gauge(
        "node_left_out_seconds",
        "How long to wait until the node gives locks; 0 if it does, or if waiting does not help.",
        of_nodes(|line| Some(line.ready_in().unwrap_or_default().as_secs_f64())),
    );
    text.gauge(
        "node_write_seconds",
        "How long a write to the node took.",
        of_nodes(|line| Some(line.write?.as_secs_f64())),
    );
    if let Some(findings) = &survey.findings {
        of_doctor(&mut text, findings);
    }
    of_locks(&mut text, survey);
    text.0
}

fn of_doctor(text: &mut Text, findings: &Findings) {
    text.gauge(
        "doctor_ok",
        "1 if `quorlock doctor` could look at the nodes.",
        one(flag(findings.found.is_ok())),
    );
    let at = findings.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    text.gauge(
        "doctor_timestamp_seconds",
        "When `quorlock doctor` last looked, since 1970.",
        one(at.as_secs_f64().floor()),
    );
    let Ok(check_up) = &findings.found else { return };
    let mut counts: BTreeMap<_, u32> = BTreeMap::new();
    for finding in &check_up.findings {
        let node = finding.node.as_deref().unwrap_or_default();
        *counts
            .entry((node, finding.code, finding.severity.name()))
            .or_default() += 1;
    }
    let counts = counts.into_iter().map(|((node, code, severity), count)| {
        let labels = vec![("node", node), ("code", code), ("severity", severity)];
        (labels, f64::from(count))
    });
    text.gauge("findings", "Findings of `quorlock doctor`.", counts);
}

fn of_locks(text: &mut Text, survey: &Survey) {
    let locks = &survey.locks;
    text.gauge(
        "unread_nodes",
        "Nodes that did not list their locks to the end, or may have forgotten some.",
        one(locks.unread.len() as f64),
    );
    text.gauge(
        "list_is_cut",
        "1 if the locks were not read to the end within five seconds.",
        one(flag(locks.is_cut)),
    );
    // Zero would be a claim.
    if !survey.knows_locks() {
        return;
    }
    text.gauge("locks_held", "Locks that are held.", one(locks.held as f64));
    text.gauge(
        "locks_uncertain",
        "Locks with keys of which too few nodes answered to say whether they are held.",
        one(locks.uncertain as f64),
    );
    let is_none_held = locks.held == 0 && locks.uncertain == 0;
    let oldest = locks.oldest.or(is_none_held.then_some(Duration::ZERO));
    text.gauge(
        "oldest_hold_seconds",
        "How long the oldest lock is held.",
        oldest.into_iter().flat_map(|oldest| one(oldest.as_secs_f64())),
    );
    let leaks = LEAKS.into_iter().map(|kind| {
        let count = locks.leaks.get(kind).copied().unwrap_or_default();
        (vec![("kind", kind)], count as f64)
    });
    text.gauge(
        "leaked_locks",
        "Locks with keys that do not belong there, by kind.",
        leaks,
    );
}

/// Returns the only value of a metric without labels.
fn one(value: f64) -> impl Iterator<Item = (Vec<(&'static str, &'static str)>, f64)> {
    iter::once((Vec::new(), value))
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return;
        }
        let _ = writeln!(self.0, "# HELP quorlock_exporter_{name} {help}");
        let _ = writeln!(self.0, "# TYPE quorlock_exporter_{name} gauge");
        for (labels, value) in values {
            let labels: Vec<String> = labels
                .into_iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let labels: &dyn Display = match labels.is_empty() {
                true => &"",
                false => &format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(self.0, "quorlock_exporter_{name}{labels} {value}");
        }
    }
}

/// Escapes a label's value.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
