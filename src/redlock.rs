//! The manager: a set of nodes.
//!
//! Entry point: [`Redlock`]. `lock_request.rs` is a request for one lock, `operate.rs` what operators ask and do, `inner.rs` what they
//! share.

mod inner;
mod lock_request;
mod operate;

use std::fmt;
use std::sync::Arc;

use crate::context::Context;
use crate::node::{Fault, NodeState, Nodes};
use crate::options::LockOptions;
use crate::sys::running_calls::End;
use inner::Inner;
pub use lock_request::LockRequest;

/// A set of independent Redis or Valkey masters that hold locks.
///
/// Create one per process and clone it freely. Clones share one connection per node, and a second one while a task waits for
/// another process, or a lease that was renewed is held.
///
/// It uses the tokio runtime that it was connected on. Locks may be taken from other runtimes, and without one. When its
/// runtime ends, leases can no longer be extended, and calls return an error.
#[derive(Clone)]
pub struct Redlock {
    inner: Arc<Inner>,
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node's name: an address without credentials.
    pub name: Arc<str>,
    /// Whether it is connected and may vote.
    pub state: NodeState,
    /// Why it gives no new locks although it is up, with the manager's own TTL and guard window; `None` if nothing prevents it.
    ///
    /// The restart guard ([`Fault::Restarted`](crate::node::Fault::Restarted)), or what other clients use
    /// ([`Fault::Replaced`](crate::node::Fault::Replaced), [`Fault::Unsettled`](crate::node::Fault::Unsettled),
    /// [`Fault::Unregistered`](crate::node::Fault::Unregistered), [`Fault::OtherNodes`](crate::node::Fault::OtherNodes)).
    pub left_out: Option<Fault>,
}

impl Redlock {
    pub(crate) fn from_parts(
        nodes: Nodes,
        prefix: String,
        defaults: LockOptions,
        context: Context,
    ) -> Redlock {
        Redlock {
            inner: Arc::new(Inner::new(nodes, prefix, defaults, context)),
        }
    }

    /// Returns a request to lock `resource`: any UTF-8 text of 1 to [`MAX_RESOURCE_BYTES`](crate::MAX_RESOURCE_BYTES) bytes.
    ///
    /// Nothing is sent before [`acquire`](LockRequest::acquire), [`try_acquire`](LockRequest::try_acquire) or
    /// [`run`](LockRequest::run).
    pub fn lock(&self, resource: impl AsRef<str>) -> LockRequest {
        LockRequest::new(self.inner.clone(), resource.as_ref().into())
    }

    /// Returns the nodes' states, in the order in which the nodes were configured.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        // The defaults were checked when the manager was made.
        let guard = self
            .inner
            .defaults
            .settings()
            .ok()
            .and_then(|settings| settings.guard);
        let status = |node: &Arc<dyn crate::node::Node>| NodeStatus {
            name: node.name().clone(),
            state: node.status(),
            left_out: node.left_out(guard),
        };
        self.inner.nodes.iter().map(status).collect()
    }

    /// Refuses new locks, ends running acquires with [`AcquireError::ShutDown`](crate::AcquireError::ShutDown), and waits until
    /// leftovers on nodes are gone.
    ///
    /// Acquires end even if their futures are kept and not polled. Leftovers come from dropped leases, lost attempts and
    /// cancelled calls. They are deleted, or expire: after the longest TTL in use, a node budget and a second at most.
    ///
    /// Leases that are held stay held; release them first. Call this before the runtime ends: deletions end with it.
    ///
    /// # Cancel safety
    /// Cancel safe; the deletions go on.
    pub async fn shutdown(&self) {
        self.inner.acquires.end(End::ShutDown);
        self.inner.queues.close();
        self.inner.cleanup.finished().await;
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
