//! The tables of this benchmark.

use serde_json::{Map, Value, json};

use crate::common::report::{Report, Table, times};
use crate::common::stats::median;
use crate::measure::{Failures, Sample};
use crate::server::ServerTime;

/// The rounds of each contender, in the same order.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<Sample>,
}

impl Series {
    pub(crate) fn new(name: &'static str) -> Self {
        Series {
            name,
            rounds: Vec::new(),
        }
    }

    pub(crate) fn median(&self, value: impl Fn(&Sample) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    /// The median of the rounds' ratios: what slows down a whole round does not matter.
    fn ratio(&self, other: &Series, value: impl Fn(&Sample) -> f64) -> f64 {
        median(
            self.rounds
                .iter()
                .zip(&other.rounds)
                .map(|(mine, theirs)| value(mine) / value(theirs)),
        )
    }

    /// Both, each by itself and against others.
    fn acquire_and_release<'a>(
        &self,
        bases: impl Iterator<Item = (&'a str, Option<&'a Series>)> + Clone,
        row: &mut Vec<String>,
        entry: &mut Map<String, Value>,
    ) {
        type Value = fn(&Sample, f64) -> f64;
        let what: [(&str, Value); 2] = [("acquire", Sample::acquire_us), ("release", Sample::release_us)];
        for (what, value) in what {
            for (label, p) in P {
                let value = |sample: &Sample| value(sample, p);
                let micros = self.median(value);
                row.push(format!("{micros:.0}"));
                entry.insert(format!("{what}_{label}_us"), json!(micros));
                for (against, base) in bases.clone() {
                    let ratio = base.map_or(f64::NAN, |base| self.ratio(base, value));
                    row.push(times(ratio));
                    entry.insert(format!("{what}_{label}_x_{against}"), json!(ratio));
                }
            }
        }
    }

    fn failures(&self) -> Failures {
        let mut all = Failures::default();
        self.rounds.iter().for_each(|round| all.merge(&round.failures));
        all
    }

    fn pairs(&self) -> usize {
        self.rounds.iter().map(Sample::pairs).sum()
    }
}

/// The floor and quorlock, side by side, at one size of something.
pub(crate) struct Step {
    pub(crate) size: usize,
    pub(crate) floor: Series,
    pub(crate) quorlock: Series,
}

/// Whom a contender is compared with, by its name, and how the column is called.
pub(crate) type Other = (&'static str, fn(&str) -> &'static str);

const P: [(&str, f64); 2] = [("p50", 50.0), ("p99", 99.0)];

impl Report {
    /// One task: acquire and release, each against the others.
    pub(crate) fn latency(&mut self, title: &str, all: &[Series], others: &[Other]) {
        let ratios: Vec<String> = others.iter().map(|(label, _)| format!("x {label}")).collect();
        let mut head = vec!["1 task, us"];
        for what in ["acquire p50", "acquire p99", "release p50", "release p99"] {
            head.push(what);
            head.extend(ratios.iter().map(String::as_str));
        }
        head.extend(["pairs", "failed"]);
        let mut table = Table::new(&head);
        let mut json = Map::new();
        let find = |name: &str| all.iter().find(|series| series.name == name);
        for series in all {
            let mut row = vec![series.name.to_owned()];
            let mut entry = Map::new();
            let bases = others
                .iter()
                .map(|(against, other)| (*against, find(other(series.name))));
            series.acquire_and_release(bases, &mut row, &mut entry);
            self.end_of_row(title, series, &mut row, &mut entry);
            json.insert(series.name.into(), entry.into());
            table.rows.push(row);
        }
        self.show(title, &table, json);
    }

    /// The same, against the plain `SET`.
    pub(crate) fn fencing(&mut self, title: &str, all: &[Series], fenced: &[&str], plain: &str) {
        let mut table = Table::new(&[
            "1 task, us",
            "acquire p50",
            "x fencing off",
            "acquire p99",
            "x fencing off",
        ]);
        let mut json = Map::new();
        let find = |name: &str| all.iter().find(|series| series.name == name);
        let Some(base) = find(plain) else { return };
        for series in fenced.iter().filter_map(|name| find(name)).chain([base]) {
            let mut row = vec![series.name.to_owned()];
            let mut entry = Map::new();
            for (label, p) in P {
                let value = |sample: &Sample| sample.acquire_us(p);
                let (micros, ratio) = (series.median(value), series.ratio(base, value));
                row.extend([format!("{micros:.0}"), times(ratio)]);
                entry.insert(format!("acquire_{label}_us"), json!(micros));
                entry.insert(format!("acquire_{label}_x_fencing_off"), json!(ratio));
            }
            json.insert(series.name.into(), entry.into());
            table.rows.push(row);
        }
        self.show(title, &table, json);
    }

    /// From the servers' own statistics.
    pub(crate) fn server_times(&mut self, title: &str, all: &[(&str, ServerTime)]) {
        let mut table = Table::new(&["us in commands", "acquire", "release"]);
        let mut json = Map::new();
        for (name, time) in all {
            table.rows.push(vec![
                (*name).to_owned(),
                format!("{:.1}", time.acquire),
                format!("{:.1}", time.release),
            ]);
            let entry = json!({"acquire_us": time.acquire, "release_us": time.release});
            json.insert((*name).into(), entry);
        }
        self.show(title, &table, json);
    }

    /// Many tasks: pairs per second, against the others.
    pub(crate) fn throughput(&mut self, title: &str, tasks: usize, all: &[Series], others: &[Other]) {
        let head = if tasks == 1 {
            "1 task".to_owned()
        } else {
            format!("{tasks} tasks")
        };
        let ratios: Vec<String> = others.iter().map(|(label, _)| format!("x {label}")).collect();
        let mut columns = vec![head.as_str(), "pairs/s"];
        columns.extend(ratios.iter().map(String::as_str));
        columns.extend([
            "acquire p50 us",
            "acquire p99 us",
            "client CPU us/pair",
            "pairs",
            "failed",
        ]);
        let mut table = Table::new(&columns);
        let mut json = Map::new();
        let find = |name: &str| all.iter().find(|series| series.name == name);
        for series in all {
            let rate = series.median(Sample::pairs_per_second);
            let mut row = vec![series.name.to_owned(), format!("{rate:.0}")];
            let mut entry = Map::new();
            entry.insert("pairs_per_second".into(), json!(rate));
            for (against, other) in others {
                let ratio = find(other(series.name))
                    .map_or(f64::NAN, |base| series.ratio(base, Sample::pairs_per_second));
                row.push(times(ratio));
                entry.insert(format!("x_{against}"), json!(ratio));
            }
            for (label, p) in P {
                let micros = series.median(|sample| sample.acquire_us(p));
                row.push(format!("{micros:.0}"));
                entry.insert(format!("acquire_{label}_us"), json!(micros));
            }
            let cpu = series.median(Sample::cpu_us_per_pair);
            row.push(format!("{cpu:.0}"));
            entry.insert("cpu_us_per_pair".into(), json!(cpu));
            self.end_of_row(title, series, &mut row, &mut entry);
            json.insert(series.name.into(), entry.into());
            table.rows.push(row);
        }
        self.show(title, &table, json);
    }

    /// One contender in several worlds, the first of which is the healthy one.
    pub(crate) fn worlds(&mut self, title: &str, all: &[Series]) {
        let mut table = Table::new(&[
            "1 task, us",
            "acquire p50",
            "x healthy",
            "acquire p99",
            "x healthy",
            "release p50",
            "release p99",
            "pairs",
            "failed",
        ]);
        let mut json = Map::new();
        for series in all {
            let mut row = vec![series.name.to_owned()];
            let mut entry = Map::new();
            for (label, p) in P {
                let value = |sample: &Sample| sample.acquire_us(p);
                let (micros, ratio) = (series.median(value), series.ratio(&all[0], value));
                row.extend([format!("{micros:.0}"), times(ratio)]);
                entry.insert(format!("acquire_{label}_us"), json!(micros));
                entry.insert(format!("acquire_{label}_x_healthy"), json!(ratio));
            }
            for (label, p) in P {
                let micros = series.median(|sample| sample.release_us(p));
                row.push(format!("{micros:.0}"));
                entry.insert(format!("release_{label}_us"), json!(micros));
            }
            self.end_of_row(title, series, &mut row, &mut entry);
            json.insert(series.name.into(), entry.into());
            table.rows.push(row);
        }
        self.show(title, &table, json);
    }

    /// The floor and quorlock as something grows, against each other and against themselves at first.
    pub(crate) fn growth(&mut self, title: &str, what: &str, steps: &[Step]) {
        let mut head = vec!["1 task, us"];
        for what in ["acquire p50", "acquire p99", "release p50", "release p99"] {
            head.extend([what, "x floor", "x first"]);
        }
        head.extend(["pairs", "failed"]);
        let mut table = Table::new(&head);
        let mut json = Map::new();
        for step in steps {
            let first = &steps[0];
            let both = [(&step.floor, &first.floor), (&step.quorlock, &first.quorlock)];
            for (series, first) in both {
                let name = format!("{} {what}, {}", step.size, series.name);
                let mut row = vec![name.clone()];
                let mut entry = Map::new();
                let bases = [("floor", Some(&step.floor)), ("first", Some(first))];
                series.acquire_and_release(bases.into_iter(), &mut row, &mut entry);
                self.end_of_row(title, series, &mut row, &mut entry);
                json.insert(name, entry.into());
                table.rows.push(row);
            }
        }
        self.show(title, &table, json);
    }

    fn end_of_row(
        &mut self,
        title: &str,
        series: &Series,
        row: &mut Vec<String>,
        entry: &mut Map<String, Value>,
    ) {
        let failures = series.failures();
        row.extend([series.pairs().to_string(), failures.count.to_string()]);
        entry.insert("pairs".into(), json!(series.pairs()));
        entry.insert("failed".into(), json!(failures.count));
        if let Some(first) = failures.first {
            self.failed(format!(
                "{title}, {}: {} failed; the first: {first}",
                series.name, failures.count
            ));
        }
    }
}
