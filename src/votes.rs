//! The nodes' answers in one round, and what they amount to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Fault, ListConflict, OwnerToken, Reply};
use crate::protocol::quorum::{Vote, quorum};

/// What each node said in one round.
///
/// `Display` sums up in one line: the counts first, then each node that did not say yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Votes(Vec<NodeVote>);

/// What one node said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeVote {
    /// The node's name: an address without credentials.
    pub node: Arc<str>,
    /// Its answer, or `None` if the round was settled before it came.
    pub answer: Option<Result<Reply, Fault>>,
}

impl NodeVote {
    /// Returns how the answer counts. `None` if there is none.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.answer.as_ref().map(vote)
    }
}

/// Returns how an answer counts in any round: grants, extensions, deletions and announcements are "yes".
pub(crate) fn vote(answer: &Result<Reply, Fault>) -> Vote {
    match answer {
        Ok(Reply::Granted { .. } | Reply::Raised { .. } | Reply::Extended) => Vote::Yes,
        Ok(Reply::Released { .. } | Reply::Announced) => Vote::Yes,
        Ok(Reply::Held { .. } | Reply::Missing | Reply::Foreign) => Vote::No,
        Err(_) => Vote::Fault,
    }
}

impl Votes {
    pub(crate) fn new(votes: Vec<NodeVote>) -> Self {
        Votes(votes)
    }

    /// The same, so much later.
    pub(crate) fn aged(&self, age: Duration) -> Votes {
        let mut votes = self.clone();
        for vote in &mut votes.0 {
            if let Some(Ok(Reply::Held {
                remaining: Some(left),
                ..
            })) = &mut vote.answer
            {
                *left = left.saturating_sub(age);
            }
        }
        votes
    }

    /// Takes refusals by tokens for which `is_own_leftover` holds for faults. Returns whether a quorum may be had without them.
    pub(crate) fn disregard(&mut self, mut is_own_leftover: impl FnMut(usize, OwnerToken) -> bool) -> bool {
        let mut own = 0;
        for (node, vote) in self.0.iter_mut().enumerate() {
            if let Some(Ok(Reply::Held {
                holder: Some(holder), ..
            })) = vote.answer
                && is_own_leftover(node, holder)
            {
                vote.answer = Some(Err(Fault::OwnLeftover));
                own += 1;
            }
        }
        own > 0 && self.yes() + self.outstanding() + own >= self.quorum()
    }

    /// The same, but for what the node has said since.
    pub(crate) fn correct(&mut self, node: usize, answer: Result<Reply, Fault>) {
        self.0[node].answer = Some(answer);
    }

    /// Whether a quorum of nodes answered, whatever they said (R5).
    pub(crate) fn responsive(&self) -> bool {
        self.yes() + self.no() >= self.quorum()
    }

    /// Whether no quorum of nodes is there, as far as they were heard. Those that are left out because they have restarted are
    /// there, and will vote (R2).
    pub(crate) fn out_of_reach(&self) -> bool {
        let gone = |vote: &&NodeVote| {
            let answer = vote.answer.as_ref();
            answer.is_some_and(|answer| matches!(answer, Err(fault) if !fault.is_temporary()))
        };
        self.0.len() - self.0.iter().filter(gone).count() < self.quorum()
    }

    /// Whether a node has failed like that.
    pub(crate) fn any_fault(&self, is_it: impl Fn(&Fault) -> bool) -> bool {
        let answers = self.0.iter().filter_map(|vote| vote.answer.as_ref());
        answers.filter_map(|answer| answer.as_ref().err()).any(is_it)
    }

    /// The other list of nodes that is in use, if that is why nodes gave no vote.
    pub(crate) fn conflict(&self) -> Option<Arc<ListConflict>> {
        self.0.iter().find_map(|vote| match &vote.answer {
            Some(Err(Fault::OtherNodes(conflict))) => Some(conflict.clone()),
            _ => None,
        })
    }

    /// The nodes' votes, in the order in which the nodes were configured.
    pub fn iter(&self) -> impl Iterator<Item = &NodeVote> {
        self.0.iter()
    }

    /// How many nodes did what was asked.
    pub fn yes(&self) -> usize {
        self.count(Some(Vote::Yes))
    }

    /// How many nodes answered and declined.
    pub fn no(&self) -> usize {
        self.count(Some(Vote::No))
    }

    /// How many nodes gave no vote because of a fault.
    pub fn faults(&self) -> usize {
        self.count(Some(Vote::Fault))
    }

    /// How many nodes were not waited for, because the others had settled the round.
    pub fn outstanding(&self) -> usize {
        self.count(None)
    }

    /// How many "yes" it takes: N/2 + 1 of the configured nodes.
    pub fn quorum(&self) -> usize {
        quorum(self.0.len())
    }

    /// The longest time until a holder's key expires, of those that were seen and do expire.
    pub fn longest_remaining(&self) -> Option<Duration> {
        self.0
            .iter()
            .filter_map(|vote| match vote.answer {
                Some(Ok(Reply::Held { remaining, .. })) => remaining,
                _ => None,
            })
            .max()
    }

    fn count(&self, wanted: Option<Vote>) -> usize {
        self.0.iter().filter(|vote| vote.vote() == wanted).count()
    }
}

impl fmt::Display for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let declined = |wanted: fn(Reply) -> bool| {
            self.0
                .iter()
                .filter(|vote| matches!(vote.answer, Some(Ok(reply)) if wanted(reply)))
                .count()
        };
        let counts = [
            (self.yes(), "yes"),
            (declined(|reply| matches!(reply, Reply::Held { .. })), "held"),
            (declined(|reply| reply == Reply::Missing), "missing"),
            (declined(|reply| reply == Reply::Foreign), "taken over"),
            (self.faults(), "faulty"),
            (self.outstanding(), "not waited for"),
        ];
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} node{plural}, quorum {}:", self.0.len(), self.quorum())?;
        let mut separator = " ";
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        // What has as good as ended is not worth a word.
        if let Some(remaining) = self.longest_remaining().filter(|time| time.as_millis() > 0) {
            write!(f, " (held for at most {} more)", short(remaining))?;
        }
        for vote in &self.0 {
            if let Some(Err(fault)) = &vote.answer {
                write!(f, "; {}: {fault}", vote.node)?;
            }
        }
        Ok(())
    }
}

/// Returns a duration for people, to the millisecond.
pub(crate) fn short(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(remaining: &[u64]) -> Votes {
        let vote = |(number, &millis): (usize, &u64)| NodeVote {
            node: format!("n{number}").into(),
            answer: Some(Ok(Reply::Held {
                remaining: Some(Duration::from_millis(millis)),
                holder: None,
            })),
        };
        Votes::new(remaining.iter().enumerate().map(vote).collect())
    }

    #[test]
    fn votes_are_summed_up_in_words_that_fit_their_number() {
        for (votes, words) in [
            (held(&[0]), "1 node, quorum 1: 1 held"),
            (
                held(&[0, 1_500]),
                "2 nodes, quorum 2: 2 held (held for at most 1s 500ms more)",
            ),
        ] {
            assert_eq!(votes.to_string(), words);
        }
    }
}
