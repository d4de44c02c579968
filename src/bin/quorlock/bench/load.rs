//! Measures acquires and releases by one task or by many: each with its own lock, or all with one that is handed over.
//!
//! A closed loop: each task asks again after an answer. So a stall counts once for each task, however long it lasts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::Redlock;
use rustix::time::ClockId;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Window};
use super::tally::{Failures, Faults, Latencies, lock};
use crate::guard::time;

/// The pause after a failure. A million failures at once would show no more than a hundred.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    pub(crate) tasks: usize,
    pub(crate) contended: bool,
    pub(crate) acquire: Latencies,
    pub(crate) release: Latencies,
    /// From the call that releases a contended lock to the next grant.
    pub(crate) gap: Latencies,
    pub(crate) failures: Failures,
    /// Locks acquired and released, until the end of the window.
    pub(crate) per_second: f64,
    /// The share of one processor that this process took.
    pub(crate) cpu_percent: f64,
    released_at: Option<Instant>,
}

impl Load {
    /// Returns the measurements after the round trips: one for each number of tasks, and the hand-over.
    pub(crate) fn planned(plan: &Plan) -> impl Iterator<Item = Load> {
        let apart = plan.args.tasks.iter().map(|&tasks| (tasks, false));
        let loads = apart.chain([(plan.args.waiters, true)]);
        loads.map(|(tasks, contended)| Load {
            tasks,
            contended,
            ..Load::default()
        })
    }

    pub(crate) fn name(&self) -> String {
        match (self.contended, self.tasks) {
            (true, waiters) => format!("hand-over, {waiters} waiters"),
            (false, 1) => "one task".to_owned(),
            (false, tasks) => format!("{tasks} tasks"),
        }
    }
}

/// Starts the counters of the locks, unless all tasks want one, and then measures.
pub(crate) async fn load(
    plan: &Arc<Plan>,
    redlock: &Redlock,
    faults: &Faults,
    nothing: Load,
    stop: &CancellationToken,
) -> Load {
    let (tasks, contended) = (nothing.tasks, nothing.contended);
    let all = Arc::new(Mutex::new(nothing));
    let task = |number: usize| Task {
        plan: plan.clone(),
        redlock: redlock.clone(),
        faults: faults.clone(),
        contended,
        name: match contended {
            true => plan.name("handed-over"),
            false => plan.name(number),
        },
        all: all.clone(),
    };
    let mut running = JoinSet::new();
    let names = if contended { 0 } else { tasks };
    for number in 0..names {
        let task = task(number);
        running.spawn(async move {
            task.pair(None).await;
        });
    }
    std::mem::take(&mut running).join_all().await;

    let window = Window::open(plan, stop);
    let cpu = time(ClockId::ProcessCPUTime);
    for number in 0..tasks {
        let (task, window) = (task(number), window.clone());
        running.spawn(async move {
            while !window.is_over() {
                if !task.pair(Some(&window)).await {
                    sleep(PAUSE).await;
                }
            }
        });
    }
    window.over().await;
    {
        let cpu = time(ClockId::ProcessCPUTime).saturating_sub(cpu);
        let mut all = lock(&all);
        all.per_second = window.per_second(all.release.count() as f64);
        all.cpu_percent = window.per_second(100.0 * cpu.as_secs_f64());
    }
    // Requests in flight and waits count, too: otherwise the slowest would be missing.
    running.join_all().await;
    lock(&all).clone()
}

struct Task {
    plan: Arc<Plan>,
    redlock: Redlock,
    faults: Faults,
    contended: bool,
    name: String,
    all: Arc<Mutex<Load>>,
}

impl Task {
    /// Acquires and releases one lock. Returns whether both succeeded. Without a window, only failures are recorded.
    async fn pair(&self, window: Option<&Window>) -> bool {
        let asked = Instant::now();
        let request = self.plan.lock(&self.redlock, &self.name);
        let acquired = match window.filter(|_| self.contended) {
            Some(window) => {
                // Long enough for all waiters at the end of the window.
                let limit = window.left() + 2 * self.plan.node_budget.max(Duration::from_secs(1));
                request.within(limit).acquire().await
            }
            None => request.try_acquire().await,
        };
        let now = Instant::now();
        let lease = match acquired {
            Ok(lease) => lease,
            Err(error) => {
                lock(&self.all).failures.acquire(&error);
                self.faults.count(error.votes());
                return false;
            }
        };
        if let Some(window) = window {
            {
                let mut all = lock(&self.all);
                all.acquire.record(now - asked);
                if let Some(released) = all.released_at.take() {
                    all.gap.record(now - released);
                }
            }
            self.faults.count(Some(lease.votes()));
            if self.contended && !self.plan.args.hold.is_zero() {
                tokio::select! {
                    () = sleep(self.plan.args.hold) => {}
                    () = window.over() => {}
                }
            }
        }
        let asked = Instant::now();
        if self.contended {
            lock(&self.all).released_at = Some(asked);
        }
        let outcome = lease.release().await;
        let took = asked.elapsed();
        let mut all = lock(&self.all);
        let released = all.failures.release(&outcome);
        if released && window.is_some() {
            all.release.record(took);
        }
        released
    }
}
