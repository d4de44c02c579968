//! A fault or its repair, and when it happened.

use crate::fault::{Fault, FaultModel};

pub(crate) struct FaultEvent {
    pub(crate) fault: Fault,
    /// Whether this is the repair.
    pub(crate) repaired: bool,
    pub(crate) target: Target,
    /// It happened between these times, on the clock of [`now`](crate::history::now).
    pub(crate) from: i64,
    pub(crate) to: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Node(usize),
    Worker(usize),
    /// A process that was started for the fault.
    Intruder,
}

impl FaultEvent {
    /// Returns whether the event breaks an assumption of the promise: keys expire too early. If a clock is set back, keys live too
    /// long, which harms no lock; the repair sets the clock forward. Without the restart guard, a node that forgets its keys
    /// breaks it, too, unless it stays away.
    pub(crate) fn is_breach(&self, model: FaultModel) -> bool {
        let forgotten = model == FaultModel::AtAnyTime && self.fault.forgetting() > 0;
        forgotten
            || self
                .fault
                .shift()
                .is_some_and(|shift| self.repaired == (shift < 0))
    }

    /// Returns a line of text, with times in milliseconds since `origin`.
    pub(crate) fn line(&self, origin: i64) -> String {
        let FaultEvent { fault, target, .. } = self;
        let millis = |time: i64| (time - origin) as f64 / 1e6;
        let repaired = if self.repaired { ", repaired" } else { "" };
        let (from, to) = (millis(self.from), millis(self.to));
        format!("{from:.1} ms to {to:.1} ms: {fault:?}{repaired}: {target:?}")
    }
}
