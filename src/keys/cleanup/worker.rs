//! The task that deletes keys on one node until the node confirms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::super::pending_delete::{Entry, PendingDelete};
use crate::node::{Answer, Fault, Node, Reply};
use crate::protocol::backoff::Backoff;

/// Time for a node to answer a deletion. Generous, because no caller waits for it.
pub(super) const BUDGET: Duration = Duration::from_secs(1);
/// Most deletions in flight to a node that answers.
pub(super) const MOST_IN_FLIGHT: usize = 128;

/// Shortest and longest delay between deletions that are sent to a node that fails. Only one is in flight then.
const FASTEST: Duration = Duration::from_millis(20);
const SLOWEST: Duration = Duration::from_secs(1);
/// Most keys kept for a node that fails: about 30 MB. If there are more, the oldest are left to expire.
const MOST_KEPT: usize = 100_000;

/// One key to delete.
pub(super) struct Item {
    pub(super) pending: PendingDelete,
    /// Whether a deletion was sent. One is always sent, even if the key should have expired: a clock may have been set.
    pub(super) tried: bool,
    /// The permit for a deletion that was sent at once.
    pub(super) room: Option<OwnedSemaphorePermit>,
    pub(super) _entry: Entry,
    pub(super) _pending: TaskTrackerToken,
}

/// Deletes keys on one node.
pub(super) struct CleanupWorker {
    node: Arc<dyn Node>,
    backoff: Backoff,
    waiting: VecDeque<Item>,
    /// `None` while the node answers. Otherwise the number of failures, and when the next deletion is sent.
    failing: Option<(u32, Instant)>,
    /// Whether the node fails, for those who hand in keys.
    pub(super) fails: Arc<AtomicBool>,
}

impl CleanupWorker {
    pub(super) fn new(node: Arc<dyn Node>) -> Self {
        CleanupWorker {
            node,
            backoff: Backoff::new(FASTEST, SLOWEST),
            waiting: VecDeque::new(),
            failing: None,
            fails: Arc::default(),
        }
    }

    /// Runs until the inbox is closed and every key is gone.
    pub(super) async fn work(mut self, mut inbox: mpsc::UnboundedReceiver<Item>) {
        let mut in_flight = FuturesUnordered::new();
        // Answered "there is no such key" before that was final; in the order in which it can be.
        let mut early: VecDeque<Item> = VecDeque::new();
        let mut open = true;
        while open || !(in_flight.is_empty() && early.is_empty() && self.waiting.is_empty()) {
            let now = Instant::now();
            while early.front().is_some_and(|item| item.pending.horizon.from <= now) {
                self.waiting.extend(early.pop_front());
            }
            while in_flight.len() < self.room(now) {
                let Some(item) = self.waiting.pop_front() else {
                    break;
                };
                if item.pending.expired_at > now || !item.tried {
                    in_flight.push(ask(self.node.clone(), item));
                }
            }
            // Without a key to try the node with, it counts as one that answers.
            if in_flight.is_empty() && self.waiting.is_empty() && self.failing.take().is_some() {
                self.fails.store(false, Relaxed);
            }
            // While the one trial deletion is in flight, no other is sent, so no timer is needed.
            let next_try = self
                .failing
                .filter(|_| in_flight.is_empty() && !self.waiting.is_empty())
                .map(|(_, at)| at);
            let next_early = early.front().map(|item| item.pending.horizon.from);
            let wake = next_try.into_iter().chain(next_early).min();
            tokio::select! {
                biased;
                Some((mut item, sent, answer)) = in_flight.next() => match answer {
                    Ok(reply) => {
                        if self.failing.take().is_some() {
                            tracing::debug!(node = &**self.node.name(), "clean-up goes on");
                        }
                        self.fails.store(false, Relaxed);
                        item.room = None;
                        let on_notified = item.pending.on_notified.take();
                        if let (Reply::Released { notified: true }, Some(on_notified)) = (reply, on_notified) {
                            on_notified();
                        }
                        // Whatever the key holds now, the acquire may still arrive once it is free.
                        if !item.pending.horizon.is_final(&reply, &*self.node, sent) {
                            let from = item.pending.horizon.from;
                            let at = early.partition_point(|other| other.pending.horizon.from <= from);
                            early.insert(at, item);
                        }
                    }
                    Err(fault) => self.failed(item, &fault),
                },
                item = inbox.recv(), if open => match item {
                    Some(item) if item.pending.in_flight.is_some() => in_flight.push(ask(self.node.clone(), item)),
                    Some(item) => self.keep(item),
                    None => open = false,
                },
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
                // The inbox is closed, and the keys that waited have just expired.
                else => {}
            }
        }
    }

    /// Returns how many deletions may be in flight.
    fn room(&self, now: Instant) -> usize {
        match self.failing {
            None => MOST_IN_FLIGHT,
            Some((_, next_try)) if next_try <= now => 1,
            Some(_) => 0,
        }
    }

    fn failed(&mut self, item: Item, fault: &Fault) {
        let now = Instant::now();
        match self.failing {
            // This deletion was sent before the node was known to fail.
            Some((_, next_try)) if now < next_try => {}
            _ => {
                let failures = self.failing.map_or(0, |(failures, _)| failures).saturating_add(1);
                let delay = self.backoff.delay(failures, fastrand::u32(..));
                if self.failing.is_none() {
                    tracing::debug!(node = &**self.node.name(), %fault, "clean-up has to wait");
                }
                self.waiting.retain(|item| item.pending.expired_at > now);
                // At the latest when the next key expires: a shutdown may wait for that.
                let untils = self
                    .waiting
                    .iter()
                    .chain([&item])
                    .map(|item| item.pending.expired_at);
                let expiry = untils.filter(|until| *until > now).min();
                let next_try = expiry.map_or(now + delay, |expiry| expiry.min(now + delay));
                self.failing = Some((failures, next_try));
                self.fails.store(true, Relaxed);
                self.waiting
                    .iter_mut()
                    .for_each(|item| item.pending.stop_waiting());
            }
        }
        if item.pending.expired_at > now {
            self.keep(item);
        }
    }

    fn keep(&mut self, mut item: Item) {
        item.room = None;
        if self.failing.is_some() {
            item.pending.stop_waiting();
        }
        self.waiting.push_back(item);
        // A node that answers gets through any number of keys.
        if self.failing.is_some() {
            let excess = self.waiting.len().saturating_sub(MOST_KEPT);
            self.waiting.drain(..excess);
        }
    }
}

/// Returns the item, when its deletion was sent, and the answer.
async fn ask(node: Arc<dyn Node>, mut item: Item) -> (Item, Instant, Answer) {
    item.tried = true;
    let (sent, deletion) = match item.pending.in_flight.take() {
        Some(asked) => asked,
        None => (Instant::now(), node.call((*item.pending.request).clone(), BUDGET)),
    };
    item.pending.unsent = None;
    let answer = timeout(BUDGET, deletion)
        .await
        .unwrap_or(Err(Fault::Timeout { after: BUDGET }));
    (item, sent, deletion_answer(answer))
}

/// Returns a node's answer to a deletion, with "other data under this name" taken for "there is no such key".
pub(crate) fn deletion_answer(answer: Answer) -> Answer {
    match answer {
        Err(Fault::WrongType) => Ok(Reply::Missing),
        answer => answer,
    }
}
