//! What a manager, its clones and its requests share.

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::DropGuard;

use crate::acquire::SharedFailure;
use crate::clients::Clients;
use crate::context::Context;
use crate::error::AcquireError;
use crate::keys::cleanup::Cleanup;
use crate::lease::Lease;
use crate::node::Nodes;
use crate::options::LockOptions;
use crate::sys::running_calls::{End, RunningCalls};
use crate::waiting::Queues;

pub(super) struct Inner {
    pub(super) nodes: Nodes,
    pub(super) prefix: String,
    pub(super) defaults: LockOptions,
    pub(super) cleanup: Cleanup,
    pub(super) acquires: Arc<RunningCalls<Result<Lease, AcquireError>>>,
    pub(super) queues: Queues<Arc<SharedFailure>>,
    pub(super) clients: Clients,
    _open: DropGuard,
}

impl Inner {
    pub(super) fn new(nodes: Nodes, prefix: String, defaults: LockOptions, context: Context) -> Inner {
        let acquires = Arc::new(RunningCalls::new());
        context.runtime.watch(context.clock.watch_for_suspension(), {
            let acquires = Arc::downgrade(&acquires);
            move || {
                if let Some(acquires) = acquires.upgrade() {
                    acquires.end(End::RuntimeEnded);
                }
            }
        });
        let queues = Queues::new(&nodes, &context.runtime, context.closed.clone());
        let clients = Clients::new(&nodes, &context);
        let cleanup = Cleanup::new(&nodes, context);
        Inner {
            nodes,
            prefix,
            defaults,
            cleanup,
            acquires,
            _open: queues.until_closed(),
            queues,
            clients,
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}
