//! The report of a benchmark: everything as JSON, and small tables in Markdown.

use std::fs;

use serde_json::{Map, Value, json};

#[derive(Default)]
pub(crate) struct Report {
    json: Map<String, Value>,
    failed: Vec<String>,
    violated: Vec<String>,
}

impl Report {
    pub(crate) fn note(&mut self, name: &str, text: &str) {
        println!("* {name}: {text}");
        self.keep(name, text);
    }

    /// Adds a value to the JSON only.
    pub(crate) fn keep(&mut self, name: &str, value: impl Into<Value>) {
        self.json.insert(name.into(), value.into());
    }

    /// Records the load of the machine, which limits how far the numbers can be trusted.
    pub(crate) fn note_load(&mut self, when: &str) {
        if let Ok(load) = fs::read_to_string("/proc/loadavg") {
            self.note(when, load.trim_end());
        }
    }

    /// Records a failure, to be shown at the end.
    pub(crate) fn failed(&mut self, what: String) {
        self.failed.push(what);
    }

    /// Records that a promise was broken. The figures are worthless then.
    pub(crate) fn violated(&mut self, what: &str) {
        eprintln!("VIOLATION: {what}");
        self.violated.push(what.to_owned());
    }

    pub(crate) fn is_violated(&self) -> bool {
        !self.violated.is_empty()
    }

    /// Prints the failures, and returns everything as JSON.
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

    /// Adds a table to the JSON, and prints its visible cells.
    pub(crate) fn table(&mut self, title: &str, corner: &str, rows: Vec<Row>) {
        self.print(title, corner, &rows);
        let json: Map<_, _> = rows.into_iter().map(|row| (row.name, row.json.into())).collect();
        self.json.insert(title.into(), json.into());
    }

    /// Prints the rows that have cells, as an aligned Markdown table.
    pub(crate) fn print(&self, title: &str, corner: &str, rows: &[Row]) {
        let mut rows = rows.iter().filter(|row| !row.cells.is_empty()).peekable();
        let Some(first) = rows.peek() else { return };
        let heads = first.cells.iter().map(|(head, _)| head.as_str());
        let heads: Vec<&str> = [corner].into_iter().chain(heads).collect();
        let cells = rows.map(|row| {
            let cells = row.cells.iter().map(|(_, cell)| cell.as_str());
            [row.name.as_str()].into_iter().chain(cells).collect()
        });
        let lines: Vec<Vec<&str>> = [heads.clone()].into_iter().chain(cells).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let widths: Vec<usize> = (0..heads.len()).filter_map(width).collect();
        println!("\n### {title}\n");
        for (number, line) in lines.iter().enumerate() {
            let mut columns = line.iter().zip(&widths);
            let name = columns.next().map(|(cell, &width)| format!("| {cell:<width$} |"));
            let others = columns.map(|(cell, &width)| format!(" {cell:>width$} |"));
            println!("{}{}", name.unwrap_or_default(), others.collect::<String>());
            if number == 0 {
                let others = widths[1..]
                    .iter()
                    .map(|width| format!("{}:|", "-".repeat(width + 1)));
                println!("|{}|{}", "-".repeat(widths[0] + 2), others.collect::<String>());
            }
        }
    }
}

/// A row of a table: figures for the JSON, and cells to print.
pub(crate) struct Row {
    name: String,
    cells: Vec<(String, String)>,
    pub(crate) json: Map<String, Value>,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Row {
            name: name.into(),
            cells: Vec::new(),
            json: Map::new(),
        }
    }

    pub(crate) fn keep(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.json.insert(key.into(), value.into());
    }

    /// Adds a figure to the JSON, and prints it with so many decimals.
    pub(crate) fn show(&mut self, head: &str, key: impl Into<String>, value: f64, decimals: usize) {
        self.show_if(true, head, key.into(), value, decimals);
    }

    /// As [`Row::show`], but prints only on a condition.
    pub(crate) fn show_if(&mut self, shown: bool, head: &str, key: String, value: f64, decimals: usize) {
        if shown {
            self.cell(head, number(value, decimals));
        }
        self.keep(key, value);
    }

    /// Adds a cell that is only printed.
    pub(crate) fn cell(&mut self, head: impl Into<String>, text: String) {
        self.cells.push((head.into(), text));
    }

    /// Keeps the row from being printed.
    pub(crate) fn hide(&mut self) {
        self.cells.clear();
    }
}

pub(crate) fn number(value: f64, decimals: usize) -> String {
    if value.is_finite() {
        format!("{value:.decimals$}")
    } else {
        "-".into()
    }
}

/// The version in `Cargo.lock`.
pub(crate) const RSLOCK_VERSION: &str = "0.10.0";

pub(crate) fn runtime(multi_thread: bool) -> &'static str {
    if multi_thread {
        "multi_thread"
    } else {
        "current_thread"
    }
}

/// Returns a warning about the numbers of a quick run.
pub(crate) fn caveat(quick: bool) -> &'static str {
    if quick {
        " QUICK RUN: the numbers mean nothing."
    } else {
        ""
    }
}
