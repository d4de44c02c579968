//! Which queues there are, and for how long: as long as somebody is in one, and a moment longer where that is of use.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::queue::{Queue, REMEMBERED};
use crate::sys::mutex::lock;
use crate::sys::runtime::Runtime;
use crate::sys::timer::sleep_until;

/// The queues of one manager. `T` is what whoever is in front was told last.
pub(crate) struct Queues<T> {
    by_key: Arc<Mutex<ByKey<T>>>,
    context: Runtime,
    /// Nothing is remembered any more.
    pub(super) closed: CancellationToken,
}

type ByKey<T> = HashMap<Arc<str>, Entry<T>>;

struct Entry<T> {
    queue: Arc<Queue<T>>,
    /// How many keep it in existence. Not what its own counter says: those who are just leaving are still counted there.
    stays: usize,
}

impl<T: Send + 'static> Queues<T> {
    /// Nobody waits any more once `closed` is cancelled.
    pub(crate) fn new(context: &Runtime, closed: CancellationToken) -> Self {
        Queues {
            by_key: Arc::default(),
            context: context.clone(),
            closed,
        }
    }

    /// Nobody is to wait any more.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// When what is returned is dropped, queues are forgotten as soon as nobody is in them.
    pub(crate) fn until_closed(&self) -> DropGuard {
        self.closed.clone().drop_guard()
    }

    pub(super) fn stay(&self, key: &Arc<str>) -> Stay<T> {
        let new = || Entry {
            queue: Arc::new(Queue::new()),
            stays: 0,
        };
        let queue = {
            let mut queues = lock(&self.by_key);
            let entry = queues.entry(key.clone()).or_insert_with(new);
            entry.stays += 1;
            entry.queue.clone()
        };
        Stay {
            queues: self.clone(),
            key: key.clone(),
            queue,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.by_key).len()
    }
}

impl<T> Clone for Queues<T> {
    fn clone(&self) -> Self {
        Queues {
            by_key: self.by_key.clone(),
            context: self.context.clone(),
            closed: self.closed.clone(),
        }
    }
}

/// Keeps a queue in existence.
pub(super) struct Stay<T: Send + 'static> {
    pub(super) queues: Queues<T>,
    pub(super) key: Arc<str>,
    pub(super) queue: Arc<Queue<T>>,
}

impl<T: Send + 'static> Stay<T> {
    /// To be called by whoever leaves: what is of use to those who come soon is remembered for a while.
    pub(super) fn leave_trace(&self) {
        let now = Instant::now();
        let mut state = lock(&self.queue.state);
        let is_of_use = state.announcements.is_some() || state.turns.others_first(now).is_some();
        if is_of_use && !state.has_trace {
            state.has_trace = true;
            drop(state);
            let trace = Trace(self.queues.stay(&self.key));
            // Where the runtime has ended, the task is dropped at once, and the trace with it.
            self.queues.context.spawn(trace.fade());
        }
    }
}

impl<T: Send + 'static> Drop for Stay<T> {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues.by_key);
        let Some(entry) = queues.get_mut(&self.key) else {
            return;
        };
        entry.stays -= 1;
        if entry.stays == 0 {
            queues.remove(&self.key);
        }
    }
}

/// Keeps a queue for those who come soon.
struct Trace<T: Send + 'static>(Stay<T>);

impl<T: Send + 'static> Trace<T> {
    /// Until there is nothing left to remember, or nobody is to wait any more.
    async fn fade(self) {
        let Stay { queues, queue, .. } = &self.0;
        loop {
            let until = Instant::now() + REMEMBERED;
            tokio::select! {
                () = queues.closed.cancelled() => return,
                () = sleep_until(&queues.context, until) => {}
            }
            drop(queue.unused_announcements());
            let state = lock(&queue.state);
            if state.announcements.is_none() && state.turns.others_first(Instant::now()).is_none() {
                return;
            }
        }
    }
}

impl<T: Send + 'static> Drop for Trace<T> {
    fn drop(&mut self) {
        let queue = &self.0.queue;
        let mut state = lock(&queue.state);
        state.has_trace = false;
        // Where it is closed, or the runtime has ended.
        let unused = match queue.waiting.load(SeqCst) {
            0 => state.announcements.take(),
            _ => None,
        };
        drop(state);
        drop(unused);
    }
}
