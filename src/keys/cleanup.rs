//! Deletes the keys that attempts and leases leave on nodes (A6).
//!
//! The first deletion is sent at once. After that, one task per node (`worker.rs`) repeats it until the node confirms or the key
//! has expired.

mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::context::Context;
use crate::node::{Answer, Node, Nodes, OwnerToken, Request};
use crate::round;
use crate::sys::mutex::lock;
use crate::sys::timer::sleep_until;

use super::pending_delete::{Deletions, Entry, PendingDelete};
pub(crate) use worker::deletion_answer;
use worker::{BUDGET, CleanupWorker, Item, MOST_IN_FLIGHT};

/// Accepts keys to delete, and knows when all of them are gone.
#[derive(Clone, Debug)]
pub(crate) struct Cleanup {
    context: Context,
    pending: TaskTracker,
    /// When every accepted key has expired, and a deletion of each was answered or timed out.
    gone_by: Arc<Mutex<Instant>>,
    nodes: Nodes,
    inboxes: Arc<[CleanupInbox]>,
}

/// Where keys to delete on one node are handed in.
#[derive(Debug)]
struct CleanupInbox {
    inbox: mpsc::UnboundedSender<Item>,
    /// Permits for deletions that are sent at once.
    room: Arc<Semaphore>,
    /// Set while the node fails. The worker then sends one deletion at a time.
    fails: Arc<AtomicBool>,
    deleting: Deletions,
}

/// Returns whether a runtime can be entered here. It cannot while the thread's local variables are being destroyed.
fn has_context() -> bool {
    !matches!(Handle::try_current(), Err(error) if error.is_thread_local_destroyed())
}

impl Cleanup {
    pub(crate) fn new(nodes: &Nodes, context: Context) -> Self {
        let start = |node: &Arc<dyn Node>| {
            let (inbox, items) = mpsc::unbounded_channel();
            let worker = CleanupWorker::new(node.clone());
            let fails = worker.fails.clone();
            context.runtime.spawn(worker.work(items));
            CleanupInbox {
                inbox,
                room: Arc::new(Semaphore::new(MOST_IN_FLIGHT)),
                fails,
                deleting: Deletions::default(),
            }
        };
        let inboxes = nodes.iter().map(start).collect();
        Cleanup {
            context,
            pending: TaskTracker::new(),
            gone_by: Arc::new(Mutex::new(Instant::now())),
            nodes: nodes.clone(),
            inboxes,
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Accepts a key to delete. Neither blocks nor needs a runtime; does nothing once the manager's runtime has ended.
    ///
    /// If a permit is free, the deletion has its place in the node's pipeline when this returns. A later acquire by the same task then
    /// does not find the key.
    pub(crate) fn delete(&self, node: usize, mut pending: PendingDelete) {
        let inbox = &self.inboxes[node];
        {
            let mut gone_by = lock(&self.gone_by);
            let last_asked = pending.expired_at.max(pending.horizon.from).max(Instant::now());
            *gone_by = gone_by.max(last_asked + BUDGET);
        }
        let mut room = None;
        if inbox.fails.load(Relaxed) {
            pending.stop_waiting();
        } else if pending.in_flight.is_none() && has_context() {
            room = inbox.room.clone().try_acquire_owned().ok();
        }
        if room.is_some() {
            let ask = || self.ask(node, &pending.request);
            // A user's implementation of `Node` may panic, and this may run because one did.
            let sent = Instant::now();
            pending.in_flight = catch_unwind(AssertUnwindSafe(ask)).ok().map(|call| (sent, call));
            pending.unsent = None;
        }
        let _ = inbox.inbox.send(Item {
            _entry: Entry::add(&inbox.deleting, &pending.request),
            pending,
            tried: false,
            room,
            _pending: self.pending.token(),
        });
    }

    /// Returns whether a deletion of this owner token is not confirmed by the node yet.
    pub(crate) fn is_deleting(&self, node: usize, owner: OwnerToken) -> bool {
        self.deletion(node, owner).is_some()
    }

    /// If the node has not confirmed the deletion of this owner token yet, sends it again at once: later requests of this manager are
    /// ordered after it. Returns whether it did.
    pub(crate) fn delete_again(&self, node: usize, owner: OwnerToken) -> bool {
        let Some(request) = self.deletion(node, owner) else {
            return false;
        };
        // The reply is not needed: the next answer about the key shows the outcome.
        self.context.in_background(BUDGET, self.ask(node, &request));
        true
    }

    /// Returns the deletion of this owner token that the node has not confirmed. `None` also while the key is meant to stay (L4).
    fn deletion(&self, node: usize, owner: OwnerToken) -> Option<Arc<Request>> {
        let request = lock(&self.inboxes[node].deleting).get(&owner).cloned()?;
        request.action.keeps_for().is_none().then_some(request)
    }

    fn ask(&self, node: usize, request: &Request) -> BoxFuture<'static, Answer> {
        round::ask(&self.nodes, node, request.clone(), BUDGET, &self.context).call
    }

    /// Waits until every accepted key is gone: its node has confirmed the deletion, or it has expired. Ends in time also if the
    /// manager's runtime does not run.
    pub(crate) async fn finished(&self) {
        self.pending.close();
        loop {
            let gone_by = *lock(&self.gone_by);
            tokio::select! {
                biased;
                () = self.pending.wait() => return,
                () = sleep_until(&self.context.runtime, gone_by) => {}
            }
            if *lock(&self.gone_by) == gone_by {
                return;
            }
        }
    }
}
