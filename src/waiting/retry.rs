//! When to try again, and when to give up (W4).

use std::time::Duration;

use tokio::time::Instant;

use crate::options::Wait;
use crate::protocol::backoff::Backoff;

/// [`Wait::Forever`] outlasts every outage that is shorter.
const SHORTEST_OUTAGE_LIMIT: Duration = Duration::from_secs(10);

/// A waiter that is notified of releases also polls, this many times more rarely: a notification may be lost.
const NOTIFIED_FACTOR: u32 = 16;

/// The attempts of one acquire.
pub(crate) struct Retry {
    wait: Wait,
    backoff: Backoff,
    started: Instant,
    attempts: u32,
    /// Failed attempts since the last reset of the back-off.
    failures: u32,
    /// How long nodes may be out of reach before [`Wait::Forever`] ends.
    outage_limit: Duration,
    out_of_reach_since: Option<Instant>,
}

impl Retry {
    pub(crate) fn new(wait: Wait, backoff: Backoff, ttl: Duration) -> Self {
        Retry {
            wait,
            backoff,
            started: Instant::now(),
            attempts: 0,
            failures: 0,
            outage_limit: ttl.max(SHORTEST_OUTAGE_LIMIT),
            out_of_reach_since: None,
        }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Returns when waiting ends; `None` if it has no limit.
    pub(crate) fn end(&self) -> Option<Instant> {
        match self.wait {
            Wait::Try => Some(self.started),
            Wait::Within(limit) => self.started.checked_add(limit),
            Wait::Forever => None,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some_and(|end| Instant::now() >= end)
    }

    /// Returns since when no quorum of nodes has answered; `None` if one answered last.
    pub(crate) fn out_of_reach_since(&self) -> Option<Instant> {
        self.out_of_reach_since
    }

    /// Takes over `out_of_reach_since` from another waiter.
    pub(crate) fn learn(&mut self, out_of_reach_since: Option<Instant>) {
        self.out_of_reach_since = out_of_reach_since;
    }

    /// Starts with short delays again. Called when there is a reason for an attempt.
    pub(crate) fn reset_backoff(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay until the next attempt without a reason.
    pub(crate) fn delay(&self, random: u32) -> Duration {
        self.backoff.delay(self.failures, random)
    }

    /// Returns the delay of a waiter that is notified of releases, in place of `delay`.
    pub(crate) fn poll_delay_when_notified(&self, delay: Duration) -> Duration {
        let longest = self.backoff.delay(u32::MAX, u32::MAX);
        longest.saturating_add(delay).saturating_mul(NOTIFIED_FACTOR)
    }

    /// Records a failed attempt; `quorum` tells whether a quorum of nodes answered. Returns when to make the next one; `None`
    /// if waiting ends.
    ///
    /// The last attempt is made at the very end of the time, so no sleep is in vain.
    pub(crate) fn next_attempt(&mut self, quorum: bool, random: u32) -> Option<Instant> {
        self.attempts = self.attempts.saturating_add(1);
        self.failures = self.failures.saturating_add(1);
        let now = Instant::now();
        self.out_of_reach_since = if quorum {
            None
        } else {
            self.out_of_reach_since.or(Some(now))
        };
        let next = now + self.delay(random);
        match self.wait {
            Wait::Try => None,
            Wait::Within(limit) => match self.started.checked_add(limit) {
                Some(last) if now >= last => None,
                Some(last) => Some(next.min(last)),
                None => Some(next),
            },
            // `Forever` waits for a holder. An outage is reported.
            Wait::Forever => {
                let out = self
                    .out_of_reach_since
                    .is_some_and(|since| now - since >= self.outage_limit);
                (!out).then_some(next)
            }
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn retry(wait: Wait) -> Retry {
        Retry::new(wait, Backoff::default(), Duration::from_secs(30))
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_is_one_attempt() {
        assert_eq!(retry(Wait::Try).next_attempt(true, 0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn within_ends_with_an_attempt_at_its_very_end_and_no_sleep_after_it() {
        let mut retry = retry(Wait::Within(Duration::from_millis(25)));
        let start = Instant::now();
        let mut moments = Vec::new();
        while let Some(next) = retry.next_attempt(true, 0) {
            advance(next - Instant::now()).await;
            moments.push((next - start).as_millis());
        }
        assert_eq!(moments, [10, 20, 25]);
        assert_eq!(retry.attempts(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn zero_time_is_one_attempt_and_huge_times_do_not_overflow() {
        assert_eq!(retry(Wait::Within(Duration::ZERO)).next_attempt(true, 0), None);
        assert!(
            retry(Wait::Within(Duration::MAX))
                .next_attempt(false, u32::MAX)
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn for_ever_sits_out_a_holder_but_not_an_outage() {
        let mut retry = retry(Wait::Forever);
        for _ in 0..1_000 {
            assert!(retry.next_attempt(true, 0).is_some());
            advance(Duration::from_secs(60)).await;
        }
        assert!(retry.next_attempt(false, 0).is_some());
        advance(Duration::from_secs(29)).await;
        assert!(retry.next_attempt(false, 0).is_some());
        // A quorum has answered in between, so the time counts anew.
        assert!(retry.next_attempt(true, 0).is_some());
        assert!(retry.next_attempt(false, 0).is_some());
        advance(Duration::from_secs(30)).await;
        assert_eq!(retry.next_attempt(false, 0), None);
    }
}
