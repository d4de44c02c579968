//! The queue of this process for one lock and one set of settings, and what all of its waiters know (W1).
//!
//! Only the first waiter asks the nodes, so a thousand waiters cost them no more than one. While a task of this process holds
//! the lock, even the first one need not ask.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::Instant;

use crate::sys::mutex::lock;

use super::fairness::Fairness;
use super::releases::ReleaseWatch;

/// A lease of this process, which is held until a known time.
pub(crate) trait LocalLease: Send + Sync {
    fn until(&self) -> Instant;
}

/// How long a queue is kept after its last waiter has left, with its subscriptions and knowledge of other processes.
pub(super) const REMEMBERED: Duration = Duration::from_millis(300);

/// The waiters for one key with the same settings. `T` is the last failure that they share.
pub(super) struct Queue<T> {
    /// Held by the first waiter. Fair: it passes to the task that has waited longest.
    pub(super) turn: Arc<Turn<()>>,
    pub(super) freed: Notify,
    pub(super) shared_failure: Mutex<Option<T>>,
    /// Held by the waiter that asks for all waiters whose time is up.
    pub(super) final_attempt: Turn<()>,
    /// Includes the first waiter.
    pub(super) waiting: AtomicUsize,
    pub(super) fairness: Arc<Mutex<Fairness>>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Opened when another process holds the lock or waits for it; closed when unused for a while.
    pub(super) releases: Option<Arc<ReleaseWatch>>,
    /// When the nodes last refused a waiter, or `releases` was opened.
    pub(super) waited: Option<Instant>,
    /// Whether a [`Linger`](super::registry) keeps the queue for later waiters.
    pub(super) lingers: bool,
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

    /// Takes out the subscriptions, if no waiter has needed them for a while.
    pub(super) fn unused_releases(&self) -> Option<Arc<ReleaseWatch>> {
        let mut state = lock(&self.state);
        // A waiter is counted before it starts to listen.
        let is_used =
            self.waiting.load(SeqCst) > 0 || state.waited.is_some_and(|waited| waited.elapsed() < REMEMBERED);
        if is_used { None } else { state.releases.take() }
    }

    /// Returns whether later waiters need this queue: another process goes first, or the queue listens to nodes.
    pub(super) fn is_of_use(&self) -> bool {
        let gate = lock(&self.fairness).gate(u32::MAX);
        gate.is_some_and(|gate| gate > Instant::now()) || lock(&self.state).releases.is_some()
    }
}
