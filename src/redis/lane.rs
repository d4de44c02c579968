//! The lane: one queue and one connection per node (T1), what came together goes out together (T2).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::link::Link;
use super::script::Item;
use super::time::ServerTime;
use crate::node::{Action, Fault, News, NodeState, Reply, Request};

/// Most requests in one script call: keeps a call well below a millisecond of the server's time.
const LARGEST_BATCH: usize = 128;
/// Most calls in flight from the queue. More would only make the batches smaller.
const MOST_CALLS: usize = 2;
/// T4: so many budgets without an answer, and the connection is given up.
const PATIENCE_IN_BUDGETS: u32 = 3;
/// From this length on, the queue is searched for requests whose caller is gone.
const LONG_QUEUE: usize = 1_024;

pub(super) struct Lane {
    runtime: Handle,
    state: Mutex<State>,
    status: watch::Sender<NodeState>,
    /// There may be something to send.
    wake: Notify,
    in_flight: AtomicUsize,
    time: Arc<ServerTime>,
}

struct State {
    link: Option<Arc<Link>>,
    down: Fault,
    queue: VecDeque<Job>,
    prune_at: usize,
}

/// A request and who waits for it.
struct Job {
    request: Request,
    latest: i64,
    patience: Duration,
    reply: oneshot::Sender<Result<Reply, Fault>>,
}

impl Job {
    /// T3: the caller has given up. What is not sent yet need not be.
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn answer(self, reply: Result<Reply, Fault>) {
        // Whoever has given up does not want to know.
        let _ = self.reply.send(reply);
    }

    fn is_passing_on(&self) -> bool {
        let news = Some(News::PassedOn);
        matches!(self.request.action, Action::Release { news: told, .. } if told == news)
    }

    fn is_plain(&self) -> bool {
        matches!(self.request.action, Action::Acquire { fencing: None, .. })
    }
}

/// A call under way. Its first poll, which sends it, has happened.
type Call = BoxFuture<'static, ()>;

impl Lane {
    pub(super) fn new(runtime: Handle, time: Arc<ServerTime>) -> Self {
        Lane {
            runtime,
            state: Mutex::new(State {
                link: None,
                down: Fault::Disconnected {
                    reason: "no answer yet".into(),
                },
                queue: VecDeque::new(),
                prune_at: LONG_QUEUE,
            }),
            status: watch::Sender::new(NodeState::Connecting),
            wake: Notify::new(),
            in_flight: AtomicUsize::new(0),
            time,
        }
    }

    /// Puts the request in its place in the lane, at once, and returns its reply.
    pub(super) fn call(
        self: &Arc<Self>,
        request: Request,
        budget: Duration,
    ) -> BoxFuture<'static, Result<Reply, Fault>> {
        let mut state = self.state();
        let Some(link) = state.link.clone() else {
            // A3: known to be out of reach is a fault at once. A8: and nothing waits for it to return.
            return futures_util::future::ready(Err(state.down.clone())).boxed();
        };
        // R2: while the link is at hand, for the next one may lead to a server that has restarted.
        if let Action::Acquire {
            guard: Some(guard), ..
        } = request.action
            && let Some(fault) = link.forgot_within(guard)
        {
            return futures_util::future::ready(Err(fault)).boxed();
        }
        let (reply, answer) = oneshot::channel();
        let latest = self.time.latest(budget);
        let patience = budget.saturating_mul(PATIENCE_IN_BUDGETS);
        let job = Job {
            request,
            latest,
            patience,
            reply,
        };

        // T2: an idle lane sends at once, from here. But for a lock that is passed on, the next request is to come at once, and
        // goes out together with it.
        if self.in_flight.load(Relaxed) == 0 && state.queue.is_empty() && !job.is_passing_on() {
            let call = self.start(link, vec![job]);
            return Direct {
                call,
                answer,
                runtime: self.runtime.clone(),
            }
            .boxed();
        }
        if state.queue.len() >= state.prune_at {
            state.queue.retain(|job| !job.is_abandoned());
            state.prune_at = LONG_QUEUE.max(2 * state.queue.len());
        }
        state.queue.push_back(job);
        drop(state);
        self.wake.notify_one();
        async move { answered(answer.await) }.boxed()
    }

    /// Sends what waits in the queue, for as long as the lane lasts.
    pub(super) async fn drive(self: Arc<Self>) {
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < MOST_CALLS {
                match self.next_call() {
                    Some(call) => calls.push(call),
                    None => break,
                }
            }
            tokio::select! {
                () = self.wake.notified(), if calls.len() < MOST_CALLS => {
                    // Whoever else is ready to send shall be part of the same call.
                    tokio::task::yield_now().await;
                }
                Some(()) = calls.next() => {}
            }
        }
    }

    fn next_call(self: &Arc<Self>) -> Option<Call> {
        let mut state = self.state();
        let link = state.link.clone()?;
        let mut jobs: Vec<Job> = Vec::new();
        while jobs.len() < LARGEST_BATCH {
            match state.queue.pop_front() {
                Some(job) if job.is_abandoned() => {}
                // Plain and scripted requests keep their order: a batch has one kind.
                Some(job)
                    if jobs
                        .first()
                        .is_some_and(|first| first.is_plain() != job.is_plain()) =>
                {
                    state.queue.push_front(job);
                    break;
                }
                Some(job) => jobs.push(job),
                None => {
                    state.prune_at = LONG_QUEUE;
                    break;
                }
            }
        }
        if jobs.is_empty() {
            None
        } else {
            self.start(link, jobs)
        }
    }

    /// Sends the jobs. Called while the state is locked, so that nothing can overtake them.
    ///
    /// `None` if that already was all: a broken client answers at once.
    fn start(self: &Arc<Self>, link: Arc<Link>, jobs: Vec<Job>) -> Option<Call> {
        self.in_flight.fetch_add(1, Relaxed);
        let flight = Flight(Arc::clone(self));
        // Without tokio's budget for a task: if that is used up, a first poll would send nothing, and a deletion could
        // overtake this.
        let mut call = tokio::task::unconstrained(async move {
            let _flight = flight;
            if jobs.first().is_some_and(Job::is_plain) {
                run_plain(&link, jobs).await;
            } else {
                run_scripted(&link, jobs, false).await;
            }
        })
        .boxed();
        // The caller's runtime may be another one, and end before the call does: its timers must be of ours.
        let _ours = self.runtime.enter();
        // The client hands a command to its connection when it is first polled, not before.
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Some(call),
            Poll::Ready(()) => None,
        }
    }

    /// The lane has a connection.
    pub(super) fn up(&self, link: Arc<Link>) {
        let warnings = link.warnings().to_vec();
        self.state().link = Some(link);
        self.status.send_replace(NodeState::Up { warnings });
    }

    /// The lane has none, or none any more: what was not sent is answered with the fault.
    pub(super) fn down(&self, fault: &Fault) {
        let queue = {
            let mut state = self.state();
            state.down = fault.clone();
            if let Some(link) = state.link.take() {
                link.close();
            }
            std::mem::take(&mut state.queue)
        };
        self.status.send_replace(NodeState::Down(fault.clone()));
        queue.into_iter().for_each(|job| job.answer(Err(fault.clone())));
    }

    /// The server's clock, while there is a connection.
    pub(super) fn clock(&self) -> Option<u64> {
        let connected = self.state().link.is_some();
        connected.then(|| self.time.estimate()).flatten()
    }

    /// R2: the fault that an acquire with this guard would be answered with, if there is one, without being sent.
    pub(super) fn left_out(&self, guard: Duration) -> Option<Fault> {
        self.state().link.as_ref()?.forgot_within(guard)
    }

    pub(super) fn time(&self) -> &ServerTime {
        &self.time
    }

    pub(super) fn status(&self) -> &watch::Sender<NodeState> {
        &self.status
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a call as in flight for as long as it is.
struct Flight(Arc<Lane>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// A call that its caller drives, saving the way over the lane's task.
struct Direct {
    call: Option<Call>,
    answer: oneshot::Receiver<Result<Reply, Fault>>,
    runtime: Handle,
}

impl Future for Direct {
    type Output = Result<Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(call) = &mut this.call {
            let _ours = this.runtime.enter();
            if call.as_mut().poll(cx).is_ready() {
                this.call = None;
            }
        }
        self.answer.poll_unpin(cx).map(answered)
    }
}

impl Drop for Direct {
    /// T3: a caller that gives up tears nothing down. The call goes on without it.
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.answer.close();
            self.runtime.spawn(call);
        }
    }
}

fn answered(answer: Result<Result<Reply, Fault>, oneshot::error::RecvError>) -> Result<Reply, Fault> {
    answer.unwrap_or_else(|_| {
        Err(Fault::ConnectionLost {
            reason: "the lane ended".into(),
        })
    })
}

async fn run_scripted(link: &Link, mut jobs: Vec<Job>, only_ask: bool) {
    let mut by_text = false;
    loop {
        let items: Vec<Item<'_>> = jobs.iter().map(|job| item(link, job, only_ask)).collect();
        let replies = link.eval(&items, by_text, patience(&jobs)).await;
        match replies {
            // Not executed, so it may be sent once more (A8); but only for those who still wait. Who has given up may
            // have sent a release since, and must not be overtaken by a second sending of the acquire (A6).
            Err(Fault::NoScript) if !by_text => {
                jobs.retain(|job| !job.is_abandoned());
                by_text = true;
                if jobs.is_empty() {
                    return;
                }
            }
            // One key outside of what the user may touch has the server refuse all. Each finds what it has done
            // already, and so may be asked for again (A7).
            Err(Fault::NoPermission { .. } | Fault::Server { .. }) if jobs.len() > 1 => {
                for job in jobs.into_iter().filter(|job| !job.is_abandoned()) {
                    Box::pin(run_scripted(link, vec![job], only_ask)).await;
                }
                return;
            }
            Err(fault) => return jobs.into_iter().for_each(|job| job.answer(Err(fault.clone()))),
            Ok(replies) => {
                return jobs
                    .into_iter()
                    .zip(replies)
                    .for_each(|(job, reply)| job.answer(reply));
            }
        }
    }
}

async fn run_plain(link: &Link, mut jobs: Vec<Job>) {
    let alone = if jobs.len() == 1 { jobs.pop() } else { None };
    let Some(job) = alone else {
        // What came together goes out together (T2), and only a script can do that.
        jobs.iter_mut().for_each(|job| job.latest = i64::MAX);
        return run_scripted(link, jobs, false).await;
    };
    let ttl = match job.request.action {
        Action::Acquire { ttl, .. } => ttl,
        // Not plain.
        _ => Duration::ZERO,
    };
    match link.set(&job.request, ttl, job.patience).await {
        Ok(true) => job.answer(Ok(Reply::Granted { counter: None })),
        // By whom it is held, and whether by a lock at all, only a question tells (A7, R5).
        Ok(false) => run_scripted(link, vec![job], true).await,
        Err(fault) => job.answer(Err(fault)),
    }
}

fn item<'a>(link: &Link, job: &'a Job, only_ask: bool) -> Item<'a> {
    Item {
        request: &job.request,
        latest: job.latest,
        oldest_counter: link.oldest_counter(),
        only_ask,
    }
}

/// The connection is doubted when the least patient of them would.
fn patience(jobs: &[Job]) -> Duration {
    jobs.iter().map(|job| job.patience).min().unwrap_or_default()
}
