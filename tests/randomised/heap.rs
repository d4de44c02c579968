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

/// One queue of what concerns everybody, and one for each client: a client may run ahead of what concerns only others.
pub(crate) struct Heap<E> {
    common: BinaryHeap<Reverse<Entry<E>>>,
    own: Vec<BinaryHeap<Reverse<Entry<E>>>>,
    count: u64,
}

/// The end of one direction of a connection, behind which everything later queues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    time: u64,
    tie: u32,
}

impl<E> Heap<E> {
    pub(crate) fn new(clients: usize) -> Self {
        Heap {
            common: BinaryHeap::new(),
            own: (0..clients).map(|_| BinaryHeap::new()).collect(),
            count: 0,
        }
    }

    /// For one client, or for everybody.
    pub(crate) fn push(&mut self, client: Option<usize>, time: u64, tie: u32, event: E) {
        self.count += 1;
        let at = (time, tie, self.count);
        let queue = match client {
            Some(client) => &mut self.own[client],
            None => &mut self.common,
        };
        queue.push(Reverse(Entry { at, event }));
    }

    /// T1: never before what went the same way earlier.
    pub(crate) fn push_behind(&mut self, client: usize, tail: &mut Tail, time: u64, tie: u32, event: E) {
        *tail = match time.cmp(&tail.time) {
            Ordering::Greater => Tail { time, tie },
            Ordering::Equal => Tail {
                time,
                tie: tie.max(tail.tie),
            },
            Ordering::Less => *tail,
        };
        self.push(Some(client), tail.time, tail.tie, event);
    }

    /// When something happens next that concerns the client.
    pub(crate) fn horizon(&self, client: usize) -> u64 {
        let next = |queue: &BinaryHeap<Reverse<Entry<E>>>| {
            queue.peek().map_or(u64::MAX, |Reverse(entry)| entry.at.0)
        };
        next(&self.own[client]).min(next(&self.common))
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        let queues = self.own.iter_mut().chain([&mut self.common]);
        let queue = queues
            .filter(|queue| !queue.is_empty())
            .min_by_key(|queue| queue.peek().map(|Reverse(entry)| entry.at))?;
        queue.pop().map(|Reverse(Entry { at, event })| (at.0, event))
    }
}
