//! Split votes: several clients contend, and none has a quorum. The votes themselves decide which one goes on (W3).

use tokio::time::Instant;

use super::Claim;
use crate::node::Reply;
use crate::protocol::election::{Ballot, is_elected};
use crate::protocol::quorum::Verdict;
use crate::round::Answer;

/// If votes are split and only silent nodes could decide, these are waited for this fraction of the budget.
const STALEMATE: u32 = 10;
/// If they stay silent, they are not waited for again for so many times as long.
const UNTIL_NEXT_STALEMATE: u32 = 10;
/// Most times that the elected contender asks the other nodes again.
const MOST_ELECTIONS: u32 = 3;

impl Claim {
    /// Waits for the verdict on the attempt (A4). If no contender has a quorum and this one is elected, it keeps its votes and asks
    /// the other nodes again within the same budget. By then, the other contenders give their votes back.
    ///
    /// Cancel safe: keys that were set are deleted with the claim.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        for again in 0.. {
            let verdict = self.verdict_or_stalemate().await;
            if verdict == Verdict::Won || again == MOST_ELECTIONS || !self.is_elected() {
                return verdict;
            }
            // The other contenders hear their answers after a round trip like ours, and their deletions arrive half a round trip
            // later. A later acquire would find a newcomer there.
            let round_trip = self.acquire.round_trip();
            let next = Instant::now() + round_trip / 2;
            if next + round_trip >= self.acquire.started + self.acquire.budget {
                return verdict;
            }
            self.acquire.until(next).await;
            self.acquire.ask_again(&self.request(self.action));
        }
        Verdict::Lost
    }

    /// Returns [`Verdict::Pending`] if other contenders have votes, too, and only silent nodes could decide. Two contenders that wait
    /// for the same hung node would wait for its whole budget, and neither would win.
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
            if verdict != Verdict::Pending || acquire.only_unresponsive_are_left() {
                return verdict;
            }
            if !acquire.answers().all(is_of_ours) {
                return acquire.verdict().await;
            }
            tokio::select! {
                biased;
                _ = acquire.next_answer() => {}
                () = &mut over => {
                    acquire.mark_unresponsive(UNTIL_NEXT_STALEMATE * patience);
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
            // A key that this client is deleting belongs to no contender.
            Some(Ok(Reply::Held {
                holder: Some(holder), ..
            })) if !self.cleanup.is_deleting(node, *holder) => Ballot::Theirs(*holder),
            _ => Ballot::Nobodys,
        };
        let ballots: Vec<_> = self.acquire.answers().enumerate().map(ballot).collect();
        is_elected(self.owner, &ballots)
    }
}

/// Returns whether an answer is anything but a refusal by a key that is no lock of this library.
fn is_of_ours(answer: Option<&Answer>) -> bool {
    !matches!(answer, Some(Ok(Reply::Held { holder: None, .. })))
}
