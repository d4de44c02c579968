//! What the processes exchange: orders, and records of rounds.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::contender::ContenderKind;
use crate::servers::Addresses;

/// Nanoseconds on a clock that all processes of a machine share, and that is never set.
pub(crate) type Moment = u64;

pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) who: ContenderKind,
    pub(crate) waiters: usize,
    pub(crate) addresses: Addresses,
    pub(crate) multi_thread: bool,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// A new key, so leftovers of earlier rounds are not in the way.
    pub(crate) key: String,
    /// How many waiters of the process take part.
    pub(crate) waiters: usize,
    pub(crate) start: Moment,
    pub(crate) until: Moment,
    /// How often each waiter acquires the lock at most.
    pub(crate) at_most: usize,
    pub(crate) hold: Duration,
    /// From a release to the next acquire.
    pub(crate) pause: Duration,
}

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) grants: Vec<Grant>,
    /// How long the waiters had waited that did not get the lock by the end of the round.
    pub(crate) unserved: Vec<u64>,
    /// Waits that the contender ended with an error. The waiter tried again at once.
    pub(crate) gave_up: usize,
    pub(crate) failed: Vec<String>,
}

/// One lease, on the clock of [`now`].
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) process: usize,
    pub(crate) waiter: usize,
    pub(crate) asked: Moment,
    /// Held from here, after the grant,
    pub(crate) from: Moment,
    /// to here, before the release.
    pub(crate) to: Moment,
    pub(crate) released: Moment,
}
