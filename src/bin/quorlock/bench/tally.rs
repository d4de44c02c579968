//! What is counted: how long things took, and what went wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use quorlock::{AcquireError, ReleaseOutcome, Votes};
use tokio::task::JoinSet;

use crate::fault;

/// After a failure. Where all fail at once, there is nothing to be learnt from a million of them.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// What several tasks count in.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for all of them, and tells of those that have panicked.
pub(crate) async fn ended(running: &mut JoinSet<()>, mut panicked: impl FnMut(String)) {
    while let Some(ended) = running.join_next().await {
        if let Err(panic) = ended {
            panicked(panic.to_string());
        }
    }
}

/// How long something took, time and again.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    /// To three digits.
    #[allow(clippy::expect_used)] // three digits are fewer than the five that are possible
    fn default() -> Self {
        Latencies(Histogram::new(3).expect("a histogram of three digits"))
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, took: Duration) {
        // It grows as needed, so there is nothing that it refuses.
        let _ = self
            .0
            .record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> 1));
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// `None` if there is nothing.
    pub(crate) fn percentile(&self, percent: f64) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.value_at_percentile(percent)))
    }

    pub(crate) fn median(&self) -> Option<Duration> {
        self.percentile(50.0)
    }

    pub(crate) fn max(&self) -> Option<Duration> {
        self.percentile(100.0)
    }
}

/// Operations that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(BTreeMap<(&'static str, &'static str), Failed>);

/// Those that failed in the same way.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) count: u64,
    /// What the first of them said.
    pub(crate) first: String,
}

impl Failures {
    pub(crate) fn acquire(&mut self, error: &AcquireError) {
        let kind = match error {
            AcquireError::Held { .. } => "held",
            AcquireError::NoQuorum { .. } => "no_quorum",
            AcquireError::TooLate { .. } => "too_late",
            _ => "other",
        };
        self.add("acquire", kind, error.to_string());
    }

    pub(crate) fn release(&mut self, outcome: &ReleaseOutcome) {
        let kind = match outcome {
            ReleaseOutcome::AlreadyGone => "already_gone",
            ReleaseOutcome::Uncertain(_) => "uncertain",
            _ => "other",
        };
        self.add("release", kind, outcome.to_string());
    }

    pub(crate) fn panicked(&mut self, panic: String) {
        self.add("task", "other", panic);
    }

    pub(crate) fn add(&mut self, operation: &'static str, kind: &'static str, first: String) {
        self.0
            .entry((operation, kind))
            .and_modify(|failed| failed.count += 1)
            .or_insert(Failed { count: 1, first });
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(|failed| failed.count).sum()
    }

    /// The operation, how it failed, and how often.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, &Failed)> {
        self.0
            .iter()
            .map(|((operation, kind), failed)| (*operation, *kind, failed))
    }
}

/// What one node contributed to the locks of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// It answered before the verdict.
    pub(crate) heard: u64,
    /// The verdict was there before its answer.
    pub(crate) not_waited_for: u64,
    /// It gave no vote, and why.
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

/// The same, of all nodes, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts(BTreeMap<Arc<str>, Part>);

impl Parts {
    pub(crate) fn count(&mut self, votes: &Votes) {
        for vote in votes.iter() {
            // Looked up by what is there already: this happens for every lock.
            let part = match self.0.get_mut(&*vote.node) {
                Some(part) => part,
                None => self.0.entry(vote.node.clone()).or_default(),
            };
            match &vote.answer {
                Some(Ok(_)) => part.heard += 1,
                None => part.not_waited_for += 1,
                Some(Err(fault)) => *part.faults.entry(fault::kind(fault)).or_default() += 1,
            }
        }
    }

    /// The same, where no lock came of it.
    pub(crate) fn refused(&mut self, error: &AcquireError) {
        if let Some(votes) = error.votes() {
            self.count(votes);
        }
    }

    pub(crate) fn merge(&mut self, other: &Parts) {
        for (node, theirs) in &other.0 {
            let part = self.0.entry(node.clone()).or_default();
            part.heard += theirs.heard;
            part.not_waited_for += theirs.not_waited_for;
            for (kind, count) in &theirs.faults {
                *part.faults.entry(kind).or_default() += count;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn set(&mut self, node: &str, part: Part) {
        self.0.insert(node.into(), part);
    }

    pub(crate) fn of(&self, node: &str) -> Part {
        self.0.get(node).cloned().unwrap_or_default()
    }
}
