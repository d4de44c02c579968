//! An estimate of a node's clock (A9).
//!
//! A reply with the node's time bounds the difference between its clock and ours: the node read its clock after we sent and
//! before we received. All times are microseconds; ours count from an arbitrary fixed point.

/// How fast the two clocks may part between samples, in millionths. Ordinary crystals stay below 100.
const WANDER_PPM: i64 = 500;

/// How fast the clocks may part, in per cent, before it counts as a step: the drift that leases allow for.
const DRIFT_PERCENT: i64 = 1;
/// The smallest difference that counts as a step.
const SMALLEST_STEP: i64 = 2_000;
/// Steps are told from drift over about this time.
const SPAN: i64 = 1_000_000;

/// An interval that contains `node clock - our clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeClock {
    low: i64,
    high: i64,
    at: i64,
    /// The same interval, if the clocks part by as much as drift allows.
    bounds: Interval,
    /// The bounds of a while ago. Steps show against them.
    before: Interval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    low: i64,
    high: i64,
    at: i64,
}

impl NodeClock {
    /// Returns the interval after a first sample: the node's clock read `node` between our `sent` and `received`.
    pub(crate) fn new(sent: i64, received: i64, node: i64) -> Self {
        let (low, high, at) = (node.saturating_sub(received), node.saturating_sub(sent), received);
        // The node read its clock some time before `at`.
        let drift = drift(received.saturating_sub(sent));
        let bounds = Interval {
            low: low.saturating_sub(drift),
            high: high.saturating_add(drift),
            at,
        };
        NodeClock {
            low,
            high,
            at,
            bounds,
            before: bounds,
        }
    }

    /// Takes in a further sample. It narrows the interval, or replaces it if the two contradict each other.
    ///
    /// Returns how far the node's clock was put forward at most, or back at least (negative). `None` if drift explains it.
    pub(crate) fn observe(&mut self, sent: i64, received: i64, node: i64) -> Option<i64> {
        let sample = NodeClock::new(sent, received, node);
        let step = self.before.step(&sample.bounds);
        self.narrow(sample, received);
        self.bounds = self.bounds.narrowed(&sample.bounds);
        if step.is_some() || received.saturating_sub(self.before.at) >= SPAN {
            self.before = self.bounds;
        }
        step
    }

    fn narrow(&mut self, sample: NodeClock, received: i64) {
        let slack = self.wander(received);
        let low = sample.low.max(self.low.saturating_sub(slack));
        let high = sample.high.min(self.high.saturating_add(slack));
        *self = if low <= high {
            NodeClock {
                low,
                high,
                at: received.max(self.at),
                ..*self
            }
        } else {
            NodeClock {
                bounds: self.bounds,
                before: self.before,
                ..sample
            }
        };
    }

    /// Returns the latest time that the node's clock can show at our time `local`.
    pub(crate) fn latest(&self, local: i64) -> i64 {
        local.saturating_add(self.high).saturating_add(self.wander(local))
    }

    /// Returns how far the node's clock can be behind [`latest`](Self::latest) at our time `local`.
    pub(crate) fn uncertainty(&self, local: i64) -> i64 {
        let width = self.high.saturating_sub(self.low);
        width.saturating_add(self.wander(local).saturating_mul(2))
    }

    /// Returns the time that the node's clock most likely shows at our time `local`.
    pub(crate) fn estimate(&self, local: i64) -> i64 {
        local
            .saturating_add(self.low)
            .saturating_add(self.high.saturating_sub(self.low) / 2)
    }

    fn wander(&self, local: i64) -> i64 {
        local.saturating_sub(self.at).max(0).saturating_mul(WANDER_PPM) / 1_000_000
    }
}

impl Interval {
    /// Returns the values that both intervals allow; the sample, if they contradict each other.
    fn narrowed(&self, sample: &Interval) -> Interval {
        let drift = drift(sample.at.saturating_sub(self.at));
        let low = sample.low.max(self.low.saturating_sub(drift));
        let high = sample.high.min(self.high.saturating_add(drift));
        let at = sample.at.max(self.at);
        if low <= high {
            Interval { low, high, at }
        } else {
            *sample
        }
    }

    /// Returns how far the difference has moved; `None` if drift explains it.
    fn step(&self, sample: &Interval) -> Option<i64> {
        let slack = drift(sample.at.saturating_sub(self.at)).saturating_add(SMALLEST_STEP);
        let forward = sample.low > self.high.saturating_add(slack);
        let back = sample.high < self.low.saturating_sub(slack);
        (forward || back).then(|| sample.high.saturating_sub(self.low))
    }
}

fn drift(elapsed: i64) -> i64 {
    elapsed.max(0).saturating_mul(DRIFT_PERCENT) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn the_latest_is_never_before_the_truth() {
        // The node is 7 s ahead; it reads its clock anywhere between send and receive.
        for delay in 0..=10 {
            let mut clock = NodeClock::new(100, 110, 100 + delay + 7 * SECOND);
            for round in 1..50 {
                let sent = round * 1_000;
                clock.observe(sent, sent + 10, sent + (delay + round) % 11 + 7 * SECOND);
                let now = sent + 500;
                assert!(clock.latest(now) >= now + 7 * SECOND);
                assert!(clock.latest(now) <= now + 7 * SECOND + 11);
                assert!(clock.latest(now) - clock.uncertainty(now) <= now + 7 * SECOND);
            }
        }
    }

    #[test]
    fn a_quicker_reply_narrows_and_a_slow_one_does_not_widen() {
        let mut clock = NodeClock::new(0, 1_000, 500);
        clock.observe(2_000, 2_010, 2_005);
        let tight = clock;
        clock.observe(3_000, 9_000, 8_999);
        assert!(clock.high - clock.low <= tight.high - tight.low + 8);
    }

    #[test]
    fn a_clock_that_was_set_starts_afresh_in_either_direction() {
        for jump in [-3_600 * SECOND, 3_600 * SECOND] {
            let mut clock = NodeClock::new(0, 10, 5);
            let step = clock.observe(SECOND, SECOND + 10, SECOND + 5 + jump).unwrap();
            assert!((step - jump).abs() < 100, "jump {jump}, seen as {step}");
            let now = 2 * SECOND;
            assert!((clock.latest(now) - (now + jump)).abs() < 1_000, "jump {jump}");
        }
    }

    #[test]
    fn drift_is_no_step_however_often_it_is_looked_at() {
        // The node is faster by 0.9 %, then by 10 %.
        for (percent, steps) in [(9, false), (100, true)] {
            for every in [1_000, 50_000, 3 * SECOND] {
                let mut clock = NodeClock::new(0, 10, 5);
                let mut stepped = 0;
                for round in 1..5_000 {
                    let now = round * every;
                    stepped += clock
                        .observe(now, now + 10, now + 5 + now * percent / 1_000)
                        .unwrap_or(0);
                }
                assert_eq!(
                    stepped > 0,
                    steps,
                    "{percent} per mille, every {every} us: {stepped}"
                );
            }
        }
    }

    #[test]
    fn drift_is_no_step_however_slow_the_answers_are() {
        let mut state = 7_i64;
        let mut below = |most: i64| {
            state = (state * 1_103_515_245 + 12_345) & 0x7fff_ffff;
            state % most
        };
        for (drift, slowest) in [
            (4_000, 12_000),
            (-4_000, 12_000),
            (9_000, 30_000),
            (-9_000, 200_000),
        ] {
            for _ in 0..200 {
                let mut clock = NodeClock::new(0, 10, 5);
                let mut now = 10;
                for _ in 0..100 {
                    let sent = now + below(200_000);
                    let read = sent + below(slowest);
                    now = read + below(slowest);
                    let step = clock.observe(sent, now, read + read * drift / 1_000_000);
                    assert_eq!(
                        step, None,
                        "{drift} millionths, answers in up to {slowest} us each way"
                    );
                }
            }
        }
    }

    #[test]
    fn a_slow_answer_is_no_step() {
        let mut clock = NodeClock::new(0, 10, 5);
        assert_eq!(clock.observe(SECOND, 6 * SECOND, 6 * SECOND), None);
        assert_eq!(clock.observe(7 * SECOND, 12 * SECOND, 7 * SECOND), None);
    }

    /// Slow answers leave the clock vague, and the drift goes on meanwhile.
    #[test]
    fn drift_is_no_step_after_slow_answers_either() {
        for per_mille in [-9, 9] {
            for delay in 0..=10 {
                let node = |now: i64| now + now * per_mille / 1_000;
                let mut clock = NodeClock::new(0, 10, node(5));
                for second in 1..=60 {
                    let (sent, received) = (second * SECOND, second * SECOND + SECOND * 9 / 10);
                    let read = sent + (received - sent) * delay / 10;
                    assert_eq!(clock.observe(sent, received, node(read)), None);
                }
                let now = 61 * SECOND;
                assert_eq!(
                    clock.observe(now, now + 10, node(now + 5)),
                    None,
                    "{per_mille} per mille, {delay}"
                );
            }
        }
    }

    #[test]
    fn an_old_estimate_allows_for_wander() {
        let clock = NodeClock::new(0, 0, 0);
        assert_eq!(clock.latest(60 * SECOND), 60 * SECOND + 30_000);
        assert_eq!(clock.latest(-5), -5, "asking about the past widens nothing");
    }

    #[test]
    fn extremes_saturate() {
        let mut clock = NodeClock::new(i64::MIN, i64::MAX, i64::MAX);
        clock.observe(i64::MAX, i64::MIN, i64::MIN);
        let _ = clock.latest(i64::MAX);
    }
}
