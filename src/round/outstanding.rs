//! One request to one node, and the check that the reply fits it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::Instant;

use crate::context::Context;
use crate::node::{Action, Fault, Fencing, Node, NodeState, Reply, Request};
use crate::node::{Answer, Nodes};
use crate::protocol::fencing::credible;
use crate::sys::runtime::Runtime;

/// A request without an answer.
pub(crate) struct Outstanding {
    pub(crate) number: usize,
    node: Arc<dyn Node>,
    request: Request,
    runtime: Runtime,
    until: Instant,
    /// The number of the connection before the request was sent.
    connection: Option<u64>,
    /// Why the first request was lost, if it was sent once more (A8).
    pub(super) lost: Option<Fault>,
    pub(crate) call: BoxFuture<'static, Answer>,
}

impl Future for Outstanding {
    type Output = (usize, Answer);

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        loop {
            let answer = ready!(self.call.poll_unpin(cx));
            if let Err(fault) = &answer
                && self.is_replaced(fault)
            {
                self.lost = Some(fault.clone());
                self.send_again();
                continue;
            }
            let action = self.request.action;
            let answer = match (answer, self.lost.clone()) {
                (Err(_), Some(first)) => Err(first),
                // Either deletion may have deleted the key, so this answer does not tell whether the key was there.
                (Ok(Reply::Missing), Some(first)) if matches!(action, Action::Release { .. }) => Err(first),
                (answer, _) => answer.and_then(|reply| fitting(reply, action)),
            };
            return Poll::Ready((self.number, answer));
        }
    }
}

impl Outstanding {
    /// Returns whether the request was lost with its connection, and another connection has taken its place in time (A8).
    fn is_replaced(&self, fault: &Fault) -> bool {
        matches!(fault, Fault::ConnectionLost { .. })
            && self.lost.is_none()
            && self.connection.is_some()
            && self.connection < self.node.connection()
            && matches!(self.node.status(), NodeState::Up { .. })
            && Instant::now() < self.until
    }

    fn send_again(&mut self) {
        let left = self.until.saturating_duration_since(Instant::now());
        let _entered = self.runtime.enter();
        self.call = self.node.call(self.request.clone(), left);
    }
}

/// Waits for the first of the requests to be answered, and takes it out. `None` if there is no request. Cancel safe.
pub(crate) async fn next_of(outstanding: &mut Vec<Outstanding>) -> Option<(usize, Answer)> {
    let (call, answer) = take_next(outstanding).await?;
    Some((call.number, answer))
}

pub(super) async fn take_next(outstanding: &mut Vec<Outstanding>) -> Option<(Outstanding, Answer)> {
    poll_fn(|cx| {
        if outstanding.is_empty() {
            return Poll::Ready(None);
        }
        let answered = outstanding.iter_mut().enumerate();
        let mut first = answered.filter_map(|(at, call)| match call.poll_unpin(cx) {
            Poll::Ready((_, answer)) => Some((at, answer)),
            Poll::Pending => None,
        });
        match first.next() {
            Some((at, answer)) => Poll::Ready(Some((outstanding.swap_remove(at), answer))),
            None => Poll::Pending,
        }
    })
    .await
}

/// Sends a request to one node.
pub(crate) fn ask(
    nodes: &Nodes,
    number: usize,
    request: Request,
    budget: Duration,
    context: &Context,
) -> Outstanding {
    let _entered = context.runtime.enter();
    let node = nodes[number].clone();
    Outstanding {
        number,
        runtime: context.runtime.clone(),
        until: Instant::now() + budget,
        connection: node.connection(),
        lost: None,
        call: node.call(request.clone(), budget),
        node,
        request,
    }
}

/// Returns the reply, or a fault if it does not fit the request.
fn fitting(reply: Reply, action: Action) -> Answer {
    let fits = match action {
        Action::Acquire { fencing, .. } => return granted(reply, fencing),
        Action::Heal { fencing, .. } => return granted(reply, fencing.map(|(fencing, _)| fencing)),
        Action::Raise { token } => match reply {
            Reply::Raised { counter } => counter >= token,
            reply => matches!(reply, Reply::Missing | Reply::Foreign),
        },
        Action::Extend { .. } => matches!(reply, Reply::Extended | Reply::Missing | Reply::Foreign),
        Action::Announce(_) => matches!(reply, Reply::Announced),
        Action::Release { .. } => matches!(reply, Reply::Released { .. } | Reply::Missing | Reply::Foreign),
        Action::Mark { .. } => matches!(reply, Reply::Mark { .. } | Reply::Missing | Reply::Foreign),
    };
    if fits { Ok(reply) } else { Err(unfitting(reply)) }
}

fn granted(reply: Reply, fencing: Option<Fencing>) -> Answer {
    match (reply, fencing) {
        (Reply::Held { .. }, _) | (Reply::Granted { counter: None }, None) => Ok(reply),
        (
            Reply::Granted {
                counter: Some(counter),
            },
            Some(fencing),
        ) => {
            if credible(counter, fencing.seed) {
                Ok(reply)
            } else {
                Err(Fault::Protocol {
                    detail: format!("fencing counter {counter}: years ahead of the clock").into(),
                })
            }
        }
        // For instance a grant without a counter, although one was asked for. It must not become a lease without a token.
        _ => Err(unfitting(reply)),
    }
}

fn unfitting(reply: Reply) -> Fault {
    Fault::Protocol {
        detail: format!("{reply:?} does not answer what was asked").into(),
    }
}
