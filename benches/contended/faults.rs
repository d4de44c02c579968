//! Contention while one node hangs, is dead, or both.

use std::time::Duration;

use quorlock::testbed::{Data, Testbed};
use tokio::time::sleep;

use crate::bench::{Bench, Outcome};
use crate::common::report::Report;
use crate::contender::ContenderKind;
use crate::plan::{Plan, World};
use crate::tables::Series;

/// From the middle of the list: no contender may profit from its order.
const HUNG: usize = 1;
const DEAD: usize = 3;

/// The state of the nodes. Each follows from the one before.
#[derive(Clone, Copy)]
enum Wrong {
    Nothing,
    Hung,
    HungAndDead,
    Dead,
}

const ALL: [(Wrong, &str); 4] = [
    (Wrong::Nothing, "healthy"),
    (Wrong::Hung, "1 node hung"),
    (Wrong::HungAndDead, "1 node hung, 1 dead"),
    (Wrong::Dead, "1 node dead"),
];

const CONTENDERS: [ContenderKind; 2] = [ContenderKind::Quorlock, ContenderKind::Rslock];

impl Wrong {
    async fn set(self, testbed: &Testbed) -> Outcome<()> {
        let (hung, dead) = (&testbed.nodes()[HUNG], &testbed.nodes()[DEAD]);
        match self {
            Wrong::Nothing => {}
            Wrong::Hung => hung.stop()?,
            Wrong::HungAndDead => dead.kill().await?,
            Wrong::Dead => {
                hung.resume()?;
                sleep(RECONNECTED).await;
            }
        }
        Ok(())
    }
}

const RECONNECTED: Duration = Duration::from_millis(1_500);

/// Fewer leases without contention, because each may take a second while a node hangs.
fn own(plan: &Plan) -> Plan {
    Plan {
        alone: 3,
        window: plan.fault_window,
        ..plan.clone()
    }
}

pub(crate) fn plan(bench: &Bench) {
    let turns = ALL.len() * bench.among(&CONTENDERS).len() * bench.plan.fault_rounds;
    let settling = (RECONNECTED + bench.plan.up_for) * bench.plan.fault_rounds as u32;
    bench
        .progress
        .plan(own(&bench.plan).turn() * turns as u32 + settling);
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let world = World::new(4, 4, Duration::ZERO);
    let plan = own(&bench.plan);
    let testbed = &bench.servers.testbed;
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
            bench.progress.next(plan.turn() * all.len() as u32, &what);
            wrong.set(testbed).await?;
            for (turns, series) in &mut all {
                series[number].rounds.push(turns.compete(&plan, None).await?);
            }
        }
        bench.progress.next(
            RECONNECTED + plan.up_for,
            "nodes that fail: all are started again",
        );
        testbed.nodes()[DEAD].restart(Data::Keep).await?;
        sleep(plan.up_for).await;
    }
    for (turns, series) in all {
        let title = format!("{} while nodes fail, {}", turns.who.name(), world.title());
        turns.check(&title, report);
        report.contention(&title, &series, true);
    }
    Ok(())
}
