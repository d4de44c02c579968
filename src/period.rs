//! Periods in which work is done once (L5).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Shortest and longest period.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A span of time that every client counts alike: periods of one length follow each other from 1970-01-01T00:00:00Z on.
///
/// A period of 24 hours is a day in UTC, a period of seven days begins on a Thursday. Start the work well inside its period: at a
/// boundary, two hosts may be in different periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    number: u64,
    length_ms: u64,
}

impl Period {
    /// Returns the period of this length, in whole milliseconds, that contains `moment`. `None` if the length is not between 1 s
    /// and 365 days. A moment before 1970 counts as 1970.
    pub fn containing(moment: SystemTime, length: Duration) -> Option<Period> {
        if !(LEAST..=MOST).contains(&length) {
            return None;
        }
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (length_ms, since_ms) = (length.as_millis() as u64, since.as_millis() as u64);
        Some(Period {
            number: since_ms / length_ms,
            length_ms,
        })
    }

    /// Returns the first moment of the period.
    pub fn start(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.number * self.length_ms)
    }

    /// Returns the first moment after the period.
    pub fn end(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.mark())
    }

    /// Returns the length of the period.
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.length_ms)
    }

    /// Returns the mark of this period: its end, in milliseconds since 1970.
    pub(crate) fn mark(&self) -> u64 {
        (self.number + 1) * self.length_ms
    }

    /// Returns for how long nodes keep the mark: until a period after the end. The next period may have begun by other clocks.
    pub(crate) fn mark_ttl(&self, now: SystemTime) -> Duration {
        let left = self.end().duration_since(now).unwrap_or_default();
        left.min(self.length()) + self.length()
    }

    /// Returns whether a mark says that this period is done: that one is done which ends with it, or the next one, by a clock that
    /// is ahead.
    pub(crate) fn is_done_by(&self, mark: u64) -> bool {
        let end = self.mark();
        [end, end + self.length_ms].contains(&mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3_600);

    fn at(moment: &str) -> SystemTime {
        humantime::parse_rfc3339(moment).unwrap()
    }

    fn day(moment: &str) -> Period {
        Period::containing(at(moment), DAY).unwrap()
    }

    #[test]
    fn a_day_is_one_in_utc() {
        let period = day("2026-11-29T03:00:00Z");
        assert_eq!(
            (period.start(), period.end(), period.length()),
            (at("2026-11-29T00:00:00Z"), at("2026-11-30T00:00:00Z"), DAY)
        );
        assert_eq!(period, day("2026-11-29T23:59:59.999Z"));
        assert_ne!(period, day("2026-11-30T00:00:00Z"));
    }

    #[test]
    fn a_mark_counts_for_its_period_and_the_one_before() {
        let marks = [
            "2026-11-27",
            "2026-11-28",
            "2026-11-29",
            "2026-11-30",
            "2026-12-01",
        ];
        let period = day("2026-11-29T12:00:00Z");
        let done = marks.map(|date| period.is_done_by(day(&format!("{date}T00:00:00Z")).mark()));
        assert_eq!(done, [false, false, true, true, false]);
        let hour = Period::containing(at("2026-11-29T12:00:00Z"), DAY / 24).unwrap();
        assert!(!hour.is_done_by(period.mark()) && !period.is_done_by(hour.mark()));
    }

    #[test]
    fn a_mark_outlives_its_period_by_the_length_of_one() {
        let period = day("2026-11-29T12:00:00Z");
        for (now, ttl) in [
            ("2026-11-29T18:00:00Z", DAY + DAY / 4),
            ("2026-11-30T09:00:00Z", DAY),
            ("2026-11-01T00:00:00Z", 2 * DAY),
        ] {
            assert_eq!(period.mark_ttl(at(now)), ttl, "{now}");
        }
    }

    #[test]
    fn lengths_have_bounds() {
        let (now, second) = (at("2026-11-29T12:00:00Z"), Duration::from_secs(1));
        for (length, is_valid) in [
            (second, true),
            (second - Duration::from_nanos(1), false),
            (365 * DAY, true),
            (365 * DAY + second, false),
            (Duration::MAX, false),
        ] {
            assert_eq!(Period::containing(now, length).is_some(), is_valid, "{length:?}");
        }
        let early = Period::containing(UNIX_EPOCH - DAY, DAY).unwrap();
        assert_eq!(early.start(), UNIX_EPOCH);
    }
}
