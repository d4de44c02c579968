//! Removes what attempts and leases leave on nodes (A6): asked for at once, and then by one task per node until the node
//! confirms.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::mutex::lock;
use crate::node::{Fault, Node, Reply, Request};
use crate::protocol::backoff::Backoff;
use crate::round::{self, Answer, Home, Nodes};

/// For a node to answer. Nobody waits for it, so it may be generous.
const BUDGET: Duration = Duration::from_secs(1);
/// Between tries of a node that fails. Only one leftover is tried then, for all.
const FASTEST: Duration = Duration::from_millis(20);
const SLOWEST: Duration = Duration::from_secs(1);
/// Most leftovers asked about at a time, where the node answers.
const MOST_ASKED: usize = 128;
/// Most leftovers kept for a node that is away: some 20 MB. Beyond that, the oldest are left to their TTL.
const MOST_KEPT: usize = 100_000;

/// Takes in what is to be removed, and knows when all of it is.
#[derive(Clone, Debug)]
pub(crate) struct Janitor {
    home: Home,
    pending: TaskTracker,
    /// From when on everything that was handed in has expired, and has been asked about.
    gone_by: Arc<Mutex<Instant>>,
    nodes: Nodes,
    desks: Arc<[Desk]>,
}

/// Where leftovers of one node are handed in.
#[derive(Debug)]
struct Desk {
    inbox: mpsc::UnboundedSender<Item>,
    /// So many more may be asked about at once.
    room: Arc<Semaphore>,
    /// The node fails: it is asked about one at a time, and not before that one's turn.
    fails: Arc<AtomicBool>,
}

/// A key that may hold our token on one node.
pub(crate) struct Leftover {
    /// The release.
    pub(crate) request: Request,
    /// A release that is under way already, and when it was sent.
    pub(crate) asked: Option<(Instant, BoxFuture<'static, Answer>)>,
    /// W1: to be dropped when the release has its place in the lane, so that who asks next is behind it. Or if that takes long.
    pub(crate) unsent: Option<Box<dyn Send>>,
    /// W2: whom to tell how many have heard of it. Not if that takes long.
    pub(crate) told: Option<Told>,
    /// From when on it has expired by itself.
    pub(crate) until: Instant,
    pub(crate) last_word: LastWord,
}

/// When "there is no such key" is the last word, for a release that was sent by then: before, the acquire may still arrive (A9).
#[derive(Clone, Copy)]
pub(crate) struct LastWord {
    pub(crate) from: Instant,
    /// Or at once, if the acquire was sent over this connection, and so was the release.
    pub(crate) connection: Option<u64>,
}

impl LastWord {
    /// Whether nothing can arrive any more that was sent before the release, which the node has just answered. Its time
    /// of execution is not known: no earlier than the time of sending.
    pub(crate) fn is_said(&self, node: &dyn Node, sent: Instant) -> bool {
        let in_order = self.connection.is_some() && self.connection == node.connection();
        in_order || sent >= self.from
    }
}

/// Whether a runtime can be entered from here: not where a thread's own variables are being destroyed.
fn has_context() -> bool {
    !matches!(Handle::try_current(), Err(error) if error.is_thread_local_destroyed())
}

impl Leftover {
    /// The node fails: nobody is to wait for what it will say.
    fn take_long(&mut self) {
        self.unsent = None;
        self.told = None;
    }
}

pub(crate) type Told = Box<dyn FnOnce(u32) + Send>;

struct Item {
    leftover: Leftover,
    /// Everything is asked about once, even if it should have expired: a clock may have been set.
    tried: bool,
    /// That it was asked about at once.
    room: Option<OwnedSemaphorePermit>,
    _pending: TaskTrackerToken,
}

impl Janitor {
    pub(crate) fn new(nodes: &Nodes, home: Home) -> Self {
        let sweep = |node: &Arc<dyn Node>| {
            let (inbox, items) = mpsc::unbounded_channel();
            let sweeper = Sweeper::new(node.clone());
            let fails = sweeper.fails.clone();
            home.runtime.spawn(sweeper.work(items));
            Desk {
                inbox,
                room: Arc::new(Semaphore::new(MOST_ASKED)),
                fails,
            }
        };
        let desks = nodes.iter().map(sweep).collect();
        Janitor {
            home,
            pending: TaskTracker::new(),
            gone_by: Arc::new(Mutex::new(Instant::now())),
            nodes: nodes.clone(),
            desks,
        }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Neither blocks nor needs a runtime. Once the runtime has ended, it does nothing: there is no connection left.
    ///
    /// When this returns, the release has its place in the node's lane, if there was room: who asks next, from the same task,
    /// shall not find what has just been given up.
    pub(crate) fn remove(&self, node: usize, mut leftover: Leftover) {
        let desk = &self.desks[node];
        {
            let mut gone_by = lock(&self.gone_by);
            let last_asked = leftover.until.max(leftover.last_word.from).max(Instant::now());
            *gone_by = gone_by.max(last_asked + BUDGET);
        }
        let mut room = None;
        if desk.fails.load(Relaxed) {
            leftover.take_long();
        } else if leftover.asked.is_none() && has_context() {
            room = desk.room.clone().try_acquire_owned().ok();
        }
        if room.is_some() {
            let request = leftover.request.clone();
            let ask = || round::ask(&self.nodes, node, request, BUDGET, &self.home).call;
            // A node of somebody's own making may panic, and this may be called because one has.
            let sent = Instant::now();
            leftover.asked = catch_unwind(AssertUnwindSafe(ask)).ok().map(|call| (sent, call));
            leftover.unsent = None;
        }
        let _ = desk.inbox.send(Item {
            leftover,
            tried: false,
            room,
            _pending: self.pending.token(),
        });
    }

    /// Waits until everything is removed: confirmed by its node, or expired, also where nobody drives the runtime.
    pub(crate) async fn finished(&self) {
        self.pending.close();
        loop {
            let gone_by = *lock(&self.gone_by);
            tokio::select! {
                biased;
                () = self.pending.wait() => return,
                () = crate::timer::sleep_until(&self.home.runtime, gone_by) => {}
            }
            if *lock(&self.gone_by) == gone_by {
                return;
            }
        }
    }
}

/// Removes leftovers from one node.
struct Sweeper {
    node: Arc<dyn Node>,
    backoff: Backoff,
    waiting: VecDeque<Item>,
    /// While the node fails: how often it has, and when it is tried again.
    failing: Option<(u32, Instant)>,
    /// The same, for those who leave something.
    fails: Arc<AtomicBool>,
}

impl Sweeper {
    fn new(node: Arc<dyn Node>) -> Self {
        Sweeper {
            node,
            backoff: Backoff::new(FASTEST, SLOWEST),
            waiting: VecDeque::new(),
            failing: None,
            fails: Arc::default(),
        }
    }

    /// Ends when nobody can leave anything any more, and all is removed.
    async fn work(mut self, mut inbox: mpsc::UnboundedReceiver<Item>) {
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
                        if reply == Reply::Missing && !item.leftover.last_word.is_said(&*self.node, sent) {
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
        None => (Instant::now(), node.call(item.leftover.request.clone(), BUDGET)),
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
