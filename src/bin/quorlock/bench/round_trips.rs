//! What each node takes by itself, seen from here: a lock on that node alone, one request at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::node::NodeState;
use quorlock::{NodeStatus, Redlock, RedlockBuilder};
use tokio::time::Instant;

use super::plan::{Plan, Window};
use super::tally::{Failures, Latencies};

/// A node that has failed so often in a row is not asked any more: each time might take as long as it may.
const PATIENCE: u32 = 3;

/// How often a node is asked in its turn. The first time, all have been idle for as long as the others took, which costs more.
const TURN: u32 = 10;

/// One node, and what it took.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) warnings: Vec<String>,
    /// Why there is nothing to measure.
    pub(crate) trouble: Option<String>,
    /// `SET NX PX`: one request and its answer, and hardly any work for the server.
    pub(crate) plain: Latencies,
    /// The script that counts the grant as well.
    pub(crate) fenced: Latencies,
    pub(crate) failures: Failures,
}

impl Node {
    pub(crate) fn new(status: NodeStatus) -> Node {
        let (warnings, trouble) = match status.state {
            NodeState::Up { warnings } => (warnings, None),
            NodeState::Down(fault) => (Vec::new(), Some(fault.to_string())),
            _ => (Vec::new(), Some("no answer yet".to_owned())),
        };
        Node {
            name: status.name,
            warnings,
            trouble,
            plain: Latencies::default(),
            fenced: Latencies::default(),
            failures: Failures::default(),
        }
    }
}

/// Measures those of the nodes that are up; the builders are for one of them each. The nodes take turns, so that whatever
/// else happens meanwhile hits all of them.
pub(crate) async fn round_trips(plan: &Plan, nodes: &mut [Node], alone: Vec<RedlockBuilder>, window: Window) {
    let connecting = alone.into_iter().zip(&mut *nodes).map(async |(builder, node)| {
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
    let redlocks = join_all(connecting).await;
    let budget = plan
        .node_budget
        .min((plan.duration / 8).max(Duration::from_millis(250)));
    let mut asked: Vec<Asked<'_>> = redlocks
        .iter()
        .zip(nodes)
        .enumerate()
        .filter_map(|(index, (redlock, node))| {
            Some(Asked {
                redlock: redlock.as_ref()?,
                node,
                names: plan.of_node(index),
                failed: 0,
                warm: false,
            })
        })
        .collect();
    while !window.is_over() && !asked.is_empty() {
        for asked in &mut asked {
            for _ in 0..TURN {
                if asked.failed < PATIENCE && !window.is_over() {
                    asked.once(plan, budget).await;
                }
            }
        }
        asked.retain(|asked| asked.failed < PATIENCE);
    }
    drop(asked);
    join_all(
        redlocks
            .iter()
            .flatten()
            .map(async |redlock| super::clean_up(redlock).await),
    )
    .await;
}

/// A node whose turn comes again and again.
struct Asked<'a> {
    redlock: &'a Redlock,
    node: &'a mut Node,
    names: [String; 2],
    /// How often in a row.
    failed: u32,
    /// The first time starts a counter, and loads the script.
    warm: bool,
}

impl Asked<'_> {
    async fn once(&mut self, plan: &Plan, budget: Duration) {
        let Node {
            plain,
            fenced,
            failures,
            ..
        } = &mut *self.node;
        for (fencing, name, latencies) in [(false, &self.names[0], plain), (true, &self.names[1], fenced)] {
            if fencing && !plan.fencing {
                continue;
            }
            let request = plan.lock(self.redlock, name).fencing(fencing).node_budget(budget);
            let asked = Instant::now();
            match request.try_acquire().await {
                Ok(lease) => {
                    if self.warm {
                        latencies.record(asked.elapsed());
                    }
                    self.failed = 0;
                    let outcome = lease.release().await;
                    if outcome != quorlock::ReleaseOutcome::Released {
                        failures.release(&outcome);
                    }
                }
                Err(error) => {
                    failures.acquire(&error);
                    self.failed += 1;
                }
            }
        }
        self.warm = true;
    }
}
