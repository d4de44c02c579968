//! Who goes on when several contend and nobody has a quorum: the votes themselves settle it (W3).

use tokio::time::Instant;

use super::Claim;
use crate::node::Reply;
use crate::protocol::election::{Ballot, is_elected};
use crate::protocol::quorum::Verdict;
use crate::round::Answer;

/// W3: this part of their budget silent nodes are waited for when the others have split their votes,
const STALEMATE: u32 = 10;
/// and then not again for so many times as long.
const UNTIL_NEXT_STALEMATE: u32 = 10;
/// W3: how often the others are asked again.
const MOST_ELECTIONS: u32 = 3;

impl Claim {
    /// A4, W3: the verdict on the attempt. Where nobody has a quorum and this is the contender to go on, it keeps its votes and
    /// asks the others again, within the same budget; those who have them are giving them back by then.
    ///
    /// Cancel safe: whatever was set is deleted with the claim.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        for again in 0.. {
            let verdict = self.verdict_or_stalemate().await;
            if verdict == Verdict::Won || again == MOST_ELECTIONS || !self.is_elected() {
                return verdict;
            }
            // Their answers take as long as ours did, and their deletions half as long again. Later, and somebody else would
            // be there first.
            let round_trip = self.acquire.round_trip();
            let next = Instant::now() + round_trip / 2;
            if next + round_trip >= self.acquire.started + self.acquire.budget {
                return verdict;
            }
            self.acquire.until(next).await;
            self.acquire.ask_again(&self.request(self.asked));
        }
        Verdict::Lost
    }

    /// Pending if other contenders have votes, too, and only nodes that take much longer than the others could decide it. Two who
    /// wait for the same hung node would wait for all of its budget, and neither get it.
    async fn verdict_or_stalemate(&mut self) -> Verdict {
        let acquire = &mut self.acquire;
        acquire
            .settle(|tally| tally.verdict() != Verdict::Pending || tally.is_contested())
            .await;
        let (patience, end) = (acquire.budget / STALEMATE, acquire.started + acquire.budget);
        let over = acquire.until((Instant::now() + patience).min(end));
        tokio::pin!(over);
        loop {
            let verdict = acquire.tally().verdict();
            if verdict != Verdict::Pending || acquire.only_silent_are_left() {
                return verdict;
            }
            if !acquire.answers().all(is_of_ours) {
                return acquire.verdict().await;
            }
            tokio::select! {
                biased;
                _ = acquire.hear() => {}
                () = &mut over => {
                    acquire.call_silent(UNTIL_NEXT_STALEMATE * patience);
                    if Instant::now() >= end {
                        acquire.give_up();
                    }
                }
            }
        }
    }

    fn is_elected(&self) -> bool {
        let ballot = |(node, answer): (usize, Option<&Answer>)| match answer {
            Some(Ok(Reply::Granted { .. })) => Ballot::Ours,
            // What this client has left there, nobody gives back.
            Some(Ok(Reply::Held {
                holder: Some(holder), ..
            })) if !self.janitor.removes(node, *holder) => Ballot::Theirs(*holder),
            _ => Ballot::Nobodys,
        };
        let ballots: Vec<_> = self.acquire.answers().enumerate().map(ballot).collect();
        is_elected(self.owner, &ballots)
    }
}

/// Not refused for anything but a lock of this library.
fn is_of_ours(answer: Option<&Answer>) -> bool {
    !matches!(answer, Some(Ok(Reply::Held { holder: None, .. })))
}
