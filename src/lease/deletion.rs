//! Notices when another client deletes the lease's keys: an operator breaks the lock (H5).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::state::LeaseState;
use crate::node::{Listening, OwnerToken, ReleaseNotice, ReleaseSink, WaitNotice, listen_to_all};
use crate::protocol::quorum::quorum;
use crate::sys::mutex::lock;

/// Listens to all nodes for deletions of one lease's keys, until it is dropped.
pub(super) struct DeletionWatch {
    sink: Arc<DeletionSink>,
    _listening: Vec<Listening>,
}

struct DeletionSink {
    owner: OwnerToken,
    deletion: Notify,
    /// The nodes on which the subscription is in effect.
    subscribed: Mutex<BTreeSet<usize>>,
    quorum: usize,
}

impl DeletionWatch {
    /// Starts to listen. Call it within the manager's runtime.
    pub(super) fn of(lease: &LeaseState) -> DeletionWatch {
        let sink = Arc::new(DeletionSink {
            owner: lease.owner,
            deletion: Notify::new(),
            subscribed: Mutex::default(),
            quorum: quorum(lease.nodes().len()),
        });
        DeletionWatch {
            _listening: listen_to_all(lease.nodes(), &lease.key, sink.clone()),
            sink,
        }
    }

    /// Waits until keys of the lease may have been deleted: a node announces it, or the subscriptions have just come into effect on
    /// a quorum of nodes. Any client that may publish can forge this. Cancel safe.
    pub(super) async fn announced(&self) {
        self.sink.deletion.notified().await;
    }
}

impl ReleaseSink for DeletionSink {
    /// No quorum of nodes can lose the key from now on without an announcement that is heard. It may have done so before.
    fn set_subscribed(&self, node: usize, is_subscribed: bool) {
        let mut subscribed = lock(&self.subscribed);
        if !is_subscribed {
            subscribed.remove(&node);
        } else if subscribed.insert(node) && subscribed.len() == self.quorum {
            self.deletion.notify_one();
        }
    }

    fn released(&self, _: usize, owner: OwnerToken, _: ReleaseNotice) {
        if owner == self.owner {
            self.deletion.notify_one();
        }
    }

    fn waits(&self, _: WaitNotice) {}
}
