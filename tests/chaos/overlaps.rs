//! Overlaps of leases, and the faults that explain them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::event::{FaultEvent, Target};
use crate::fault::{Fault, FaultModel};
use crate::worker::TTL;

/// When a lease was held, on the clock of [`now`](crate::history::now): until its release or deadline. If it was lost earlier,
/// until its holder last saw it as held.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) resource: i32,
    pub(crate) token: i64,
    /// A bit for each node.
    pub(crate) granters: i32,
    /// Whether the holder has another list of nodes.
    pub(crate) is_intruder: bool,
    pub(crate) start: i64,
    pub(crate) end: i64,
}

pub(crate) struct Overlap {
    pub(crate) first: Span,
    pub(crate) second: Span,
}

/// Returns all overlaps of `spans`, which must be in the order of their start.
pub(crate) fn overlaps(spans: &[Span]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (number, first) in spans.iter().enumerate() {
        let later = &spans[number + 1..];
        let during = later.iter().take_while(|second| second.start < first.end);
        let same = during.filter(|second| second.resource == first.resource && second.start < second.end);
        found.extend(same.map(|second| Overlap {
            first: *first,
            second: *second,
        }));
    }
    found
}

impl Overlap {
    /// What went wrong, within a TTL before the second lease, with a node that granted it: one of them had granted the first
    /// one too, or confirmed it, and would have remembered it for a TTL.
    pub(crate) fn explanations(&self, events: &[FaultEvent], model: FaultModel) -> BTreeSet<Fault> {
        let breaches = self
            .within(TTL, events)
            .filter(|event| event.is_breach(model) && self.has_granted(event.target));
        breaches.map(|event| event.fault).collect()
    }

    fn within<'a>(&self, time: Duration, events: &'a [FaultEvent]) -> impl Iterator<Item = &'a FaultEvent> {
        let until = self.second.start;
        let since = until - time.as_nanos() as i64;
        events
            .iter()
            .filter(move |event| event.from <= until && event.to >= since)
    }

    fn has_granted(&self, target: Target) -> bool {
        matches!(target, Target::Node(node) if self.second.granters >> node & 1 == 1)
    }

    pub(crate) fn story(&self, events: &[FaultEvent]) -> String {
        let Overlap { first, second } = self;
        let millis = |time: i64| (time - first.start) as f64 / 1e6;
        let mut story = format!(
            "job{}: {} (granted by {:05b}) was held for {:.1} ms, and {} (granted by {:05b}) from {:.1} ms to {:.1} ms",
            first.resource,
            first.token,
            first.granters,
            millis(first.end),
            second.token,
            second.granters,
            millis(second.start),
            millis(second.end),
        );
        for event in self.within(3 * TTL, events) {
            story.push_str("\n    ");
            story.push_str(&event.line(first.start));
        }
        story
    }
}
