//! `quorlock bench`: measures what a lock costs on these nodes.
//!
//! [`bench`] runs the measurements (`round_trips`, `load`) one after the other, derives advice (`findings`), and shows the
//! results for people, for programs, and as a chart (`text`, `json`, `chart`).

mod chart;
mod findings;
mod json;
mod load;
mod plan;
mod round_trips;
mod tally;
mod text;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::testbed::Testbed;
use quorlock::{NodeStatus, Redlock, RedlockBuilder};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::args::Bench;
use crate::end::End;
use crate::event::Event;
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::signals::{self, Signals};
use crate::{nodes, out};
use chart::Chart;
use load::Load;
use plan::Plan;
use round_trips::Node;
use tally::Faults;

/// How long a measurement may take to end after a signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the nodes' states are read while some are unknown. Reading them sends nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) plan: Arc<Plan>,
    pub(crate) nodes: Vec<Node>,
    /// One task first, then more tasks, then the hand-over.
    pub(crate) loads: Vec<Load>,
    /// The signal that ended it early.
    pub(crate) interrupted: Option<Signal>,
}

impl Results {
    pub(crate) fn quorum(&self) -> usize {
        nodes::quorum(self.nodes.len())
    }

    /// Returns why no lock could be acquired. `None` if one was, or if none was tried.
    fn no_lock_reason(&self) -> Option<&str> {
        let one = self.loads.first()?;
        one.failures.first().filter(|_| one.acquire.count() == 0)
    }
}

pub(crate) async fn bench(arguments: Bench, report: &Report) -> Result<End, Failure> {
    let plan = Plan::new(arguments)?;
    let mut signals = Signals::listen(&signals::END)?;
    // First, so that a missing folder is reported before half a minute of measuring.
    let chart = plan.args.chart.as_deref().map(Chart::open).transpose()?;
    match plan.args.testbed {
        Some(size) => {
            let work = async |testbed: &Testbed, signals: &mut Signals| {
                with_nodes(plan, &testbed.urls(), chart, signals, report).await
            };
            nodes::with_testbed(size, None, &mut signals, work).await
        }
        None => {
            let urls = nodes::urls(&plan.args.nodes)?;
            with_nodes(plan, &urls, chart, &mut signals, report).await
        }
    }
}

async fn with_nodes(
    plan: Plan,
    urls: &[String],
    chart: Option<Chart>,
    signals: &mut Signals,
    report: &Report,
) -> Result<End, Failure> {
    let args = &plan.args;
    // No other client locks these names, so a node can have forgotten none of these locks.
    let settings = |urls: &[String]| -> Result<RedlockBuilder, Failure> {
        Ok(nodes::builder(&args.nodes, urls)?
            .restart_guard(false)
            .unregistered()
            .fencing(!args.no_fencing)
            .key_prefix(&args.key_prefix))
    };
    let redlock = match signals.or(settings(urls)?.connect()).await {
        Ok(redlock) => redlock.map_err(|error| nodes::not_connected(&error))?,
        Err(signal) => return Ok(End::by(signal)),
    };
    let alone = urls.chunks(1).map(settings).collect::<Result<Vec<_>, _>>()?;
    let answered = wait_for_answers(&redlock, args.nodes.connect_timeout);
    if let Err(signal) = signals.or(answered).await {
        return Ok(End::by(signal));
    }
    let mut results = Results {
        nodes: redlock.nodes().into_iter().map(Node::new).collect(),
        loads: Vec::new(),
        interrupted: None,
        plan: Arc::new(plan),
    };
    report.event(&Event::Plan {
        keys: &results.plan.keys(),
        nodes: results.nodes.len(),
        parts: results.plan.parts(),
        length: results.plan.length(),
        counters_expire_after: (!results.plan.args.no_fencing).then_some(results.plan.retention),
    });
    let (faults, stop) = (Faults::default(), CancellationToken::new());
    results.interrupted = {
        let mut work = pin!(measure(&mut results, &redlock, alone, &faults, &stop, report));
        tokio::select! {
            () = &mut work => None,
            signal = signals.next() => {
                stop.cancel();
                // Requests in flight end, and count. A second signal ends the wait for them.
                tokio::select! {
                    _ = timeout(STOP_TIMEOUT, work) => {}
                    _ = signals.next() => {}
                }
                Some(signal)
            }
        }
    };
    report.progress(None);
    // The results may go to the same terminal, after the last event.
    report.flush();
    // A node may have come or gone meanwhile.
    for (node, now) in results.nodes.iter_mut().zip(redlock.nodes()) {
        node.state = nodes::warnings(now.state);
        node.failures.append(faults.take(&node.name));
    }
    nodes::clean_up(&redlock, nodes::CLEAN_UP).await;

    out::print(report, || json::document(&results), || text::text(&results))?;
    if let Some(chart) = chart {
        chart.draw(&results)?;
    }
    match (results.interrupted, results.no_lock_reason()) {
        (Some(signal), _) => Ok(End::by(signal)),
        (None, Some(why)) => Err(Failure::new(
            exit::NO_QUORUM,
            format!("no lock could be acquired: {why}"),
        )),
        (None, None) => Ok(End::Code(exit::OK)),
    }
}

/// Waits until every node is known to be up or down, `limit` at most. A connected quorum is not enough to measure far nodes.
async fn wait_for_answers(redlock: &Redlock, limit: Duration) {
    let give_up = Instant::now() + limit;
    let has_not_answered = |node: &NodeStatus| matches!(node.state, NodeState::Connecting);
    while redlock.nodes().iter().any(has_not_answered) && Instant::now() < give_up {
        sleep(POLL_INTERVAL).await;
    }
}

/// Runs all measurements, until `stop`.
async fn measure(
    results: &mut Results,
    redlock: &Redlock,
    alone: Vec<RedlockBuilder>,
    faults: &Faults,
    stop: &CancellationToken,
    report: &Report,
) {
    let plan = results.plan.clone();
    let parts = plan.parts();
    let begin = |part: usize, what: &str| {
        report.event(&Event::Measuring { what, part, parts });
        report.progress(Some((part, parts, what)));
    };

    begin(1, "round trips");
    round_trips::round_trips(&plan, &mut results.nodes, alone, stop).await;
    for (number, load) in Load::planned(&plan).enumerate() {
        // If one task acquires no lock, more tasks do not either.
        if stop.is_cancelled() || results.no_lock_reason().is_some() {
            return;
        }
        begin(number + 2, &load.name());
        let load = load::load(&plan, redlock, faults, load, stop).await;
        results.loads.push(load);
    }
}
