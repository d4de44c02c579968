//! The tasks of one process that wait for the same lock with the same settings (W1): who is in front, and what all of them know.
//!
//! Only the one in front talks to the nodes, so a thousand waiters cost the nodes no more than one does. While a task of this
//! process holds the lock, not even that one has to.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::Instant;

use crate::sys::mutex::lock;

use super::fairness::Fairness;
use super::releases::ReleaseWatch;

/// A lease of this process, which is held until some time.
pub(crate) trait LocalLease: Send + Sync {
    fn until(&self) -> Instant;
}

/// How long a queue is remembered after its last task has left it: its subscriptions, and what is known of other processes.
pub(super) const REMEMBERED: Duration = Duration::from_millis(300);

/// The tasks that wait for one key with the same settings. `T` is the last failure of the one in front.
pub(super) struct Queue<T> {
    /// Held by the one in front. Fair: it goes to the task that has waited longest.
    pub(super) turn: Arc<Turn<()>>,
    pub(super) freed: Notify,
    pub(super) shared_failure: Mutex<Option<T>>,
    /// One of those whose time is up asks for all of them.
    pub(super) final_attempt: Turn<()>,
    /// How many wait, the one in front included.
    pub(super) waiting: AtomicUsize,
    pub(super) fairness: Arc<Mutex<Fairness>>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Opened when a task waits for another process, closed when none has for a while.
    pub(super) releases: Option<Arc<ReleaseWatch>>,
    /// When a task last waited for another process, or was told of one that waits.
    pub(super) waited: Option<Instant>,
    /// Whether a [`Linger`](super::registry) keeps the queue for those who come soon.
    pub(super) lingers: bool,
    /// The leases of this process, and until when each is held.
    pub(super) leases: Vec<(u64, Weak<dyn LocalLease>)>,
    pub(super) next: u64,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Queue {
            turn: Arc::default(),
            freed: Notify::new(),
            shared_failure: Mutex::new(None),
            final_attempt: Turn::default(),
            waiting: AtomicUsize::new(0),
            fairness: Arc::new(Mutex::new(Fairness::new())),
            state: Mutex::default(),
        }
    }

    /// Takes the subscriptions, if no task has needed them for a while.
    pub(super) fn unused_releases(&self) -> Option<Arc<ReleaseWatch>> {
        let mut state = lock(&self.state);
        // A task that waits is counted before it begins to listen.
        let is_used =
            self.waiting.load(SeqCst) > 0 || state.waited.is_some_and(|waited| waited.elapsed() < REMEMBERED);
        if is_used { None } else { state.releases.take() }
    }

    /// Whether tasks that come soon need to know what this queue knows: another process goes first, or releases are heard.
    pub(super) fn is_of_use(&self) -> bool {
        let gate = lock(&self.fairness).gate(u32::MAX);
        gate.is_some_and(|gate| gate > Instant::now()) || lock(&self.state).releases.is_some()
    }
}
