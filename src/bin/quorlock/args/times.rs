//! Durations on the command line.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use quorlock::{MAX_TTL, MIN_TTL};

/// The times that matter to other clients, too.
#[derive(Clone, Debug, Args)]
pub(crate) struct LockTimes {
    /// The TTL, from 10ms (run: 40ms) to 365days: how long the lock stays held after a crash of this machine. A node may take a
    /// tenth of it to answer
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_TTL", default_value = "30s", value_parser = ttl)]
    pub(crate) ttl: Duration,
    /// How long a node that started empty or was restored gives no locks: this time, or the TTL if that is longer, and up to 5s
    /// more. Set it to the longest TTL that any client uses on these nodes [default: 30s]
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_GUARD_WINDOW", value_parser = duration)]
    pub(crate) guard_window: Option<Duration>,
    /// How long the nodes keep the counter of the fencing tokens, before it starts again from their clocks: at least ten
    /// TTLs, or 5s if that is more; or "forever" [default: 24h, or ten TTLs if that is more]
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_COUNTER_RETENTION", value_parser = retention)]
    pub(crate) counter_retention: Option<Duration>,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Within(Duration),
    Forever,
}

impl Wait {
    pub(super) fn parse(text: &str) -> Result<Wait, String> {
        match text {
            "forever" => Ok(Wait::Forever),
            text => duration(text).map(Wait::Within),
        }
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write 30s, 500ms or 1h 30m, for example"))
}

pub(super) fn ttl(text: &str) -> Result<Duration, String> {
    within(text, MIN_TTL..=MAX_TTL, "10ms to 365days")
}

/// Parses a duration within bounds. `words` tells the bounds.
pub(super) fn within(text: &str, bounds: RangeInclusive<Duration>, words: &str) -> Result<Duration, String> {
    match duration(text)? {
        within if bounds.contains(&within) => Ok(within),
        _ => Err(format!("must be from {words}")),
    }
}

/// Parses how long counters are kept.
fn retention(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        text => duration(text),
    }
}
