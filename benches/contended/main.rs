//! How fast and how fairly a contended lock is handed over: quorlock beside its peers.
//!
//! `cargo bench --features testbed --bench contended -- [--quick] [--multi-thread] [--json FILE] [--charts FOLDER] [--only NAME]...
//! [--part PART]... [--processes N]... [--waiters N]...`
//!
//! `docs/benchmarks.md` describes the method. The output is Markdown; progress goes to the error output.

mod advisory;
mod arguments;
mod bench;
mod blocked;
mod charts;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod contender;
mod contention;
mod etcd;
mod etcd_server;
mod faults;
mod figures;
mod idle;
mod plan;
#[path = "../../tests/common/postgres.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod postgres;
mod process_group;
mod quorlock;
mod record;
mod round;
mod rslock;
mod servers;
mod tables;
mod wake_ups;
mod worker;

use std::process::ExitCode;
use std::time::Instant;
use std::{fs, thread};

use tokio::time::sleep;

use arguments::{Arguments, Part};
use bench::{Bench, Outcome, Progress};
use common::report::{self, RSLOCK_VERSION, Report};
use contender::TTL;
use plan::Plan;
use servers::{Server, Servers};

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
    for who in everybody.extract_if(.., |who| who.server().missing().is_some()) {
        let package = who.server().missing().unwrap_or_default();
        report.note(
            who.name(),
            &format!("MISSING, for there is no server here: install {package}"),
        );
    }
    let wanted: Vec<Server> = everybody.iter().map(|who| who.server()).collect();
    let bench = Bench {
        everybody,
        plan,
        servers: Servers::start(&wanted).await?,
        multi_thread: arguments.multi_thread,
        progress: Progress::new(),
    };
    describe(&bench, arguments, &mut report).await?;
    report.note_load("load at the start");
    sleep(bench.plan.up_for.saturating_sub(started.elapsed())).await;

    let parts = arguments.parts();
    for part in &parts {
        part.plan(&bench);
    }
    let mut worlds = Vec::new();
    for part in parts {
        match part {
            Part::Contention => worlds = contention::measure(&bench, &mut report).await?,
            Part::Faults => faults::measure(&bench, &mut report).await?,
            Part::Idle => idle::measure(&bench, &mut report).await?,
            Part::Blocked => blocked::measure(&bench, &mut report).await?,
            Part::WakeUps => wake_ups::measure(&bench, &mut report).await?,
        }
    }
    bench.servers.shutdown().await;
    if let Some(folder) = &arguments.charts {
        charts::draw(folder, &worlds)?;
    }

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

async fn describe(bench: &Bench, arguments: &Arguments, report: &mut Report) -> Outcome<()> {
    let cores = thread::available_parallelism()?;
    let (runtime, quick) = (
        report::runtime(bench.multi_thread),
        report::caveat(arguments.quick),
    );
    let servers = bench.servers.describe().await?;
    let version = env!("CARGO_PKG_VERSION");
    let Plan {
        hold,
        window,
        rounds,
        fault_rounds,
        ..
    } = bench.plan;
    report.note(
        "method",
        &format!(
            "{servers} and all clients on one machine with {cores} cores; tokio {runtime}; quorlock {version}, rslock {RSLOCK_VERSION}; \
             one name, TTL {TTL:?}, held for {hold:?} by tokio's clock. Contenders take turns in {rounds} rounds of {window:?} \
             ({fault_rounds} while nodes fail); medians over the rounds, ratios are medians of the rounds' ratios.{quick}"
        ),
    );
    Ok(())
}
