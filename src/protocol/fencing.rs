//! Which fencing token may be issued, and when (F2, F3).
//!
//! Each node counts the grants of a resource. The largest counter among the grants is not enough: nodes that are behind may
//! grant the next lock, and give it a smaller one. So a token is issued only once a quorum of nodes is *certified* for it. A
//! node is certified if, at one moment of this attempt, its counter was the token and it held the attempt's key. Any later
//! quorum contains one of these nodes, which counts on from there.

use super::quorum::quorum;
use super::token::FencingToken;

/// What an attempt knows of a node's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seen {
    /// No answer yet.
    Nothing,
    /// The node has granted the lock. The counter of its latest answer.
    Counter(FencingToken),
    /// Not counted any more: the node refused or failed, or the key is gone.
    Excluded,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ruling {
    /// Wait for more answers.
    Wait,
    /// Raise the nodes that are [`behind`](Certification::behind) to this token. They obey only while they hold the key. Stands
    /// until the next one.
    Raise(FencingToken),
    /// Issue this token: a quorum is certified.
    Issue(FencingToken),
    /// Give up: no quorum can be certified any more.
    Never,
}

/// The state of one attempt, from grants to a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Certification {
    seen: Vec<Seen>,
    token: Option<FencingToken>,
}

impl Certification {
    pub(crate) fn new(nodes: usize) -> Self {
        Certification {
            seen: vec![Seen::Nothing; nodes],
            token: None,
        }
    }

    /// Records a node's counter while it held our key: the node granted the lock, or was raised (F1, F3).
    pub(crate) fn counted(&mut self, node: usize, counter: FencingToken) {
        self.seen[node] = match self.seen[node] {
            Seen::Nothing => Seen::Counter(counter),
            // Answers come in any order, but a counter only rises.
            Seen::Counter(earlier) => Seen::Counter(earlier.max(counter)),
            Seen::Excluded => Seen::Excluded,
        };
    }

    /// Records that a node does not hold the lock for this attempt, or may not.
    pub(crate) fn exclude(&mut self, node: usize) {
        self.seen[node] = Seen::Excluded;
    }

    pub(crate) fn rule(&mut self) -> Ruling {
        let need = quorum(self.seen.len());
        let silent = self.seen.iter().filter(|seen| **seen == Seen::Nothing).count();
        let holding = self.counters().count();
        if holding + silent < need {
            return Ruling::Never;
        }
        let Some(highest) = self.counters().max().filter(|_| holding >= need) else {
            return Ruling::Wait;
        };
        // A node ahead of the token does not count. The token grows only if there is no quorum without that node (F2).
        let token = match self.token {
            Some(token) if self.counters().filter(|counter| *counter <= token).count() + silent >= need => {
                token
            }
            _ => highest,
        };
        self.token = Some(token);
        if self.counters().filter(|counter| *counter == token).count() >= need {
            Ruling::Issue(token)
        } else if self.behind(token).next().is_some() {
            Ruling::Raise(token)
        } else {
            Ruling::Wait
        }
    }

    /// Returns the nodes that hold the lock with a counter below `token`.
    pub(crate) fn behind(&self, token: FencingToken) -> impl Iterator<Item = usize> {
        let numbered = self.seen.iter().enumerate();
        numbered.filter_map(move |(node, seen)| match seen {
            Seen::Counter(counter) if *counter < token => Some(node),
            _ => None,
        })
    }

    fn counters(&self) -> impl Iterator<Item = FencingToken> {
        self.seen.iter().filter_map(|seen| match seen {
            Seen::Counter(counter) => Some(*counter),
            Seen::Nothing | Seen::Excluded => None,
        })
    }
}

/// Returns whether a counter can have started from a clock's time. A counter that cannot is a fault of its node: passed on to
/// all nodes, it would use up the tokens.
pub(crate) fn credible(counter: FencingToken, seed: FencingToken) -> bool {
    counter.get() < seed.get().saturating_add(TEN_YEARS)
}

/// In microseconds.
const TEN_YEARS: u64 = 10 * 365 * 24 * 3_600 * 1_000_000;

/// Returns the value that missing counters start from, in microseconds since 1970: the median of the known node clocks (F5).
/// This client's clock, `own`, is added if their number is even.
pub(crate) fn seed(mut clocks: Vec<u64>, own: u64) -> FencingToken {
    // Of a wrong and a right clock, the later must not simply win: other clients would not believe its counters.
    if clocks.len().is_multiple_of(2) {
        clocks.push(own);
    }
    clocks.sort_unstable();
    let median = clocks.get(clocks.len() / 2).copied().unwrap_or(own);
    FencingToken::new(median.max(1)).unwrap_or(FencingToken::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: u64) -> FencingToken {
        FencingToken::new(value).unwrap()
    }

    fn granted(counters: &[Option<u64>]) -> Certification {
        let mut certification = Certification::new(counters.len());
        for (node, counter) in counters.iter().enumerate() {
            if let Some(counter) = counter {
                certification.counted(node, token(*counter));
            }
        }
        certification
    }

    #[test]
    fn equal_counters_need_no_second_round() {
        for (nodes, need) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            let mut certification = Certification::new(nodes);
            for node in 0..need {
                assert_eq!(certification.rule(), Ruling::Wait, "{node} of {nodes}");
                certification.counted(node, token(7));
            }
            assert_eq!(certification.rule(), Ruling::Issue(token(7)), "{nodes} nodes");
        }
    }

    #[test]
    fn the_largest_is_not_issued_before_a_quorum_has_it() {
        let mut certification = granted(&[Some(5), Some(3), None]);
        assert_eq!(certification.rule(), Ruling::Raise(token(5)));
        assert_eq!(certification.behind(token(5)).collect::<Vec<_>>(), [1]);
        certification.counted(1, token(5));
        assert_eq!(certification.rule(), Ruling::Issue(token(5)));
    }

    #[test]
    fn a_straggler_ahead_does_not_count_as_long_as_there_is_a_quorum_without_it() {
        let mut certification = granted(&[Some(5), Some(3), None]);
        assert_eq!(certification.rule(), Ruling::Raise(token(5)));
        certification.counted(2, token(9));
        assert_eq!(
            certification.rule(),
            Ruling::Raise(token(5)),
            "not 9, and not issued"
        );
        certification.counted(1, token(5));
        assert_eq!(certification.rule(), Ruling::Issue(token(5)));
    }

    #[test]
    fn the_token_grows_where_there_is_no_quorum_without_the_straggler() {
        let mut certification = granted(&[Some(5), Some(3), None]);
        assert_eq!(certification.rule(), Ruling::Raise(token(5)));
        certification.counted(2, token(9));
        certification.exclude(1);
        assert_eq!(certification.rule(), Ruling::Raise(token(9)));
        // A late answer to the first raise.
        certification.counted(0, token(5));
        assert_eq!(certification.rule(), Ruling::Raise(token(9)));
        certification.counted(0, token(9));
        assert_eq!(certification.rule(), Ruling::Issue(token(9)));
    }

    #[test]
    fn a_straggler_that_agrees_spares_the_raise() {
        let mut certification = granted(&[Some(5), Some(3), None]);
        assert_eq!(certification.rule(), Ruling::Raise(token(5)));
        certification.counted(2, token(5));
        assert_eq!(certification.rule(), Ruling::Issue(token(5)));
    }

    #[test]
    fn a_node_that_is_out_stays_out_whatever_it_says_later() {
        let mut certification = granted(&[Some(5), Some(5), Some(5)]);
        certification.exclude(0);
        certification.exclude(1);
        certification.counted(0, token(5));
        assert_eq!(certification.rule(), Ruling::Never);
    }

    #[test]
    fn every_small_world_ends_and_issues_only_what_a_quorum_has() {
        // A node's answer to the acquire: its counter; `None` if it is out.
        const SAID: [Option<u64>; 3] = [Some(3), Some(5), None];
        for world in 0..3usize.pow(3) * 2usize.pow(3) {
            let grants: Vec<Option<u64>> = (0..3).map(|node| SAID[world / 3usize.pow(node) % 3]).collect();
            let obeys: Vec<bool> = (0..3)
                .map(|node| world / 27 / 2usize.pow(node) % 2 == 1)
                .collect();
            let mut certification = Certification::new(3);
            let mut counters = [0; 3];
            let mut heard = grants.iter().enumerate();
            let ending = loop {
                match certification.rule() {
                    Ruling::Wait => match heard.next() {
                        Some((node, Some(counter))) => {
                            counters[node] = *counter;
                            certification.counted(node, token(*counter));
                        }
                        Some((node, None)) => certification.exclude(node),
                        None => panic!("undecided in {grants:?} {obeys:?}"),
                    },
                    Ruling::Raise(to) => {
                        let behind: Vec<usize> = certification.behind(to).collect();
                        for node in behind {
                            if obeys[node] {
                                counters[node] = to.get();
                                certification.counted(node, to);
                            } else {
                                certification.exclude(node);
                            }
                        }
                    }
                    ending => break ending,
                }
            };
            match ending {
                Ruling::Issue(issued) => {
                    let equal = counters
                        .iter()
                        .filter(|counter| **counter == issued.get())
                        .count();
                    assert!(equal >= 2, "{issued} with {counters:?} in {grants:?} {obeys:?}");
                }
                ending => {
                    assert_eq!(ending, Ruling::Never);
                    let willing = grants
                        .iter()
                        .zip(&obeys)
                        .filter(|(grant, obeys)| grant.is_some() && **obeys);
                    assert!(willing.count() < 2, "given up in {grants:?} {obeys:?}");
                }
            }
        }
    }

    #[test]
    fn a_counter_far_ahead_of_all_clocks_is_not_believed() {
        let now = token(1_795_826_400_000_000);
        for counter in [1, now.get(), now.get() + TEN_YEARS / 2] {
            assert!(credible(token(counter), now), "{counter}");
        }
        assert!(!credible(token(now.get() + TEN_YEARS), now));
        assert!(!credible(FencingToken::MAX, now));
    }

    #[test]
    fn the_seed_is_a_time_that_most_nodes_agree_with() {
        assert_eq!(seed(vec![30, 10, 20], 7).get(), 20);
        assert_eq!(
            seed(vec![1, u64::MAX, 500, 501, 502], 7).get(),
            501,
            "one node is wrong"
        );
        assert_eq!(seed(vec![], 7).get(), 7);
        assert_eq!(seed(vec![], 0).get(), 1, "0 is never issued");
        assert_eq!(seed(vec![u64::MAX], 0), FencingToken::MAX);
        assert_eq!(seed(vec![900, 30], 31).get(), 31, "one of two is wrong");
        assert_eq!(seed(vec![30, 31, 900, 32], 7).get(), 31, "ours is, too");
    }
}
