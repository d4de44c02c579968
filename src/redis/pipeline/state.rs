//! A pipeline's connection, its queue, and what is in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;
use tokio_util::bytes::BytesMut;

use super::super::admission::Admission;
use super::super::call::{InFlight, PendingRequest};
use super::super::connection::Writer;
use super::super::link::Link;
use crate::node::Fault;
use crate::protocol::memory::MemoryId;

/// From this length on, the queue is searched for requests whose caller has given up.
pub(super) const LONG_QUEUE: usize = 1_024;
/// Most calls in flight from the queue. More would only make the batches smaller.
const MOST_CALLS: usize = 2;

/// What a pipeline's lock protects.
pub(super) struct State {
    pub(super) up: Option<(Arc<Link>, Writer)>,
    pub(super) down: Fault,
    pub(super) admission: Admission,
    /// The memory that the last connection led to.
    pub(super) memory: Option<MemoryId>,
    pub(super) queue: VecDeque<PendingRequest>,
    pub(super) prune_at: usize,
    /// What was sent and has no reply yet, in the order in which the replies come.
    pub(super) in_flight: VecDeque<InFlight>,
    /// When the connection was made, or the last reply came (T4).
    pub(super) heard: Instant,
    pub(super) has_answered: bool,
    /// The task that serves the connection. Woken when there may be something to send, or a silence to watch.
    pub(super) task: Waker,
    /// When the serving task checks for a silent connection (T4). `None` if it does not.
    pub(super) watched_until: Option<Instant>,
    /// Why the connection cannot be written to any more.
    pub(super) broken: Option<Fault>,
}

impl State {
    pub(super) fn new() -> State {
        State {
            up: None,
            down: Fault::Disconnected {
                reason: "no answer yet".into(),
            },
            admission: Admission::pending(),
            memory: None,
            queue: VecDeque::new(),
            prune_at: LONG_QUEUE,
            in_flight: VecDeque::new(),
            heard: Instant::now(),
            has_answered: false,
            task: Waker::noop().clone(),
            watched_until: None,
            broken: None,
        }
    }

    pub(super) fn link(&self) -> Option<&Arc<Link>> {
        self.up.as_ref().map(|(link, _)| link)
    }

    pub(super) fn is_current(&self, link: &Arc<Link>) -> bool {
        self.link().is_some_and(|current| Arc::ptr_eq(current, link))
    }

    /// Returns whether a request may be sent at once: nothing is queued, fewer than `MOST_CALLS` calls are in flight, and none is
    /// a batch. So a release goes out at once to a node that has not answered the acquire yet.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.may_send() && !self.in_flight.iter().any(InFlight::is_batch)
    }

    pub(super) fn may_send(&self) -> bool {
        self.in_flight.iter().filter(|pending| pending.is_call()).count() < MOST_CALLS
    }

    /// Appends a command to the buffer of this connection. If another connection is in use by now, drops `pending`.
    pub(super) fn put(&mut self, link: &Arc<Link>, pending: InFlight, encode: impl FnOnce(&mut BytesMut)) {
        if !self.is_current(link) {
            return;
        }
        if let Some((_, writer)) = &mut self.up {
            encode(writer.unsent());
            self.watch(pending);
        }
    }

    /// Adds a call or command to those in flight.
    pub(super) fn watch(&mut self, pending: InFlight) {
        let due = pending.sent + pending.doubt_delay;
        if self.watched_until.is_none_or(|until| due < until) {
            self.task.wake_by_ref();
        }
        self.in_flight.push_back(pending);
    }

    /// Returns when the connection is doubted if no reply comes before (T4). `None` if nothing is in flight.
    pub(super) fn doubted_from(&self) -> Option<Instant> {
        let due = |pending: &InFlight| self.heard.max(pending.sent) + pending.doubt_delay;
        self.in_flight.iter().map(due).min()
    }

    /// Sends what the socket takes at once. The serving task sends the rest.
    pub(super) fn flush(&mut self) {
        if let Some((_, writer)) = &mut self.up
            && !writer.is_flushed()
            && let Poll::Ready(Err(fault)) = writer.poll_flush(&mut Context::from_waker(&self.task))
        {
            self.broken = Some(fault);
            self.task.wake_by_ref();
        }
    }
}
