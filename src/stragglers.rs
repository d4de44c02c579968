//! Grants that come after a lock was won.

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::node::Reply;
use crate::protocol::token::FencingToken;
use crate::round::{Answer, Outstanding, next_of};
use crate::sys::mutex::lock;

/// Grants of nodes that were not waited for. Their counters may be ahead of the token.
#[derive(Clone, Default)]
pub(crate) struct Stragglers(Arc<Mutex<Vec<Grant>>>);

/// Of which node, and its counter.
type Grant = (usize, Option<FencingToken>);

impl Stragglers {
    /// Hears them for as long as the task lives.
    pub(crate) fn hear(&self, mut outstanding: Vec<Outstanding>, runtime: &Handle) -> AbortOnDropHandle<()> {
        let stragglers = self.clone();
        AbortOnDropHandle::new(runtime.spawn(async move {
            while let Some((node, answer)) = next_of(&mut outstanding).await {
                if matches!(answer, Ok(Reply::Granted { .. })) {
                    lock(&stragglers.0).push((node, counter(&answer)));
                }
            }
        }))
    }

    pub(crate) fn heard(&self) -> Vec<Grant> {
        lock(&self.0).clone()
    }

    /// The nodes.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        self.heard().into_iter().map(|(node, _)| node).collect()
    }
}

/// F1: what the node's counter is, where that is known from its answer.
pub(crate) fn counter(answer: &Answer) -> Option<FencingToken> {
    match answer {
        Ok(Reply::Granted { counter }) => *counter,
        Ok(Reply::Raised { counter }) => Some(*counter),
        _ => None,
    }
}
