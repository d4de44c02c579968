//! The tables of this benchmark.

use serde_json::{Map, json};

use crate::common::report::{Report, Table};
use crate::common::stats::median;
use crate::figures::Figures;

/// One contender in one world: its rounds.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<Figures>,
}

type Value = fn(&Figures) -> f64;

/// Over the rounds.
#[derive(Clone, Copy)]
enum Of {
    Median,
    Highest,
    Lowest,
    /// To the first contender's, in the same round; the median of that.
    Ratio,
}

/// Head, name in JSON, value, how many decimals, and which of the rounds' values.
type Column = (&'static str, &'static str, Value, usize, Of);

const SPEED: &[Column] = &[
    (
        "grants/s",
        "grants_per_s",
        |round| round.grants_per_s,
        0,
        Of::Median,
    ),
    (
        "x first",
        "grants_x_first",
        |round| round.grants_per_s,
        2,
        Of::Ratio,
    ),
    ("ideal/s", "ideal_per_s", Figures::ideal_per_s, 0, Of::Median),
    ("of ideal", "of_ideal", Figures::of_ideal, 2, Of::Median),
    ("gap ms", "gap_ms", |round| round.gap, 2, Of::Median),
    ("x first", "gap_x_first", |round| round.gap, 2, Of::Ratio),
    ("hold ms", "hold_ms", |round| round.hold, 2, Of::Median),
    (
        "alone: acquire ms",
        "alone_acquire_ms",
        |round| round.acquire,
        2,
        Of::Median,
    ),
    (
        "release ms",
        "alone_release_ms",
        |round| round.release,
        2,
        Of::Median,
    ),
    ("sent/grant", "sent_per_grant", |round| round.sent, 1, Of::Median),
    (
        "executed/grant",
        "executed_per_grant",
        |round| round.executed,
        1,
        Of::Median,
    ),
];

const FAIRNESS: &[Column] = &[
    (
        "wait p50 ms",
        "wait_p50_ms",
        |round| round.wait_p(50.0),
        1,
        Of::Median,
    ),
    ("p90", "wait_p90_ms", |round| round.wait_p(90.0), 1, Of::Median),
    ("p99", "wait_p99_ms", |round| round.wait_p(99.0), 1, Of::Median),
    (
        "x first",
        "wait_p99_x_first",
        |round| round.wait_p(99.0),
        2,
        Of::Ratio,
    ),
    (
        "longest",
        "wait_longest_ms",
        |round| round.wait_p(100.0),
        1,
        Of::Highest,
    ),
    (
        "longest/mean",
        "wait_longest_over_mean",
        Figures::longest_over_mean,
        1,
        Of::Median,
    ),
    (
        "to another worker",
        "to_another_worker",
        |round| round.to_another_worker,
        2,
        Of::Median,
    ),
    (
        "process",
        "to_another_process",
        |round| round.to_another_process,
        2,
        Of::Median,
    ),
    (
        "fewest grants of a worker",
        "fewest_grants",
        |round| round.fewest,
        0,
        Of::Lowest,
    ),
    ("most", "most_grants", |round| round.most, 0, Of::Highest),
];

impl Series {
    pub(crate) fn new(name: &'static str) -> Series {
        Series {
            name,
            rounds: Vec::new(),
        }
    }

    pub(crate) fn median(&self, value: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    /// The median of the rounds' ratios: what slows down a whole round does not matter.
    pub(crate) fn ratio(&self, other: &Series, value: impl Fn(&Figures) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        median(pairs.map(|(mine, theirs)| value(mine) / value(theirs)))
    }

    fn value(&self, &(_, _, value, _, of): &Column, first: &Series) -> f64 {
        let all = self.rounds.iter().map(value);
        match of {
            Of::Median => median(all),
            Of::Highest => all.fold(f64::NAN, f64::max),
            Of::Lowest => all.fold(f64::NAN, f64::min),
            Of::Ratio => self.ratio(first, value),
        }
    }
}

impl Report {
    /// How fast the lock passes on, and how fairly.
    pub(crate) fn contention(&mut self, title: &str, all: &[Series]) {
        self.columns(title, "speed", SPEED, all);
        self.columns(title, "fairness", FAIRNESS, all);
        for series in all {
            let failures: Vec<&String> = series.rounds.iter().flat_map(|round| &round.failed).collect();
            if let Some(first) = failures.first() {
                let name = series.name;
                self.failed(format!(
                    "{title}, {name}: {} failed; the first: {first}",
                    failures.len()
                ));
            }
        }
    }

    fn columns(&mut self, title: &str, what: &str, columns: &[Column], all: &[Series]) {
        let Some(first) = all.first() else { return };
        // Not what was not counted for anybody.
        let columns = columns.iter();
        let columns =
            columns.filter(|column| all.iter().any(|series| series.value(column, first).is_finite()));
        let columns: Vec<&Column> = columns.collect();
        let heads = columns.iter().map(|column| match column.4 {
            Of::Ratio => format!("x {}", first.name),
            _ => column.0.to_owned(),
        });
        let heads: Vec<String> = [what.to_owned()]
            .into_iter()
            .chain(heads)
            .chain(["gave up".to_owned()])
            .collect();
        let mut table = Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
        let mut json = Map::new();
        for series in all {
            let mut row = vec![series.name.to_owned()];
            let mut entry = Map::new();
            for column in &columns {
                let value = series.value(column, first);
                row.push(number(value, column.3));
                entry.insert(column.1.into(), json!(value));
            }
            let gave_up: usize = series.rounds.iter().map(|round| round.gave_up).sum();
            row.push(gave_up.to_string());
            entry.insert("gave_up".into(), json!(gave_up));
            json.insert(series.name.into(), entry.into());
            table.rows.push(row);
        }
        self.show(&format!("{title}: {what}"), &table, json);
    }
}

fn number(value: f64, decimals: usize) -> String {
    if value.is_finite() {
        format!("{value:.decimals$}")
    } else {
        "-".into()
    }
}
