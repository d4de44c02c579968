//! How long it takes until a waiter in another process holds a released lock. A time that only a time-out explains means that a
//! wake-up was lost.

use std::time::{Duration, Instant};

use crate::bench::{Bench, Outcome};
use crate::common::report::{Report, Row};
use crate::common::stats::percentile;
use crate::contender::ContenderKind;
use crate::figures::HandOvers;
use crate::plan::World;
use futures_util::future::try_join_all;

/// The number of locks at the same time. For each, two processes have one waiter.
const PAIRS: usize = 4;
/// Long enough for the other waiter to ask while the lock is held.
const HOLD: Duration = Duration::from_millis(3);
const PAUSE: Duration = Duration::from_millis(1);
/// The interval at which the time is checked.
const STRETCH: Duration = Duration::from_secs(2);

/// PostgreSQL shows what the machine costs a contender that loses no wake-up.
const CONTENDERS: [ContenderKind; 2] = [ContenderKind::Quorlock, ContenderKind::PostgresBlocking];
const PERCENTILES: [(&str, f64); 5] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("longest", 100.0),
];
/// Limits in milliseconds, above what a busy machine's scheduler takes.
const LONG: [f64; 3] = [20.0, 100.0, 500.0];

pub(crate) fn plan(bench: &Bench) {
    bench
        .progress
        .plan(length(bench) * bench.among(&CONTENDERS).len() as u32);
}

/// Returns the expected time: a hand-over takes some five milliseconds.
fn length(bench: &Bench) -> Duration {
    let each = HOLD + PAUSE + Duration::from_millis(1);
    (each * (bench.plan.hand_overs / PAIRS) as u32).min(bench.plan.hand_overs_within)
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut rows = Vec::new();
    for who in bench.among(&CONTENDERS) {
        let HandOvers { mut times, overtaken } = hand_over(who, bench, report).await?;
        times.sort_unstable_by(f64::total_cmp);
        let mut row = Row::new(who.name());
        for (name, p) in PERCENTILES {
            row.show(name, format!("{name}_ms"), percentile(&times, p), 2);
        }
        for limit in LONG {
            let count = times.iter().filter(|&&millis| millis > limit).count();
            row.keep(format!("over_{limit:.0}_ms"), count);
        }
        row.keep("overtaken", overtaken);
        row.show("hand-overs", "hand_overs", times.len() as f64, 0);
        rows.push(row);
    }
    let title = "from a release to the next holder, in another process";
    report.table(title, "ms from release to grant", rows);
    Ok(())
}

async fn hand_over(who: ContenderKind, bench: &Bench, report: &mut Report) -> Outcome<HandOvers> {
    let plan = &bench.plan;
    bench
        .progress
        .next(length(bench), &format!("wake-ups: {}", who.name()));
    let world = World::new(2, 1, PAUSE);
    let pairs = (0..PAIRS).map(|_| bench.prepare(who, world));
    let mut pairs = try_join_all(pairs).await?;
    let mut all = HandOvers::default();
    let started = Instant::now();
    while all.times.len() < plan.hand_overs && started.elapsed() < plan.hand_overs_within {
        let stretch = STRETCH.min(plan.hand_overs_within);
        let working = pairs.iter_mut().map(async |turns| {
            let order = turns.order(HOLD, stretch);
            turns.work(&[order.clone(), order]).await
        });
        for record in try_join_all(working).await? {
            all.add(&record);
        }
    }
    for turns in &pairs {
        turns.check("wake-ups", report);
    }
    Ok(all)
}
