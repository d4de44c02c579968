//! Runs contenders, and records the measurements.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::common::stats::percentile_us;
use crate::contender::{Contender, Failure, fresh_name};

const WARM_UP: Duration = Duration::from_millis(150);

/// The measurements of one contender in one round.
#[derive(Default)]
pub(crate) struct Sample {
    acquires: Vec<Duration>,
    releases: Vec<Duration>,
    pub(crate) failures: Failures,
    pub(crate) elapsed: Duration,
    /// The CPU time of this process.
    pub(crate) cpu: Duration,
}

#[derive(Clone, Default)]
pub(crate) struct Failures {
    pub(crate) count: usize,
    pub(crate) first: Option<Failure>,
}

impl Failures {
    fn add(&mut self, failure: Failure) {
        self.count += 1;
        self.first.get_or_insert(failure);
    }

    pub(crate) fn merge(&mut self, other: &Failures) {
        self.count += other.count;
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
    }
}

impl Sample {
    pub(crate) fn acquire_us(&self, percentile: f64) -> f64 {
        percentile_us(&self.acquires, percentile)
    }

    pub(crate) fn release_us(&self, percentile: f64) -> f64 {
        percentile_us(&self.releases, percentile)
    }

    /// Returns the number of acquires that were released.
    pub(crate) fn pairs(&self) -> usize {
        self.releases.len()
    }

    pub(crate) fn pairs_per_second(&self) -> f64 {
        self.pairs() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn cpu_us_per_pair(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.pairs() as f64
    }

    fn finish(mut self) -> Sample {
        self.acquires.sort_unstable();
        self.releases.sort_unstable();
        self
    }

    async fn pair<C: Contender>(&mut self, contender: &C) {
        let name = fresh_name();
        let started = Instant::now();
        let held = match contender.acquire(name).await {
            Ok(held) => held,
            Err(failure) => return self.failures.add(format!("acquire: {failure}")),
        };
        let acquired = started.elapsed();
        if let Err(failure) = contender.settle().await {
            self.failures.add(format!("after acquire: {failure}"));
        }
        let started = Instant::now();
        let outcome = contender.release(held).await;
        let released = started.elapsed();
        if let Err(failure) = contender.settle().await {
            self.failures.add(format!("after release: {failure}"));
        }
        match outcome {
            Ok(()) => {
                self.acquires.push(acquired);
                self.releases.push(released);
            }
            Err(failure) => self.failures.add(format!("release: {failure}")),
        }
    }
}

/// Runs one task until the number of pairs or the time is reached.
pub(crate) async fn one_by_one<C: Contender>(contender: &C, pairs: usize, at_most: Duration) -> Sample {
    let mut sample = Sample::default();
    let (started, cpu) = (Instant::now(), cpu_time());
    for _ in 0..pairs {
        sample.pair(contender).await;
        if started.elapsed() >= at_most {
            break;
        }
    }
    sample.elapsed = started.elapsed();
    sample.cpu = cpu_time() - cpu;
    sample.finish()
}

/// Runs so many tasks, each with one pair after the other.
pub(crate) async fn side_by_side<C: Contender>(contender: &C, tasks: usize, window: Duration) -> Sample {
    let from = Instant::now() + WARM_UP;
    let until = from + window;
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let contender = contender.clone();
        running.spawn(async move {
            let mut sample = Sample::default();
            loop {
                let before = sample.pairs();
                sample.pair(&contender).await;
                let now = Instant::now();
                if now < from || now >= until {
                    // A success counts only inside the window, a failure always.
                    sample.acquires.truncate(before);
                    sample.releases.truncate(before);
                }
                if now >= until {
                    return sample;
                }
            }
        });
    }
    sleep_until(from.into()).await;
    let (started, cpu) = (Instant::now(), cpu_time());
    sleep_until(until.into()).await;
    let mut all = Sample {
        elapsed: started.elapsed(),
        cpu: cpu_time() - cpu,
        ..Sample::default()
    };
    while let Some(finished) = running.join_next().await {
        match finished {
            Ok(mut sample) => {
                all.acquires.append(&mut sample.acquires);
                all.releases.append(&mut sample.releases);
                all.failures.merge(&sample.failures);
            }
            Err(panic) => all.failures.add(panic.to_string()),
        }
    }
    // The tasks counted within the window.
    all.elapsed = window;
    all.finish()
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
