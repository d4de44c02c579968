//! Split votes: several contenders hold some nodes each, and none holds a quorum (W3).
//!
//! A refusal names the token that holds the node's key, so each contender knows all votes, and which contender goes on: it
//! keeps its votes and asks the other nodes again. The others give their votes back. If contenders see different votes, or
//! one is gone, this costs only time: a lock is won by a quorum of grants, not by an election.

use super::quorum::quorum;

/// Which contender has a node's vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ballot<T> {
    Ours,
    Theirs(T),
    /// No contender: the node is silent or has failed, or its key holds something else.
    Nobodys,
}

/// Returns the token with most votes (of equals, the smallest), and its votes. `None` if there are no votes.
pub(crate) fn first<T: Ord + Copy>(mut tokens: Vec<T>) -> Option<(usize, T)> {
    tokens.sort_unstable();
    tokens
        .chunk_by(|one, other| one == other)
        .map(|votes| (votes.len(), votes[0]))
        // Of equals, `min_by_key` takes the first: the smallest.
        .min_by_key(|(votes, _)| tokens.len() - votes)
}

/// Returns the token that a quorum of `nodes` nodes hold; `None` if there is none.
pub(crate) fn holder<T: Ord + Copy>(tokens: Vec<T>, nodes: usize) -> Option<T> {
    first(tokens)
        .filter(|(votes, _)| *votes >= quorum(nodes))
        .map(|(_, token)| token)
}

/// Returns whether the contender with the token `ours` goes on. Most votes win; of equals, the smallest token.
pub(crate) fn is_elected<T: Ord + Copy>(ours: T, ballots: &[Ballot<T>]) -> bool {
    let nodes = ballots.len();
    let tokens: Vec<T> = ballots
        .iter()
        .filter_map(|ballot| match ballot {
            Ballot::Ours => Some(ours),
            Ballot::Theirs(token) => Some(*token),
            Ballot::Nobodys => None,
        })
        .collect();
    // Even with all of these nodes, no contender would have a quorum.
    if tokens.len() < quorum(nodes) {
        return false;
    }
    // A token with a quorum is not elected: it holds the lock.
    first(tokens).is_some_and(|(votes, token)| token == ours && votes < quorum(nodes))
}

#[cfg(test)]
mod tests {
    use super::Ballot::{Nobodys, Ours, Theirs};
    use super::*;

    /// Returns all ways to spread the votes of `nodes` nodes over contenders, numbered from 1; 0 is none.
    fn spreads(nodes: u32, contenders: u32) -> impl Iterator<Item = Vec<u32>> {
        (0..(contenders + 1).pow(nodes)).map(move |world| {
            (0..nodes)
                .map(|node| world / (contenders + 1).pow(node) % (contenders + 1))
                .collect()
        })
    }

    /// Returns the ballots as one contender sees them.
    fn seen_by(contender: u32, spread: &[u32]) -> Vec<Ballot<u32>> {
        let ballot = |holder: &u32| match *holder {
            0 => Nobodys,
            holder if holder == contender => Ours,
            holder => Theirs(holder),
        };
        spread.iter().map(ballot).collect()
    }

    #[test]
    fn of_those_who_see_the_same_exactly_one_goes_on_where_somebody_can() {
        for nodes in 1..=5 {
            for spread in spreads(nodes, 4) {
                let elected: Vec<u32> = (1..=4)
                    .filter(|contender| is_elected(*contender, &seen_by(*contender, &spread)))
                    .collect();
                let votes = |contender: u32| spread.iter().filter(|holder| **holder == contender).count();
                let most = (1..=4).map(votes).max().unwrap();
                let taken = spread.iter().filter(|holder| **holder != 0).count();
                if most >= quorum(nodes as usize) || taken < quorum(nodes as usize) {
                    assert!(elected.is_empty(), "{spread:?}");
                } else {
                    let expected = (1..=4).find(|contender| votes(*contender) == most).unwrap();
                    assert_eq!(elected, [expected], "{spread:?}");
                }
            }
        }
    }

    #[test]
    fn a_holder_has_a_quorum_of_all_nodes() {
        for nodes in 1..=5 {
            for spread in spreads(nodes, 3) {
                let tokens: Vec<u32> = spread.iter().copied().filter(|holder| *holder != 0).collect();
                let votes = |contender: u32| spread.iter().filter(|holder| **holder == contender).count();
                let expected = (1..=3).find(|contender| votes(*contender) >= quorum(nodes as usize));
                assert_eq!(holder(tokens, nodes as usize), expected, "{spread:?}");
            }
        }
    }

    #[test]
    fn an_attempt_without_votes_is_never_elected() {
        for spread in spreads(5, 3) {
            assert!(!is_elected(9, &seen_by(9, &spread)), "{spread:?}");
        }
    }
}
