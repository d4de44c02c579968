//! The nodes' answers in one round.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Fault, ListConflict, OwnerToken, Reply};
use crate::protocol::election;
use crate::protocol::quorum::{Vote, quorum};
use crate::sys::millis;

/// Each node's answer in one round.
///
/// `Display` writes one line: the counts, then each node's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Votes(Vec<NodeVote>);

/// One node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeVote {
    /// The node's name: an address without credentials.
    pub node: Arc<str>,
    /// Its answer; `None` if the round was decided before it came.
    pub answer: Option<Result<Reply, Fault>>,
}

impl NodeVote {
    /// Returns how the answer counts. `None` if there is none.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.answer.as_ref().map(vote)
    }
}

/// Returns how an answer counts in any round: "yes" if the node did what was asked.
pub(crate) fn vote(answer: &Result<Reply, Fault>) -> Vote {
    match answer {
        Ok(Reply::Granted { .. } | Reply::Raised { .. } | Reply::Extended) => Vote::Yes,
        Ok(Reply::Released { .. } | Reply::Mark { .. } | Reply::Announced) => Vote::Yes,
        Ok(Reply::Held { .. } | Reply::Missing | Reply::Foreign) => Vote::No,
        Err(_) => Vote::Fault,
    }
}

impl Votes {
    pub(crate) fn new(votes: Vec<NodeVote>) -> Self {
        Votes(votes)
    }

    /// Returns the same votes after some time: less of it remains until held keys expire.
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

    /// Turns refusals by own leftovers into faults. Returns whether there may be a quorum once these keys are deleted.
    pub(crate) fn mark_own_leftovers(
        &mut self,
        mut is_own_leftover: impl FnMut(usize, OwnerToken) -> bool,
    ) -> bool {
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

    /// Replaces a node's answer by a later one.
    pub(crate) fn replace_answer(&mut self, node: usize, answer: Result<Reply, Fault>) {
        self.0[node].answer = Some(answer);
    }

    /// Returns whether a quorum of nodes answered, with yes or no (R5).
    pub(crate) fn responsive(&self) -> bool {
        self.yes() + self.no() >= self.quorum()
    }

    /// Returns whether so many nodes have failed that no quorum is left. Nodes that are left out for a while, by the restart
    /// guard for instance, have not failed (R2).
    pub(crate) fn out_of_reach(&self) -> bool {
        let failed = |vote: &&NodeVote| {
            let answer = vote.answer.as_ref();
            answer.is_some_and(|answer| matches!(answer, Err(fault) if !fault.is_temporary()))
        };
        self.0.len() - self.0.iter().filter(failed).count() < self.quorum()
    }

    pub(crate) fn any_fault(&self, is_it: impl Fn(&Fault) -> bool) -> bool {
        let answers = self.0.iter().filter_map(|vote| vote.answer.as_ref());
        answers.filter_map(|answer| answer.as_ref().err()).any(is_it)
    }

    /// Returns the other list of nodes in use; `None` if no node refused for that reason.
    pub(crate) fn conflict(&self) -> Option<Arc<ListConflict>> {
        self.0.iter().find_map(|vote| match &vote.answer {
            Some(Err(Fault::OtherNodes(conflict))) => Some(conflict.clone()),
            _ => None,
        })
    }

    /// Returns the nodes' votes, in the configured order of the nodes.
    pub fn iter(&self) -> impl Iterator<Item = &NodeVote> {
        self.0.iter()
    }

    /// Returns how many nodes did what was asked.
    pub fn yes(&self) -> usize {
        self.count(Some(Vote::Yes))
    }

    /// Returns how many nodes refused.
    pub fn no(&self) -> usize {
        self.count(Some(Vote::No))
    }

    /// Returns how many nodes gave no vote because of a fault.
    pub fn faults(&self) -> usize {
        self.count(Some(Vote::Fault))
    }

    /// Returns how many nodes had not answered when the others had decided the round.
    pub fn outstanding(&self) -> usize {
        self.count(None)
    }

    /// Returns how many "yes" are needed: N/2 + 1 of the N configured nodes.
    pub fn quorum(&self) -> usize {
        quorum(self.0.len())
    }

    /// Returns the owner token that a quorum of nodes holds. `None` if there is none.
    pub(crate) fn holder(&self) -> Option<OwnerToken> {
        let token = |vote: &NodeVote| match vote.answer {
            Some(Ok(Reply::Held { holder, .. })) => holder,
            _ => None,
        };
        election::holder(self.0.iter().filter_map(token).collect(), self.0.len())
    }

    /// Returns how many nodes hold a key without an expiry, which never ends by itself.
    pub(crate) fn endless(&self) -> usize {
        let is_endless =
            |vote: &&NodeVote| matches!(vote.answer, Some(Ok(Reply::Held { remaining: None, .. })));
        self.0.iter().filter(is_endless).count()
    }

    /// Returns the longest time until a holder's key expires; `None` if no such key was seen.
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
        if let Some(remaining) = self.longest_remaining().filter(|time| time.as_millis() > 0) {
            write!(f, " (expires in {} unless renewed)", short(remaining))?;
        }
        match self.endless() {
            0 => {}
            1 => f.write_str(" (1 key has no expiry: it never ends by itself)")?,
            count => write!(f, " ({count} keys have no expiry: they never end by themselves)")?,
        }
        for vote in &self.0 {
            if let Some(Err(fault)) = &vote.answer {
                write!(f, "; {}: {fault}", vote.node)?;
            }
        }
        Ok(())
    }
}

/// Returns a readable duration, to the millisecond.
pub(crate) fn short(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(millis(duration)))
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
                "2 nodes, quorum 2: 2 held (expires in 1s 500ms unless renewed)",
            ),
        ] {
            assert_eq!(votes.to_string(), words);
        }
    }
}
