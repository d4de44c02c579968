//! Those of this process who have the lock: to whom they leave it, and what they know of others who wait.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::queue::Queue;
use super::registry::{Queues, Stay};
use super::releases::Announcements;
use crate::keys::claim::Heirs;
use crate::news::News;
use crate::protocol::quorum::{quorum, vouched_for};
use crate::sys::mutex::lock;

/// Something that is held until some time.
pub(crate) trait Held: Send + Sync {
    fn until(&self) -> Instant;
}

/// A lock that is held in this process.
pub(crate) struct Holding<T: Send + 'static> {
    stay: Stay<T>,
    id: u64,
    /// How many wait elsewhere, as each node has told.
    others: Mutex<Vec<Option<u32>>>,
}

/// By what it is held.
pub(crate) struct HeldBy<T> {
    queue: Weak<Queue<T>>,
    id: u64,
}

impl<T: Send + 'static> Queues<T> {
    /// Somebody of this process has got the lock, which so many nodes keep that took so long.
    pub(crate) fn got(&self, key: &Arc<str>, nodes: usize, round_trip: Duration) -> (Holding<T>, HeldBy<T>) {
        let stay = self.stay(key);
        let id = {
            let mut state = lock(&stay.queue.state);
            // The one in front is still among them.
            let waiting = stay.queue.waiting.load(SeqCst).saturating_sub(1);
            state.turns.got(waiting, Instant::now());
            state.turns.round_trip(round_trip);
            state.next += 1;
            state.next
        };
        let held_by = HeldBy {
            queue: Arc::downgrade(&stay.queue),
            id,
        };
        let others = Mutex::new(vec![None; nodes]);
        (Holding { stay, id, others }, held_by)
    }
}

impl<T> HeldBy<T> {
    pub(crate) fn is(self, lease: Weak<dyn Held>) {
        if let Some(queue) = self.queue.upgrade() {
            let mut state = lock(&queue.state);
            // Hardly ever is there another.
            state.leases.reserve_exact(1);
            state.leases.push((self.id, lease));
        }
    }
}

impl<T: Send + 'static> Heirs for Holding<T> {
    fn news(&self) -> News {
        let queue = &self.stay.queue;
        let anybody_waits = queue.waiting.load(SeqCst) > 0;
        let stays = lock(&queue.state).turns.given_up(anybody_waits, Instant::now());
        if stays { News::PassedOn } else { News::Free }
    }

    fn freed(&self) {
        lock(&self.stay.queue.state)
            .leases
            .retain(|(id, _)| *id != self.id);
        if self.stay.queue.waiting.load(SeqCst) > 0 {
            self.stay.queue.freed.notify_one();
        }
    }

    fn told(&self, node: usize, listeners: u32) {
        let mut state = lock(&self.stay.queue.state);
        let counts = |announcements: &Arc<Announcements>| announcements.may_be_counted(node);
        let own = u32::from(state.announcements.as_ref().is_some_and(counts));
        let mut others = lock(&self.others);
        others[node] = Some(listeners.saturating_sub(own));
        if others.iter().flatten().count() >= quorum(others.len()) {
            let said = others.iter().map(|others| others.unwrap_or(0)).collect();
            state.turns.told(vouched_for(said), Instant::now());
        }
    }
}

impl<T: Send + 'static> Drop for Holding<T> {
    fn drop(&mut self) {
        self.stay.leave_trace();
    }
}
