//! How long a lease is valid (A5).

use std::time::Duration;

/// How far the clocks of client and nodes may drift apart during one TTL: a share of the TTL, plus a fixed margin.
///
/// The share covers clocks that tick at different rates. The margin covers the resolution of Redis' expiry and of timers. A
/// lease is valid for `TTL - drift`, counted from before its request was sent.
///
/// ```
/// use quorlock::Drift;
/// use std::time::Duration;
///
/// // The default: 1 % of the TTL and 2 ms.
/// assert_eq!(Drift::default(), Drift::from_ppm(10_000, Duration::from_millis(2)));
/// assert_eq!(Drift::default().over(Duration::from_secs(10)), Duration::from_millis(102));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    ppm: u32,
    margin: Duration,
}

impl Drift {
    /// Returns a drift of `ppm` millionths of the TTL, plus `margin`. 10,000 ppm is one per cent.
    pub const fn from_ppm(ppm: u32, margin: Duration) -> Self {
        Drift { ppm, margin }
    }

    /// Returns the drift over a TTL, rounded up to the next nanosecond; saturating.
    pub fn over(&self, ttl: Duration) -> Duration {
        let share = ttl
            .as_nanos()
            .saturating_mul(u128::from(self.ppm))
            .div_ceil(1_000_000);
        let share = match u64::try_from(share / 1_000_000_000) {
            // The remainder of a division by 10^9 fits.
            Ok(seconds) => Duration::new(seconds, (share % 1_000_000_000) as u32),
            Err(_) => Duration::MAX,
        };
        share.saturating_add(self.margin)
    }
}

impl Default for Drift {
    /// Returns 1 % of the TTL and 2 ms, as in the Redlock specification.
    fn default() -> Self {
        Drift::from_ppm(10_000, Duration::from_millis(2))
    }
}

/// Returns how long after `t0` a lease is valid; `None` if nothing would be left (A5).
///
/// `t0` is read before the first byte is sent, so the deadline does not depend on how long the answers took.
pub(crate) fn validity(ttl: Duration, drift: Drift) -> Option<Duration> {
    ttl.checked_sub(drift.over(ttl)).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn drift_is_subtracted_never_added() {
        assert_eq!(validity(1_000 * MS, Drift::default()), Some(988 * MS));
        for ttl_ms in 3..5_000 {
            let left = validity(ttl_ms * MS, Drift::default()).unwrap();
            assert!(left < ttl_ms * MS, "{ttl_ms} ms leave {left:?}");
        }
    }

    #[test]
    fn a_ttl_eaten_up_by_drift_has_no_validity_instead_of_a_huge_one() {
        assert_eq!(validity(Duration::ZERO, Drift::default()), None);
        assert_eq!(validity(2 * MS, Drift::default()), None);
        assert_eq!(validity(MS, Drift::from_ppm(0, MS)), None);
        assert_eq!(validity(MS, Drift::from_ppm(1_000_000, Duration::ZERO)), None);
        assert_eq!(validity(MS, Drift::from_ppm(u32::MAX, Duration::MAX)), None);
        assert_eq!(
            validity(Duration::MAX, Drift::from_ppm(u32::MAX, Duration::ZERO)),
            None
        );
    }

    #[test]
    fn nothing_overflows_at_the_edges() {
        assert!(Drift::from_ppm(u32::MAX, Duration::MAX).over(Duration::MAX) == Duration::MAX);
        assert_eq!(
            Drift::from_ppm(0, Duration::ZERO).over(Duration::MAX),
            Duration::ZERO
        );
        assert!(validity(Duration::MAX, Drift::default()).is_some());
    }

    #[test]
    fn a_share_is_rounded_up() {
        assert_eq!(
            Drift::from_ppm(1, Duration::ZERO).over(Duration::from_nanos(1)),
            Duration::from_nanos(1)
        );
    }
}
