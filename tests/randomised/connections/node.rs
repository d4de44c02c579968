//! The nodes that the library uses.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use quorlock::simulation::{Action, Fault, Listener, Listening, Node, NodeState, Request};
use tokio::sync::oneshot;

use super::{Answer, Call, Connections, Message};

pub(crate) struct SimulatedNode {
    pub(crate) name: Arc<str>,
    pub(crate) server: usize,
    pub(crate) connections: Arc<Connections>,
}

impl fmt::Debug for SimulatedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Node for SimulatedNode {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Answer> {
        let (now, local) = (self.connections.now(), self.connections.local());
        let mut inner = self.connections.inner();
        let link = &inner.links[self.server];
        // Votes count only after a recent look (M3).
        let needs_look = matches!(
            request.action,
            Action::Acquire { guard: Some(_), .. } | Action::Extend { guarded: true, .. }
        );
        let is_known = !needs_look || local < link.looked.saturating_add(self.connections.look_period);
        let Some((_, memory)) = link.memory.clone().filter(|_| link.up && is_known) else {
            let reason = "simulated".into();
            return ready(Err(Fault::Disconnected { reason })).boxed();
        };
        let latest = link.clock.as_ref().map_or(0, |clock| clock.latest(local));
        let call = Call {
            server: self.server,
            connection: link.connection,
            run: link.run,
            id: inner.id(),
            latest: latest.saturating_add(budget.as_micros() as i64),
            memory,
            sent: now,
            budget: budget.as_millis() as u64,
            sent_local: local,
            request,
        };
        let owner = call.request.owner;
        match call.request.action {
            Action::Acquire { .. } => {
                if let Some(acquire) = inner.acquire {
                    inner.owners.insert(acquire, owner);
                    inner.acquires.insert(owner, acquire);
                }
                inner.last_sent.insert(owner, local);
            }
            Action::Extend { .. } => {
                inner.last_sent.insert(owner, local);
            }
            _ => {}
        }
        let (reply, answer) = oneshot::channel();
        inner.links[self.server].waiting.insert(call.id, reply);
        inner.outbox.push(Message::Call(Box::new(call)));
        drop(inner);
        self.connections.sent.notify_one();
        async move {
            answer.await.unwrap_or_else(|_| {
                Err(Fault::ConnectionLost {
                    reason: "the simulation ended".into(),
                })
            })
        }
        .boxed()
    }

    fn connection(&self) -> Option<u64> {
        Some(self.connections.inner().links[self.server].connection.into())
    }

    fn epoch(&self) -> u64 {
        self.connections.inner().links[self.server].epoch
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        let id = {
            let mut inner = self.connections.inner();
            let id = inner.id();
            inner.listeners.insert((self.server, id), (key.clone(), listener));
            id
        };
        self.connections.send(Message::Listen(self.server, id));
        Some(Box::new(StopListening {
            server: self.server,
            id,
            connections: self.connections.clone(),
        }))
    }

    fn clock(&self) -> Option<u64> {
        let local = self.connections.local();
        let inner = self.connections.inner();
        let link = &inner.links[self.server];
        let clock = link.clock.as_ref().filter(|_| link.up)?;
        u64::try_from(clock.estimate(local)).ok()
    }

    fn late_by(&self) -> Option<Duration> {
        let local = self.connections.local();
        let inner = self.connections.inner();
        let uncertainty = inner.links[self.server].clock.as_ref()?.uncertainty(local);
        Some(Duration::from_micros(uncertainty.unsigned_abs()))
    }

    fn clock_advanced(&self) -> Duration {
        Duration::from_micros(self.connections.inner().links[self.server].advanced)
    }

    fn status(&self) -> NodeState {
        NodeState::Up { warnings: Vec::new() }
    }
}

struct StopListening {
    server: usize,
    id: u64,
    connections: Arc<Connections>,
}

impl Drop for StopListening {
    fn drop(&mut self) {
        let left = self.connections.inner().listeners.remove(&(self.server, self.id));
        // Not while `connections` is locked: this may be the listener's last reference.
        drop(left);
        self.connections
            .send(Message::StopListening(self.server, self.id));
    }
}

/// An acquire. Requests that are sent while it is polled belong to it.
pub(crate) struct Tagged<F> {
    pub(crate) connections: Arc<Connections>,
    pub(crate) acquire: u32,
    pub(crate) future: Pin<Box<F>>,
}

impl<F: Future> Future for Tagged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.connections.inner().acquire = Some(this.acquire);
        let polled = this.future.as_mut().poll(context);
        this.connections.inner().acquire = None;
        polled
    }
}
