//! `quorlock bench`: what a lock costs on these nodes.
//!
//! | file | |
//! |---|---|
//! | `plan.rs` | what is measured, under which names, for how long |
//! | `round_trips.rs`, `pairs.rs`, `hand_over.rs` | the measurements |
//! | `tally.rs` | how long things took, and what went wrong |
//! | `findings.rs` | what it means |
//! | `text.rs`, `json.rs`, `chart.rs` | the results, for people, for programs, and drawn |

mod chart;
mod findings;
mod hand_over;
mod json;
mod pairs;
mod plan;
mod round_trips;
mod tally;
mod text;

use std::pin::pin;
use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::testbed::Testbed;
use quorlock::{NodeStatus, Redlock, RedlockBuilder};
use rustix::process::Signal;
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::args::Bench;
use crate::end::End;
use crate::event::Event;
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::signals::Signals;
use crate::{nodes, out};
use chart::Chart;
use hand_over::HandOver;
use pairs::Pairs;
use plan::{Plan, Window};
use round_trips::Node;
use tally::Parts;

/// What ends it early.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// How long a measurement that was told to end may take to do so.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the nodes' states are looked at while some are not known yet; that costs no message.
const LOOK: Duration = Duration::from_millis(10);
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) plan: Plan,
    pub(crate) nodes: Vec<Node>,
    /// With one task first, then with ever more.
    pub(crate) pairs: Vec<Pairs>,
    pub(crate) hand_over: Option<HandOver>,
    /// What ended it before it was done.
    pub(crate) interrupted: Option<Signal>,
}

impl Results {
    pub(crate) fn quorum(&self) -> usize {
        nodes::quorum(self.nodes.len())
    }

    /// What one node contributed to all locks.
    pub(crate) fn part(&self, node: &str) -> tally::Part {
        let mut all = Parts::default();
        let others = self.hand_over.iter().map(|hand_over| &hand_over.nodes);
        for parts in self.pairs.iter().map(|pairs| &pairs.nodes).chain(others) {
            all.merge(parts);
        }
        all.of(node)
    }

    /// Whether no lock was acquired although it was tried, and why.
    fn hopeless(&self) -> Option<String> {
        let first = self.pairs.first().filter(|pairs| pairs.acquire.count() == 0)?;
        first
            .failures
            .iter()
            .next()
            .map(|(_, _, failed)| failed.first.clone())
    }
}

pub(crate) async fn bench(arguments: Bench, report: &Report) -> Result<End, Failure> {
    let plan = Plan::new(&arguments)?;
    let mut signals = Signals::listen(&ENDING)?;
    // Before anything is started: to be told after half a minute that there is no such folder is no use.
    let chart = arguments.chart.as_deref().map(Chart::open).transpose()?;
    let Some(size) = arguments.testbed else {
        let urls = nodes::urls(&arguments.nodes)?;
        return with_nodes(&arguments, &urls, plan, chart, &mut signals, report).await;
    };
    let work = async |testbed: &Testbed, signals: &mut Signals| {
        with_nodes(&arguments, &testbed.urls(), plan, chart, signals, report).await
    };
    nodes::with_testbed(size, None, &mut signals, work).await
}

async fn with_nodes(
    arguments: &Bench,
    urls: &[String],
    plan: Plan,
    chart: Option<Chart>,
    signals: &mut Signals,
    report: &Report,
) -> Result<End, Failure> {
    // Nobody else can hold what is locked here, so there is nothing that a node may have forgotten.
    let settings = |urls: &[String]| -> Result<RedlockBuilder, Failure> {
        Ok(nodes::builder(&arguments.nodes, urls)?
            .restart_guard(false)
            .unregistered()
            .fencing(plan.fencing)
            .key_prefix(&plan.key_prefix))
    };
    let redlock = match signals.or(settings(urls)?.connect()).await {
        Ok(redlock) => redlock.map_err(|error| nodes::not_connected(&error))?,
        Err(signal) => return Ok(End::by(signal)),
    };
    let alone = urls.chunks(1).map(settings).collect::<Result<Vec<_>, _>>()?;
    let limit = arguments.nodes.connect_timeout;
    if let Err(signal) = signals.or(all_heard(&redlock, limit, report)).await {
        return Ok(End::by(signal));
    }
    let nodes: Vec<Node> = redlock.nodes().into_iter().map(Node::new).collect();
    report.event(&Event::Plan {
        keys: &plan.keys(),
        nodes: nodes.len(),
        parts: plan.parts(),
        length: plan.length(),
        counters_expire_after: plan.fencing.then_some(plan.retention),
    });
    let results = measure(plan, &redlock, nodes, alone, signals, report).await;
    nodes::clean_up(&redlock, nodes::CLEAN_UP).await;

    out::print(report, || json::document(&results), || text::text(&results))?;
    if let Some(chart) = chart {
        chart.draw(&results)?;
    }
    match (results.interrupted, results.hopeless()) {
        (Some(signal), _) => Ok(End::by(signal)),
        (None, Some(why)) => Err(Failure::new(
            exit::NO_QUORUM,
            format!("no lock could be acquired: {why}"),
        )),
        (None, None) => Ok(End::Code(exit::OK)),
    }
}

/// Waits until every node is up, or is known not to be. A quorum is there sooner than far nodes are, but all are to be measured.
async fn all_heard(redlock: &Redlock, limit: Duration, report: &Report) {
    let give_up = Instant::now() + limit;
    let has_not_answered = |node: &NodeStatus| matches!(node.state, NodeState::Connecting);
    while let Some(node) = redlock.nodes().into_iter().find(has_not_answered)
        && Instant::now() < give_up
    {
        report.progress(Some((0.0, &format!("connecting to {}", node.name))));
        sleep(LOOK).await;
    }
    report.progress(None);
}

async fn measure(
    plan: Plan,
    redlock: &Redlock,
    mut nodes: Vec<Node>,
    alone: Vec<RedlockBuilder>,
    signals: &mut Signals,
    report: &Report,
) -> Results {
    let mut conductor = Conductor {
        signals,
        report,
        parts: plan.parts(),
        length: plan.duration,
        stop: CancellationToken::new(),
        interrupted: None,
        done: 0,
    };
    let stop = conductor.stop.clone();
    let window = || Window::open(plan.duration, &stop);

    let work = round_trips::round_trips(&plan, &mut nodes, alone, &stop);
    conductor.part("round trips", work).await;
    let mut pairs: Vec<Pairs> = Vec::new();
    for &tasks in &plan.tasks {
        let what = match tasks {
            1 => "one task".to_owned(),
            _ => format!("{tasks} tasks"),
        };
        let work = async { pairs::pairs(&plan, redlock, tasks, plan.duration, &stop).await };
        pairs.extend(conductor.part(&what, work).await);
        // Many would fare no better.
        if pairs.first().is_some_and(|one| one.acquire.count() == 0) {
            break;
        }
    }
    let any = pairs.first().is_some_and(|one| one.acquire.count() > 0);
    let hand_over = match any {
        true => {
            let work = async { hand_over::hand_over(&plan, redlock, window()).await };
            conductor.part("hand-over", work).await
        }
        false => None,
    };
    let interrupted = conductor.interrupted;
    report.progress(None);
    // The results go to the same terminal.
    report.flush();
    // One may have come or gone meanwhile.
    for (node, now) in nodes.iter_mut().zip(redlock.nodes()) {
        node.is_now(now.state);
    }
    Results {
        plan,
        nodes,
        pairs,
        hand_over,
        interrupted,
    }
}

/// Has one part done after the other, until a signal comes.
struct Conductor<'a> {
    signals: &'a mut Signals,
    report: &'a Report,
    parts: usize,
    length: Duration,
    stop: CancellationToken,
    interrupted: Option<Signal>,
    done: usize,
}

impl Conductor<'_> {
    /// `None` if it was not begun, or did not end when it was told to.
    async fn part<T>(&mut self, what: &str, work: impl Future<Output = T>) -> Option<T> {
        if self.interrupted.is_some() {
            return None;
        }
        self.done += 1;
        self.report.event(&Event::Measuring {
            what,
            part: self.done,
            parts: self.parts,
        });
        let begun = Instant::now();
        let mut ticks = interval(TICK);
        let mut work = pin!(work);
        let mut give_up = None;
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                signal = self.signals.next() => {
                    // A second one does not want to wait.
                    if self.interrupted.replace(signal).is_some() {
                        return None;
                    }
                    self.stop.cancel();
                    give_up = Some(Instant::now() + PATIENCE);
                }
                _ = ticks.tick() => {
                    let part = begun.elapsed().as_secs_f64() / self.length.as_secs_f64();
                    let done = (self.done - 1) as f64 + part.min(1.0);
                    self.report.progress(Some((done / self.parts as f64, what)));
                }
                () = until(give_up) => return None,
            }
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
