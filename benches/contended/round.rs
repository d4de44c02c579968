use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use quorlock::testbed::Testbed;

use crate::bench::Outcome;
use crate::commands::Commands;
use crate::common::report::Report;
use crate::contender::ContenderKind;
use crate::figures::{Figures, Uncontended, two_holders};
use crate::plan::{Plan, World};
use crate::process_group::ProcessGroup;
use crate::record::{Job, Order, Record, nanos, now};

/// For all processes to read their orders.
const LEAD: Duration = Duration::from_millis(20);

/// The processes of one contender in one world.
pub(crate) struct Turns {
    pub(crate) who: ContenderKind,
    pub(crate) world: World,
    group: ProcessGroup,
    /// Two holders at the same time, which must never be.
    violation: Option<String>,
}

impl Turns {
    pub(crate) async fn prepare(job: &Job, world: World) -> Outcome<Turns> {
        Ok(Turns {
            who: job.who,
            world,
            group: ProcessGroup::start(job, world.processes).await?,
            violation: None,
        })
    }

    /// Measures without contention, then with it. Commands of the Redis servers are counted if `counted` is given.
    pub(crate) async fn compete(&mut self, plan: &Plan, counted: Option<&Testbed>) -> Outcome<Figures> {
        let alone = Order {
            waiters: 1,
            at_most: plan.alone,
            ..self.order(plan.hold, Duration::from_secs(3))
        };
        let alone = Uncontended::of(&self.work(&[alone]).await?);

        let counted = counted.filter(|_| self.who.is_redis());
        let before = Commands::so_far(counted).await?;
        let order = self.order(plan.hold, plan.warm_up + plan.window);
        let window = (order.start + nanos(plan.warm_up), order.until);
        let record = self.work(&vec![order; self.world.processes]).await?;
        let after = Commands::so_far(counted).await?;

        let mut figures = Figures::new(&record, &alone, window, self.world.workers());
        if counted.is_some() {
            let each = |commands: u64| commands as f64 / record.grants.len() as f64;
            figures.sent = each(after.sent_since(&before, self.who.sends_set()));
            figures.executed = each(after.executed_since(&before));
        }
        Ok(figures)
    }

    pub(crate) fn check(&self, title: &str, report: &mut Report) {
        if let Some(violation) = &self.violation {
            report.violated(&format!("{title}, {}: {violation}", self.who.name()));
        }
    }

    /// Runs an order on each process, from the first on.
    pub(crate) async fn work(&mut self, orders: &[Order]) -> Outcome<Record> {
        let record = self.group.work(orders).await;
        let record = record.map_err(|error| format!("{}: {error}", self.who.name()))?;
        self.violation = self.violation.take().or_else(|| two_holders(&record));
        Ok(record)
    }

    /// Returns an order for all waiters of a process: repeated acquires for this long, beginning shortly.
    pub(crate) fn order(&self, hold: Duration, length: Duration) -> Order {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let start = now() + nanos(LEAD);
        Order {
            key: format!("contended-{:06}", LAST.fetch_add(1, Relaxed)),
            waiters: self.world.waiters,
            start,
            until: start + nanos(length),
            at_most: usize::MAX,
            hold,
            pause: self.world.pause,
        }
    }
}
