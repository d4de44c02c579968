//! The task that removes leftovers from one node, until the node confirms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{BUDGET, Leftover, Listed, MOST_ASKED};
use crate::node::{Fault, Node, Reply};
use crate::protocol::backoff::Backoff;
use crate::round::Answer;

/// Between tries of a node that fails. Only one leftover is tried then, for all.
const FASTEST: Duration = Duration::from_millis(20);
const SLOWEST: Duration = Duration::from_secs(1);
/// Most leftovers kept for a node that is away: some 30 MB. Beyond that, the oldest are left to their TTL.
const MOST_KEPT: usize = 100_000;

/// What was handed in.
pub(super) struct Item {
    pub(super) leftover: Leftover,
    /// Everything is asked about once, even if it should have expired: a clock may have been set.
    pub(super) tried: bool,
    /// That it was asked about at once.
    pub(super) room: Option<OwnedSemaphorePermit>,
    pub(super) _listed: Listed,
    pub(super) _pending: TaskTrackerToken,
}

/// Removes leftovers from one node.
pub(super) struct Sweeper {
    node: Arc<dyn Node>,
    backoff: Backoff,
    waiting: VecDeque<Item>,
    /// While the node fails: how often it has, and when it is tried again.
    failing: Option<(u32, Instant)>,
    /// The same, for those who leave something.
    pub(super) fails: Arc<AtomicBool>,
}

impl Sweeper {
    pub(super) fn new(node: Arc<dyn Node>) -> Self {
        Sweeper {
            node,
            backoff: Backoff::new(FASTEST, SLOWEST),
            waiting: VecDeque::new(),
            failing: None,
            fails: Arc::default(),
        }
    }

    /// Ends when nobody can leave anything any more, and all is removed.
    pub(super) async fn work(mut self, mut inbox: mpsc::UnboundedReceiver<Item>) {
        let mut asked = FuturesUnordered::new();
        // Answered "missing", but too early to be the last word; in the order in which it can be.
        let mut early: VecDeque<Item> = VecDeque::new();
        let mut open = true;
        while open || !(asked.is_empty() && early.is_empty() && self.waiting.is_empty()) {
            let now = Instant::now();
            while early
                .front()
                .is_some_and(|item| item.leftover.last_word.from <= now)
            {
                self.waiting.extend(early.pop_front());
            }
            while asked.len() < self.room(now) {
                let Some(item) = self.waiting.pop_front() else {
                    break;
                };
                if item.leftover.until > now || !item.tried {
                    asked.push(ask(self.node.clone(), item));
                }
            }
            // With nothing left to try the node with, nothing is known of it.
            if asked.is_empty() && self.waiting.is_empty() && self.failing.take().is_some() {
                self.fails.store(false, Relaxed);
            }
            // While one is asked about on trial, there is nothing to wake up for: no other would be.
            let next_try = self
                .failing
                .filter(|_| asked.is_empty() && !self.waiting.is_empty())
                .map(|(_, at)| at);
            let next_early = early.front().map(|item| item.leftover.last_word.from);
            let wake = next_try.into_iter().chain(next_early).min();
            tokio::select! {
                biased;
                Some((mut item, sent, answer)) = asked.next() => match answer {
                    Ok(reply) => {
                        self.failing = None;
                        self.fails.store(false, Relaxed);
                        item.room = None;
                        let told = item.leftover.told.take();
                        if let (Reply::Released { listeners }, Some(told)) = (reply, told) {
                            told(listeners);
                        }
                        let is_there_no_more = matches!(reply, Reply::Missing | Reply::Released { .. });
                        if is_there_no_more && !item.leftover.last_word.is_said(&reply, &*self.node, sent) {
                            let from = item.leftover.last_word.from;
                            let at = early.partition_point(|other| other.leftover.last_word.from <= from);
                            early.insert(at, item);
                        }
                    }
                    Err(fault) => self.failed(item, &fault),
                },
                item = inbox.recv(), if open => match item {
                    Some(item) if item.leftover.asked.is_some() => asked.push(ask(self.node.clone(), item)),
                    Some(item) => self.keep(item),
                    None => open = false,
                },
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
                // Nobody can leave anything any more, and what was waiting has just been let go, for it has expired.
                else => {}
            }
        }
    }

    /// How many may be asked about at a time.
    fn room(&self, now: Instant) -> usize {
        match self.failing {
            None => MOST_ASKED,
            Some((_, next_try)) if next_try <= now => 1,
            Some(_) => 0,
        }
    }

    fn failed(&mut self, item: Item, fault: &Fault) {
        let now = Instant::now();
        match self.failing {
            // One of those that were asked before it was known to fail.
            Some((_, next_try)) if now < next_try => {}
            _ => {
                let failures = self.failing.map_or(0, |(failures, _)| failures).saturating_add(1);
                let delay = self.backoff.delay(failures, fastrand::u32(..));
                let waiting = self.waiting.len() + 1;
                tracing::debug!(node = &**self.node.name(), waiting, %fault, "clean-up has to wait");
                self.waiting.retain(|item| item.leftover.until > now);
                // No longer than until the next one has expired: somebody may be waiting for that.
                let untils = self.waiting.iter().chain([&item]).map(|item| item.leftover.until);
                let expiry = untils.filter(|until| *until > now).min();
                let next_try = expiry.map_or(now + delay, |expiry| expiry.min(now + delay));
                self.failing = Some((failures, next_try));
                self.fails.store(true, Relaxed);
                self.waiting.iter_mut().for_each(|item| item.leftover.take_long());
            }
        }
        if item.leftover.until > now {
            self.keep(item);
        }
    }

    fn keep(&mut self, mut item: Item) {
        item.room = None;
        if self.failing.is_some() {
            item.leftover.take_long();
        }
        self.waiting.push_back(item);
        // A node that answers gets through with them, however many there are.
        if self.failing.is_some() {
            let excess = self.waiting.len().saturating_sub(MOST_KEPT);
            self.waiting.drain(..excess);
        }
    }
}

/// Returns the item, the time at which its release was sent, and the answer.
async fn ask(node: Arc<dyn Node>, mut item: Item) -> (Item, Instant, Answer) {
    item.tried = true;
    let (sent, release) = match item.leftover.asked.take() {
        Some(asked) => asked,
        None => (
            Instant::now(),
            node.call((*item.leftover.request).clone(), BUDGET),
        ),
    };
    item.leftover.unsent = None;
    let answer = timeout(BUDGET, release)
        .await
        .unwrap_or(Err(Fault::Timeout { after: BUDGET }));
    (item, sent, as_found(answer))
}

/// A node's answer to a deletion. Where other data than a lock stands, there is no such key.
pub(crate) fn as_found(answer: Answer) -> Answer {
    match answer {
        Err(Fault::WrongType) => Ok(Reply::Missing),
        answer => answer,
    }
}
