use crate::all_contenders::{IN_JSON_ONLY, MUXES, UNFENCED_MUX};
use crate::common::report::{Report, Row};
use crate::common::stats::median;
use crate::measure::{Failures, Sample};
use crate::server::ServerTime;

/// One contender's rounds, in the same order as the others'.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<Sample>,
}

type Latency = (&'static str, fn(&Sample, f64) -> f64, f64);

const LATENCIES: [Latency; 4] = [
    ("acquire p50", Sample::acquire_us, 50.0),
    ("acquire p99", Sample::acquire_us, 99.0),
    ("release p50", Sample::release_us, 50.0),
    ("release p99", Sample::release_us, 99.0),
];

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

    /// Returns the median of the rounds' ratios: a slow round does not matter. NaN without a base.
    fn ratio(&self, base: Option<&Series>, value: impl Fn(&Sample) -> f64) -> f64 {
        let rounds = base.map_or(&[][..], |base| &base.rounds);
        let pairs = self.rounds.iter().zip(rounds);
        median(pairs.map(|(mine, theirs)| value(mine) / value(theirs)))
    }

    /// Adds the latencies, and their ratios to the bases. Most are printed: all latencies but the release's p99; ratios of the
    /// acquire's p50, and to the first base its p99; and to the floor the release's p50.
    fn latencies(&self, bases: &[(&str, Option<&Series>)], row: &mut Row) {
        for (number, (head, value, p)) in LATENCIES.into_iter().enumerate() {
            let key = head.replace(' ', "_");
            let value = |sample: &Sample| value(sample, p);
            let micros = self.median(value);
            row.show_if(number < 3, head, format!("{key}_us"), micros, 0);
            for (position, (against, base)) in bases.iter().enumerate() {
                let key = format!("{key}_x_{}", against.replace(' ', "_"));
                let ratio = self.ratio(*base, value);
                let shown = match number {
                    0 => true,
                    1 => position == 0,
                    2 => *against == "floor",
                    _ => false,
                };
                row.show_if(shown, &format!("x {against}"), key, ratio, 2);
            }
        }
    }
}

/// The floor and quorlock at one size.
pub(crate) struct Step {
    pub(crate) size: usize,
    pub(crate) floor: Series,
    pub(crate) quorlock: Series,
}

/// The name of a ratio, and the name of each contender's base.
pub(crate) type Other = (&'static str, fn(&str) -> &'static str);

fn bases<'a>(of: &Series, all: &'a [Series], others: &[Other]) -> Vec<(&'static str, Option<&'a Series>)> {
    let find = |name: &str| all.iter().find(|series| series.name == name);
    let bases = others
        .iter()
        .map(|(against, base)| (*against, find(base(of.name))));
    bases.collect()
}

impl Report {
    /// Adds latencies: acquire and release with one task.
    pub(crate) fn latency(&mut self, title: &str, all: &[Series], others: &[Other]) {
        let mut rows = Vec::new();
        for series in all {
            let mut row = Row::new(series.name);
            series.latencies(&bases(series, all, others), &mut row);
            self.counts(title, series, &mut row, "");
            if IN_JSON_ONLY.contains(&series.name) {
                row.hide();
            }
            rows.push(row);
        }
        self.table(title, "1 task, us", rows);
    }

    /// Adds the servers' own statistics, to the JSON only.
    pub(crate) fn server_times(&mut self, title: &str, all: &[(&str, ServerTime)]) {
        let row = |&(name, time): &(&str, ServerTime)| {
            let mut row = Row::new(name);
            row.keep("acquire_us", time.acquire);
            row.keep("release_us", time.release);
            row
        };
        self.table(title, "", all.iter().map(row).collect());
    }

    /// Adds throughputs: pairs per second for numbers of tasks. Those of `printed` are printed.
    pub(crate) fn throughput(&mut self, title: &str, all: &[(usize, Vec<Series>)], printed: &[usize]) {
        let names = all.first().map_or(&[][..], |(_, series)| series);
        let mut rows: Vec<Row> = names.iter().map(|series| Row::new(series.name)).collect();
        for (tasks, all) in all {
            for (series, row) in all.iter().zip(&mut rows) {
                let (key, shown) = (
                    |what: &str| format!("{tasks}_tasks_{what}"),
                    printed.contains(tasks),
                );
                let (head, rate) = (format!("{tasks} tasks: pairs/s"), Sample::pairs_per_second);
                row.show_if(shown, &head, key("pairs_per_s"), series.median(rate), 0);
                for (against, base) in bases(series, all, MUXES) {
                    let key = key(&format!("x_{}", against.replace(' ', "_")));
                    row.show_if(shown, &format!("x {against}"), key, series.ratio(base, rate), 2);
                }
                for (what, value, p) in &LATENCIES[..2] {
                    let micros = series.median(|sample| value(sample, *p));
                    row.keep(key(&format!("{}_us", what.replace(' ', "_"))), micros);
                }
                row.keep(key("cpu_us_per_pair"), series.median(Sample::cpu_us_per_pair));
                self.counts(&format!("{title}, {tasks} tasks"), series, row, &key(""));
                if series.name == UNFENCED_MUX {
                    row.hide();
                }
            }
        }
        self.table(title, "contender", rows);
    }

    /// Adds contenders under several conditions, of which the first is the healthy one.
    pub(crate) fn worlds(&mut self, title: &str, all: &[(&str, &[Series])]) {
        let mut rows = Vec::new();
        for (name, worlds) in all {
            for series in *worlds {
                let mut row = Row::new(format!("{name}, {}", series.name));
                series.latencies(&[("healthy", worlds.first())], &mut row);
                self.counts(&format!("{title}, {name}"), series, &mut row, "");
                if *name == "floor" {
                    row.hide();
                }
                rows.push(row);
            }
        }
        self.table(title, "1 task, us", rows);
    }

    /// Adds the floor and quorlock as something grows, compared with each other and with the first size.
    pub(crate) fn growth(&mut self, title: &str, all: &[(&str, &[Step])]) {
        let mut rows = Vec::new();
        for (what, steps) in all {
            for step in *steps {
                let first = &steps[0];
                for (series, first) in [(&step.floor, &first.floor), (&step.quorlock, &first.quorlock)] {
                    let mut row = Row::new(format!("{} {what}, {}", step.size, series.name));
                    series.latencies(&[("floor", Some(&step.floor)), ("first", Some(first))], &mut row);
                    self.counts(title, series, &mut row, "");
                    if series.name == step.floor.name {
                        row.hide();
                    }
                    rows.push(row);
                }
            }
        }
        self.table(title, "1 task, us", rows);
    }

    fn counts(&mut self, title: &str, series: &Series, row: &mut Row, prefix: &str) {
        let mut failures = Failures::default();
        series
            .rounds
            .iter()
            .for_each(|round| failures.merge(&round.failures));
        let pairs: usize = series.rounds.iter().map(Sample::pairs).sum();
        row.keep(format!("{prefix}pairs"), pairs);
        row.keep(format!("{prefix}failed"), failures.count);
        if let Some(first) = failures.first {
            self.failed(format!(
                "{title}, {}: {} failed; the first: {first}",
                series.name, failures.count
            ));
        }
    }
}
