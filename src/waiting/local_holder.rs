//! A lock that this process holds, and its release to the next waiter.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::keys::claim::ReleaseObserver;
use crate::node::ReleaseNotice;
use crate::sys::mutex::lock;

use super::queue::{LocalLease, Queue};
use super::registry::{QueueId, QueueRef, Queues};

/// A task of this process that holds a lock.
pub(crate) struct LocalHolder<T: Send + 'static> {
    queue_ref: QueueRef<T>,
    id: u64,
}

/// The place in the queue for its lease.
pub(crate) struct HolderSlot<T> {
    queue: Weak<Queue<T>>,
    id: u64,
}

impl<T: Send + 'static> Queues<T> {
    /// Records that a task of this process has acquired the lock.
    pub(crate) fn got(&self, id: QueueId, round_trip: Duration) -> (LocalHolder<T>, HolderSlot<T>) {
        let queue_ref = self.queue(id);
        let queue = &queue_ref.queue;
        // Less the one that has acquired the lock.
        let waiting = queue.waiting.load(SeqCst).saturating_sub(1);
        {
            let mut fairness = lock(&queue.fairness);
            fairness.got(waiting, Instant::now());
            fairness.round_trip(round_trip);
        }
        let id = {
            let mut state = lock(&queue.state);
            state.next += 1;
            state.next
        };
        let slot = HolderSlot {
            queue: Arc::downgrade(queue),
            id,
        };
        (LocalHolder { queue_ref, id }, slot)
    }
}

impl<T> HolderSlot<T> {
    pub(crate) fn set_lease(self, lease: Weak<dyn LocalLease>) {
        if let Some(queue) = self.queue.upgrade() {
            let mut state = lock(&queue.state);
            // There is hardly ever a second lease.
            state.leases.reserve_exact(1);
            state.leases.push((self.id, lease));
        }
    }
}

impl<T: Send + 'static> ReleaseObserver for LocalHolder<T> {
    fn notice(&self) -> ReleaseNotice {
        let queue = &self.queue_ref.queue;
        let anybody_waits = queue.waiting.load(SeqCst) > 0;
        lock(&queue.fairness).given_up(anybody_waits, Instant::now())
    }

    fn freed(&self) {
        let queue = &self.queue_ref.queue;
        lock(&queue.state).leases.retain(|(id, _)| *id != self.id);
        if queue.waiting.load(SeqCst) > 0 {
            queue.freed.notify_one();
        }
    }

    /// Starts to listen, because another process may wait.
    fn notified(&self) {
        let QueueRef { queues, id, queue } = &self.queue_ref;
        if lock(&queue.state).releases.is_some() {
            return;
        }
        let queue_ref = queues.queue(id.clone());
        // As a task: this may be called where no runtime can be entered.
        queues.runtime.spawn(async move {
            queue_ref.listen();
            queue_ref.linger();
        });
    }
}

impl<T: Send + 'static> Drop for LocalHolder<T> {
    fn drop(&mut self) {
        self.queue_ref.linger();
    }
}
