//! One lock that several tasks of this process want: how fast it goes from one to the next, and whether all get their share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::{Redlock, ReleaseOutcome};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::pairs::per_second;
use super::plan::{Plan, Window};
use super::tally::{Failures, Latencies, PAUSE, Parts, ended, lock};

/// How it was handed on.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandOver {
    /// How often each waiter got it.
    pub(crate) grants: Vec<u64>,
    /// From asking for it to getting it.
    pub(crate) wait: Latencies,
    /// From getting it to releasing it: the time asked for, and what timers add.
    pub(crate) held: Latencies,
    /// From the call that releases it to the next one's getting it.
    pub(crate) gap: Latencies,
    pub(crate) failures: Failures,
    pub(crate) nodes: Parts,
    released_at: Option<Instant>,
    in_time: u64,
    elapsed: Duration,
}

impl HandOver {
    pub(crate) fn per_second(&self) -> f64 {
        per_second(self.in_time, self.elapsed)
    }

    /// The most that one waiter got, against the mean. 1 is perfectly fair. `None` if nobody got anything.
    pub(crate) fn unfairness(&self) -> Option<f64> {
        let most = *self.grants.iter().max()?;
        let mean = self.grants.iter().sum::<u64>() as f64 / self.grants.len() as f64;
        (most > 0).then(|| most as f64 / mean)
    }
}

pub(crate) async fn hand_over(plan: &Plan, redlock: &Redlock, window: Window) -> HandOver {
    let all = Arc::new(Mutex::new(HandOver {
        grants: vec![0; plan.waiters],
        ..HandOver::default()
    }));
    let mut running = JoinSet::new();
    for number in 0..plan.waiters {
        let waiter = Waiter {
            plan: plan.clone(),
            redlock: redlock.clone(),
            number,
            window: window.clone(),
            all: all.clone(),
        };
        running.spawn(waiter.work());
    }
    window.over().await;
    {
        let mut all = lock(&all);
        all.in_time = all.wait.count();
        all.elapsed = window.elapsed();
    }
    // Whoever still waits gets it, and counts: the longest waits must not be missing.
    ended(&mut running, |panic| lock(&all).failures.panicked(panic)).await;
    lock(&all).clone()
}

struct Waiter {
    plan: Plan,
    redlock: Redlock,
    number: usize,
    window: Window,
    all: Arc<Mutex<HandOver>>,
}

impl Waiter {
    async fn work(self) {
        let name = self.plan.contended();
        while !self.window.is_over() {
            // Long enough for all who wait when the time is over.
            let limit = self.window.left() + 2 * self.plan.node_budget.max(Duration::from_secs(1));
            let asked = Instant::now();
            match self.plan.lock(&self.redlock, &name).within(limit).acquire().await {
                Ok(lease) => {
                    let acquired = Instant::now();
                    {
                        let mut all = lock(&self.all);
                        if let Some(released) = all.released_at.take() {
                            all.gap.record(acquired - released);
                        }
                        all.wait.record(acquired - asked);
                        all.grants[self.number] += 1;
                        all.nodes.count(lease.votes());
                    }
                    if !self.plan.hold.is_zero() {
                        tokio::select! {
                            () = sleep(self.plan.hold) => {}
                            () = self.window.over() => {}
                        }
                    }
                    {
                        let mut all = lock(&self.all);
                        all.held.record(acquired.elapsed());
                        all.released_at = Some(Instant::now());
                    }
                    let outcome = lease.release().await;
                    if outcome != ReleaseOutcome::Released {
                        lock(&self.all).failures.release(&outcome);
                    }
                }
                Err(error) => {
                    {
                        let mut all = lock(&self.all);
                        all.failures.acquire(&error);
                        all.nodes.refused(&error);
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
