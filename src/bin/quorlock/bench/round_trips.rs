//! What each node takes by itself, seen from here: a lock on that node alone, one request at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::node::NodeState;
use quorlock::{NodeStatus, Redlock, RedlockBuilder};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Window};
use super::tally::{Failures, Latencies};
use crate::nodes;

/// A node that has failed so often in a row is not asked any more: each time might take as long as it may.
const PATIENCE: u32 = 3;

/// How often a node is asked in its turn at most. The first time, all have been idle for as long as the others took, which costs
/// more.
const TURN: u32 = 10;
/// After which nothing more is begun in a turn.
const SLICE: Duration = Duration::from_millis(10);
/// What a node that has just failed may take: it might hang.
const AGAIN: Duration = Duration::from_millis(500);

/// One node, and what it took.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) warnings: Vec<String>,
    /// Why there is nothing to measure.
    pub(crate) trouble: Option<String>,
    /// What a lock of the kind that is measured took the first time, which is not counted: it starts a counter.
    pub(crate) first: Option<Duration>,
    /// `SET NX PX`: one request and its answer, and hardly any work for the server.
    pub(crate) plain: Latencies,
    /// The script that counts the grant as well.
    pub(crate) fenced: Latencies,
    pub(crate) failures: Failures,
}

impl Node {
    pub(crate) fn new(status: NodeStatus) -> Node {
        let mut node = Node {
            name: status.name,
            warnings: Vec::new(),
            trouble: None,
            first: None,
            plain: Latencies::default(),
            fenced: Latencies::default(),
            failures: Failures::default(),
        };
        node.is_now(status.state);
        node
    }

    /// Its state may change while others are measured.
    pub(crate) fn is_now(&mut self, state: NodeState) {
        self.trouble = match state {
            NodeState::Up { warnings } => {
                self.warnings = warnings;
                None
            }
            NodeState::Down(fault) => Some(fault.to_string()),
            _ => Some("no answer yet".to_owned()),
        };
    }
}

/// Measures those of the nodes that are up; the builders are for one of them each. The nodes take turns, so that whatever
/// else happens meanwhile hits all of them.
pub(crate) async fn round_trips(
    plan: &Plan,
    measured: &mut [Node],
    alone: Vec<RedlockBuilder>,
    stop: &CancellationToken,
) {
    let connecting = alone
        .into_iter()
        .zip(&mut *measured)
        .map(async |(builder, node)| {
            if node.trouble.is_some() {
                return None;
            }
            match builder.connect().await {
                Ok(redlock) => Some(redlock),
                Err(error) => {
                    node.failures.add("connect", "other", error.to_string());
                    None
                }
            }
        });
    let Some(redlocks) = stop.run_until_cancelled(join_all(connecting)).await else {
        return;
    };
    let asked: Vec<Asked<'_>> = redlocks
        .iter()
        .zip(measured)
        .enumerate()
        .filter_map(|(index, (redlock, node))| Some(Asked::new(redlock.as_ref()?, node, plan.of_node(index))))
        .collect();
    in_turns(plan, asked, stop).await;
    let cleaning = redlocks
        .iter()
        .flatten()
        .map(|redlock| nodes::clean_up(redlock, nodes::CLEAN_UP));
    join_all(cleaning).await;
}

/// Whoever has had the least of the time has the next turn: in the time that a far node takes for one answer, near ones give
/// many.
async fn in_turns(plan: &Plan, mut asked: Vec<Asked<'_>>, stop: &CancellationToken) {
    let warming = asked.iter_mut().map(|asked| asked.warm_up(plan));
    if stop.run_until_cancelled(join_all(warming)).await.is_none() {
        return;
    }
    let window = Window::open(plan.duration, stop);
    // All have had nothing of it yet. The near ones first: the time may be over after the first turn of a far one.
    asked.sort_by_key(|asked| asked.warm_after);
    while !window.is_over()
        && let Some(next) = asked
            .iter_mut()
            .filter(|asked| asked.failed < PATIENCE)
            .min_by_key(|asked| asked.used)
    {
        let begun = Instant::now();
        next.turn(plan, &window).await;
        next.used += begun.elapsed();
    }
}

/// A node whose turn comes again and again.
struct Asked<'a> {
    redlock: &'a Redlock,
    node: &'a mut Node,
    names: [String; 2],
    /// How often in a row.
    failed: u32,
    /// What the first requests took: they start counters, and load the script.
    warm_after: Duration,
    /// What its turns took so far.
    used: Duration,
}

impl<'a> Asked<'a> {
    fn new(redlock: &'a Redlock, node: &'a mut Node, names: [String; 2]) -> Asked<'a> {
        Asked {
            redlock,
            node,
            names,
            failed: 0,
            warm_after: Duration::ZERO,
            used: Duration::ZERO,
        }
    }

    /// What is not to be measured.
    async fn warm_up(&mut self, plan: &Plan) {
        let begun = Instant::now();
        for fencing in plan.kinds() {
            self.node.first = self.once(plan, fencing).await;
        }
        self.warm_after = begun.elapsed();
    }

    /// Several times, unless it takes long.
    async fn turn(&mut self, plan: &Plan, window: &Window) {
        let begun = Instant::now();
        for _ in 0..TURN {
            for fencing in plan.kinds() {
                if self.failed >= PATIENCE || window.is_over() {
                    return;
                }
                if let Some(took) = self.once(plan, fencing).await {
                    match fencing {
                        true => self.node.fenced.record(took),
                        false => self.node.plain.record(took),
                    }
                }
            }
            if begun.elapsed() >= SLICE {
                return;
            }
        }
    }

    /// What acquiring took. What fails is counted.
    async fn once(&mut self, plan: &Plan, fencing: bool) -> Option<Duration> {
        let name = &self.names[usize::from(fencing)];
        let request = plan.lock(self.redlock, name).fencing(fencing);
        let request = request.node_budget(match self.failed {
            0 => plan.longest_answer(),
            _ => plan.longest_answer().min(AGAIN),
        });
        let asked = Instant::now();
        match request.try_acquire().await {
            Ok(lease) => {
                let took = asked.elapsed();
                self.failed = 0;
                let outcome = lease.release().await;
                if outcome != quorlock::ReleaseOutcome::Released {
                    self.node.failures.release(&outcome);
                }
                Some(took)
            }
            Err(error) => {
                self.node.failures.acquire(&error);
                self.failed += 1;
                None
            }
        }
    }
}
