//! Speed without contention: quorlock beside a raw floor and `rslock`, on five local masters.
//!
//! `cargo bench --features testbed --bench uncontended -- [--quick] [--multi-thread] [--only PART] [--json FILE] [--charts FOLDER]`
//!
//! `docs/benchmarks.md` describes the method.

mod all_contenders;
mod charts;
#[path = "../common/mod.rs"]
mod common;
mod contender;
mod distance;
mod floor;
mod growth;
mod measure;
mod mux;
mod plan;
mod server;
mod tables;
mod wire;

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::{fs, thread};

use quorlock::testbed::{TestNode, Testbed};

use all_contenders::{AllContenders, FLOORS};
use common::report::{self, RSLOCK_VERSION, Report};
use distance::Distances;
use plan::{Arguments, Plan};

/// A server trusts no counter from before its start, whose time is known only to a few seconds.
const UP_FOR: Duration = Duration::from_secs(4);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments = Arguments::parse()?;
    let runtime = if arguments.multi_thread {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?
    } else {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
    };
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Outcome<()> {
    let plan = if arguments.quick { Plan::QUICK } else { Plan::FULL };
    let started = Instant::now();
    let mut report = Report::default();

    // Measures the path to the servers' memory: nothing is written to disk.
    let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
    describe(&mut report, arguments, &plan, &testbed).await?;
    report.note_load("load at the start");
    if ["latency", "throughput", "stopped"]
        .iter()
        .any(|part| arguments.wants(part))
    {
        let all_contenders = AllContenders::connect(&addresses(&testbed)).await?;
        if arguments.wants("latency") {
            let latency = all_contenders.latency(plan.rounds, plan.pairs).await;
            report.latency("latency", &latency, FLOORS);
            all_contenders
                .server_times(&testbed, plan.pairs, &mut report)
                .await?;
        }
        if arguments.wants("throughput") {
            let mut all = Vec::new();
            for &tasks in plan.tasks {
                all.push((
                    tasks,
                    all_contenders.throughput(tasks, plan.rounds, plan.window).await,
                ));
            }
            report.throughput("throughput", &all, &[64, 512]);
        }
        if arguments.wants("stopped") {
            all_contenders.stopped(&testbed, &plan, &mut report).await?;
        }
    }
    testbed.shutdown().await;
    if arguments.wants("disk") {
        on_disk(&plan, &mut report).await?;
    }
    if arguments.wants("network") {
        over_a_network(&plan, &mut report).await?;
    }
    if arguments.wants("spread") {
        growth::spread(plan.fsync_rounds, plan.far_pairs, &mut report).await?;
    }
    let (mut nodes, mut held) = (Vec::new(), Vec::new());
    if arguments.wants("nodes") {
        nodes = growth::nodes(plan.rounds, plan.fsync_pairs).await?;
    }
    if arguments.wants("held") {
        held = growth::held(plan.rounds, plan.fsync_pairs, plan.most_held, &mut report).await?;
    }
    report.growth(
        "more nodes, more locks held",
        &[("nodes", &nodes), ("held", &held)],
    );
    if let Some(folder) = &arguments.charts {
        charts::draw(folder, &nodes, &held)?;
    }

    println!();
    report.note_load("load at the end");
    report.note("took", &format!("{:.0} s", started.elapsed().as_secs_f64()));
    let json = report.finish();
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_string_pretty(&json)?)?;
    }
    Ok(())
}

/// Measures with the recommended durability: writes reach the disk before the answer.
async fn on_disk(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let testbed = Testbed::start(5).await?;
    let all_contenders = AllContenders::connect(&addresses(&testbed)).await?;
    let latency = all_contenders.latency(plan.fsync_rounds, plan.fsync_pairs).await;
    report.latency("latency with appendfsync always", &latency, FLOORS);
    let throughput = all_contenders
        .throughput(64, plan.fsync_rounds, plan.window)
        .await;
    report.throughput("throughput with appendfsync always", &[(64, throughput)], &[]);
    drop(all_contenders);
    testbed.shutdown().await;
    Ok(())
}

/// Measures with a delay of half a millisecond each way.
async fn over_a_network(plan: &Plan, report: &mut Report) -> Outcome<()> {
    const ONE_WAY: Duration = Duration::from_micros(500);
    let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
    let distances = Distances::to(&addresses(&testbed))?;
    let all_contenders = AllContenders::connect(&distances.addresses).await?;
    distances.set(&[ONE_WAY; 5]);
    let latency = all_contenders.latency(plan.fsync_rounds, plan.fsync_pairs).await;
    report.latency("latency over a network", &latency, FLOORS);
    drop(all_contenders);
    testbed.shutdown().await;
    Ok(())
}

fn addresses(testbed: &Testbed) -> Vec<SocketAddr> {
    testbed.nodes().iter().map(TestNode::addr).collect()
}

fn urls(addresses: &[SocketAddr]) -> Vec<String> {
    addresses
        .iter()
        .map(|address| format!("redis://{address}"))
        .collect()
}

async fn describe(report: &mut Report, arguments: &Arguments, plan: &Plan, testbed: &Testbed) -> Outcome<()> {
    let info = testbed.nodes()[0].command(&["INFO", "server"]).await?;
    let version = info
        .as_str()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("redis_version:")))
        .unwrap_or("of unknown version")
        .to_owned();
    let cores = thread::available_parallelism()?;
    let (runtime, quick) = (
        report::runtime(arguments.multi_thread),
        report::caveat(arguments.quick),
    );
    report.note(
        "method",
        &format!(
            "5 masters (server {version}) and the client on one machine with {cores} cores; tokio {runtime}; quorlock {}, \
             rslock {}; operations on names of their own, known to the servers for quorlock; TTL {:?}. Contenders take turns in {} rounds of {} pairs or \
             {:?} each ({} with appendfsync always, {} with stopped nodes); medians over the rounds, ratios are medians of the \
             rounds' ratios.{quick}",
            env!("CARGO_PKG_VERSION"),
            RSLOCK_VERSION,
            contender::TTL,
            plan.rounds,
            plan.pairs,
            plan.window,
            plan.fsync_rounds,
            plan.stop_rounds,
        ),
    );
    Ok(())
}
