//! One request to all nodes, until the verdict (A2 to A4).
//!
//! Entry points: [`Round::start`] sends, [`Round::verdict`] and [`Round::settle`] wait. `outstanding.rs` is one request to one
//! node, `overdue.rs` the wait for nodes whose votes count again in a moment. This folder knows nothing of locks, leases or
//! waiting.

mod outstanding;
mod overdue;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::time::Instant;

use crate::context::Context;
use crate::node::{Answer, Fault, Node, Nodes, Reply, Request};
use crate::protocol::quorum::{Tally, Verdict, Vote};
use crate::sys::clock::Moment;
use crate::sys::metrics;
use crate::sys::timer::sleep_until;
use crate::votes::{NodeVote, Votes, vote};

use outstanding::take_next;
pub(crate) use outstanding::{Outstanding, ask, next_of};
pub(crate) use overdue::may_retry;

/// One request to all nodes, with the answers so far.
///
/// Dropping it takes back no request that was sent, and closes no connection (T3).
pub(crate) struct Round {
    nodes: Nodes,
    /// Read before the first byte is sent: validity counts from here (A5, E1). `started` is the same moment for timers.
    pub(crate) t0: Moment,
    pub(crate) started: Instant,
    /// Each node's state at that moment.
    pub(crate) before: Vec<NodeBaseline>,
    pub(crate) budget: Duration,
    context: Context,
    answers: Vec<Option<Answer>>,
    /// The nodes that were asked once more because the first request was lost (A8).
    lost: Vec<bool>,
    tally: Tally,
    /// When the nodes were last asked, and how long the latest answer took.
    asked: Instant,
    round_trip: Duration,
    /// Requests without an answer: few, so all are polled whenever one is ready.
    outstanding: Vec<Outstanding>,
}

/// A node's state before a request is sent to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeBaseline {
    /// How far its clock was known to have been put forward.
    pub(crate) advanced: Duration,
    /// The number of the connection in use. The request goes over this one or a later one.
    pub(crate) connection: Option<u64>,
    /// How much later than its budget the request may still act.
    pub(crate) late_by: Option<Duration>,
    epoch: u64,
}

impl NodeBaseline {
    pub(crate) fn of(node: &Arc<dyn Node>) -> NodeBaseline {
        NodeBaseline {
            advanced: node.clock_advanced(),
            connection: node.connection(),
            late_by: node.late_by(),
            epoch: node.epoch(),
        }
    }
}

impl Round {
    /// Sends a request to all nodes (A2). When this returns, it has its place in every node's pipeline.
    pub(crate) fn start(nodes: &Nodes, request: &Request, budget: Duration, context: &Context) -> Round {
        let mut round = Round::new(nodes, budget, context);
        round.send(|_| request.clone());
        round
    }

    /// Returns a round that sends nothing yet. Its time runs from now on.
    pub(crate) fn new(nodes: &Nodes, budget: Duration, context: &Context) -> Round {
        let (t0, started) = (context.clock.now(), Instant::now());
        Round {
            nodes: nodes.clone(),
            t0,
            started,
            before: nodes.iter().map(NodeBaseline::of).collect(),
            budget,
            context: context.clone(),
            answers: vec![None; nodes.len()],
            lost: vec![false; nodes.len()],
            tally: Tally::new(nodes.len()),
            asked: started,
            round_trip: Duration::ZERO,
            outstanding: Vec::with_capacity(nodes.len()),
        }
    }

    /// Sends each node its request, by the node's number.
    pub(crate) fn send(&mut self, request: impl Fn(usize) -> Request) {
        for number in 0..self.nodes.len() {
            let call = self.ask(number, request(number), self.budget);
            self.outstanding.push(call);
        }
    }

    /// Sends the request again to nodes that hold another token, within the rest of the budget. Their earlier answers are void.
    pub(crate) fn ask_again(&mut self, request: &Request) {
        self.asked = Instant::now();
        let left = (self.started + self.budget).saturating_duration_since(self.asked);
        let is_held = |answer: &Option<Answer>| matches!(answer, Some(Ok(Reply::Held { .. })));
        for number in 0..self.nodes.len() {
            if is_held(&self.answers[number]) {
                self.answers[number] = None;
                let call = self.ask(number, request.clone(), left);
                self.outstanding.push(call);
            }
        }
        self.count_again();
    }

    /// Sends a request to one node. The answer is returned to the caller, and is no part of this round.
    pub(crate) fn ask(&self, number: usize, request: Request, budget: Duration) -> Outstanding {
        ask(&self.nodes, number, request, budget, &self.context)
    }

    /// Waits for the next answer, and returns its node. `None` if all have come. Cancel safe.
    pub(crate) async fn next_answer(&mut self) -> Option<usize> {
        let (call, answer) = take_next(&mut self.outstanding).await?;
        let number = call.number;
        self.round_trip = self.asked.elapsed();
        self.context.mark_responsive(number);
        self.lost[number] |= call.lost.is_some();
        self.record(number, answer);
        Some(number)
    }

    /// Returns whether the request was sent to this node once more (A8). A copy may then still arrive after the answer.
    pub(crate) fn was_sent_twice(&self, number: usize) -> bool {
        let is_out = |call: &Outstanding| call.number == number && call.lost.is_some();
        self.lost[number] || self.outstanding.iter().any(is_out)
    }

    /// Marks nodes without an answer as unresponsive for a while.
    pub(crate) fn mark_unresponsive(&self, a_while: Duration) {
        let until = Instant::now() + a_while;
        self.outstanding
            .iter()
            .for_each(|call| self.context.mark_unresponsive(call.number, until));
    }

    /// Returns whether all nodes without an answer are marked so, perhaps by another attempt.
    pub(crate) fn only_unresponsive_are_left(&self) -> bool {
        self.outstanding
            .iter()
            .all(|call| self.context.is_unresponsive(call.number))
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn is_over(&self) -> bool {
        self.outstanding.is_empty()
    }

    pub(crate) fn until(&self, moment: Instant) -> impl Future<Output = ()> + Send + use<> {
        sleep_until(&self.context.runtime, moment)
    }

    /// Waits for the verdict, and for no node longer than its budget (A4). Never returns [`Verdict::Pending`].
    ///
    /// Cancel safe: answers that have come stay counted.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        self.settle(|tally| tally.verdict() != Verdict::Pending).await;
        self.tally.verdict()
    }

    /// Voids the votes of nodes that have lost their memory or were replaced since they were asked: they may grant the same
    /// lock to another client. Returns whether there were any.
    pub(crate) fn void_stale_votes(&mut self) -> bool {
        let stale: Vec<usize> = (0..self.answers.len())
            .filter(|node| self.is_stale(*node))
            .collect();
        for node in &stale {
            self.answers[*node] = Some(Err(stale_vote()));
        }
        self.count_again();
        !stale.is_empty()
    }

    /// Returns whether a node has said yes, and has lost its memory or been replaced since.
    pub(crate) fn is_stale(&self, node: usize) -> bool {
        let is_yes = |answer: &Answer| vote(answer) == Vote::Yes;
        self.answers[node].as_ref().is_some_and(is_yes) && self.nodes[node].epoch() != self.before[node].epoch
    }

    fn count_again(&mut self) {
        let mut tally = Tally::new(self.nodes.len());
        for answer in self.answers.iter().flatten() {
            tally.record(vote(answer));
        }
        self.tally = tally;
    }

    /// Waits until `settled` returns true, or the nodes' budget is over. Nodes without an answer have then failed.
    pub(crate) async fn settle(&mut self, settled: impl Fn(&Tally) -> bool) {
        let deadline = self.until(self.started + self.budget);
        tokio::pin!(deadline);
        while !settled(&self.tally) {
            tokio::select! {
                // Answers first: an answer that came in time counts even if this task runs late.
                biased;
                heard = self.next_answer() => if heard.is_none() {
                    return;
                },
                // The time of all nodes is kept here (A3, T3).
                () = &mut deadline => {
                    self.give_up();
                    return;
                }
            }
        }
        // Answers that have come by now tell an outage from a holder, and which nodes need no clean-up.
        while let Some(Some(_)) = self.next_answer().now_or_never() {}
    }

    pub(crate) fn abandon(&mut self) {
        self.outstanding.clear();
    }

    /// Frees the memory of the answers: a lease keeps its round.
    pub(crate) fn forget_answers(&mut self) {
        (self.answers, self.lost, self.outstanding) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// Takes out the requests without an answer, so that another task can wait for them.
    pub(crate) fn take_outstanding(&mut self) -> Vec<Outstanding> {
        std::mem::take(&mut self.outstanding)
    }

    /// Counts nodes without an answer as failed. Returns their numbers.
    pub(crate) fn give_up(&mut self) -> Vec<usize> {
        let silent: Vec<usize> = (0..self.answers.len())
            .filter(|number| self.answers[*number].is_none())
            .collect();
        for number in &silent {
            self.record(*number, Err(Fault::Timeout { after: self.budget }));
        }
        silent
    }

    fn record(&mut self, number: usize, answer: Answer) {
        if self.answers[number].is_none() {
            self.tally.record(vote(&answer));
            if let Err(fault) = &answer {
                metrics::fault(self.nodes[number].name(), fault.kind());
            }
            self.answers[number] = Some(answer);
            self.context.observe_clock(number, &*self.nodes[number]);
        }
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn answers(&self) -> impl ExactSizeIterator<Item = Option<&Answer>> {
        self.answers.iter().map(Option::as_ref)
    }

    /// Returns a node's answer; `None` if it has not come.
    pub(crate) fn answer(&self, number: usize) -> Option<&Answer> {
        self.answers[number].as_ref()
    }

    /// Returns a node's reply; `None` if it has not come, or the node has failed.
    pub(crate) fn reply(&self, number: usize) -> Option<Reply> {
        self.answers[number].as_ref()?.as_ref().ok().copied()
    }

    pub(crate) fn votes(&self) -> Votes {
        let vote = |(node, answer): (&Arc<dyn Node>, &Option<Answer>)| NodeVote {
            node: node.name().clone(),
            answer: answer.clone(),
        };
        Votes::new(self.nodes.iter().zip(&self.answers).map(vote).collect())
    }
}

/// Returns the fault that replaces a void vote. The node may have the key, so the fault is one that may have been executed.
fn stale_vote() -> Fault {
    Fault::ConnectionLost {
        reason: "the node has lost its memory since it voted, or is another server now".into(),
    }
}
