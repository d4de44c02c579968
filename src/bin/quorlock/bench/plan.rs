//! What is going to be measured, with which locks, and for how long.

use std::time::Duration;

use quorlock::{LockRequest, MAX_TTL, MIN_TTL, Redlock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::Bench;
use crate::exit::Failure;

/// The locks of a measurement need not outlive it for long.
const LONGEST_LIFE: Duration = Duration::from_secs(10);
/// The shortest time that counters may be kept for: so many TTLs, and at least this.
const RETENTION_IN_TTLS: u32 = 10;
const SHORTEST_RETENTION: Duration = Duration::from_secs(5);
/// What even a far node should not take to answer.
const LONG: Duration = Duration::from_secs(1);
/// Measurements other than those with many tasks: round trips, one task, hand-over.
const OTHERS: usize = 3;

/// Everything that is decided before the first lock is taken.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// In front of the numbers that the names end in. New in each run.
    name: String,
    pub(crate) key_prefix: String,
    /// The TTL that the results are judged by.
    pub(crate) ttl: Duration,
    /// That of the locks that are taken.
    pub(crate) lock_ttl: Duration,
    /// What a node may take to answer, with either.
    pub(crate) node_budget: Duration,
    pub(crate) retention: Duration,
    pub(crate) fencing: bool,
    pub(crate) duration: Duration,
    /// Numbers of tasks, ascending, one first.
    pub(crate) tasks: Vec<usize>,
    pub(crate) waiters: usize,
    pub(crate) hold: Duration,
}

impl Plan {
    pub(crate) fn new(arguments: &Bench) -> Result<Plan, Failure> {
        let shown = humantime::format_duration;
        let (ttl, duration, hold) = (arguments.ttl, arguments.duration, arguments.hold);
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Failure::usage(format!(
                "--ttl {} is out of bounds: 10ms to 365days",
                shown(ttl)
            )));
        }
        if duration.is_zero() || duration > Duration::from_secs(24 * 3_600) {
            return Err(Failure::usage(format!(
                "--duration {} is out of bounds: more than zero, at most 1day",
                shown(duration)
            )));
        }
        if hold >= duration {
            return Err(Failure::usage(format!(
                "--hold {} is no shorter than --duration {}: the lock would not be handed on",
                shown(hold),
                shown(duration)
            )));
        }
        let lock_ttl = ttl.min(LONGEST_LIFE);
        let mut tasks = [&[1], &*arguments.tasks].concat();
        tasks.sort_unstable();
        tasks.dedup();
        Ok(Plan {
            name: format!("bench:{:012x}:", fastrand::u64(..1 << 48)),
            key_prefix: arguments.key_prefix.clone(),
            ttl,
            lock_ttl,
            node_budget: (ttl / 10).min(lock_ttl / 2),
            retention: SHORTEST_RETENTION.max(lock_ttl * RETENTION_IN_TTLS),
            fencing: !arguments.no_fencing,
            duration,
            tasks,
            waiters: arguments.waiters,
            hold,
        })
    }

    pub(crate) fn parts(&self) -> usize {
        self.tasks.len() + OTHERS - 1
    }

    pub(crate) fn length(&self) -> Duration {
        self.duration
            .saturating_mul(u32::try_from(self.parts()).unwrap_or(u32::MAX))
    }

    /// A resource of our own. The numbers of tasks come first.
    pub(crate) fn name(&self, number: usize) -> String {
        format!("{}{number}", self.name)
    }

    /// That which is handed on.
    pub(crate) fn contended(&self) -> String {
        self.name(self.most_tasks())
    }

    /// The two for the node with this index: the plain one, and the one with a token.
    pub(crate) fn of_node(&self, index: usize) -> [String; 2] {
        let first = self.most_tasks() + 1 + 2 * index;
        [self.name(first), self.name(first + 1)]
    }

    /// Begins to lock it.
    pub(crate) fn lock(&self, redlock: &Redlock, resource: &str) -> LockRequest {
        redlock
            .lock(resource)
            .ttl(self.lock_ttl)
            .node_budget(self.node_budget)
            .counter_retention(self.retention)
    }

    /// Without a token, and with one where that is to be measured.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = bool> + use<> {
        [false, true].into_iter().take(1 + usize::from(self.fencing))
    }

    /// What a node may take where it is measured by itself: longer than in a lock, so that what is too slow for locks is
    /// measured as well.
    pub(crate) fn longest_answer(&self) -> Duration {
        self.node_budget.max(LONG).min(self.lock_ttl / 2)
    }

    /// The keys, for people.
    pub(crate) fn keys(&self) -> String {
        format!("{}{}*", self.key_prefix, self.name)
    }

    fn most_tasks(&self) -> usize {
        self.tasks.last().copied().unwrap_or(1)
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
    /// From now on.
    pub(crate) fn open(length: Duration, stop: &CancellationToken) -> Window {
        let from = Instant::now();
        Window {
            from,
            until: from + length,
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

    /// For how long it has been open: at most for its length.
    pub(crate) fn elapsed(&self) -> Duration {
        Instant::now().min(self.until) - self.from
    }
}
