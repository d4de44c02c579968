//! Notices when another client deletes the lease's keys: an operator breaks the lock (H5).

use std::sync::Arc;

use tokio::sync::Notify;

use super::state::LeaseState;
use crate::node::{Listening, OwnerToken, ReleaseNotice, ReleaseSink, WaitNotice, listen_to_all};

/// Listens to all nodes for deletions of one lease's keys, until it is dropped.
pub(super) struct DeletionWatch {
    sink: Arc<DeletionSink>,
    _listening: Vec<Listening>,
}

struct DeletionSink {
    owner: OwnerToken,
    deletion: Notify,
}

impl DeletionWatch {
    /// Starts to listen. Call it within the manager's runtime.
    pub(super) fn of(lease: &LeaseState) -> DeletionWatch {
        let sink = Arc::new(DeletionSink {
            owner: lease.owner,
            deletion: Notify::new(),
        });
        DeletionWatch {
            _listening: listen_to_all(lease.nodes(), &lease.key, sink.clone()),
            sink,
        }
    }

    /// Waits until a node announces that a key of the lease was deleted. Any client that may publish can forge this. Cancel safe.
    pub(super) async fn announced(&self) {
        self.sink.deletion.notified().await;
    }
}

impl ReleaseSink for DeletionSink {
    /// A key may have been deleted before the subscription began: the next renewal tells.
    fn set_subscribed(&self, _: usize, is_subscribed: bool) {
        if is_subscribed {
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
