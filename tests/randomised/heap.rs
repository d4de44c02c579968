//! The future events, in order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Entry<E> {
    /// The time, a random tie-break, and the order of insertion.
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

/// One queue for events that concern all clients, and one for each client: a client may run ahead of the others' events.
pub(crate) struct Heap<E> {
    common: BinaryHeap<Reverse<Entry<E>>>,
    own: Vec<BinaryHeap<Reverse<Entry<E>>>>,
    count: u64,
}

/// The last event in one direction of a connection. Later ones queue behind it.
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

    /// Adds an event for one client, or for all (`None`).
    pub(crate) fn push(&mut self, client: Option<usize>, time: u64, tie: u32, event: E) {
        self.count += 1;
        let at = (time, tie, self.count);
        let queue = match client {
            Some(client) => &mut self.own[client],
            None => &mut self.common,
        };
        queue.push(Reverse(Entry { at, event }));
    }

    /// Adds an event behind all earlier ones in the same direction of a connection (T1).
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

    /// Returns the time of the next event that concerns the client.
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
