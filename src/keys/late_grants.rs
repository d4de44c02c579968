//! Grants that arrive after a lock was won.

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::node::{Answer, Reply};
use crate::protocol::token::FencingToken;
use crate::round::{Outstanding, next_of};
use crate::sys::mutex::lock;

/// Grants of nodes that the attempt did not wait for. Their counters may be ahead of the fencing token.
#[derive(Clone, Default)]
pub(crate) struct LateGrants(Arc<Mutex<Vec<Grant>>>);

/// The node's number, and its counter; `None` without fencing.
type Grant = (usize, Option<FencingToken>);

impl LateGrants {
    /// Collects them until the returned task is dropped.
    pub(crate) fn collect(
        &self,
        mut outstanding: Vec<Outstanding>,
        runtime: &Handle,
    ) -> AbortOnDropHandle<()> {
        let late_grants = self.clone();
        AbortOnDropHandle::new(runtime.spawn(async move {
            while let Some((node, answer)) = next_of(&mut outstanding).await {
                if matches!(answer, Ok(Reply::Granted { .. })) {
                    lock(&late_grants.0).push((node, counter(&answer)));
                }
            }
        }))
    }

    /// Returns those that have arrived.
    pub(crate) fn so_far(&self) -> Vec<Grant> {
        lock(&self.0).clone()
    }

    /// Returns the nodes that they came from.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        self.so_far().into_iter().map(|(node, _)| node).collect()
    }
}

/// Returns the node's counter, if its answer tells it.
pub(crate) fn counter(answer: &Answer) -> Option<FencingToken> {
    match answer {
        Ok(Reply::Granted { counter }) => *counter,
        Ok(Reply::Raised { counter }) => Some(*counter),
        _ => None,
    }
}
