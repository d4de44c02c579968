//! Speed without contention: quorlock side by side with a raw floor and with `rslock`, on five local masters.
//!
//! `cargo bench --features testbed --bench uncontended -- [--quick] [--multi-thread] [--only PART] [--json FILE] [--charts FOLDER]`
//!
//! What is measured and how is said in `docs/benchmarks.md`.

mod charts;
#[path = "../common/mod.rs"]
mod common;
mod contender;
mod distance;
mod floor;
mod growth;
mod measure;
mod mux;
mod server;
mod tables;
mod wire;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use quorlock::testbed::{TestNode, Testbed};
use tokio::time::sleep;

use common::report::{self, RSLOCK_VERSION, Report};
use contender::{Known, Quorlock, Rslock};
use distance::Distances;
use floor::Floor;
use measure::{one_by_one, side_by_side};
use mux::Mux;
use server::server_time;
use tables::{Other, Series};
use wire::Requests;

const FLOOR: &str = "floor: blocking sockets";
const SCRIPTED_FLOOR: &str = "floor with quorlock's requests";
const UNFENCED_FLOOR: &str = "floor with those of fencing off";
const MUX: &str = "mux: minimal multiplexer";
const SCRIPTED_MUX: &str = "mux with quorlock's requests";
const UNFENCED_MUX: &str = "mux with those of fencing off";
const RSLOCK: &str = "rslock";
const SCRIPTED: &str = "quorlock";
const PLAIN: &str = "quorlock, fencing off";
const WATCHED: &str = "quorlock, watchdog on";
const FIRST_USE: &str = "quorlock, first use of a name";

/// A server trusts no counter from before its start, which it knows to a few seconds.
const UP_FOR: Duration = Duration::from_secs(4);

/// In tables of latencies: what is above the last of these ratios is not the servers' doing.
const FLOORS: &[Other] = &[
    ("floor", |_| FLOOR),
    ("rslock", |_| RSLOCK),
    ("same requests", |name| match name {
        SCRIPTED | WATCHED | FIRST_USE | SCRIPTED_FLOOR | SCRIPTED_MUX => SCRIPTED_FLOOR,
        PLAIN | UNFENCED_FLOOR | UNFENCED_MUX => UNFENCED_FLOOR,
        _ => FLOOR,
    }),
];

/// In tables of throughputs.
const MUXES: &[Other] = &[
    ("mux", |_| MUX),
    ("rslock", |_| RSLOCK),
    ("same requests", |name| match name {
        SCRIPTED | WATCHED | SCRIPTED_MUX => SCRIPTED_MUX,
        PLAIN | UNFENCED_MUX => UNFENCED_MUX,
        _ => MUX,
    }),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How much of everything.
struct Plan {
    rounds: usize,
    pairs: usize,
    window: Duration,
    tasks: &'static [usize],
    fsync_rounds: usize,
    fsync_pairs: usize,
    /// Where each takes the time of nodes that are far away.
    far_pairs: usize,
    most_held: usize,
    stop_rounds: usize,
    stop_window: Duration,
    /// From the stop of a node to the second look: quorlock has given its connection up by then.
    stopped_for: Duration,
}

impl Plan {
    const FULL: Plan = Plan {
        rounds: 7,
        pairs: 700,
        window: Duration::from_millis(400),
        tasks: &[1, 64, 512],
        fsync_rounds: 3,
        fsync_pairs: 200,
        far_pairs: 50,
        most_held: 100_000,
        stop_rounds: 3,
        stop_window: Duration::from_millis(800),
        stopped_for: Duration::from_millis(3_600),
    };

    const QUICK: Plan = Plan {
        rounds: 1,
        pairs: 100,
        window: Duration::from_millis(200),
        tasks: &[1, 64],
        fsync_rounds: 1,
        fsync_pairs: 30,
        far_pairs: 5,
        most_held: 100,
        stop_rounds: 1,
        stop_window: Duration::from_millis(150),
        stopped_for: Duration::from_millis(400),
    };
}

const PARTS: [&str; 8] = [
    "latency",
    "throughput",
    "stopped",
    "disk",
    "network",
    "spread",
    "nodes",
    "held",
];

struct Arguments {
    quick: bool,
    multi_thread: bool,
    /// One of the parts instead of all.
    only: Option<String>,
    json: Option<PathBuf>,
    charts: Option<PathBuf>,
}

impl Arguments {
    fn parse() -> Outcome<Arguments> {
        let mut parsed = Arguments {
            quick: false,
            multi_thread: false,
            only: None,
            json: None,
            charts: None,
        };
        let mut benched = false;
        let mut words = env::args_os().skip(1);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--bench") => benched = true,
                Some("--quick") => parsed.quick = true,
                Some("--multi-thread") => parsed.multi_thread = true,
                Some("--only") => {
                    let part = words.next().and_then(|word| word.into_string().ok());
                    parsed.only = Some(
                        part.filter(|part| PARTS.contains(&part.as_str()))
                            .ok_or_else(|| format!("--only needs one of {PARTS:?}"))?,
                    );
                }
                Some("--json") => parsed.json = Some(words.next().ok_or("--json needs a file")?.into()),
                Some("--charts") => {
                    parsed.charts = Some(words.next().ok_or("--charts needs a folder")?.into());
                }
                _ => {
                    return Err(format!(
                        "unknown argument {word:?}; \
                         known: --quick --multi-thread --only PART --json FILE --charts FOLDER"
                    )
                    .into());
                }
            }
        }
        // `cargo test --all-targets` runs benchmarks too, only to see that they run.
        parsed.quick |= !benched;
        Ok(parsed)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

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

    // The path from the client to the servers' memory: nothing on disk.
    let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
    describe(&mut report, arguments, &plan, &testbed).await?;
    report.note_load("load at the start");
    if ["latency", "throughput", "stopped"]
        .iter()
        .any(|part| arguments.wants(part))
    {
        let everybody = Everybody::connect(&addresses(&testbed)).await?;
        if arguments.wants("latency") {
            let latency = everybody.latency(plan.rounds, plan.pairs).await;
            report.latency("latency", &latency, FLOORS);
            report.fencing("what fencing costs", &latency, &[SCRIPTED, FIRST_USE], PLAIN);
            everybody.server_times(&testbed, plan.pairs, &mut report).await?;
        }
        for &tasks in plan.tasks {
            if arguments.wants("throughput") {
                let throughput = everybody.throughput(tasks, plan.rounds, plan.window).await;
                report.throughput(&format!("throughput, tasks: {tasks}"), tasks, &throughput, MUXES);
            }
        }
        if arguments.wants("stopped") {
            everybody.stopped(&testbed, &plan, &mut report).await?;
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
        nodes = growth::nodes(plan.rounds, plan.fsync_pairs, &mut report).await?;
    }
    if arguments.wants("held") {
        held = growth::held(plan.rounds, plan.fsync_pairs, plan.most_held, &mut report).await?;
    }
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

/// As locks are to be stored: on disk before the answer.
async fn on_disk(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let testbed = Testbed::start(5).await?;
    let everybody = Everybody::connect(&addresses(&testbed)).await?;
    let latency = everybody.latency(plan.fsync_rounds, plan.fsync_pairs).await;
    report.latency("latency with appendfsync always", &latency, FLOORS);
    let title = "what fencing costs with appendfsync always";
    report.fencing(title, &latency, &[SCRIPTED, FIRST_USE], PLAIN);
    let throughput = everybody.throughput(64, plan.fsync_rounds, plan.window).await;
    let title = "throughput, tasks: 64, with appendfsync always";
    report.throughput(title, 64, &throughput, MUXES);
    drop(everybody);
    testbed.shutdown().await;
    Ok(())
}

/// Each way takes half a millisecond.
async fn over_a_network(plan: &Plan, report: &mut Report) -> Outcome<()> {
    const ONE_WAY: Duration = Duration::from_micros(500);
    let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
    let distances = Distances::to(&addresses(&testbed))?;
    let everybody = Everybody::connect(&distances.addresses).await?;
    distances.set(&[ONE_WAY; 5]);
    let latency = everybody.latency(plan.fsync_rounds, plan.fsync_pairs).await;
    report.latency("latency over a network", &latency, FLOORS);
    report.fencing(
        "what fencing costs over a network",
        &latency,
        &[SCRIPTED, FIRST_USE],
        PLAIN,
    );
    drop(everybody);
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

/// All contenders, each with connections of its own.
struct Everybody {
    floor: Floor,
    scripted_floor: Known<Floor>,
    unfenced_floor: Floor,
    mux: Mux,
    scripted_mux: Known<Mux>,
    unfenced_mux: Mux,
    rslock: Rslock,
    scripted: Known<Quorlock>,
    plain: Quorlock,
    watched: Known<Quorlock>,
    first_use: Quorlock,
}

impl Everybody {
    async fn connect(addresses: &[SocketAddr]) -> Outcome<Everybody> {
        sleep(UP_FOR).await;
        let urls = urls(addresses);
        let mux = async |requests| Mux::connect(addresses, requests).await;
        let quorlock =
            async |fencing, watchdog| Quorlock::connect(&urls, fencing, watchdog, contender::TTL).await;
        let everybody = Everybody {
            floor: Floor::connect(addresses, Requests::Plain)?,
            scripted_floor: Known::to(Floor::connect(addresses, Requests::Scripted)?).await?,
            unfenced_floor: Floor::connect(addresses, Requests::Unfenced)?,
            mux: mux(Requests::Plain).await?,
            scripted_mux: Known::to(mux(Requests::Scripted).await?).await?,
            unfenced_mux: mux(Requests::Unfenced).await?,
            rslock: Rslock::new(&urls),
            scripted: Known::to(quorlock(true, false).await?).await?,
            plain: quorlock(false, false).await?,
            watched: Known::to(quorlock(true, true).await?).await?,
            first_use: quorlock(true, false).await?,
        };
        everybody.latency(1, 50).await; // to warm up
        Ok(everybody)
    }

    async fn latency(&self, rounds: usize, pairs: usize) -> Vec<Series> {
        let mut all = [
            FLOOR,
            SCRIPTED_FLOOR,
            UNFENCED_FLOOR,
            MUX,
            SCRIPTED_MUX,
            UNFENCED_MUX,
            RSLOCK,
            SCRIPTED,
            PLAIN,
            WATCHED,
            FIRST_USE,
        ]
        .map(Series::new);
        for round in 0..rounds {
            eprintln!("latency: round {} of {rounds}", round + 1);
            for series in &mut all {
                let limit = Duration::from_secs(5);
                series.rounds.push(match series.name {
                    FLOOR => one_by_one(&self.floor, pairs, limit).await,
                    SCRIPTED_FLOOR => one_by_one(&self.scripted_floor, pairs, limit).await,
                    UNFENCED_FLOOR => one_by_one(&self.unfenced_floor, pairs, limit).await,
                    MUX => one_by_one(&self.mux, pairs, limit).await,
                    SCRIPTED_MUX => one_by_one(&self.scripted_mux, pairs, limit).await,
                    UNFENCED_MUX => one_by_one(&self.unfenced_mux, pairs, limit).await,
                    RSLOCK => one_by_one(&self.rslock, pairs, limit).await,
                    PLAIN => one_by_one(&self.plain, pairs, limit).await,
                    WATCHED => one_by_one(&self.watched, pairs, limit).await,
                    FIRST_USE => one_by_one(&self.first_use, pairs, limit).await,
                    _ => one_by_one(&self.scripted, pairs, limit).await,
                });
                pause().await;
            }
        }
        all.into()
    }

    async fn throughput(&self, tasks: usize, rounds: usize, window: Duration) -> Vec<Series> {
        let mut all = [MUX, SCRIPTED_MUX, UNFENCED_MUX, RSLOCK, SCRIPTED, PLAIN, WATCHED].map(Series::new);
        for round in 0..rounds {
            eprintln!("{tasks} tasks: round {} of {rounds}", round + 1);
            for series in &mut all {
                series.rounds.push(match series.name {
                    MUX => side_by_side(&self.mux, tasks, window).await,
                    SCRIPTED_MUX => side_by_side(&self.scripted_mux, tasks, window).await,
                    UNFENCED_MUX => side_by_side(&self.unfenced_mux, tasks, window).await,
                    RSLOCK => side_by_side(&self.rslock, tasks, window).await,
                    PLAIN => side_by_side(&self.plain, tasks, window).await,
                    WATCHED => side_by_side(&self.watched, tasks, window).await,
                    _ => side_by_side(&self.scripted, tasks, window).await,
                });
                pause().await;
            }
        }
        all.into()
    }

    async fn server_times(&self, testbed: &Testbed, pairs: usize, report: &mut Report) -> Outcome<()> {
        let all = [
            (FLOOR, server_time(&self.floor, testbed, pairs, true).await?),
            (
                SCRIPTED_FLOOR,
                server_time(&self.scripted_floor, testbed, pairs, false).await?,
            ),
            (PLAIN, server_time(&self.plain, testbed, pairs, true).await?),
            (
                SCRIPTED,
                server_time(&self.scripted, testbed, pairs, false).await?,
            ),
            (
                FIRST_USE,
                server_time(&self.first_use, testbed, pairs, false).await?,
            ),
        ];
        report.server_times("time that a lock costs each server", &all);
        Ok(())
    }

    /// Nodes that are there but do not answer.
    async fn stopped(&self, testbed: &Testbed, plan: &Plan, report: &mut Report) -> Outcome<()> {
        let names = [
            "healthy",
            "1 stopped, just now",
            "1 stopped, for longer",
            "2 stopped, just now",
            "2 stopped, for longer",
        ];
        let mut quorlock = names.map(Series::new);
        let mut floor = names.map(Series::new);
        let mut rslock = [names[0], "1 stopped", "2 stopped"].map(Series::new);
        let pairs = usize::MAX;
        for round in 0..plan.stop_rounds {
            eprintln!("stopped nodes: round {} of {}", round + 1, plan.stop_rounds);
            for (down, rslock) in rslock.iter_mut().enumerate() {
                let since = Instant::now();
                if down > 0 {
                    // From the middle of the list: nobody shall profit from its order.
                    self.floor.set_awake(down, false);
                    testbed.nodes()[down].stop()?;
                }
                let now = (2 * down).saturating_sub(1);
                quorlock[now]
                    .rounds
                    .push(one_by_one(&self.scripted, pairs, plan.stop_window).await);
                pause().await;
                floor[now]
                    .rounds
                    .push(one_by_one(&self.floor, pairs, plan.stop_window / 4).await);
                // Of the time until the second look, rslock has the rest.
                let rest = match down {
                    0 => plan.stop_window,
                    _ => plan.stopped_for.saturating_sub(since.elapsed()),
                };
                rslock.rounds.push(one_by_one(&self.rslock, pairs, rest).await);
                if down > 0 {
                    sleep(plan.stopped_for.saturating_sub(since.elapsed())).await;
                    quorlock[now + 1]
                        .rounds
                        .push(one_by_one(&self.scripted, pairs, plan.stop_window).await);
                    pause().await;
                    floor[now + 1]
                        .rounds
                        .push(one_by_one(&self.floor, pairs, plan.stop_window / 4).await);
                }
            }
            for down in 1..=2 {
                testbed.nodes()[down].resume()?;
                self.floor.set_awake(down, true);
            }
            self.recovered().await?;
        }
        report.worlds("quorlock with stopped nodes", &quorlock);
        report.worlds("floor with stopped nodes", &floor);
        report.worlds("rslock with stopped nodes", &rslock);
        Ok(())
    }

    /// Waits until everybody has all nodes again, and what was left to clean up is cleaned up.
    async fn recovered(&self) -> Outcome<()> {
        let started = Instant::now();
        while [
            self.scripted.contender(),
            &self.plain,
            self.watched.contender(),
            &self.first_use,
        ]
        .iter()
        .any(|contender| contender.up() < 5)
        {
            if started.elapsed() > Duration::from_secs(10) {
                return Err("the nodes were resumed, but not all are up again after 10 s".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_millis(1_500)).await;
        // Late answers are taken in, and late time-outs are over, before anything counts.
        for _ in 0..3 {
            one_by_one(&self.rslock, 1, Duration::from_secs(1)).await;
        }
        contender::Contender::settle(&self.floor).await?;
        Ok(())
    }
}

/// Lets stragglers of one contender end before the next one's turn.
async fn pause() {
    sleep(Duration::from_millis(20)).await;
}
