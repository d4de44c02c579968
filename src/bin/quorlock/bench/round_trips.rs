//! Measures round trips to each node: locks on that node alone, one request at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::node::Fault;
use quorlock::{NodeStatus, Redlock, RedlockBuilder};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Window};
use super::tally::{Failures, Latencies};
use crate::nodes;

/// After this many failures in a row, a node is not asked again: each request could take the whole budget.
const MOST_FAILURES: u32 = 3;
/// How often a node is asked in a turn, at most. One request would not do: the first takes longer on an idle node.
const MOST_PER_TURN: u32 = 10;
/// A turn begins no further request after this time.
const LONGEST_TURN: Duration = Duration::from_millis(10);
/// How long a node may take after a failure, at most: it may hang.
const BUDGET_AFTER_FAILURE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    /// Warnings about its settings, or why it is not up.
    pub(crate) state: Result<Vec<String>, Fault>,
    /// The time of the first lock, which starts a counter and does not count.
    pub(crate) first: Option<Duration>,
    /// Without a token: the key is set, and nothing is counted.
    pub(crate) plain: Latencies,
    /// With a token: the grant is counted, too.
    pub(crate) fenced: Latencies,
    pub(crate) failures: Failures,
}

impl Node {
    pub(crate) fn new(status: NodeStatus) -> Node {
        Node {
            name: status.name,
            state: nodes::warnings(status.state),
            first: None,
            plain: Latencies::default(),
            fenced: Latencies::default(),
            failures: Failures::default(),
        }
    }
}

/// Measures the nodes that are up. `alone` has a builder for each node. Nodes take turns, so that other load affects all.
pub(crate) async fn round_trips(
    plan: &Plan,
    measured: &mut [Node],
    alone: Vec<RedlockBuilder>,
    stop: &CancellationToken,
) {
    let connecting = alone.into_iter().zip(measured).enumerate();
    let connecting = connecting.map(async |(index, (builder, node))| {
        if node.state.is_err() {
            return None;
        }
        match builder.connect().await {
            Ok(redlock) => Some(Asked {
                redlock,
                node,
                index,
                failed: 0,
                warm_after: Duration::ZERO,
                used: Duration::ZERO,
            }),
            Err(error) => {
                node.failures.add("connect", "other", &error);
                None
            }
        }
    });
    let Some(asked) = stop.run_until_cancelled(join_all(connecting)).await else {
        return;
    };
    let mut asked: Vec<Asked<'_>> = asked.into_iter().flatten().collect();
    in_turns(plan, &mut asked, stop).await;
    let redlocks = asked.iter().map(|asked| &asked.redlock);
    join_all(redlocks.map(|redlock| nodes::clean_up(redlock, nodes::CLEAN_UP))).await;
}

/// Gives each turn to the node that has had the least time. So near nodes answer many times while a far one answers once.
async fn in_turns(plan: &Plan, asked: &mut [Asked<'_>], stop: &CancellationToken) {
    let warming = asked.iter_mut().map(|asked| asked.warm_up(plan));
    if stop.run_until_cancelled(join_all(warming)).await.is_none() {
        return;
    }
    let window = Window::open(plan, stop);
    // Near nodes first: the first turn of a far one may use up the time.
    asked.sort_by_key(|asked| asked.warm_after);
    while !window.is_over()
        && let Some(next) = asked
            .iter_mut()
            .filter(|asked| asked.failed < MOST_FAILURES)
            .min_by_key(|asked| asked.used)
    {
        let begun = Instant::now();
        next.turn(plan, &window).await;
        next.used += begun.elapsed();
    }
}

struct Asked<'a> {
    redlock: Redlock,
    node: &'a mut Node,
    index: usize,
    /// Failures in a row.
    failed: u32,
    /// How long the first requests took.
    warm_after: Duration,
    /// How long its turns took so far.
    used: Duration,
}

impl Asked<'_> {
    /// Starts the counters, and loads the script.
    async fn warm_up(&mut self, plan: &Plan) {
        let begun = Instant::now();
        for &fencing in kinds(plan) {
            self.node.first = self.once(plan, fencing).await;
        }
        self.warm_after = begun.elapsed();
    }

    /// Asks up to [`MOST_PER_TURN`] times, until [`LONGEST_TURN`] is over.
    async fn turn(&mut self, plan: &Plan, window: &Window) {
        let begun = Instant::now();
        for _ in 0..MOST_PER_TURN {
            for &fencing in kinds(plan) {
                if self.failed >= MOST_FAILURES || window.is_over() {
                    return;
                }
                if let Some(took) = self.once(plan, fencing).await {
                    match fencing {
                        true => self.node.fenced.record(took),
                        false => self.node.plain.record(took),
                    }
                }
            }
            if begun.elapsed() >= LONGEST_TURN {
                return;
            }
        }
    }

    /// Acquires and releases a lock. Returns how long the acquire took. `None` if it failed, which is counted.
    async fn once(&mut self, plan: &Plan, fencing: bool) -> Option<Duration> {
        let kind = if fencing { "fenced" } else { "plain" };
        let name = plan.name(format_args!("{kind}-{}", self.index));
        let request = plan.lock(&self.redlock, &name).fencing(fencing);
        let request = request.node_budget(match self.failed {
            0 => plan.longest_answer(),
            _ => plan.longest_answer().min(BUDGET_AFTER_FAILURE),
        });
        let asked = Instant::now();
        match request.try_acquire().await {
            Ok(lease) => {
                let took = asked.elapsed();
                self.failed = 0;
                self.node.failures.release(&lease.release().await);
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

/// Returns whether requests use a token: without, and also with one unless `--no-fencing` is set.
fn kinds(plan: &Plan) -> &'static [bool] {
    if !plan.args.no_fencing {
        &[false, true]
    } else {
        &[false]
    }
}
