//! Times, durations, numbers of things and objects, as the tool prints them.

use std::fmt::Display;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

/// The version of `docs/schema`. Increases when a member is removed or renamed, or its meaning changes.
const SCHEMA_VERSION: u32 = 1;

/// Formats an object as a line, with the version of its schema.
pub(crate) fn json_line(mut object: Value) -> String {
    object["schema_version"] = SCHEMA_VERSION.into();
    format!("{object}\n")
}

/// Formats a duration, to the millisecond.
pub(crate) fn short(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(millis(duration)))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a short time in milliseconds, to the tenth.
pub(crate) fn tenths(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Formats a moment as RFC 3339, to the second.
pub(crate) fn utc(moment: SystemTime) -> String {
    humantime::format_rfc3339_seconds(moment).to_string()
}

/// Formats a moment as RFC 3339, to the millisecond, as all documents for programs do.
pub(crate) fn time(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment).to_string()
}

/// Formats an instant as RFC 3339.
pub(crate) fn at(instant: Instant) -> String {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let moment = match instant.checked_duration_since(now) {
        Some(ahead) => wall.checked_add(ahead),
        None => wall.checked_sub(now - instant),
    };
    time(moment.unwrap_or(wall))
}

/// Formats a number of things, whose word has a plural with s.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {thing}{plural}")
}
