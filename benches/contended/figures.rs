//! Computes the figures of a round from the records, and checks that there was never more than one holder.

use crate::common::stats::percentile;
use crate::record::{Grant, Moment, Record};

/// The figures of one contender in one round. Times are in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct Figures {
    pub(crate) grants_per_s: f64,
    /// How long a holder slept.
    pub(crate) hold: f64,
    /// Without contention.
    pub(crate) acquire: f64,
    pub(crate) release: f64,
    /// The time without a holder, per grant.
    pub(crate) gap: f64,
    /// The share of the grants that went to another worker or process than the grant before.
    pub(crate) to_another_worker: f64,
    pub(crate) to_another_process: f64,
    pub(crate) wait: Vec<f64>,
    pub(crate) fewest: f64,
    pub(crate) most: f64,
    /// Commands of all Redis servers together, per grant.
    pub(crate) sent: f64,
    pub(crate) executed: f64,
    pub(crate) gave_up: usize,
    pub(crate) failed: Vec<String>,
}

/// The median times without contention.
pub(crate) struct Uncontended {
    pub(crate) acquire: f64,
    pub(crate) release: f64,
}

impl Uncontended {
    pub(crate) fn of(record: &Record) -> Uncontended {
        let median = |times: fn(&Grant) -> u64| {
            let mut times: Vec<f64> = record.grants.iter().map(|grant| millis(times(grant))).collect();
            times.sort_unstable_by(f64::total_cmp);
            percentile(&times, 50.0)
        };
        Uncontended {
            acquire: median(|grant| grant.from - grant.asked),
            release: median(|grant| grant.released - grant.to),
        }
    }
}

impl Figures {
    /// Computes the figures of the grants in the window. `workers` is the number of waiters.
    pub(crate) fn new(
        record: &Record,
        alone: &Uncontended,
        window: (Moment, Moment),
        workers: usize,
    ) -> Figures {
        let (begin, end) = window;
        let mut grants = record.grants.clone();
        grants.sort_unstable_by_key(|grant| grant.from);
        let length = millis(end - begin);
        let counted: Vec<&Grant> = grants
            .iter()
            .filter(|grant| (begin..end).contains(&grant.from))
            .collect();
        let count = counted.len() as f64;
        let mut held = 0.0;
        for grant in &grants {
            held += millis(grant.to.min(end).saturating_sub(grant.from.max(begin)));
        }

        let mut wait: Vec<f64> = counted
            .iter()
            .map(|grant| millis(grant.from - grant.asked))
            .collect();
        wait.extend(record.unserved.iter().map(|&waited| millis(waited)));
        wait.sort_unstable_by(f64::total_cmp);

        let changes = |who: fn(&Grant) -> (usize, usize)| {
            let pairs = counted.windows(2).filter(|pair| who(pair[0]) != who(pair[1]));
            pairs.count() as f64 / (count - 1.0).max(0.0)
        };
        let mut per_worker = std::collections::BTreeMap::<_, usize>::new();
        for grant in &counted {
            *per_worker.entry((grant.process, grant.waiter)).or_default() += 1;
        }
        let nobody_left_out = per_worker.len() == workers;
        Figures {
            grants_per_s: count / length * 1e3,
            hold: counted
                .iter()
                .map(|grant| millis(grant.to - grant.from))
                .sum::<f64>()
                / count,
            acquire: alone.acquire,
            release: alone.release,
            gap: (length - held) / count.max(1.0),
            to_another_worker: changes(|grant| (grant.process, grant.waiter)),
            to_another_process: changes(|grant| (grant.process, 0)),
            wait,
            fewest: if nobody_left_out {
                per_worker.values().min().copied().unwrap_or(0)
            } else {
                0
            } as f64,
            most: per_worker.values().max().copied().unwrap_or(0) as f64,
            sent: f64::NAN,
            executed: f64::NAN,
            gave_up: record.gave_up,
            failed: record.failed.clone(),
        }
    }

    pub(crate) fn wait_p(&self, p: f64) -> f64 {
        percentile(&self.wait, p)
    }

    /// Returns the grants per second if a hand-over took only what release and acquire take without contention.
    pub(crate) fn ideal_per_s(&self) -> f64 {
        1e3 / (self.hold + self.release + self.acquire)
    }

    pub(crate) fn of_ideal(&self) -> f64 {
        match self.grants_per_s {
            0.0 => 0.0,
            grants => grants / self.ideal_per_s(),
        }
    }

    pub(crate) fn longest_over_mean(&self) -> f64 {
        let mean = self.wait.iter().sum::<f64>() / self.wait.len() as f64;
        self.wait_p(100.0) / mean
    }
}

/// Describes two holders at the same time. `None` if there were none.
pub(crate) fn two_holders(record: &Record) -> Option<String> {
    let mut grants = record.grants.clone();
    grants.sort_unstable_by_key(|grant| grant.from);
    let mut last: Option<Grant> = None;
    for grant in grants {
        match last {
            Some(last) if grant.from < last.to => {
                return Some(format!(
                    "worker {} of process {} was granted the lock {} ns before worker {} of process {} was to release it",
                    grant.waiter,
                    grant.process,
                    last.to - grant.from,
                    last.waiter,
                    last.process
                ));
            }
            Some(last) if last.to > grant.to => {}
            _ => last = Some(grant),
        }
    }
    None
}

/// How long waiters waited for locks that another process held, from the first release that they waited for.
#[derive(Default)]
pub(crate) struct HandOvers {
    pub(crate) times: Vec<f64>,
    /// How many of them the other process overtook: it acquired the lock again before.
    pub(crate) overtaken: usize,
}

impl HandOvers {
    pub(crate) fn add(&mut self, record: &Record) {
        let mut grants = record.grants.clone();
        grants.sort_unstable_by_key(|grant| grant.from);
        for (number, grant) in grants.iter().enumerate() {
            let before = grants[..number].iter().rev();
            let others = before.take_while(|other| other.process != grant.process && other.to > grant.asked);
            let others: Vec<&Grant> = others.collect();
            if let Some(first) = others.last() {
                self.times.push(millis(grant.from.saturating_sub(first.to)));
                self.overtaken += usize::from(others.len() > 1);
            }
        }
    }
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}
