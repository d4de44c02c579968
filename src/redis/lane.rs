//! The lane: one queue and one connection per node (T1), what came together goes out together (T2).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep, sleep_until};

use super::admission::Admission;
use super::call::{Call, Job, Manner, Resend, answer_all};
use super::link::Link;
use super::time::ServerTime;
use crate::mutex::lock;
use crate::node::{Action, Fault, NodeState, Reply, Request};
use crate::protocol::memory::MemoryId;

/// Most requests in one script call: keeps a call well below a millisecond of the server's time.
const LARGEST_BATCH: usize = 128;
/// Most calls in flight from the queue. More would only make the batches smaller.
const MOST_CALLS: usize = 2;
/// T4: so many budgets without an answer, and the connection is given up.
const PATIENCE_IN_BUDGETS: u32 = 3;
/// From this length on, the queue is searched for requests whose caller is gone.
const LONG_QUEUE: usize = 1_024;

pub(super) struct Lane {
    state: Mutex<State>,
    /// How often the connection has come and gone, or something was sent once more. Changed with the state locked.
    changes: AtomicU64,
    epoch: AtomicU64,
    status: watch::Sender<NodeState>,
    time: Arc<ServerTime>,
}

struct State {
    link: Option<Arc<Link>>,
    down: Fault,
    admission: Admission,
    /// The memory that the last connection led to.
    memory: Option<MemoryId>,
    queue: VecDeque<Job>,
    prune_at: usize,
    /// What was sent and is not answered yet, in the order in which the answers come.
    calls: VecDeque<Call>,
    /// The lane's own task: woken by answers, and when there may be something to send or to watch.
    task: Waker,
    /// T4: until when nothing in flight need be doubted. `None` if nothing is watched.
    watched_until: Option<Instant>,
    over: bool,
}

impl Lane {
    pub(super) fn new(time: Arc<ServerTime>) -> Self {
        Lane {
            state: Mutex::new(State {
                link: None,
                down: Fault::Disconnected {
                    reason: "no answer yet".into(),
                },
                admission: Admission::pending(),
                memory: None,
                queue: VecDeque::new(),
                prune_at: LONG_QUEUE,
                calls: VecDeque::new(),
                task: Waker::noop().clone(),
                watched_until: None,
                over: false,
            }),
            changes: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            status: watch::Sender::new(NodeState::Connecting),
            time,
        }
    }

    /// Puts the request in its place in the lane, at once, and returns its reply.
    ///
    /// T3: a caller that gives up tears nothing down. What was sent goes on without it.
    pub(super) fn call(
        &self,
        request: Request,
        budget: Duration,
    ) -> BoxFuture<'static, Result<Reply, Fault>> {
        let mut state = self.state();
        if state.link.is_none() {
            // A3: known to be out of reach is a fault at once. A8: and nothing waits for it to return.
            return futures_util::future::ready(Err(state.down.clone())).boxed();
        };
        let now = Instant::now();
        let objection = state.admission.objection(&request.action, self.time.moment(now));
        if let (Action::Acquire { .. }, Some(fault)) = (request.action, &objection) {
            return futures_util::future::ready(Err(fault.clone())).boxed();
        }
        let (reply, answer) = oneshot::channel();
        let limit = state
            .admission
            .limit(&request.action, budget, self.time.moment(now));
        let job = Job {
            request,
            latest: self.time.latest(self.time.at(now), limit),
            patience: budget.saturating_mul(PATIENCE_IN_BUDGETS),
            objection,
            reply,
        };
        // T2: an idle lane sends at once, from here. But for a lock that is passed on, the next request is to come at once, and
        // goes out together with it.
        if state.is_idle() && !job.is_passing_on() {
            self.start(state, Manner::Digest, vec![job], now);
        } else {
            if state.queue.len() >= state.prune_at {
                state.queue.retain(|job| !job.is_abandoned());
                state.prune_at = LONG_QUEUE.max(2 * state.queue.len());
            }
            state.queue.push_back(job);
            if state.may_send() {
                state.task.wake_by_ref();
            }
        }
        answer.map(answered).boxed()
    }

    /// Takes in answers and sends what waits in the queue, until the lane ends.
    pub(super) async fn drive(self: Arc<Self>) {
        let mut watch = pin!(sleep_until(Instant::now()));
        while poll_fn(|cx| self.poll_turn(watch.as_mut(), cx)).await {
            // Whoever else is ready to send shall be part of the same call.
            tokio::task::yield_now().await;
            self.send_next();
        }
    }

    /// Takes in what has come. Ready when there is something to send; with `false`, when there never will be.
    fn poll_turn(&self, mut watch: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let mut state = self.state();
            if !state.task.will_wake(cx.waker()) {
                state.task = cx.waker().clone();
            }
            // Answers come in order, so the oldest call is the only one to look at.
            if let Some(call) = state.calls.front_mut()
                && let Poll::Ready(answer) = call.poll(cx)
                && let Some(call) = state.calls.pop_front()
            {
                drop(state);
                self.take_in(call.finish(answer));
                continue;
            }
            if let Some(due) = state.calls.iter().filter_map(|call| call.doubted_from).min()
                && state.watched_until.is_none_or(|until| due < until)
            {
                watch.as_mut().reset(due);
                state.watched_until = Some(due);
            }
            if state.watched_until.is_some() && watch.as_mut().poll(cx).is_ready() {
                state.watched_until = None;
                let now = Instant::now();
                state.calls.iter_mut().for_each(|call| call.doubt(now));
                continue;
            }
            return match state.may_send() && !state.queue.is_empty() {
                _ if state.over => Poll::Ready(false),
                true => Poll::Ready(true),
                false => Poll::Pending,
            };
        }
    }

    fn send_next(&self) {
        let mut state = self.state();
        let mut jobs: Vec<Job> = Vec::with_capacity(state.queue.len().min(LARGEST_BATCH));
        while jobs.len() < LARGEST_BATCH {
            match state.queue.pop_front() {
                Some(job) if job.is_abandoned() => {}
                Some(job) => jobs.push(job),
                None => {
                    state.prune_at = LONG_QUEUE;
                    break;
                }
            }
        }
        if !jobs.is_empty() {
            self.start(state, Manner::Digest, jobs, Instant::now());
        }
    }

    /// Sends the jobs, while the state is locked, so that nothing can overtake them.
    fn start(&self, mut state: MutexGuard<'_, State>, manner: Manner, jobs: Vec<Job>, now: Instant) {
        let Some(link) = state.link.clone() else {
            let fault = state.down.clone();
            drop(state);
            return jobs.into_iter().for_each(|job| job.answer(Err(fault.clone())));
        };
        let mut call = Call::new(link, manner, jobs, self.time.at(now), now);
        // The client hands a command to its connection when it is first polled, not before.
        match call.poll(&mut Context::from_waker(&state.task)) {
            Poll::Pending => {
                let unwatched = |due| state.watched_until.is_none_or(|until| due < until);
                if call.doubted_from.is_some_and(unwatched) {
                    state.task.wake_by_ref();
                }
                state.calls.push_back(call);
            }
            // A broken client answers at once.
            Poll::Ready(answer) => {
                drop(state);
                self.take_in(call.finish(answer));
            }
        }
    }

    /// What a call was answered with leaves this to be sent, for those who still wait. Who has given up may have sent a release
    /// since, which must not be overtaken by a second sending of the acquire (A6).
    fn take_in(&self, Resend(link, again): Resend) {
        for (manner, mut jobs) in again {
            // Locked first: from here on, a release comes behind this.
            let state = self.state();
            jobs.retain(|job| !job.is_abandoned());
            if jobs.is_empty() {
                continue;
            }
            // The next connection may lead to another memory, which nobody has admitted.
            if !state
                .link
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, &link))
            {
                let fault = state.down.clone();
                drop(state);
                answer_all(jobs, &Err(fault));
                continue;
            }
            // It may be behind a release of somebody who has not given it up yet, and so is not in the order of this connection.
            self.changes.fetch_add(1, SeqCst);
            self.start(state, manner, jobs, Instant::now());
        }
    }

    /// The lane has a connection. It counts as up once it is admitted; at once, if the memory was before.
    pub(super) fn up(&self, link: Arc<Link>) {
        let id = link.memory().id;
        let warnings = link.warnings().to_vec();
        let mut state = self.state();
        state.link = Some(link);
        self.changes.fetch_add(1, SeqCst);
        if state.memory.replace(id) == Some(id) && state.admission.registered {
            drop(state);
            self.status.send_replace(NodeState::Up { warnings });
            return;
        }
        state.admission = Admission::pending();
        self.epoch.fetch_add(1, SeqCst);
    }

    /// What the node may be asked over the connection that leads to the memory `id`, if that is still the one in use.
    pub(super) fn admit(&self, id: MemoryId, admission: Admission) {
        let warnings = {
            let mut state = self.state();
            let Some(link) = state.link.as_ref().filter(|link| link.memory().id == id) else {
                return;
            };
            let warnings = link.warnings().to_vec();
            if admission.is_worse_than(&state.admission, self.time.moment(Instant::now())) {
                self.epoch.fetch_add(1, SeqCst);
            }
            state.admission = admission;
            warnings
        };
        self.status.send_replace(NodeState::Up { warnings });
    }

    /// The other clients could not be told of the node, for this reason. It is not up then, unless they know already.
    pub(super) fn not_admitted(&self, fault: &Fault) {
        if !self.state().admission.registered {
            self.status.send_replace(NodeState::Down(fault.clone()));
        }
    }

    /// Rises whenever votes that were given before do not count any more.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// The connection, while there is one.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.state().link.clone()
    }

    /// The lane has none, or none any more: what was not sent is answered with the fault.
    pub(super) fn down(&self, fault: &Fault) {
        let (calls, queue) = {
            let mut state = self.state();
            state.down = fault.clone();
            state.link = None;
            self.changes.fetch_add(1, SeqCst);
            (std::mem::take(&mut state.calls), std::mem::take(&mut state.queue))
        };
        self.status.send_replace(NodeState::Down(fault.clone()));
        // What is in flight will not be answered any more, unless it has been.
        for mut call in calls {
            let answer = match call.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => answer,
                Poll::Pending => Err(Fault::ConnectionLost {
                    reason: "closed before the answer".into(),
                }),
            };
            self.take_in(call.finish(answer));
        }
        queue.into_iter().for_each(|job| job.answer(Err(fault.clone())));
    }

    /// There will be no connection any more.
    pub(super) fn end(&self, fault: &Fault) {
        self.down(fault);
        let mut state = self.state();
        state.over = true;
        state.task.wake_by_ref();
    }

    /// A number that is another one whenever the order of what was sent before is lost.
    pub(super) fn connection(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// The server's clock, while there is a connection.
    pub(super) fn clock(&self) -> Option<u64> {
        let connected = self.state().link.is_some();
        connected.then(|| self.time.estimate()).flatten()
    }

    /// The fault that an acquire with this guard would be answered with, as far as can be told without sending it.
    pub(super) fn left_out(&self, guard: Option<Duration>) -> Option<Fault> {
        let state = self.state();
        let link = state.link.as_ref()?;
        let refused = state
            .admission
            .objection_to_locks(guard.is_some(), self.time.moment(Instant::now()));
        refused.or_else(|| link.too_early(guard))
    }

    pub(super) fn time(&self) -> &Arc<ServerTime> {
        &self.time
    }

    pub(super) fn status(&self) -> &watch::Sender<NodeState> {
        &self.status
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Nothing waits, and what is in flight are single requests, of which one more may join them. A caller that takes the
    /// lock from a quorum and releases it finds the others like that.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.may_send() && self.calls.iter().all(Call::is_single)
    }

    fn may_send(&self) -> bool {
        self.calls.len() < MOST_CALLS
    }
}

fn answered(answer: Result<Result<Reply, Fault>, oneshot::error::RecvError>) -> Result<Reply, Fault> {
    answer.unwrap_or_else(|_| {
        Err(Fault::ConnectionLost {
            reason: "the lane ended".into(),
        })
    })
}

#[cfg(all(test, feature = "testbed"))]
mod tests;
