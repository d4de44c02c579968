//! Overlaps of leases, and the faults that explain them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::fault::{Fault, Manners};
use crate::stroke::{Stroke, Victim};
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
    pub(crate) fn explanations(&self, strokes: &[Stroke], manners: Manners) -> BTreeSet<Fault> {
        let breaches = self
            .within(TTL, strokes)
            .filter(|stroke| stroke.is_breach(manners) && self.has_granted(stroke.victim));
        breaches.map(|stroke| stroke.fault).collect()
    }

    fn within<'a>(&self, time: Duration, strokes: &'a [Stroke]) -> impl Iterator<Item = &'a Stroke> {
        let until = self.second.start;
        let since = until - time.as_nanos() as i64;
        strokes
            .iter()
            .filter(move |stroke| stroke.from <= until && stroke.to >= since)
    }

    fn has_granted(&self, victim: Victim) -> bool {
        matches!(victim, Victim::Node(node) if self.second.granters >> node & 1 == 1)
    }

    pub(crate) fn story(&self, strokes: &[Stroke]) -> String {
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
        for stroke in self.within(3 * TTL, strokes) {
            story.push_str("\n    ");
            story.push_str(&stroke.line(first.start));
        }
        story
    }
}
