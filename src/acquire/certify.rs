//! From a quorum of grants to a fencing token that a quorum has certified (F2, F3).

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use crate::keys::claim::Claim;
use crate::node::{Action, Answer, Fault, Reply, Request};
use crate::options::LockSettings;
use crate::protocol::fencing::{Certification, Ruling};
use crate::protocol::token::FencingToken;
use crate::sys::metrics;
use crate::votes::Votes;

/// Has a quorum certify a fencing token for the grants that the acquire got. Returns the token, and what each node has said last;
/// `None` if no quorum can be certified.
///
/// Normally all counters agree, and this sends nothing. Otherwise it raises the counters of nodes that are behind: they have a node
/// budget for it, and another one if the token has to grow. It ends at the lease's deadline at the latest.
///
/// Cancel safe: a raise that was sent may be executed. It changes counters only, only upwards, and only under our key.
pub(super) async fn certify(claim: &mut Claim, settings: &LockSettings) -> (Option<FencingToken>, Votes) {
    let template = claim.acquire_request();
    let request = |action| Request {
        action,
        ..template.clone()
    };
    let budget = settings.node_budget;
    let acquire = claim.attempt();
    let until = acquire.started + settings.validity;
    let nodes = acquire.answers().len();
    let mut certification = Certification::new(nodes);
    for (node, answer) in acquire.answers().enumerate() {
        if let Some(answer) = answer {
            learn(&mut certification, node, answer);
        }
    }
    let mut asked: Vec<Option<FencingToken>> = vec![None; nodes];
    let mut raises = FuturesUnordered::new();
    let mut raised: Vec<(usize, Answer)> = Vec::new();
    let timer = acquire.until(until);
    tokio::pin!(timer);
    let mut target = None;
    let token = loop {
        match certification.rule() {
            Ruling::Issue(token) => break Some(token),
            Ruling::Never => break None,
            Ruling::Raise(token) => {
                if target != Some(token) {
                    if target.is_none() {
                        metrics::token_raised(settings.label);
                    }
                    target = Some(token);
                    timer.set(acquire.until(until.min(Instant::now() + budget)));
                }
                for node in certification.behind(token) {
                    if asked[node] == target {
                        continue;
                    }
                    asked[node] = target;
                    raises.push(acquire.ask(node, request(Action::Raise { token }), budget));
                }
            }
            Ruling::Wait => {}
        }
        tokio::select! {
            biased;
            Some((node, answer)) = raises.next() => {
                learn(&mut certification, node, &answer);
                raised.push((node, answer));
            }
            // A late grant. If its counter agrees, no raise has to be waited for.
            Some(node) = acquire.next_answer() => match acquire.answer(node) {
                Some(answer) => learn(&mut certification, node, answer),
                None => certification.exclude(node),
            },
            () = &mut timer => {
                // Silence certifies nothing (F3). Nodes that are at the token already, or ahead of it, may still be enough.
                for node in acquire.give_up() {
                    certification.exclude(node);
                }
                let silent: Vec<usize> = target.map_or_else(Vec::new, |token| certification.behind(token).collect());
                for node in silent {
                    certification.exclude(node);
                    raised.push((node, Err(Fault::Timeout { after: budget })));
                }
            }
        }
    };
    let mut votes = acquire.votes();
    raised
        .into_iter()
        .for_each(|(node, answer)| votes.replace_answer(node, answer));
    if let Some(token) = token {
        claim.certified(token, &votes);
    }
    (token, votes)
}

fn learn(certification: &mut Certification, node: usize, answer: &Answer) {
    match answer {
        Ok(
            Reply::Granted {
                counter: Some(counter),
            }
            | Reply::Raised { counter },
        ) => {
            certification.counted(node, *counter);
        }
        _ => certification.exclude(node),
    }
}
