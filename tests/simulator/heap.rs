//! What is going to happen, in order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Entry<E> {
    /// Time, a tie-break by chance, and the order of coming.
    at: (u64, u32, u64),
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

pub(crate) struct Heap<E> {
    entries: BinaryHeap<Reverse<Entry<E>>>,
    count: u64,
}

/// The end of one direction of a connection, behind which everything later queues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    time: u64,
    tie: u32,
}

impl<E> Heap<E> {
    pub(crate) fn new() -> Self {
        Heap {
            entries: BinaryHeap::new(),
            count: 0,
        }
    }

    pub(crate) fn push(&mut self, time: u64, tie: u32, event: E) {
        self.count += 1;
        let at = (time, tie, self.count);
        self.entries.push(Reverse(Entry { at, event }));
    }

    /// T1: never before what went the same way earlier.
    pub(crate) fn push_behind(&mut self, tail: &mut Tail, time: u64, tie: u32, event: E) {
        *tail = match time.cmp(&tail.time) {
            Ordering::Greater => Tail { time, tie },
            Ordering::Equal => Tail {
                time,
                tie: tie.max(tail.tie),
            },
            Ordering::Less => *tail,
        };
        self.push(tail.time, tail.tie, event);
    }

    pub(crate) fn next_time(&self) -> Option<u64> {
        self.entries.peek().map(|Reverse(entry)| entry.at.0)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.entries
            .pop()
            .map(|Reverse(Entry { at, event })| (at.0, event))
    }
}
