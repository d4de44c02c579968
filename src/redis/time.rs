//! A node's clock, learned from its answers over all its connections (A9, F5).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::node_clock::NodeClock;
use crate::sys::clock::{Clock, Moment};
use crate::sys::mutex::lock;

/// One node's clock, as far as it is known. Its times are microseconds since 1970, ours since a fixed point.
#[derive(Debug)]
pub(super) struct ServerTime {
    node: Arc<str>,
    clock: Clock,
    epoch: Moment,
    seen: Mutex<Option<NodeClock>>,
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

    pub(super) fn node(&self) -> &Arc<str> {
        &self.node
    }

    /// Returns our time.
    pub(super) fn now(&self) -> i64 {
        self.micros(self.clock.now())
    }

    /// Returns our time at a moment that has just passed, see [`Clock::roughly`]. If it is too early, an interval is too wide, or
    /// a request is refused as late.
    pub(super) fn at(&self, now: Instant) -> i64 {
        self.micros(self.moment(now))
    }

    /// Returns a moment that has just passed, as exact as [`at`](Self::at).
    pub(super) fn moment(&self, now: Instant) -> Moment {
        self.clock.roughly(now)
    }

    fn micros(&self, moment: Moment) -> i64 {
        i64::try_from(moment.since(self.epoch).as_micros()).unwrap_or(i64::MAX)
    }

    /// Records that the clock showed `time` between our time `sent` and now.
    pub(super) fn observe(&self, sent: i64, time: i64) {
        self.observe_between(sent, self.now(), time);
    }

    /// Replaces the clock by that of another server, which showed `time` between these times of ours.
    pub(super) fn start_over(&self, sent: i64, received: i64, time: i64) {
        *self.seen() = Some(NodeClock::new(sent, received, time));
    }

    /// Records that the clock showed `time` between these times of ours.
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
                "clock was put forward: its keys expire early"
            );
            // Saturates, so that it never falls.
            let _ = self.advanced.fetch_update(Relaxed, Relaxed, |advanced| {
                Some(advanced.saturating_add(step.unsigned_abs()))
            });
            self.clock.jumped();
        } else {
            tracing::warn!(
                node = &*self.node,
                ?by,
                "clock was put back: its keys expire late"
            );
        }
    }

    /// Returns how far the clock has been put forward so far.
    pub(super) fn advanced(&self) -> Duration {
        Duration::from_micros(self.advanced.load(Relaxed))
    }

    /// Returns the best guess of the clock's time now. `None` before the first answer.
    pub(super) fn estimate(&self) -> Option<u64> {
        let now = self.at(Instant::now());
        let time = self.seen().as_ref()?.estimate(now);
        u64::try_from(time).ok()
    }

    /// Returns the last moment, on the node's clock, for a request that has `budget` from our time `now` (A9).
    pub(super) fn latest(&self, now: i64, budget: Duration) -> i64 {
        let budget = i64::try_from(budget.as_micros()).unwrap_or(i64::MAX);
        let latest = self.seen().as_ref().map_or(0, |seen| seen.latest(now));
        latest.saturating_add(budget)
    }

    /// Returns how much later than its budget a request that is sent now may still act (A9). `None` before the first answer.
    pub(super) fn late_by(&self) -> Option<Duration> {
        let now = self.at(Instant::now());
        let uncertainty = self.seen().as_ref()?.uncertainty(now);
        Some(Duration::from_micros(u64::try_from(uncertainty).unwrap_or(0)))
    }

    fn seen(&self) -> MutexGuard<'_, Option<NodeClock>> {
        lock(&self.seen)
    }
}
