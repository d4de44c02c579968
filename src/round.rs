//! One request to all nodes, until the verdict (A2-A4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::error::{NodeVote, Votes, vote};
use crate::node::{Fault, Node, Reply, Request};
use crate::protocol::quorum::{Tally, Verdict};

/// The nodes of one set.
pub(crate) type Nodes = Arc<[Arc<dyn Node>]>;

type Answer = Result<Reply, Fault>;

/// One request on its way to all nodes.
///
/// Dropping it leaves the requests that were sent to themselves: they tear nothing down (T3).
pub(crate) struct Round {
    nodes: Nodes,
    /// A5, E1: read before the first byte is sent.
    pub(crate) started: Instant,
    budget: Duration,
    answers: Vec<Option<Answer>>,
    tally: Tally,
    outstanding: FuturesUnordered<BoxFuture<'static, (usize, Answer)>>,
}

impl Round {
    /// A2: sends to all nodes. When this returns, the request has its place in every node's lane.
    pub(crate) fn start(nodes: &Nodes, request: &Request, budget: Duration) -> Round {
        let started = Instant::now();
        let outstanding = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| {
                node.call(request.clone(), budget)
                    .map(move |answer| (number, answer))
                    .boxed()
            })
            .collect();
        Round {
            nodes: nodes.clone(),
            started,
            budget,
            answers: vec![None; nodes.len()],
            tally: Tally::new(nodes.len()),
            outstanding,
        }
    }

    /// A4: waits for the verdict, and for no node longer than its budget. Never [`Verdict::Pending`].
    ///
    /// Cancel safe: what was heard stays counted.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        self.settle(|tally| tally.verdict() != Verdict::Pending).await;
        self.tally.verdict()
    }

    /// Waits until `settled` says that enough was heard, at the latest until every node's time is up.
    pub(crate) async fn settle(&mut self, settled: impl Fn(&Tally) -> bool) {
        let deadline = sleep_until(self.started + self.budget);
        tokio::pin!(deadline);
        while !settled(&self.tally) {
            tokio::select! {
                // Answers first: one that has come counts even if this task was late to look.
                biased;
                answer = self.outstanding.next() => match answer {
                    Some((number, answer)) => self.record(number, answer),
                    None => return,
                },
                // A3, T3: the time is kept here, for all nodes alike.
                () = &mut deadline => return self.give_up(),
            }
        }
        // What has come by now is heard as well, though it decides nothing: it tells an outage from a holder, and where
        // there is nothing to clean up.
        while let Some(Some((number, answer))) = self.outstanding.next().now_or_never() {
            self.record(number, answer);
        }
    }

    /// Waits for every node, each within its budget.
    pub(crate) async fn all(&mut self) {
        self.settle(|_| false).await;
    }

    /// Waits for no more answers.
    pub(crate) fn abandon(&mut self) {
        self.outstanding = FuturesUnordered::new();
    }

    fn give_up(&mut self) {
        for number in 0..self.answers.len() {
            if self.answers[number].is_none() {
                self.record(number, Err(Fault::Timeout { after: self.budget }));
            }
        }
    }

    fn record(&mut self, number: usize, answer: Answer) {
        if self.answers[number].is_none() {
            self.tally.record(vote(&answer));
            self.answers[number] = Some(answer);
        }
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The numbers of the nodes of which `test` is true, given their answers so far.
    pub(crate) fn numbers_where(&self, test: impl Fn(Option<&Answer>) -> bool) -> Vec<usize> {
        (0..self.answers.len())
            .filter(|number| test(self.answers[*number].as_ref()))
            .collect()
    }

    pub(crate) fn votes(&self) -> Votes {
        let vote = |(node, answer): (&Arc<dyn Node>, &Option<Answer>)| NodeVote {
            node: node.name().into(),
            answer: answer.clone(),
        };
        Votes::new(self.nodes.iter().zip(&self.answers).map(vote).collect())
    }
}
