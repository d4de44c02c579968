//! Periods in which work is done once (L5).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The end of the year 9999, in milliseconds since 1970. Later moments have no usual notation.
pub(crate) const LATEST_MILLIS: u64 = 253_402_300_799_999;

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

/// What nodes keep of the last period that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoneMark {
    /// The end of the period, in milliseconds since 1970.
    pub end_ms: u64,
    /// The length of the period, in milliseconds.
    pub length_ms: u64,
}

impl Period {
    /// Returns the period of this length that contains `moment`. `None` unless the length is in whole seconds, from 1 s to 365 days.
    /// A moment before 1970 counts as 1970, one after the year 9999 as its end.
    pub fn containing(moment: SystemTime, length: Duration) -> Option<Period> {
        if !(LEAST..=MOST).contains(&length) || length.subsec_nanos() > 0 {
            return None;
        }
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let length_ms = length.as_millis() as u64;
        Some(Period {
            number: since_ms.min(LATEST_MILLIS) / length_ms,
            length_ms,
        })
    }

    /// Returns the later of two periods: this one, and the one of the same length that contains `moment`.
    #[must_use]
    pub fn or_later(&self, moment: SystemTime) -> Period {
        let other = Period::containing(moment, self.length()).unwrap_or(*self);
        Period {
            number: self.number.max(other.number),
            ..other
        }
    }

    /// Returns the first moment of the period.
    pub fn start(&self) -> SystemTime {
        since_1970(self.number * self.length_ms)
    }

    /// Returns the first moment after the period.
    pub fn end(&self) -> SystemTime {
        since_1970(self.mark().end_ms)
    }

    /// Returns the length of the period.
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.length_ms)
    }

    pub(crate) fn mark(&self) -> DoneMark {
        DoneMark {
            end_ms: (self.number + 1) * self.length_ms,
            length_ms: self.length_ms,
        }
    }

    /// Returns the last mark of this length that can be right at `now`: that of the next period, for the clock of its client may be
    /// ahead.
    pub(crate) fn latest_plausible_mark(&self, now: SystemTime) -> DoneMark {
        let DoneMark { end_ms, length_ms } = self.or_later(now).mark();
        DoneMark {
            end_ms: end_ms + length_ms,
            length_ms,
        }
    }

    /// Returns whether a mark says, at `now`, that this period or a later one is done.
    pub(crate) fn is_done_by(&self, mark: DoneMark, now: SystemTime) -> bool {
        let (first, last) = (self.mark(), self.latest_plausible_mark(now));
        mark.length_ms == first.length_ms && (first.end_ms..=last.end_ms).contains(&mark.end_ms)
    }
}

impl DoneMark {
    /// Returns whether some client's clock can have made the mark by `now`.
    pub(crate) fn is_plausible(&self, now: SystemTime) -> bool {
        let current = Period::containing(now, Duration::from_millis(self.length_ms));
        current.is_some_and(|current| self.end_ms <= current.latest_plausible_mark(now).end_ms)
    }

    /// Returns for how long nodes keep the mark: until a period after its end. The next period may have begun by other clocks.
    pub(crate) fn ttl(&self, now: SystemTime) -> Duration {
        let length = Duration::from_millis(self.length_ms);
        let left = since_1970(self.end_ms).duration_since(now).unwrap_or_default();
        left.min(2 * length) + length
    }
}

/// Returns the moment so many milliseconds after 1970 began. `None` after the year 9999.
pub(crate) fn moment(ms: u64) -> Option<SystemTime> {
    (ms <= LATEST_MILLIS).then(|| since_1970(ms))
}

fn since_1970(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
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
    fn a_mark_counts_for_its_period_and_earlier_ones() {
        let marks = [
            "2026-11-27",
            "2026-11-28",
            "2026-11-29",
            "2026-11-30",
            "2026-12-01",
        ];
        let period = day("2026-11-29T12:00:00Z");
        let done =
            |now| marks.map(|date| period.is_done_by(day(&format!("{date}T00:00:00Z")).mark(), at(now)));
        assert_eq!(done("2026-11-29T12:00:00Z"), [false, false, true, true, false]);
        // A process that has waited for a day: what was done meanwhile is not done again.
        assert_eq!(done("2026-11-30T12:00:00Z"), [false, false, true, true, true]);
        // The clock was set back.
        assert_eq!(done("2026-11-01T12:00:00Z"), [false, false, true, true, false]);
        let last_hour = Period::containing(at("2026-11-29T23:00:00Z"), DAY / 24).unwrap();
        let now = at("2026-11-29T23:30:00Z");
        assert_eq!(last_hour.end(), period.end());
        assert!(!last_hour.is_done_by(period.mark(), now) && !period.is_done_by(last_hour.mark(), now));
    }

    #[test]
    fn a_period_that_is_over_gives_way_to_the_current_one() {
        let period = day("2026-11-29T12:00:00Z");
        for (now, expected) in [
            ("2026-11-28T12:00:00Z", period),
            ("2026-11-29T13:00:00Z", period),
            ("2026-12-03T13:00:00Z", day("2026-12-03T00:00:00Z")),
        ] {
            assert_eq!(period.or_later(at(now)), expected, "{now}");
        }
    }

    #[test]
    fn a_mark_outlives_its_period_by_the_length_of_one() {
        let mark = day("2026-11-29T12:00:00Z").mark();
        for (now, ttl) in [
            ("2026-11-29T18:00:00Z", DAY + DAY / 4),
            ("2026-11-30T09:00:00Z", DAY),
            ("2026-11-28T18:00:00Z", 2 * DAY + DAY / 4),
            ("2026-11-01T00:00:00Z", 3 * DAY),
        ] {
            assert_eq!(mark.ttl(at(now)), ttl, "{now}");
        }
    }

    #[test]
    fn lengths_have_bounds() {
        let (now, second) = (at("2026-11-29T12:00:00Z"), Duration::from_secs(1));
        for (length, is_valid) in [
            (second, true),
            (second - Duration::from_nanos(1), false),
            (second + Duration::from_millis(500), false),
            (365 * DAY, true),
            (365 * DAY + second, false),
            (Duration::MAX, false),
        ] {
            assert_eq!(Period::containing(now, length).is_some(), is_valid, "{length:?}");
        }
        let early = Period::containing(UNIX_EPOCH - DAY, DAY).unwrap();
        assert_eq!(early.start(), UNIX_EPOCH);
        let far = UNIX_EPOCH + Duration::from_secs(1 << 62);
        for length in [second, DAY, 365 * DAY] {
            let late = Period::containing(far, length).unwrap();
            assert!(
                late.start() <= since_1970(LATEST_MILLIS) && late.latest_plausible_mark(far).end_ms < 1 << 53
            );
        }
    }
}
