//! The pipeline: one queue and one connection per node (T1). Requests that wait together go out in one call (T2).

mod state;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::bytes::BytesMut;

use super::admission::Admission;
use super::call::{Call, InFlight, PendingRequest, Sent, answer_all};
use super::connection::{Reader, Writer};
use super::link::Link;
use super::resp::Value;
use super::time::ServerTime;
use crate::node::{Action, Fault, NodeState, Reply, Request};
use crate::protocol::memory::MemoryId;
use crate::sys::metrics::NodeMeter;
use crate::sys::mutex::lock;
use state::{LONG_QUEUE, State};

/// Most requests in one script call. So a call takes well below a millisecond of the server's time.
const LARGEST_BATCH: usize = 128;

pub(super) struct Pipeline {
    state: Mutex<State>,
    /// Changed only with the state locked.
    changes: AtomicU64,
    epoch: AtomicU64,
    status: watch::Sender<NodeState>,
    doubted: watch::Sender<bool>,
    time: Arc<ServerTime>,
    meter: NodeMeter,
}

impl Pipeline {
    pub(super) fn new(time: Arc<ServerTime>) -> Self {
        Pipeline {
            state: Mutex::new(State::new()),
            changes: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            status: watch::Sender::new(NodeState::Connecting),
            doubted: watch::Sender::new(false),
            meter: NodeMeter::new(time.node()),
            time,
        }
    }

    /// Puts the request into the pipeline during this call, and returns its reply.
    ///
    /// A caller that gives up closes no connection. A request that was sent is executed all the same (T3).
    pub(super) fn call(
        &self,
        request: Request,
        budget: Duration,
    ) -> BoxFuture<'static, Result<Reply, Fault>> {
        let mut state = self.state();
        if state.up.is_none() {
            // A node without a connection is a fault at once (A3), and no request waits for the next connection (A8).
            return futures_util::future::ready(Err(state.down.clone())).boxed();
        };
        let now = Instant::now();
        let moment = self.time.moment(now);
        let objection = state.admission.objection(&request.action, moment);
        if let (Action::Acquire { .. }, Some(fault)) = (request.action, &objection) {
            return futures_util::future::ready(Err(fault.clone())).boxed();
        }
        let (reply, answer) = oneshot::channel();
        let limit = state.admission.limit(&request.action, budget, moment);
        let request = PendingRequest {
            request,
            latest: self.time.latest(self.time.at(now), limit),
            budget,
            objection,
            reply,
        };
        // An idle pipeline sends at once, from the caller's task (T2). A release that hands the lock over waits for the acquire
        // that follows, so that both go out in one call.
        if state.is_idle() && !request.hands_lock_over() {
            self.put(&mut state, vec![request], false, now);
            state.flush();
        } else {
            if state.queue.len() >= state.prune_at {
                state.queue.retain(|request| !request.is_abandoned());
                state.prune_at = LONG_QUEUE.max(2 * state.queue.len());
            }
            state.queue.push_back(request);
            if state.may_send() {
                state.task.wake_by_ref();
            }
        }
        answer.map(answered).boxed()
    }

    /// Sends commands that are no requests for locks over this connection, and waits for their replies.
    pub(super) async fn ask(&self, link: &Arc<Link>, commands: &[BytesMut]) -> Result<Vec<Value>, Fault> {
        let asked: Vec<_> = {
            let mut state = self.state();
            let now = Instant::now();
            let asked = commands.iter().map(|command| {
                let (reply, answer) = oneshot::channel();
                state.put(link, InFlight::command(reply, now), |to| {
                    to.extend_from_slice(command)
                });
                answer
            });
            let asked = asked.collect();
            state.flush();
            asked
        };
        let mut replies = Vec::with_capacity(asked.len());
        for answer in asked {
            replies.push(answer.await.unwrap_or_else(|_| Err(ended()))?);
        }
        Ok(replies)
    }

    /// Sends one such command over the connection in use, and waits for its reply.
    pub(super) async fn ask_one(&self, command: BytesMut) -> Result<Value, Fault> {
        let link = {
            let state = self.state();
            state.link().cloned().ok_or_else(|| state.down.clone())?
        };
        let mut replies = self.ask(&link, &[command]).await?;
        replies.pop().ok_or_else(ended)
    }

    /// Takes in replies and sends queued requests until the connection ends. Returns why it ended.
    pub(super) async fn serve(&self, link: &Arc<Link>, reader: &mut Reader) -> Fault {
        let mut watch = pin!(sleep_until(Instant::now()));
        loop {
            if let Err(fault) = poll_fn(|cx| self.poll_turn(link, reader, watch.as_mut(), cx)).await {
                return fault;
            }
            // Requests of other tasks that are ready now become part of the same call.
            tokio::task::yield_now().await;
            self.send_next();
        }
    }

    /// Takes in the replies that have come. Ready when there is something to send, or with the fault that ended the connection.
    fn poll_turn(
        &self,
        link: &Arc<Link>,
        reader: &mut Reader,
        mut watch: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        while let Poll::Ready(reply) = reader.poll_reply(cx) {
            self.dispatch_reply(link, reply?)?;
        }
        let mut state = self.state();
        if !state.task.will_wake(cx.waker()) {
            state.task = cx.waker().clone();
        }
        state.flush();
        if let Some(fault) = state.broken.take() {
            return Poll::Ready(Err(fault));
        }
        loop {
            if state.watched_until.is_some() && watch.as_mut().poll(cx).is_ready() {
                state.watched_until = None;
            }
            match state.doubted_from() {
                Some(due) if due <= Instant::now() => {
                    self.set_doubted(true);
                }
                Some(due) if state.watched_until.is_none_or(|until| due < until) => {
                    watch.as_mut().reset(due);
                    state.watched_until = Some(due);
                    // Poll the timer again, so that it wakes this task.
                    continue;
                }
                _ => {}
            }
            break;
        }
        match state.may_send() && !state.queue.is_empty() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Hands a reply to its caller: replies come in the order of the requests.
    fn dispatch_reply(&self, link: &Arc<Link>, reply: Value) -> Result<(), Fault> {
        let pending = {
            let mut state = self.state();
            (state.heard, state.has_answered) = (Instant::now(), true);
            state.in_flight.pop_front()
        };
        self.set_doubted(false);
        if let Some(call) = pending.as_ref().filter(|pending| pending.is_call()) {
            self.meter.answered(call.sent.elapsed());
        }
        match pending.map(|pending| pending.sent_as) {
            Some(Sent::Call(call)) => self.send_again(link, call.finish(link, reply)?),
            Some(Sent::Command(asked)) => drop(asked.send(reply.into_result())),
            None => {
                return Err(Fault::Protocol {
                    detail: "a reply without a request".into(),
                });
            }
        }
        Ok(())
    }

    fn send_next(&self) {
        let mut state = self.state();
        let mut requests: Vec<PendingRequest> = Vec::with_capacity(state.queue.len().min(LARGEST_BATCH));
        while requests.len() < LARGEST_BATCH {
            match state.queue.pop_front() {
                Some(request) if request.is_abandoned() => {}
                Some(request) => requests.push(request),
                None => {
                    state.prune_at = LONG_QUEUE;
                    break;
                }
            }
        }
        if !requests.is_empty() {
            self.put(&mut state, requests, false, Instant::now());
            state.flush();
        }
    }

    /// Puts a call into the connection's buffer. The state is locked meanwhile, so that no request can overtake it.
    fn put(&self, state: &mut State, requests: Vec<PendingRequest>, by_text: bool, now: Instant) {
        let sent = self.time.at(now);
        let call = Call {
            requests,
            by_text,
            sent,
        };
        let Some((link, writer)) = &mut state.up else {
            let fault = state.down.clone();
            return answer_all(call.requests, &Err(fault));
        };
        link.encode(call.items(), by_text, writer.unsent());
        state.watch(InFlight::call(call, now));
    }

    /// Resends requests whose callers still wait. A caller that has given up may have sent a release, which the acquire must not
    /// follow (A6).
    fn send_again(&self, link: &Arc<Link>, again: Vec<(bool, Vec<PendingRequest>)>) {
        for (by_text, mut requests) in again {
            // Lock before looking: a release that is sent from now on is behind this request.
            let mut state = self.state();
            requests.retain(|request| !request.is_abandoned());
            if requests.is_empty() {
                continue;
            }
            // Another connection may lead to another memory, which is not admitted.
            if !state.is_current(link) {
                let fault = state.down.clone();
                drop(state);
                answer_all(requests, &Err(fault));
                continue;
            }
            // The request is now behind later ones, perhaps behind its own release. A new number tells callers that the order is
            // lost (A6).
            self.changes.fetch_add(1, SeqCst);
            self.put(&mut state, requests, by_text, Instant::now());
            state.flush();
        }
    }

    /// Returns whether the connection has answered anything since the probe (R3).
    pub(super) fn has_answered(&self) -> bool {
        self.state().has_answered
    }

    /// Completes once the connection has been silent for too long (T4).
    pub(super) async fn wait_until_doubted(&self) {
        self.wait_until_doubted_is(true).await;
    }

    /// Completes once the connection has answered after all.
    pub(super) async fn wait_until_trusted(&self) {
        self.wait_until_doubted_is(false).await;
    }

    fn set_doubted(&self, to: bool) {
        self.doubted
            .send_if_modified(|doubted| std::mem::replace(doubted, to) != to);
    }

    async fn wait_until_doubted_is(&self, doubted: bool) {
        let mut changes = self.doubted.subscribe();
        // The sender is in `self`.
        let _ = changes.wait_for(|now| *now == doubted).await;
    }

    /// Takes a new connection, perhaps in place of another one. Requests in flight on the other one fail. The node counts as up
    /// once its memory is admitted; at once, if it was admitted before.
    pub(super) fn up(&self, link: Arc<Link>, writer: Writer) {
        let id = link.memory().id;
        let warnings = link.warnings().to_vec();
        let (is_known, lost, unsent) = {
            let mut state = self.state();
            state.up = Some((link, writer));
            (state.heard, state.has_answered) = (Instant::now(), false);
            (state.watched_until, state.broken) = (None, None);
            self.changes.fetch_add(1, SeqCst);
            let lost = std::mem::take(&mut state.in_flight);
            let is_known = state.memory.replace(id) == Some(id) && state.admission.registered;
            let unsent = match is_known {
                true => VecDeque::new(),
                false => std::mem::take(&mut state.queue),
            };
            if !is_known {
                state.admission = Admission::pending();
                self.epoch.fetch_add(1, SeqCst);
            }
            (is_known, lost, unsent)
        };
        self.set_doubted(false);
        if is_known {
            self.set_status(NodeState::Up { warnings });
        }
        let replaced = "no answer, and another connection has taken its place";
        lost.into_iter()
            .for_each(|pending| pending.fail(&lost_for(replaced)));
        unsent
            .into_iter()
            .for_each(|request| request.answer(Err(Fault::Unregistered)));
    }

    /// Sets which votes of the node count, if the connection still leads to the memory `id`.
    pub(super) fn admit(&self, id: MemoryId, admission: Admission) {
        let warnings = {
            let mut state = self.state();
            let Some(link) = state.link().filter(|link| link.memory().id == id) else {
                return;
            };
            let warnings = link.warnings().to_vec();
            if admission.is_worse_than(&state.admission, self.time.moment(Instant::now())) {
                self.epoch.fetch_add(1, SeqCst);
            }
            state.admission = admission;
            warnings
        };
        self.set_status(NodeState::Up { warnings });
    }

    /// Records that this client could not register on the node, which is then down unless its memory was admitted before.
    pub(super) fn not_admitted(&self, fault: &Fault) {
        if !self.state().admission.registered {
            self.set_status(NodeState::Down(fault.clone()));
        }
    }

    /// Returns a number that rises whenever earlier votes do not count any more.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.state().link().cloned()
    }

    /// Takes the connection away, if there is one. Queued requests fail with `fault`, requests in flight as lost.
    pub(super) fn down(&self, fault: &Fault) {
        let (lost, unsent, closed) = {
            let mut state = self.state();
            state.down = fault.clone();
            self.changes.fetch_add(1, SeqCst);
            let lost = std::mem::take(&mut state.in_flight);
            (lost, std::mem::take(&mut state.queue), state.up.take())
        };
        drop(closed);
        self.set_doubted(false);
        self.set_status(NodeState::Down(fault.clone()));
        let closed = match fault {
            Fault::Protocol { .. } => fault.clone(),
            _ => lost_for("closed before the answer"),
        };
        lost.into_iter().for_each(|pending| pending.fail(&closed));
        unsent
            .into_iter()
            .for_each(|request| request.answer(Err(fault.clone())));
    }

    /// Returns a number that changes whenever the order of requests is lost: the connection has changed, or a request was resent.
    pub(super) fn connection(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Returns the server's clock; `None` without a connection.
    pub(super) fn clock(&self) -> Option<u64> {
        let connected = self.state().up.is_some();
        connected.then(|| self.time.estimate()).flatten()
    }

    /// Returns the fault that an acquire would get, as far as known without sending it. `None` also without a connection.
    pub(super) fn left_out(&self, guard: Option<Duration>) -> Option<Fault> {
        let state = self.state();
        let link = state.link()?;
        let refused = state
            .admission
            .objection_to_locks(guard.is_some(), self.time.moment(Instant::now()));
        refused.or_else(|| link.too_early(guard))
    }

    /// Returns whether the node's votes do not count until this client has looked at it again.
    pub(super) fn is_overdue(&self) -> bool {
        let state = self.state();
        state.up.is_some() && state.admission.is_overdue(self.time.moment(Instant::now()))
    }

    pub(super) fn time(&self) -> &Arc<ServerTime> {
        &self.time
    }

    fn set_status(&self, state: NodeState) {
        self.meter.up(matches!(state, NodeState::Up { .. }));
        self.status.send_replace(state);
    }

    /// Measures what was found out about the node.
    pub(super) fn measure(&self, guard: Option<Duration>) {
        let left_out = self.left_out(guard);
        let gives_locks = left_out.is_none() && matches!(*self.status.borrow(), NodeState::Up { .. });
        let remaining = left_out.and_then(|fault| fault.gives_locks_in());
        self.meter
            .record_look(gives_locks, remaining.unwrap_or_default(), self.clock());
    }

    pub(super) fn status(&self) -> &watch::Sender<NodeState> {
        &self.status
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn answered(answer: Result<Result<Reply, Fault>, oneshot::error::RecvError>) -> Result<Reply, Fault> {
    answer.unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Fault {
    lost_for("the connection has ended")
}

fn lost_for(reason: &str) -> Fault {
    Fault::ConnectionLost {
        reason: reason.into(),
    }
}

#[cfg(all(test, feature = "testbed"))]
mod tests;
