//! The cost of waiters for the servers while another process holds the lock for seconds.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::bench::{Bench, Outcome};
use crate::commands::Commands;
use crate::common::report::{Report, Row};
use crate::contender::ContenderKind;
use crate::plan::World;
use crate::record::{Order, nanos};
use crate::round::Turns;

const WORLDS: [(usize, usize); 2] = [(1, 32), (8, 4)];
const CONTENDERS: [ContenderKind; 3] = [
    ContenderKind::Quorlock,
    ContenderKind::Rslock,
    ContenderKind::RslockTuned,
];
/// Until all waiters have been refused.
const SETTLED: Duration = Duration::from_millis(700);

pub(crate) fn plan(bench: &Bench) {
    let turns = WORLDS.len() * bench.among(&CONTENDERS).len();
    bench.progress.plan(length(bench) * turns as u32);
}

fn length(bench: &Bench) -> Duration {
    bench.plan.idle + Duration::from_millis(600)
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut rows = Vec::new();
    for who in bench.among(&CONTENDERS) {
        let mut row = Row::new(who.name());
        for (processes, waiters) in WORLDS {
            let what = format!("idle waiters: {}: {processes} x {waiters}", who.name());
            bench.progress.next(length(bench), &what);
            // One more process, which holds the lock.
            let world = World::new(processes + 1, waiters, Duration::ZERO);
            let mut turns = bench.prepare(who, world).await?;
            let rate = meanwhile(&mut turns, bench).await?;
            turns.check("idle waiters", report);
            let head = format!("{processes} x {waiters}");
            row.show(&head, head.clone(), rate, 0);
        }
        rows.push(row);
    }
    let title = "commands that idle waiters send, all servers together";
    report.table(title, "commands/s, processes x waiters", rows);
    Ok(())
}

/// Returns commands per second.
async fn meanwhile(turns: &mut Turns, bench: &Bench) -> Outcome<f64> {
    let held_for = bench.plan.idle;
    let holder = Order {
        waiters: 1,
        at_most: 1,
        ..turns.order(held_for, held_for)
    };
    let waiters = Order {
        waiters: turns.world.waiters,
        at_most: usize::MAX,
        start: holder.start + nanos(Duration::from_millis(200)),
        ..holder.clone()
    };
    let mut orders = vec![waiters; turns.world.processes];
    orders[0] = holder;
    let who = turns.who;
    let watching = async {
        sleep(SETTLED).await;
        let (before, since) = (
            Commands::so_far(Some(&bench.servers.testbed)).await?,
            Instant::now(),
        );
        sleep(held_for.saturating_sub(SETTLED + Duration::from_millis(200))).await;
        let after = Commands::so_far(Some(&bench.servers.testbed)).await?;
        let sent = after.sent_since(&before, who.sends_set());
        Outcome::Ok(sent as f64 / since.elapsed().as_secs_f64())
    };
    let (done, rate) = tokio::join!(turns.work(&orders), watching);
    done?;
    rate
}
