//! How fast a lock passes from one to the next when many want it, and how fairly: quorlock beside its peers.
//!
//! `cargo bench --features testbed --bench contended -- [--quick] [--multi-thread] [--json FILE] [--only NAME]...
//! [--processes N]... [--waiters N]...`
//!
//! What is measured and how is said in `docs/benchmarks.md`. The output is Markdown; progress goes to the error output.

mod advisory;
mod arguments;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod contender;
mod crew;
mod etcd;
mod etcd_server;
mod figures;
mod plan;
#[path = "../../tests/common/postgres.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod postgres;
mod quorlock;
mod record;
mod round;
mod rslock;
mod servers;
mod tables;
mod worker;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, thread};

use tokio::time::sleep;

use arguments::Arguments;
use common::report::Report;
use contender::{TTL, Who};
use plan::{Plan, World};
use round::Turns;
use servers::Servers;
use tables::Series;

/// A server trusts no counter from before its start, which it knows to a few seconds.
const UP_FOR: Duration = Duration::from_secs(4);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    if let Some(job) = worker::job()? {
        return worker::main(&job).map(|()| ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let started = Instant::now();
    let mut plan = if arguments.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    if let Some(worlds) = arguments.worlds() {
        plan.worlds = worlds;
    }
    let mut everybody = arguments.contenders();
    let mut report = Report::default();
    println!();
    for who in everybody.extract_if(.., |who| who.server().missing().is_some()) {
        let package = who.server().missing().unwrap_or_default();
        report.note(
            who.name(),
            &format!("MISSING: there is no server here; install {package}"),
        );
    }
    let wanted: Vec<_> = everybody.iter().map(|who| who.server()).collect();
    let servers = Servers::start(&wanted).await?;
    describe(&mut report, arguments, &plan, &servers).await?;
    report.note_load("load at the start");
    sleep(UP_FOR.saturating_sub(started.elapsed())).await;

    for (number, &world) in plan.worlds.iter().enumerate() {
        let progress = format!("world {} of {}", number + 1, plan.worlds.len());
        contend(
            &everybody,
            world,
            &plan,
            arguments,
            &servers,
            &progress,
            &mut report,
        )
        .await?;
    }
    servers.shutdown().await;

    println!();
    report.note_load("load at the end");
    report.note("took", &format!("{:.0} s", started.elapsed().as_secs_f64()));
    let violated = report.is_violated();
    let json = report.finish();
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_string_pretty(&json)?)?;
    }
    Ok(if violated {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// All contenders in one world, in turns.
async fn contend(
    everybody: &[Who],
    world: World,
    plan: &Plan,
    arguments: &Arguments,
    servers: &Servers,
    progress: &str,
    report: &mut Report,
) -> Outcome<()> {
    eprintln!("{progress}: {}: starting processes", world.title());
    let mut all = Vec::new();
    for &who in everybody {
        let turns = Turns::prepare(who, world, servers, arguments.multi_thread).await?;
        all.push((turns, Series::new(who.name())));
    }
    for round in 0..plan.rounds {
        eprintln!(
            "{progress}: {}: round {} of {}",
            world.title(),
            round + 1,
            plan.rounds
        );
        for (turns, series) in &mut all {
            series.rounds.push(turns.take(plan, servers).await?);
        }
    }
    let mut measured = Vec::new();
    for (turns, series) in all {
        if let Some(violation) = &turns.violation {
            report.violated(&format!("{}, {}: {violation}", world.title(), series.name));
        }
        measured.push(series);
    }
    report.contention(&world.title(), &measured);
    Ok(())
}

async fn describe(report: &mut Report, arguments: &Arguments, plan: &Plan, servers: &Servers) -> Outcome<()> {
    let cores = thread::available_parallelism()?;
    let runtime = if arguments.multi_thread {
        "multi_thread"
    } else {
        "current_thread"
    };
    let quick = if arguments.quick {
        " QUICK RUN: the numbers mean nothing."
    } else {
        ""
    };
    let servers = servers.describe().await?;
    let version = env!("CARGO_PKG_VERSION");
    let (hold, window, rounds) = (plan.hold, plan.window, plan.rounds);
    report.note(
        "method",
        &format!(
            "{servers} and all clients on one machine with {cores} cores; tokio {runtime}; quorlock {version}, rslock {RSLOCK_VERSION}; \
             one name, TTL {TTL:?}, held for {hold:?} by tokio's clock. Contenders take turns in {rounds} rounds of {window:?}; medians \
             over the rounds, ratios are medians of the rounds' ratios, the longest wait is that of all rounds.{quick}"
        ),
    );
    Ok(())
}

/// As locked in `Cargo.lock`.
const RSLOCK_VERSION: &str = "0.10.0";
