//! What is measured, with which locks, and for how long.

use std::fmt::Display;
use std::time::Duration;

use quorlock::{LockRequest, Redlock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::Bench;
use crate::exit::Failure;

/// The longest TTL of locks here: if `bench` is killed, they expire soon.
const LONGEST_LIFE: Duration = Duration::from_secs(10);
/// Counters must be kept for at least this many TTLs, and [`SHORTEST_RETENTION`].
const RETENTION_IN_TTLS: u32 = 10;
const SHORTEST_RETENTION: Duration = Duration::from_secs(5);
/// Even a far node answers within this time.
const LONG: Duration = Duration::from_secs(1);

/// Everything that is decided before the first lock is taken.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The random prefix of the names of all locks of this run.
    name: String,
    /// Here, `tasks` are ascending numbers, one first.
    pub(crate) args: Bench,
    /// The TTL of the locks that are taken.
    pub(crate) lock_ttl: Duration,
    /// How long a node may take to answer a request for such a lock.
    pub(crate) node_budget: Duration,
    pub(crate) retention: Duration,
}

impl Plan {
    pub(crate) fn new(mut args: Bench) -> Result<Plan, Failure> {
        let shown = humantime::format_duration;
        let (ttl, duration, hold) = (args.ttl, args.duration, args.hold);
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

    pub(crate) fn parts(&self) -> usize {
        self.args.tasks.len() + 2
    }

    pub(crate) fn length(&self) -> Duration {
        self.args.duration * self.parts() as u32
    }

    pub(crate) fn name(&self, what: impl Display) -> String {
        format!("{}{what}", self.name)
    }

    pub(crate) fn lock(&self, redlock: &Redlock, resource: &str) -> LockRequest {
        redlock
            .lock(resource)
            .ttl(self.lock_ttl)
            .node_budget(self.node_budget)
            .counter_retention(self.retention)
    }

    /// Returns the node budget for round trips. It is longer than for locks, so that nodes too slow for locks are measured, too.
    pub(crate) fn longest_answer(&self) -> Duration {
        self.node_budget.max(LONG).min(self.lock_ttl / 2)
    }

    /// Returns the pattern of the locks' keys, for people.
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
    pub(crate) fn open(plan: &Plan, stop: &CancellationToken) -> Window {
        let from = Instant::now();
        Window {
            from,
            until: from + plan.args.duration,
            stop: stop.clone(),
        }
    }

    /// Returns whether no further request is to begin.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.left().is_zero()
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub(crate) async fn over(&self) {
        tokio::select! {
            () = tokio::time::sleep_until(self.until) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Divides `count` by the seconds that the window has been open.
    pub(crate) fn per_second(&self, count: f64) -> f64 {
        let elapsed = Instant::now().min(self.until) - self.from;
        count / elapsed.as_secs_f64().max(1e-9)
    }
}
