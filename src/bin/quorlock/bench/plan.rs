//! What is measured, with which locks, and for how long.

use std::fmt::Display;
use std::time::Duration;

use quorlock::{LockRequest, MAX_TTL, MIN_TTL, Redlock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::load::Load;
use crate::args::Bench;
use crate::exit::Failure;

/// The locks of a measurement need not outlive the measurement for long.
const LONGEST_LIFE: Duration = Duration::from_secs(10);
/// The shortest time that counters may be kept for: so many TTLs, and at least this.
const RETENTION_IN_TTLS: u32 = 10;
const SHORTEST_RETENTION: Duration = Duration::from_secs(5);
/// Even a far node answers within this time.
const LONG: Duration = Duration::from_secs(1);

/// Everything that is decided before the first lock is taken.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Begins the names of all locks of this run. New in each run.
    name: String,
    /// Here, `tasks` are ascending numbers, one first.
    pub(crate) args: Bench,
    /// The TTL of the locks that are taken.
    pub(crate) lock_ttl: Duration,
    /// What a node may take to answer a request for such a lock.
    pub(crate) node_budget: Duration,
    pub(crate) retention: Duration,
}

impl Plan {
    pub(crate) fn new(mut args: Bench) -> Result<Plan, Failure> {
        let (shown, ms) = (humantime::format_duration, Duration::from_millis(1));
        let (ttl, duration, hold) = (args.ttl, args.duration, args.hold);
        for (option, value, bounds, told) in [
            ("--ttl", ttl, MIN_TTL..=MAX_TTL, "10ms to 365days"),
            ("--duration", duration, ms..=86_400_000 * ms, "1ms to 1day"),
        ] {
            if !bounds.contains(&value) {
                let words = format!("{option} {} is out of bounds: {told}", shown(value));
                return Err(Failure::usage(words));
            }
        }
        if hold >= duration {
            return Err(Failure::usage(format!(
                "--hold {} is no shorter than --duration {}: the lock would not be handed over",
                shown(hold),
                shown(duration)
            )));
        }
        let lock_ttl = ttl.min(LONGEST_LIFE);
        args.tasks.push(1);
        args.tasks.sort_unstable();
        args.tasks.dedup();
        Ok(Plan {
            name: format!("bench:{:012x}:", fastrand::u64(..1 << 48)),
            args,
            lock_ttl,
            node_budget: (ttl / 10).min(lock_ttl / 2),
            retention: SHORTEST_RETENTION.max(lock_ttl * RETENTION_IN_TTLS),
        })
    }

    /// What is measured after the round trips: each number of tasks, and the hand-over.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load> {
        let apart = self.args.tasks.iter().map(|&tasks| (tasks, false));
        let loads = apart.chain([(self.args.waiters, true)]);
        loads.map(|(tasks, contended)| Load::new(tasks, contended))
    }

    /// Counts the measurements.
    pub(crate) fn parts(&self) -> usize {
        self.args.tasks.len() + 2
    }

    pub(crate) fn length(&self) -> Duration {
        self.args.duration * self.parts() as u32
    }

    /// Names a resource of this run.
    pub(crate) fn name(&self, what: impl Display) -> String {
        format!("{}{what}", self.name)
    }

    /// Begins to lock it.
    pub(crate) fn lock(&self, redlock: &Redlock, resource: &str) -> LockRequest {
        redlock
            .lock(resource)
            .ttl(self.lock_ttl)
            .node_budget(self.node_budget)
            .counter_retention(self.retention)
    }

    /// What a node may take where it is measured by itself: longer than in a lock, so that a node that is too slow for locks
    /// is measured as well.
    pub(crate) fn longest_answer(&self) -> Duration {
        self.node_budget.max(LONG).min(self.lock_ttl / 2)
    }

    /// The pattern of the keys, for people.
    pub(crate) fn keys(&self) -> String {
        format!("{}{}*", self.args.key_prefix, self.name)
    }
}

/// The time of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    from: Instant,
    until: Instant,
    stop: CancellationToken,
}

impl Window {
    /// Opens now.
    pub(crate) fn open(plan: &Plan, stop: &CancellationToken) -> Window {
        let from = Instant::now();
        Window {
            from,
            until: from + plan.args.duration,
            stop: stop.clone(),
        }
    }

    /// Whether to begin nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.left().is_zero()
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits for the end.
    pub(crate) async fn over(&self) {
        tokio::select! {
            () = tokio::time::sleep_until(self.until) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// How often a second something happened that has happened so often, or took so many seconds.
    pub(crate) fn per_second(&self, count: f64) -> f64 {
        let elapsed = Instant::now().min(self.until) - self.from;
        count / elapsed.as_secs_f64().max(1e-9)
    }
}
