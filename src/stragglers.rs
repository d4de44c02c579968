//! Grants that come after a lock was won.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::mutex::lock;
use crate::node::Reply;
use crate::protocol::token::FencingToken;
use crate::round::{Answer, Outstanding, poll_next};

/// Grants of nodes that were not waited for. Their counters may be ahead of the token.
#[derive(Clone, Default)]
pub(crate) struct Stragglers(Arc<Mutex<Vec<Grant>>>);

/// Of which node, and its counter.
type Grant = (usize, Option<FencingToken>);

impl Stragglers {
    /// Hears them until what is returned is dropped.
    pub(crate) fn hear(&self, outstanding: Vec<Outstanding>, runtime: &Handle) -> Hearing {
        let calls = Arc::new(Mutex::new(Some(outstanding)));
        let (stragglers, outstanding) = (self.clone(), calls.clone());
        let task = runtime.spawn(async move {
            while let Some((node, answer)) = poll_fn(|cx| poll_heard(&outstanding, cx)).await {
                if matches!(answer, Ok(Reply::Granted { .. })) {
                    lock(&stragglers.0).push((node, counter(&answer)));
                }
            }
        });
        Hearing {
            calls,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn heard(&self) -> Vec<Grant> {
        lock(&self.0).clone()
    }

    /// The nodes.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        self.heard().into_iter().map(|(node, _)| node).collect()
    }
}

/// Those that are heard.
pub(crate) struct Hearing {
    calls: Calls,
    _task: AbortOnDropHandle<()>,
}

impl Drop for Hearing {
    /// At once, not when the task gets to it: what has not been sent is not, and nothing is sent again (A6).
    fn drop(&mut self) {
        let calls = lock(&self.calls).take();
        drop(calls);
    }
}

/// Nothing, once they are not heard any more.
type Calls = Arc<Mutex<Option<Vec<Outstanding>>>>;

/// Not with the lock held: a node of somebody's own making may drop the lease meanwhile.
fn poll_heard(calls: &Calls, cx: &mut Context<'_>) -> Poll<Option<(usize, Answer)>> {
    let mut heard = lock(calls).as_mut().map(std::mem::take).unwrap_or_default();
    let next = poll_next(&mut heard, cx);
    let left = match &mut *lock(calls) {
        Some(calls) => {
            *calls = heard;
            return next;
        }
        None => heard,
    };
    drop(left);
    Poll::Ready(None)
}

/// F1: what the node's counter is, where that is known from its answer.
pub(crate) fn counter(answer: &Answer) -> Option<FencingToken> {
    match answer {
        Ok(Reply::Granted { counter }) => *counter,
        Ok(Reply::Raised { counter }) => Some(*counter),
        _ => None,
    }
}
