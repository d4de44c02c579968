//! Delays between attempts: a floor, a cap, full jitter (W4).

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(3_600);

/// The delays between attempts on a lock that is held. Default: 10 ms to 500 ms.
///
/// The n-th delay is drawn evenly from `floor ..= min(cap, floor x 2^n)` (full jitter). So clients that collided once are
/// unlikely to collide again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    floor: Duration,
    cap: Duration,
}

impl Backoff {
    /// Returns delays of at least `floor` and at most `cap`. A cap below the floor counts as the floor.
    ///
    /// Both are limited to the range from 1 ms to one hour.
    pub fn new(floor: Duration, cap: Duration) -> Self {
        let floor = floor.clamp(SHORTEST, LONGEST);
        Backoff {
            floor,
            cap: cap.clamp(floor, LONGEST),
        }
    }

    /// Returns the delay before a retry; 1 is the first. `random` is evenly distributed over `u32`.
    pub(crate) fn delay(&self, retry: u32, random: u32) -> Duration {
        let ceiling = match 1u32.checked_shl(retry) {
            Some(factor) => self.floor.saturating_mul(factor).min(self.cap),
            None => self.cap,
        };
        let span = ceiling.saturating_sub(self.floor);
        self.floor + span.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new(Duration::from_millis(10), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delay_keeps_to_floor_and_cap() {
        let backoff = Backoff::default();
        for retry in 0..100 {
            for random in [0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
                let delay = backoff.delay(retry, random);
                assert!(
                    delay >= backoff.floor && delay <= backoff.cap,
                    "retry {retry}: {delay:?}"
                );
            }
        }
    }

    #[test]
    fn the_ceiling_doubles_until_the_cap() {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let ceilings: Vec<u128> = (1..8)
            .map(|retry| backoff.delay(retry, u32::MAX).as_millis())
            .collect();
        assert_eq!(ceilings, [20, 40, 80, 160, 320, 500, 500]);
        assert!((1..8).all(|retry| backoff.delay(retry, 0) == Duration::from_millis(10)));
    }

    #[test]
    fn nonsense_settings_still_make_sane_delays() {
        assert_eq!(
            Backoff::new(Duration::ZERO, Duration::ZERO).delay(9, 7),
            Duration::from_millis(1)
        );
        let reversed = Backoff::new(Duration::from_secs(2), Duration::from_secs(1));
        assert_eq!(reversed.delay(5, u32::MAX), Duration::from_secs(2));
        let huge = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(huge.delay(40, u32::MAX), LONGEST);
        let wide = Backoff::new(Duration::ZERO, Duration::MAX);
        assert_eq!(wide.delay(40, u32::MAX), LONGEST);
    }
}
