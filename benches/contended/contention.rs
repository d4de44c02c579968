//! All contenders in all worlds, by turns.

use crate::bench::{Bench, Outcome};
use crate::common::report::Report;
use crate::plan::World;
use crate::tables::Series;

pub(crate) fn plan(bench: &Bench) {
    let turns = bench.plan.worlds.len() * bench.plan.rounds * bench.everybody.len();
    bench.progress.plan(bench.plan.turn() * turns as u32);
}

/// Measures, and returns each world's rounds for the charts.
pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<Vec<(World, Vec<Series>)>> {
    let mut worlds = Vec::new();
    for &world in &bench.plan.worlds {
        let mut all = Vec::new();
        for &who in &bench.everybody {
            all.push((bench.prepare(who, world).await?, Series::new(who.name())));
        }
        for round in 0..bench.plan.rounds {
            let what = format!("{}: round {} of {}", world.title(), round + 1, bench.plan.rounds);
            bench.progress.next(bench.plan.turn() * all.len() as u32, &what);
            // Another contender comes first in each round.
            for number in 0..all.len() {
                let next = (round + number) % all.len();
                let (turns, series) = &mut all[next];
                let figures = turns.compete(&bench.plan, Some(&bench.servers.testbed)).await?;
                series.rounds.push(figures);
            }
        }
        for (turns, _) in &all {
            turns.check(&world.title(), report);
        }
        let all: Vec<Series> = all.into_iter().map(|(_, series)| series).collect();
        report.contention(&world.title(), &all, false);
        worlds.push((world, all));
    }
    report.worlds(&worlds);
    Ok(worlds)
}
