//! Contention while a node hangs, or is dead.

use std::time::Duration;

use quorlock::testbed::{Data, Testbed};
use tokio::time::sleep;

use crate::bench::{Bench, Outcome};
use crate::common::report::Report;
use crate::contender::Who;
use crate::plan::{Plan, World};
use crate::servers::UP_FOR;
use crate::tables::Series;

/// What is wrong with the nodes. In the middle of the list, so that nobody profits from its order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Hung,
    Dead,
    Both,
}

const ALL: [(Wrong, &str); 4] = [
    (Wrong::Nothing, "healthy"),
    (Wrong::Hung, "1 node hung"),
    (Wrong::Dead, "1 node dead"),
    (Wrong::Both, "1 hung, 1 dead"),
];
const HUNG: usize = 1;
const DEAD: usize = 3;

/// All that [`Wrong::undo`] waits in a round.
const SETTLING: Duration = Duration::from_millis(9_500);

const CONTENDERS: [Who; 3] = [Who::Quorlock, Who::Rslock, Who::RslockTuned];

impl Wrong {
    async fn set(self, testbed: &Testbed) -> Outcome<()> {
        if matches!(self, Wrong::Hung | Wrong::Both) {
            testbed.nodes()[HUNG].stop()?;
        }
        if matches!(self, Wrong::Dead | Wrong::Both) {
            testbed.nodes()[DEAD].kill().await?;
        }
        Ok(())
    }

    /// As before, and everybody knows.
    async fn undo(self, testbed: &Testbed) -> Outcome<()> {
        if matches!(self, Wrong::Hung | Wrong::Both) {
            testbed.nodes()[HUNG].resume()?;
        }
        if matches!(self, Wrong::Dead | Wrong::Both) {
            testbed.nodes()[DEAD].restart(Data::Keep).await?;
            sleep(UP_FOR).await;
        } else if self != Wrong::Nothing {
            sleep(Duration::from_millis(1_500)).await;
        }
        Ok(())
    }
}

pub(crate) fn plan(bench: &Bench) {
    let turns = ALL.len() * bench.among(&CONTENDERS).len() * bench.plan.fault_rounds;
    bench
        .progress
        .plan(bench.turn() * turns as u32 + SETTLING * bench.plan.fault_rounds as u32);
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let world = World::new(4, 4, Duration::ZERO);
    let plan = Plan {
        alone: 3, // with half a second for an operation
        ..bench.plan.clone()
    };
    let mut all = Vec::new();
    for who in bench.among(&CONTENDERS) {
        all.push((
            bench.prepare(who, world).await?,
            ALL.map(|(_, name)| Series::new(name)),
        ));
    }
    for round in 0..plan.fault_rounds {
        for (number, (wrong, name)) in ALL.into_iter().enumerate() {
            let what = format!(
                "nodes that fail: round {} of {}: {name}",
                round + 1,
                plan.fault_rounds
            );
            bench.progress.next(
                bench.turn() * all.len() as u32 + SETTLING / ALL.len() as u32,
                &what,
            );
            wrong.set(&bench.servers.testbed).await?;
            for (turns, series) in &mut all {
                series[number].rounds.push(turns.compete(&plan, None).await?);
            }
            wrong.undo(&bench.servers.testbed).await?;
        }
    }
    for (turns, series) in all {
        let title = format!("{} while nodes fail, {}", turns.who.name(), world.title());
        turns.check(&title, report);
        report.contention(&title, &series);
    }
    Ok(())
}
