//! Removes what attempts and leases leave on nodes (A6): asked for at once, and then by one task per node until the node
//! confirms.

mod sweeper;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::node::{Node, OwnerToken, Reply, Request};
use crate::round::{self, Answer, Home, Nodes};
use crate::sys::mutex::lock;
use crate::sys::timer::sleep_until;

pub(crate) use sweeper::as_found;
use sweeper::{Item, Sweeper};

/// For a node to answer. Nobody waits for it, so it may be generous.
const BUDGET: Duration = Duration::from_secs(1);
/// Most leftovers asked about at a time, where the node answers.
const MOST_ASKED: usize = 128;

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
    listed: List,
}

/// What is being removed from one node: the releases, by the tokens that may stand there.
type List = Arc<Mutex<HashMap<OwnerToken, Arc<Request>>>>;

/// An entry of the list, until it is dropped.
struct Listed {
    list: List,
    owner: OwnerToken,
}

impl Listed {
    fn enter(list: &List, request: &Arc<Request>) -> Listed {
        lock(list).insert(request.owner, request.clone());
        Listed {
            list: list.clone(),
            owner: request.owner,
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.list).remove(&self.owner);
    }
}

/// A key that may hold our token on one node.
pub(crate) struct Leftover {
    /// The release.
    pub(crate) request: Arc<Request>,
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
    /// The acquire may be sent once more, over another connection (A8). Otherwise, a key that was deleted does not come back.
    pub(crate) is_sent_twice: bool,
}

impl LastWord {
    /// Whether nothing can arrive any more that was sent before the release, which the node has just answered. Its time
    /// of execution is not known: no earlier than the time of sending.
    pub(crate) fn is_said(&self, reply: &Reply, node: &dyn Node, sent: Instant) -> bool {
        if matches!(reply, Reply::Released { .. }) && !self.is_sent_twice {
            return true;
        }
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
                listed: List::default(),
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
            let ask = || self.ask(node, &leftover.request);
            // A node of somebody's own making may panic, and this may be called because one has.
            let sent = Instant::now();
            leftover.asked = catch_unwind(AssertUnwindSafe(ask)).ok().map(|call| (sent, call));
            leftover.unsent = None;
        }
        let _ = desk.inbox.send(Item {
            _listed: Listed::enter(&desk.listed, &leftover.request),
            leftover,
            tried: false,
            room,
            _pending: self.pending.token(),
        });
    }

    /// Whether this token is being removed from the node.
    pub(crate) fn removes(&self, node: usize, owner: OwnerToken) -> bool {
        lock(&self.desks[node].listed).contains_key(&owner)
    }

    /// Asks the node at once to delete this token if it is being removed there, ahead of whatever is asked from here on. Returns
    /// whether it is.
    pub(crate) fn hurry(&self, node: usize, owner: OwnerToken) -> bool {
        let Some(release) = lock(&self.desks[node].listed).get(&owner).cloned() else {
            return false;
        };
        // What it has come to, the next answer about the key will tell.
        let asked = timeout(BUDGET, self.ask(node, &release));
        self.home.runtime.spawn(asked);
        true
    }

    fn ask(&self, node: usize, release: &Request) -> BoxFuture<'static, Answer> {
        round::ask(&self.nodes, node, release.clone(), BUDGET, &self.home).call
    }

    /// Waits until everything is removed: confirmed by its node, or expired, also where nobody drives the runtime.
    pub(crate) async fn finished(&self) {
        self.pending.close();
        loop {
            let gone_by = *lock(&self.gone_by);
            tokio::select! {
                biased;
                () = self.pending.wait() => return,
                () = sleep_until(&self.home.runtime, gone_by) => {}
            }
            if *lock(&self.gone_by) == gone_by {
                return;
            }
        }
    }
}
