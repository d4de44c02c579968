use crate::common::report::{Report, Row, number};
use crate::common::stats::median;
use crate::figures::Figures;
use crate::plan::World;

pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<Figures>,
}

#[derive(Clone, Copy)]
enum Of {
    Median,
    Highest,
    Lowest,
    /// The median of the ratios to the first contender, in the same round.
    Ratio,
}
use Of::{Highest, Lowest, Median, Ratio};

/// The name in JSON, the value in a round, and the summary.
type Figure = (&'static str, fn(&Figures) -> f64, Of);

const FIGURES: &[Figure] = &[
    ("grants_per_s", |round| round.grants_per_s, Median),
    ("grants_x_first", |round| round.grants_per_s, Ratio),
    ("ideal_per_s", Figures::ideal_per_s, Median),
    ("of_ideal", Figures::of_ideal, Median),
    ("gap_ms", |round| round.gap, Median),
    ("gap_x_first", |round| round.gap, Ratio),
    ("hold_ms", |round| round.hold, Median),
    ("alone_acquire_ms", |round| round.acquire, Median),
    ("alone_release_ms", |round| round.release, Median),
    ("sent_per_grant", |round| round.sent, Median),
    ("executed_per_grant", |round| round.executed, Median),
    ("wait_p50_ms", |round| round.wait_p(50.0), Median),
    ("wait_p90_ms", |round| round.wait_p(90.0), Median),
    ("wait_p99_ms", |round| round.wait_p(99.0), Median),
    ("wait_p99_x_first", |round| round.wait_p(99.0), Ratio),
    ("wait_longest_ms", |round| round.wait_p(100.0), Highest),
    ("wait_longest_over_mean", Figures::longest_over_mean, Median),
    ("to_another_worker", |round| round.to_another_worker, Median),
    ("to_another_process", |round| round.to_another_process, Median),
    ("fewest_grants", |round| round.fewest, Lowest),
    ("most_grants", |round| round.most, Highest),
];

/// The head, the name in JSON, and the decimals. The first contender's name is added to `x`.
const PRINTED: &[(&str, &str, usize)] = &[
    ("grants/s", "grants_per_s", 0),
    ("x", "grants_x_first", 2),
    ("wait p50 ms", "wait_p50_ms", 1),
    ("p99", "wait_p99_ms", 1),
    ("x", "wait_p99_x_first", 2),
    ("longest", "wait_longest_ms", 1),
];

/// The title; the names in JSON of the figure, and of the one in brackets; and the decimals of that.
const SIDE_BY_SIDE: &[(&str, &str, &str, usize)] = &[
    ("grants/s (x first)", "grants_per_s", "grants_x_first", 2),
    ("wait p99, ms (x first)", "wait_p99_ms", "wait_p99_x_first", 2),
    ("grants of one, fewest (most)", "fewest_grants", "most_grants", 0),
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

    /// Returns a figure by its name. NaN if there is none.
    fn figure(&self, name: &str, first: &Series) -> f64 {
        let figure = FIGURES.iter().find(|(known, ..)| *known == name);
        let Some(&(_, value, of)) = figure else {
            return f64::NAN;
        };
        let all = self.rounds.iter().map(value);
        match of {
            Median => median(all),
            Highest => all.fold(f64::NAN, f64::max),
            Lowest => all.fold(f64::NAN, f64::min),
            // So a slow round does not matter.
            Ratio => {
                let first = first.rounds.iter().map(value);
                median(all.zip(first).map(|(mine, first)| mine / first))
            }
        }
    }
}

impl Report {
    pub(crate) fn contention(&mut self, title: &str, all: &[Series], printed: bool) {
        let Some(first) = all.first() else { return };
        let mut rows = Vec::new();
        for series in all {
            let mut row = Row::new(series.name);
            for (name, ..) in FIGURES {
                row.keep(*name, series.figure(name, first));
            }
            let gave_up: usize = series.rounds.iter().map(|round| round.gave_up).sum();
            row.keep("gave_up", gave_up);
            for &(head, name, decimals) in PRINTED.iter().filter(|_| printed) {
                let head = if head == "x" {
                    format!("x {}", first.name)
                } else {
                    head.into()
                };
                row.cell(head, number(series.figure(name, first), decimals));
            }
            rows.push(row);
            let failures: Vec<&String> = series.rounds.iter().flat_map(|round| &round.failed).collect();
            if let Some(first) = failures.first() {
                let (name, count) = (series.name, failures.len());
                self.failed(format!("{title}, {name}: {count} failed; the first: {first}"));
            }
        }
        self.table(title, "", rows);
    }

    /// Prints the most important figures of all worlds, side by side.
    pub(crate) fn worlds(&self, worlds: &[(World, Vec<Series>)]) {
        let Some((_, everybody)) = worlds.first() else {
            return;
        };
        for (title, name, other, decimals) in SIDE_BY_SIDE {
            let mut rows: Vec<Row> = everybody.iter().map(|series| Row::new(series.name)).collect();
            for (world, all) in worlds {
                for (series, row) in all.iter().zip(&mut rows) {
                    let (value, other) = (series.figure(name, &all[0]), series.figure(other, &all[0]));
                    let cell = format!("{} ({})", number(value, 0), number(other, *decimals));
                    row.cell(world.label(), cell);
                }
            }
            self.print(title, "processes x waiters", &rows);
        }
    }
}
