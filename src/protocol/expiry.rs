//! Until when a quorum of nodes keeps a lock (E1), when their clocks may be put forward.

use std::time::Duration;

use super::quorum::quorum;

/// Until when each node keeps the lock at least. Times are counted from when the lock was acquired.
///
/// Keys expire by the node's clock. A node whose clock is put forward lets all of them expire that much earlier, and so
/// does not count as keeping one for longer than that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiries {
    /// What was confirmed, and by how much the node's clock had been put forward when that was asked for.
    confirmed: Vec<Option<(Duration, Duration)>>,
}

impl Expiries {
    pub(crate) fn new(nodes: usize) -> Self {
        Expiries {
            confirmed: vec![None; nodes],
        }
    }

    /// The node keeps the lock until `until`. Its clock had been put forward by `advanced` altogether when it was asked to.
    pub(crate) fn confirm(&mut self, node: usize, until: Duration, advanced: Duration) {
        let now = Some((until, advanced));
        let reach =
            |of: Option<(Duration, Duration)>| of.map(|(until, advanced)| until.saturating_add(advanced));
        if reach(now) > reach(self.confirmed[node]) {
            self.confirmed[node] = now;
        }
    }

    /// Until when a quorum of nodes keeps it, if their clocks have been put forward by `advanced` by now. Zero where there is no
    /// quorum.
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

    /// The nodes that keep it for less long than they confirmed.
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
        // Asked again, the node knows its own clock.
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
