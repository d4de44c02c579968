//! From a quorum of grants to a fencing token that a quorum is certified for (F2, F3).

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use crate::node::{Action, Fault, Reply, Request};
use crate::protocol::fencing::{Certification, Ruling};
use crate::protocol::token::FencingToken;
use crate::round::{Answer, Round};
use crate::votes::Votes;

/// The token to issue for what `acquire` was granted. Where all counters agree, as they do unless somebody was in the
/// way, that takes no further message. Otherwise the nodes that are behind are raised: they have `budget` for it,
/// and as much again if the token has to grow. All is over by `until`.
///
/// `None` if no quorum can be certified. The votes are what each node has said last.
///
/// Cancel safe: a raise that was sent may be executed. It changes counters only, only upwards, and only under our key.
pub(crate) async fn certify(
    acquire: &mut Round,
    request: impl Fn(Action) -> Request,
    budget: Duration,
    until: Instant,
) -> (Option<FencingToken>, Votes) {
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
            // A straggler. If it agrees, it spares the wait for a raise.
            Some(node) = acquire.next_answer() => match acquire.answer(node) {
                Some(answer) => learn(&mut certification, node, answer),
                None => certification.out(node),
            },
            () = &mut timer => {
                // F3: silence certifies nothing. Those who are at the token already may still be enough, or those ahead of it.
                for node in acquire.give_up() {
                    certification.out(node);
                }
                let silent: Vec<usize> = target.map_or_else(Vec::new, |token| certification.behind(token).collect());
                for node in silent {
                    certification.out(node);
                    raised.push((node, Err(Fault::Timeout { after: budget })));
                }
            }
        }
    };
    let mut votes = acquire.votes();
    raised
        .into_iter()
        .for_each(|(node, answer)| votes.correct(node, answer));
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
        _ => certification.out(node),
    }
}
