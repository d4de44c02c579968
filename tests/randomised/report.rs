//! The results of many runs.

use std::collections::BTreeMap;
use std::fmt;

use crate::ledger::Tally;
use crate::plan::Profile;
use crate::world::Outcome;

/// What must occur now and then: otherwise, the runs prove nothing about it.
const SOMETIMES: [&str; 28] = [
    "contention: held",
    "takeover after a loss",
    "lost: expired",
    "lost: gone",
    "lost: max_hold",
    "lost: suspended",
    "lost: clock put forward",
    "healed",
    "late SET refused",
    "late SET cleaned",
    "guard refused",
    "second round: raised",
    "cancelled, and cleaned",
    "stale write refused by the store",
    "overlap, where allowed",
    "counter expired",
    "forgotten",
    "connections given up",
    "extended by hand",
    "announced",
    "waiting announced",
    "announcement lost",
    "split vote: asked again",
    "flushed",
    "another memory found",
    "refused by another memory",
    "memory resumed",
    "extended, which does not count yet",
];

/// In so many runs, all of that occurs.
const MANY: u64 = 2_000;

#[derive(Default)]
pub(crate) struct Report {
    runs: BTreeMap<Profile, u64>,
    tally: Tally,
    simulated: u64,
    events: u64,
    pub(crate) failures: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        *self.runs.entry(outcome.plan.profile).or_default() += 1;
        self.tally.merge(&outcome.records.tally);
        self.simulated += outcome.simulated;
        self.events += outcome.events;
    }

    pub(crate) fn merge(&mut self, other: Report) {
        for (profile, runs) in other.runs {
            *self.runs.entry(profile).or_default() += runs;
        }
        self.tally.merge(&other.tally);
        self.simulated += other.simulated;
        self.events += other.events;
        self.failures.extend(other.failures);
    }

    /// Returns an error if a run has failed, or if something is missing after [`MANY`] runs.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        if !self.failures.is_empty() {
            return Err(self.failures.join("\n\n"));
        }
        if self.runs.values().sum::<u64>() < MANY {
            return Ok(());
        }
        let missing: Vec<&str> = SOMETIMES
            .into_iter()
            .filter(|what| !self.tally.0.contains_key(what))
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!("never seen: {}", missing.join(", "))),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: u64 = self.runs.values().sum();
        for (profile, runs) in &self.runs {
            writeln!(f, "{runs:>12} runs: {profile}")?;
        }
        for (what, count) in &self.tally.0 {
            let sometimes = if SOMETIMES.contains(what) { "*" } else { "" };
            writeln!(f, "{count:>12} {what}{sometimes}")?;
        }
        write!(
            f,
            "{runs} runs, {} events, {} simulated hours; * has to occur; ",
            self.events,
            self.simulated / 3_600_000
        )
    }
}
