//! The queues of one manager. A queue lives as long as a task uses it, and a moment longer if later waiters need it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::node::Nodes;
use crate::options::LockSettings;
use crate::sys::mutex::lock;
use crate::sys::runtime::Runtime;
use crate::sys::timer::sleep_until;

use super::queue::{Queue, REMEMBERED};
use super::releases::ReleaseWatch;

/// The queues of one manager. `T` is the last failure that the waiters of a queue share.
pub(crate) struct Queues<T> {
    by_id: Arc<Mutex<ById<T>>>,
    nodes: Nodes,
    pub(super) runtime: Runtime,
    /// Once cancelled, no queue is kept for later waiters.
    pub(super) closed: CancellationToken,
}

type ById<T> = HashMap<QueueId, Entry<T>>;

/// A key, and the settings that the nodes' answers to an attempt depend on. So one attempt answers for a whole queue, and waiters
/// with different settings compete as different processes do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueId {
    pub(super) key: Arc<str>,
    ttl: Duration,
    node_budget: Duration,
    fencing: bool,
}

impl QueueId {
    pub(crate) fn new(key: &Arc<str>, settings: &LockSettings) -> QueueId {
        QueueId {
            key: key.clone(),
            ttl: settings.ttl,
            node_budget: settings.node_budget,
            fencing: settings.fencing,
        }
    }
}

struct Entry<T> {
    queue: Arc<Queue<T>>,
    /// The number of [`QueueRef`]s. The count of `queue` itself still includes those that are being dropped.
    refs: usize,
}

impl<T: Send + 'static> Queues<T> {
    pub(crate) fn new(nodes: &Nodes, runtime: &Runtime, closed: CancellationToken) -> Self {
        Queues {
            by_id: Arc::default(),
            nodes: nodes.clone(),
            runtime: runtime.clone(),
            closed,
        }
    }

    /// Keeps no queue for later waiters any more.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Returns a guard that does the same as [`close`](Self::close) when it is dropped.
    pub(crate) fn until_closed(&self) -> DropGuard {
        self.closed.clone().drop_guard()
    }

    pub(super) fn queue(&self, id: QueueId) -> QueueRef<T> {
        let new = || Entry {
            queue: Arc::new(Queue::new()),
            refs: 0,
        };
        let queue = {
            let mut queues = lock(&self.by_id);
            let entry = queues.entry(id.clone()).or_insert_with(new);
            entry.refs += 1;
            entry.queue.clone()
        };
        QueueRef {
            queues: self.clone(),
            id,
            queue,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.by_id).len()
    }
}

impl<T> Clone for Queues<T> {
    fn clone(&self) -> Self {
        Queues {
            by_id: self.by_id.clone(),
            nodes: self.nodes.clone(),
            runtime: self.runtime.clone(),
            closed: self.closed.clone(),
        }
    }
}

/// Keeps a queue in existence.
pub(super) struct QueueRef<T: Send + 'static> {
    pub(super) queues: Queues<T>,
    pub(super) id: QueueId,
    pub(super) queue: Arc<Queue<T>>,
}

impl<T: Send + 'static> QueueRef<T> {
    /// Starts to listen to the nodes, if the queue does not yet.
    pub(super) fn listen(&self) {
        let mut state = lock(&self.queue.state);
        if state.releases.is_none() {
            let Queues { nodes, runtime, .. } = &self.queues;
            let releases = ReleaseWatch::of(&self.id.key, nodes, runtime, &self.queue.fairness);
            (state.releases, state.waited) = (Some(Arc::new(releases)), Some(Instant::now()));
        }
    }

    /// Keeps the queue for a while, if later waiters need it. Called by each task that leaves.
    pub(super) fn linger(&self) {
        if !self.queue.is_of_use() || std::mem::replace(&mut lock(&self.queue.state).lingers, true) {
            return;
        }
        let linger = Linger(self.queues.queue(self.id.clone()));
        // If the runtime has ended, this drops the task at once.
        self.queues.runtime.spawn(linger.linger_until_unused());
    }
}

impl<T: Send + 'static> Drop for QueueRef<T> {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues.by_id);
        let Some(entry) = queues.get_mut(&self.id) else {
            return;
        };
        entry.refs -= 1;
        if entry.refs == 0 {
            queues.remove(&self.id);
        }
    }
}

/// Keeps a queue for later waiters.
struct Linger<T: Send + 'static>(QueueRef<T>);

impl<T: Send + 'static> Linger<T> {
    /// Returns when no waiter needs the queue, or the manager takes no new locks.
    async fn linger_until_unused(self) {
        let QueueRef { queues, queue, .. } = &self.0;
        loop {
            let until = Instant::now() + REMEMBERED;
            tokio::select! {
                () = queues.closed.cancelled() => return,
                () = sleep_until(&queues.runtime, until) => {}
            }
            drop(queue.unused_releases());
            if !queue.is_of_use() {
                return;
            }
        }
    }
}

impl<T: Send + 'static> Drop for Linger<T> {
    fn drop(&mut self) {
        let queue = &self.0.queue;
        let mut state = lock(&queue.state);
        state.lingers = false;
        // Needed if the manager is closed, or its runtime has ended.
        let unused = match queue.waiting.load(SeqCst) {
            0 => state.releases.take(),
            _ => None,
        };
        drop(state);
        drop(unused);
    }
}
