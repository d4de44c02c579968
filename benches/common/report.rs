//! Tables for people, in Markdown, and the same as JSON.

use std::fs;

use serde_json::{Map, Value, json};

/// Collects everything that is to be shown.
#[derive(Default)]
pub(crate) struct Report {
    json: Map<String, Value>,
    failed: Vec<String>,
    violated: Vec<String>,
}

impl Report {
    pub(crate) fn note(&mut self, name: &str, text: &str) {
        println!("* {name}: {text}");
        self.json.insert(name.into(), text.into());
    }

    /// What else the machine was doing tells how far the numbers can be believed.
    pub(crate) fn note_load(&mut self, when: &str) {
        if let Ok(load) = fs::read_to_string("/proc/loadavg") {
            self.note(when, load.trim_end());
        }
    }

    /// Something went wrong that is to be told at the end.
    pub(crate) fn failed(&mut self, what: String) {
        self.failed.push(what);
    }

    /// What was promised was not kept. There is no point in figures then.
    pub(crate) fn violated(&mut self, what: &str) {
        eprintln!("VIOLATION: {what}");
        self.violated.push(what.to_owned());
    }

    pub(crate) fn is_violated(&self) -> bool {
        !self.violated.is_empty()
    }

    /// What failed, and everything as JSON.
    pub(crate) fn finish(mut self) -> Value {
        println!();
        if !self.violated.is_empty() {
            println!("VIOLATIONS, which make all of this worthless:\n");
            self.violated.iter().for_each(|line| println!("* {line}"));
            println!();
        }
        if self.failed.is_empty() {
            println!("No operation failed.");
        } else {
            println!("FAILED OPERATIONS:\n");
            self.failed.iter().for_each(|line| println!("* {line}"));
        }
        self.json.insert("failed".into(), json!(self.failed));
        self.json.insert("violated".into(), json!(self.violated));
        Value::Object(self.json)
    }

    pub(crate) fn show(&mut self, title: &str, table: &Table, json: Map<String, Value>) {
        print!("\n### {title}\n\n{}", table.text());
        self.json.insert(title.into(), json.into());
    }
}

/// As locked in `Cargo.lock`.
pub(crate) const RSLOCK_VERSION: &str = "0.10.0";

/// The name of tokio's runtime.
pub(crate) fn runtime(multi_thread: bool) -> &'static str {
    if multi_thread {
        "multi_thread"
    } else {
        "current_thread"
    }
}

/// What has to be said of a run's numbers.
pub(crate) fn caveat(quick: bool) -> &'static str {
    if quick {
        " QUICK RUN: the numbers mean nothing."
    } else {
        ""
    }
}

pub(crate) fn times(ratio: f64) -> String {
    if ratio.is_finite() {
        format!("{ratio:.2}")
    } else {
        "-".into()
    }
}

pub(crate) struct Table {
    head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Table {
            head: head.iter().map(|&cell| cell.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Markdown that can also be read as it is.
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
        let line = |row: &[String]| {
            let cells = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                });
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = widths.iter().enumerate().map(|(column, &width)| match column {
            0 => "-".repeat(width + 2),
            _ => format!("{}:", "-".repeat(width + 1)),
        });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.head) + &rule + &rows
    }
}
