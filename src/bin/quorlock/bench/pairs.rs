//! Acquiring and releasing what nobody else wants, by one task or by many.
//!
//! A closed loop: each task asks again when it has been answered. So a stall counts once for each task, however long it is,
//! and not for every lock that somebody may have wanted meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::{Redlock, ReleaseOutcome};
use rustix::time::ClockId;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Window};
use super::tally::{Failures, Latencies, PAUSE, Parts, ended, lock};
use crate::guard::time;

/// What so many tasks did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) tasks: usize,
    /// How many pairs were begun: as many were done as have not failed.
    pub(crate) begun: u64,
    pub(crate) acquire: Latencies,
    pub(crate) release: Latencies,
    pub(crate) failures: Failures,
    pub(crate) nodes: Parts,
    /// Those that were done when the time was over.
    in_time: u64,
    elapsed: Duration,
    /// What this process had of the processors meanwhile.
    cpu: Duration,
}

impl Pairs {
    pub(crate) fn done(&self) -> u64 {
        self.release.count()
    }

    pub(crate) fn per_second(&self) -> f64 {
        per_second(self.in_time, self.elapsed)
    }

    /// So many within a second.
    #[cfg(test)]
    pub(crate) fn set_rate(&mut self, in_time: u64) {
        (self.in_time, self.elapsed) = (in_time, Duration::from_secs(1));
    }

    /// How busy this process was, in percent of one core.
    pub(crate) fn cpu_percent(&self) -> f64 {
        match self.elapsed.is_zero() {
            true => 0.0,
            false => 100.0 * self.cpu.as_secs_f64() / self.elapsed.as_secs_f64(),
        }
    }
}

pub(crate) fn per_second(count: u64, elapsed: Duration) -> f64 {
    match elapsed.is_zero() {
        true => 0.0,
        false => count as f64 / elapsed.as_secs_f64(),
    }
}

/// Each task has a name of its own, and its counter is started before the time begins.
pub(crate) async fn pairs(
    plan: &Plan,
    redlock: &Redlock,
    tasks: usize,
    length: Duration,
    stop: &CancellationToken,
) -> Pairs {
    let all = Arc::new(Mutex::new(Pairs {
        tasks,
        ..Pairs::default()
    }));
    let task = |number: usize| Task {
        plan: plan.clone(),
        redlock: redlock.clone(),
        name: plan.name(number),
        all: all.clone(),
    };
    let mut running = JoinSet::new();
    for number in 0..tasks {
        let task = task(number);
        running.spawn(async move {
            task.pair(false).await;
        });
    }
    ended(&mut running, |panic| panicked(&all, panic)).await;

    let window = Window::open(length, stop);
    let cpu = cpu_time();
    for number in 0..tasks {
        let (task, window) = (task(number), window.clone());
        running.spawn(async move {
            while !window.is_over() {
                if !task.pair(true).await {
                    sleep(PAUSE).await;
                }
            }
        });
    }
    window.over().await;
    {
        let mut all = lock(&all);
        all.in_time = all.release.count();
        all.elapsed = window.elapsed();
        all.cpu = cpu_time().saturating_sub(cpu);
    }
    // What was begun is waited for, and counts: the slowest must not be missing.
    ended(&mut running, |panic| panicked(&all, panic)).await;
    lock(&all).clone()
}

struct Task {
    plan: Plan,
    redlock: Redlock,
    name: String,
    all: Arc<Mutex<Pairs>>,
}

impl Task {
    /// One lock, acquired and released. Whether both succeeded. What fails is counted in any case.
    async fn pair(&self, timed: bool) -> bool {
        let asked = Instant::now();
        let acquired = self.plan.lock(&self.redlock, &self.name).try_acquire().await;
        let took = asked.elapsed();
        let lease = match acquired {
            Ok(lease) => lease,
            Err(error) => {
                let mut all = lock(&self.all);
                all.begun += 1;
                all.failures.acquire(&error);
                all.nodes.refused(&error);
                return false;
            }
        };
        if timed {
            let mut all = lock(&self.all);
            all.acquire.record(took);
            all.nodes.count(lease.votes());
        }
        let asked = Instant::now();
        let outcome = lease.release().await;
        let took = asked.elapsed();
        let released = outcome == ReleaseOutcome::Released;
        let mut all = lock(&self.all);
        if timed || !released {
            all.begun += 1;
        }
        match released {
            true if timed => all.release.record(took),
            true => {}
            false => all.failures.release(&outcome),
        }
        released
    }
}

/// A failure like any other.
fn panicked(all: &Mutex<Pairs>, panic: String) {
    let mut all = lock(all);
    all.begun += 1;
    all.failures.panicked(panic);
}

fn cpu_time() -> Duration {
    time(ClockId::ProcessCPUTime)
}
