//! What has happened in a run: grants, counts, and whatever should not have been.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// How a lease ended, other than by being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Dropped,
    /// As if its process had died.
    Forgotten,
}

/// One lease. Times are true ones: moments in microseconds, others in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) client: usize,
    pub(crate) acquire: u32,
    pub(crate) resource: usize,
    pub(crate) token: Option<u64>,
    /// When the acquire was called, and when it returned.
    pub(crate) began: u64,
    pub(crate) returned: u64,
    /// What a send adds to the deadline at most, in microseconds.
    pub(crate) believable: i64,
    /// As the lease had it last, in microseconds.
    pub(crate) deadline: i64,
    /// It has been earlier than it was before.
    pub(crate) lowered: bool,
    pub(crate) ended: Option<(u64, End)>,
    /// When it was announced as lost, and whether because a clock was put forward.
    pub(crate) lost: Option<(u64, bool)>,
}

impl Grant {
    pub(crate) fn see(&mut self, deadline: i64) {
        self.lowered |= deadline < self.deadline;
        self.deadline = deadline;
    }
}

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(pub(crate) BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(crate) fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub(crate) fn merge(&mut self, other: &Tally) {
        for (what, count) in &other.0 {
            self.add(what, *count);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) grants: Vec<Grant>,
    pub(crate) tally: Tally,
    /// Acquires that were given up, by client.
    pub(crate) cancelled: BTreeSet<(usize, u32)>,
    /// Acquires of leases that were forgotten, and the clients that did so.
    pub(crate) forgotten: BTreeSet<u32>,
    pub(crate) leaky: BTreeSet<usize>,
    pub(crate) violations: Vec<String>,
    acquires: u32,
}

impl Book {
    pub(crate) fn next_acquire(&mut self) -> u32 {
        self.acquires += 1;
        self.acquires
    }

    pub(crate) fn violated(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }
}

/// Shared by all that take part in a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Book>);

impl Ledger {
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap()
    }
}
