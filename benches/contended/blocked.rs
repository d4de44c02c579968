//! Contention while the servers keep ending all subscriptions: announcements may be late or lost.

use std::time::Duration;

use quorlock::testbed::Testbed;
use tokio::time::sleep;

use crate::bench::{Bench, Outcome};
use crate::common::report::Report;
use crate::contender::ContenderKind;
use crate::plan::World;
use crate::tables::Series;

const EVERY: Duration = Duration::from_millis(50);
/// A command that costs the servers as much and does nothing, for a fair comparison.
const NOTHING: &[&str] = &["CLIENT", "ID"];
const KILL: &[&str] = &["CLIENT", "KILL", "TYPE", "pubsub"];

pub(crate) fn plan(bench: &Bench) {
    if bench.everybody.contains(&ContenderKind::Quorlock) {
        bench
            .progress
            .plan(bench.plan.turn() * 2 * bench.plan.rounds as u32);
    }
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    if !bench.everybody.contains(&ContenderKind::Quorlock) {
        return Ok(());
    }
    let world = World::new(8, 4, Duration::ZERO);
    let mut turns = bench.prepare(ContenderKind::Quorlock, world).await?;
    let mut both = [("left alone", NOTHING), ("killed every 50 ms", KILL)]
        .map(|(name, command)| (Series::new(name), command));
    let mut killed = 0;
    for round in 0..bench.plan.rounds {
        let what = format!(
            "subscriptions that break: round {} of {}",
            round + 1,
            bench.plan.rounds
        );
        bench.progress.next(bench.plan.turn() * 2, &what);
        for (series, command) in &mut both {
            tokio::select! {
                figures = turns.compete(&bench.plan, None) => series.rounds.push(figures?),
                never = repeat(&bench.servers.testbed, command, &mut killed) => never?,
            }
        }
    }
    let title = format!("quorlock, its subscriptions, {}", world.title());
    turns.check(&title, report);
    report.contention(&title, &both.map(|(series, _)| series), false);
    report.keep("subscriptions that were killed", killed);
    Ok(())
}

/// Sends the command to all nodes, repeatedly, until it is dropped or fails.
async fn repeat(testbed: &Testbed, command: &[&str], killed: &mut i64) -> Outcome<()> {
    loop {
        for node in testbed.nodes() {
            let answer = node.command(command).await?;
            if command == KILL {
                *killed += answer.as_int().ok_or("no number")?;
            }
        }
        sleep(EVERY).await;
    }
}
