//! Split votes: several clients contend, and none has a quorum. The votes themselves decide which one goes on (W3).

use tokio::time::Instant;

use crate::keys::claim::Claim;
use crate::node::{Answer, Reply};
use crate::protocol::election::{Ballot, is_elected};
use crate::protocol::quorum::Verdict;
use crate::round::Round;

/// If votes are split and only silent nodes could decide, these are waited for this fraction of the budget.
const STALEMATE: u32 = 10;
/// If they stay silent, they are not waited for again for so many times as long.
const UNTIL_NEXT_STALEMATE: u32 = 10;
/// Most times that the elected contender asks the other nodes again.
const MOST_ELECTIONS: u32 = 3;

/// Waits for the verdict on an attempt (A4). If no contender has a quorum and this one is elected, it keeps its votes and asks the
/// other nodes again within the same budget. By then, the other contenders give their votes back.
///
/// Cancel safe: keys that were set are deleted with the claim.
pub(super) async fn verdict(claim: &mut Claim) -> Verdict {
    for again in 0.. {
        let verdict = verdict_or_stalemate(claim.attempt()).await;
        if verdict == Verdict::Won || again == MOST_ELECTIONS || !wins_election(claim) {
            return verdict;
        }
        let request = claim.acquire_request();
        let attempt = claim.attempt();
        // The other contenders hear their answers after a round trip like ours, and their deletions arrive half a round trip
        // later. A later acquire would find a newcomer there.
        let round_trip = attempt.round_trip();
        let next = Instant::now() + round_trip / 2;
        if next + round_trip >= attempt.started + attempt.budget {
            return verdict;
        }
        attempt.until(next).await;
        attempt.ask_again(&request);
    }
    Verdict::Lost
}

/// Returns [`Verdict::Pending`] if other contenders have votes, too, and only silent nodes could decide. Two contenders that wait
/// for the same hung node would wait for its whole budget, and neither would win.
async fn verdict_or_stalemate(attempt: &mut Round) -> Verdict {
    attempt
        .settle(|tally| tally.verdict() != Verdict::Pending || tally.is_contested())
        .await;
    let (stalemate_after, end) = (attempt.budget / STALEMATE, attempt.started + attempt.budget);
    let over = attempt.until((Instant::now() + stalemate_after).min(end));
    tokio::pin!(over);
    loop {
        let verdict = attempt.tally().verdict();
        if verdict != Verdict::Pending || attempt.only_unresponsive_are_left() {
            return verdict;
        }
        if !attempt.answers().all(is_of_ours) {
            return attempt.verdict().await;
        }
        tokio::select! {
            biased;
            _ = attempt.next_answer() => {}
            () = &mut over => {
                attempt.mark_unresponsive(UNTIL_NEXT_STALEMATE * stalemate_after);
                if Instant::now() >= end {
                    attempt.give_up();
                }
            }
        }
    }
}

/// Returns whether this contender is the one to go on.
fn wins_election(claim: &Claim) -> bool {
    let ballot = |(node, answer): (usize, Option<&Answer>)| match answer {
        Some(Ok(Reply::Granted { .. })) => Ballot::Ours,
        // A key that this client is deleting belongs to no contender.
        Some(Ok(Reply::Held {
            holder: Some(holder), ..
        })) if !claim.is_deleting(node, *holder) => Ballot::Theirs(*holder),
        _ => Ballot::Nobodys,
    };
    let ballots: Vec<_> = claim.answers().enumerate().map(ballot).collect();
    is_elected(claim.owner(), &ballots)
}

/// Returns whether an answer is anything but a refusal by a key that is no lock of this library.
fn is_of_ours(answer: Option<&Answer>) -> bool {
    !matches!(answer, Some(Ok(Reply::Held { holder: None, .. })))
}
