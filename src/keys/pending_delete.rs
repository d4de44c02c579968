//! A key that must be deleted on one node, and from when on its absence is final.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::node::{Answer, Node, OwnerToken, Reply, Request};
use crate::sys::metrics::GaugeGuard;
use crate::sys::mutex::lock;

/// A key that may hold our owner token on one node, and so must be deleted there.
pub(crate) struct PendingDelete {
    /// The deletion.
    pub(crate) request: Arc<Request>,
    /// A deletion that is in flight already, and when it was sent.
    pub(crate) in_flight: Option<(Instant, BoxFuture<'static, Answer>)>,
    /// Dropped as soon as the deletion has its place in the pipeline: a later acquire is then ordered after it. Also dropped if the
    /// node fails, so that no waiter waits for it.
    pub(crate) unsent: Option<Box<dyn Send>>,
    /// Called if a subscriber was notified of the deletion. Dropped uncalled if the node fails.
    pub(crate) on_notified: Option<OnNotified>,
    /// When the key has expired by itself.
    pub(crate) expired_at: Instant,
    pub(crate) horizon: DeleteHorizon,
}

/// From when on the answer "there is no such key" is final. Before, the acquire may still arrive and set the key (A9).
#[derive(Clone, Copy)]
pub(crate) struct DeleteHorizon {
    /// A deletion that was sent at this moment, or later, is behind the acquire in any case.
    pub(crate) from: Instant,
    /// The connection that the acquire was sent over: a deletion over the same one is behind it at once. `None` if it is unknown.
    pub(crate) connection: Option<u64>,
    /// Whether the acquire may be sent once more, over another connection (A8). If not, a deleted key cannot come back.
    pub(crate) is_sent_twice: bool,
}

impl DeleteHorizon {
    /// Returns whether a node's reply to a deletion is final: no copy of the acquire can arrive after it. `sent` is when the
    /// deletion was sent; the node cannot have executed it earlier.
    pub(crate) fn is_final(&self, reply: &Reply, node: &dyn Node, sent: Instant) -> bool {
        if matches!(reply, Reply::Released { .. }) && !self.is_sent_twice {
            return true;
        }
        let in_order = self.connection.is_some() && self.connection == node.connection();
        in_order || sent >= self.from
    }
}

pub(crate) type OnNotified = Box<dyn FnOnce() + Send>;

impl PendingDelete {
    /// Lets the waiters for this deletion go on: the node fails.
    pub(super) fn stop_waiting(&mut self) {
        self.unsent = None;
        self.on_notified = None;
    }
}

/// Deletions that one node has not confirmed, by the owner token that may stand there.
pub(super) type Deletions = Arc<Mutex<HashMap<OwnerToken, Arc<Request>>>>;

/// An entry in [`Deletions`]. Dropping it removes the entry.
pub(super) struct Entry {
    deletions: Deletions,
    owner: OwnerToken,
    _leftover: GaugeGuard,
}

impl Entry {
    pub(super) fn add(deletions: &Deletions, request: &Arc<Request>) -> Entry {
        lock(deletions).insert(request.owner, request.clone());
        Entry {
            deletions: deletions.clone(),
            owner: request.owner,
            _leftover: GaugeGuard::leftover(),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.deletions).remove(&self.owner);
    }
}
