//! What passes between the processes: what is to be done, and what was seen of it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::contender::Who;
use crate::servers::Addresses;

/// Nanoseconds on a clock that all processes of a machine share, and that no one sets.
pub(crate) type Moment = u64;

pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// What a process has to know from its beginning.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) who: Who,
    pub(crate) waiters: usize,
    pub(crate) addresses: Addresses,
    pub(crate) multi_thread: bool,
}

/// One round.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Nobody had it before: what an earlier round has left behind, wherever, is in nobody's way.
    pub(crate) key: String,
    /// So many of the process' waiters take part.
    pub(crate) waiters: usize,
    pub(crate) start: Moment,
    pub(crate) until: Moment,
    /// Each takes the lock so often at most.
    pub(crate) at_most: usize,
    pub(crate) hold: Duration,
    /// From a release to asking again.
    pub(crate) pause: Duration,
}

/// What one process saw of it.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) grants: Vec<Grant>,
    /// How long those had waited by the end of the round who did not get it any more.
    pub(crate) unserved: Vec<u64>,
    /// Waits that the contender itself has ended; it was asked again at once.
    pub(crate) gave_up: usize,
    pub(crate) failed: Vec<String>,
}

/// One lease, on the clock of [`now`].
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) process: usize,
    pub(crate) waiter: usize,
    pub(crate) asked: Moment,
    /// It was held from here, after it was granted,
    pub(crate) from: Moment,
    /// to here, before it was released.
    pub(crate) to: Moment,
    pub(crate) released: Moment,
}
