//! Until when a quorum of nodes keeps a lock's key, although clocks may be put forward (E1).

use std::time::Duration;

use super::quorum::quorum;

/// Until when each node keeps a lock's key, at least. Times count from before the acquire was sent (`t0`).
///
/// Keys expire by the node's clock. If that is put forward, its keys expire that much earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiries {
    /// Until when each node has confirmed the key, and how far its clock had been put forward when it was asked.
    confirmed: Vec<Option<(Duration, Duration)>>,
}

impl Expiries {
    pub(crate) fn new(nodes: usize) -> Self {
        Expiries {
            confirmed: vec![None; nodes],
        }
    }

    /// Records that a node keeps the key until `until`. `advanced`: how far its clock had been put forward when it was asked.
    pub(crate) fn confirm(&mut self, node: usize, until: Duration, advanced: Duration) {
        let now = Some((until, advanced));
        let reach =
            |of: Option<(Duration, Duration)>| of.map(|(until, advanced)| until.saturating_add(advanced));
        if reach(now) > reach(self.confirmed[node]) {
            self.confirmed[node] = now;
        }
    }

    /// Returns until when a quorum of nodes keeps the key; zero without a quorum. `advanced`: how far each clock has been put
    /// forward by now.
    pub(crate) fn quorum_until(&self, advanced: impl Fn(usize) -> Duration) -> Duration {
        let mut untils: Vec<Duration> = (self.confirmed.iter().enumerate())
            .filter_map(|(node, confirmed)| {
                let (until, before) = (*confirmed)?;
                Some(until.saturating_sub(advanced(node).saturating_sub(before)))
            })
            .collect();
        untils.sort_unstable_by(|a, b| b.cmp(a));
        untils
            .get(quorum(self.confirmed.len()) - 1)
            .copied()
            .unwrap_or(Duration::ZERO)
    }

    /// Returns the nodes that keep the key for less time than they confirmed.
    pub(crate) fn shortened(&self, advanced: impl Fn(usize) -> Duration) -> impl Iterator<Item = usize> {
        let confirmed = self.confirmed.iter().enumerate();
        confirmed.filter_map(move |(node, confirmed)| {
            let (_, before) = (*confirmed)?;
            (advanced(node) > before).then_some(node)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn still(_: usize) -> Duration {
        Duration::ZERO
    }

    #[test]
    fn a_quorum_keeps_it_for_as_long_as_the_last_that_is_needed() {
        let mut expiries = Expiries::new(5);
        assert_eq!(expiries.quorum_until(still), Duration::ZERO);
        expiries.confirm(0, secs(10), secs(0));
        expiries.confirm(1, secs(30), secs(0));
        assert_eq!(expiries.quorum_until(still), Duration::ZERO, "two of five");
        expiries.confirm(4, secs(20), secs(0));
        assert_eq!(expiries.quorum_until(still), secs(10));
        expiries.confirm(3, secs(20), secs(0));
        assert_eq!(expiries.quorum_until(still), secs(20));
        assert_eq!(Expiries::new(1).quorum_until(still), Duration::ZERO);
    }

    #[test]
    fn clocks_that_were_put_forward_take_time_off() {
        let mut expiries = Expiries::new(3);
        (0..3).for_each(|node| expiries.confirm(node, secs(30), secs(0)));
        let one = |node| secs(if node == 1 { 3_600 } else { 0 });
        assert_eq!(expiries.quorum_until(one), secs(30), "the other two are a quorum");
        assert_eq!(expiries.shortened(one).collect::<Vec<_>>(), [1]);
        assert_eq!(expiries.quorum_until(|_| secs(5)), secs(25));
        assert_eq!(expiries.quorum_until(|_| secs(31)), Duration::ZERO);
        // A new confirmation counts by the clock as it is by then.
        (0..3).for_each(|node| expiries.confirm(node, secs(40), secs(5)));
        assert_eq!(expiries.quorum_until(|_| secs(5)), secs(40));
        assert_eq!(expiries.shortened(|_| secs(5)).count(), 0);
    }

    #[test]
    fn answers_in_any_order() {
        let mut expiries = Expiries::new(1);
        expiries.confirm(0, secs(40), secs(5));
        expiries.confirm(0, secs(30), secs(0));
        assert_eq!(expiries.quorum_until(|_| secs(5)), secs(40));
    }

    #[test]
    fn extremes_saturate() {
        let mut expiries = Expiries::new(1);
        expiries.confirm(0, Duration::MAX, Duration::MAX);
        expiries.confirm(0, Duration::MAX, Duration::ZERO);
        assert_eq!(expiries.quorum_until(|_| Duration::MAX), Duration::MAX);
    }
}
