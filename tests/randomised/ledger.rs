//! The record of a run: grants, counts and violations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// How a lease ended that was not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Dropped,
    /// Leaked, as if its process had died.
    Forgotten,
}

/// One lease, in true time: milliseconds, unless a field says microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) client: usize,
    pub(crate) acquire: u32,
    pub(crate) resource: usize,
    pub(crate) token: Option<u64>,
    /// When the acquire was called, and when it returned.
    pub(crate) began: u64,
    pub(crate) returned: u64,
    /// How far after its send a request can set the deadline, in microseconds.
    pub(crate) believable: i64,
    /// The last deadline seen, in microseconds.
    pub(crate) deadline: i64,
    /// The deadline was seen to become earlier.
    pub(crate) lowered: bool,
    pub(crate) ended: Option<(u64, End)>,
    /// When the loss was reported, and whether because a clock was put forward.
    pub(crate) lost: Option<(u64, bool)>,
}

impl Grant {
    pub(crate) fn see(&mut self, deadline: i64) {
        self.lowered |= deadline < self.deadline;
        self.deadline = deadline;
    }
}

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
pub(crate) struct Records {
    pub(crate) grants: Vec<Grant>,
    pub(crate) tally: Tally,
    /// Cancelled acquires, by client.
    pub(crate) cancelled: BTreeSet<(usize, u32)>,
    /// Acquires whose leases were leaked, and the clients that did so.
    pub(crate) forgotten: BTreeSet<u32>,
    pub(crate) leaky: BTreeSet<usize>,
    pub(crate) violations: Vec<String>,
    acquires: u32,
}

impl Records {
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

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Records>);

impl Ledger {
    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap()
    }
}
