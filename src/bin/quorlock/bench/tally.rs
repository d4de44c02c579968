//! Latencies and failures.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use quorlock::{AcquireError, ReleaseOutcome, Votes};

pub(crate) const PERCENTILES: [(&str, f64); 5] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("max", 100.0),
];

/// Returns a duration in milliseconds, with three decimals.
pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}

/// Locks `mutex`, even if a task has panicked under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The latencies of an operation, in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    #[allow(clippy::expect_used)] // up to five digits are possible
    fn default() -> Self {
        Latencies(Histogram::new(3).expect("a histogram of three digits"))
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, took: Duration) {
        // The histogram grows as needed, so this cannot fail.
        let _ = self
            .0
            .record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> 1));
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns a percentile. `None` if nothing was timed.
    pub(crate) fn percentile(&self, percent: f64) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.value_at_percentile(percent)))
    }

    pub(crate) fn median(&self) -> Option<Duration> {
        self.percentile(50.0)
    }

    /// Returns quantiles (0 to 1, ascending) with their latencies. They are denser towards 1.
    pub(crate) fn quantiles(&self) -> impl Iterator<Item = (f64, Duration)> {
        let steps = self.0.iter_quantiles(10);
        steps.map(|step| (step.quantile(), Duration::from_nanos(step.value_iterated_to())))
    }
}

/// Failures by operation and kind: how many, and the message of the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(BTreeMap<(&'static str, &'static str), (u64, String)>);

impl Failures {
    pub(crate) fn acquire(&mut self, error: &AcquireError) {
        let kind = match error {
            AcquireError::Held { .. } => "held",
            AcquireError::NoQuorum { .. } => "no_quorum",
            AcquireError::TooLate { .. } => "too_late",
            _ => "other",
        };
        self.add("acquire", kind, error);
    }

    /// Counts any outcome but [`ReleaseOutcome::Released`]. Returns whether it was that.
    pub(crate) fn release(&mut self, outcome: &ReleaseOutcome) -> bool {
        let kind = match outcome {
            ReleaseOutcome::Released => return true,
            ReleaseOutcome::AlreadyGone => "already_gone",
            ReleaseOutcome::Uncertain(_) => "uncertain",
            _ => "other",
        };
        self.add("release", kind, outcome);
        false
    }

    pub(crate) fn add(&mut self, operation: &'static str, kind: &'static str, words: &dyn Display) {
        let failed = self.0.entry((operation, kind));
        failed.or_insert_with(|| (0, words.to_string())).0 += 1;
    }

    pub(crate) fn append(&mut self, mut others: Failures) {
        self.0.append(&mut others.0);
    }

    /// Returns the message of a failure. `None` if nothing failed.
    pub(crate) fn first(&self) -> Option<&str> {
        self.iter().next().map(|(_, _, _, first)| first)
    }

    /// Returns operation, kind, count, and the message of the first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64, &str)> {
        let failed = self.0.iter();
        failed.map(|(&(operation, kind), (count, first))| (operation, kind, *count, &**first))
    }
}

/// Counts why nodes gave no vote for locks on all nodes. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<BTreeMap<Arc<str>, Failures>>>);

impl Faults {
    pub(crate) fn count(&self, votes: Option<&Votes>) {
        for vote in votes.into_iter().flat_map(Votes::iter) {
            if let Some(Err(fault)) = &vote.answer {
                let mut all = lock(&self.0);
                let of_node = all.entry(vote.node.clone()).or_default();
                of_node.add("vote", fault.kind(), fault);
            }
        }
    }

    pub(crate) fn take(&self, node: &str) -> Failures {
        lock(&self.0).remove(node).unwrap_or_default()
    }
}
