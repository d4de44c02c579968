//! Every part builds on what the machine and the runtime provide here: clocks, timers, mutexes, spans of the log, metrics.
//!
//! Entry points: [`clock::Clock`], [`timer::sleep_until`], [`runtime::Runtime`]. Nothing here knows of locks or nodes.

pub(crate) mod clock;
pub(crate) mod metrics;
pub(crate) mod mutex;
pub(crate) mod running_calls;
pub(crate) mod runtime;
pub(crate) mod spans;
pub(crate) mod timer;

use std::time::Duration;

/// Returns a duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
