//! A server's clock, seen from here over all its connections (A9, F5).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::node_clock::NodeClock;
use crate::sys::clock::{Clock, Moment};
use crate::sys::mutex::lock;

/// What is known of one server's clock. Its times are microseconds since 1970, ours since some fixed point.
#[derive(Debug)]
pub(super) struct ServerTime {
    node: Arc<str>,
    clock: Clock,
    epoch: Moment,
    seen: Mutex<Option<NodeClock>>,
    /// In microseconds.
    advanced: AtomicU64,
}

impl ServerTime {
    pub(super) fn new(node: Arc<str>, clock: Clock) -> Self {
        ServerTime {
            node,
            epoch: clock.now(),
            clock,
            seen: Mutex::default(),
            advanced: AtomicU64::new(0),
        }
    }

    /// Our time.
    pub(super) fn now(&self) -> i64 {
        self.micros(self.clock.now())
    }

    /// The same, of a moment that has just been: too early if the machine was suspended since anybody asked for the time. Then
    /// an interval is too wide, or a request refused as late.
    pub(super) fn at(&self, now: Instant) -> i64 {
        self.micros(self.moment(now))
    }

    /// A moment that has just been, as nearly as [`at`](Self::at).
    pub(super) fn moment(&self, now: Instant) -> Moment {
        self.clock.roughly(now)
    }

    fn micros(&self, moment: Moment) -> i64 {
        i64::try_from(moment.since(self.epoch).as_micros()).unwrap_or(i64::MAX)
    }

    /// The server's clock showed `time` some time between `sent`, of our time, and now.
    pub(super) fn observe(&self, sent: i64, time: i64) {
        self.observe_between(sent, self.now(), time);
    }

    /// The node is another server from now on, whose clock showed `time` some time between these times of ours.
    pub(super) fn start_over(&self, sent: i64, received: i64, time: i64) {
        *self.seen() = Some(NodeClock::new(sent, received, time));
    }

    /// The server's clock showed `time` some time between these times of ours.
    pub(super) fn observe_between(&self, sent: i64, received: i64, time: i64) {
        let step = {
            let mut seen = self.seen();
            match seen.as_mut() {
                Some(seen) => seen.observe(sent, received, time),
                None => {
                    *seen = Some(NodeClock::new(sent, received, time));
                    None
                }
            }
        };
        let Some(step) = step else { return };
        let by = Duration::from_micros(step.unsigned_abs());
        if step > 0 {
            tracing::warn!(
                node = &*self.node,
                ?by,
                "clock was put forward: keys expire early there"
            );
            // It never falls, whatever a server says.
            let _ = self.advanced.fetch_update(Relaxed, Relaxed, |advanced| {
                Some(advanced.saturating_add(step.unsigned_abs()))
            });
            self.clock.jumped();
        } else {
            tracing::warn!(
                node = &*self.node,
                ?by,
                "clock was put back: keys expire late there"
            );
        }
    }

    /// How far the server's clock has been put forward so far.
    pub(super) fn advanced(&self) -> Duration {
        Duration::from_micros(self.advanced.load(Relaxed))
    }

    /// What the server's clock shows now: the best guess.
    pub(super) fn estimate(&self) -> Option<u64> {
        let now = self.at(Instant::now());
        let time = self.seen().as_ref()?.estimate(now);
        u64::try_from(time).ok()
    }

    /// A9: the last moment on the server's clock for something that must not act later than `budget` from `now`, of our time.
    pub(super) fn latest(&self, now: i64, budget: Duration) -> i64 {
        let budget = i64::try_from(budget.as_micros()).unwrap_or(i64::MAX);
        let latest = self.seen().as_ref().map_or(0, |seen| seen.latest(now));
        latest.saturating_add(budget)
    }

    fn seen(&self) -> MutexGuard<'_, Option<NodeClock>> {
        lock(&self.seen)
    }
}
