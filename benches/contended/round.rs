//! One contender's turn.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::commands::Commands;
use crate::contender::Who;
use crate::crew::Crew;
use crate::figures::{Alone, Figures, two_holders};
use crate::plan::{Plan, World};
use crate::record::{Job, Order, Record, nanos, now};
use crate::servers::Servers;

/// For all processes to read their orders.
const LEAD: Duration = Duration::from_millis(20);

/// The processes of one contender in one world.
pub(crate) struct Turns {
    pub(crate) who: Who,
    pub(crate) world: World,
    crew: Crew,
    /// What must never be: two holders at once.
    pub(crate) violation: Option<String>,
}

impl Turns {
    pub(crate) async fn prepare(
        who: Who,
        world: World,
        servers: &Servers,
        multi_thread: bool,
    ) -> Result<Turns, Box<dyn Error>> {
        let job = Job {
            who,
            waiters: world.waiters,
            addresses: servers.addresses(),
            multi_thread,
        };
        let crew = Crew::start(&job, world.processes).await;
        let crew = crew.map_err(|error| format!("{}: {error}", who.name()))?;
        Ok(Turns {
            who,
            world,
            crew,
            violation: None,
        })
    }

    /// Alone first, then against each other.
    pub(crate) async fn take(&mut self, plan: &Plan, servers: &Servers) -> Result<Figures, Box<dyn Error>> {
        let alone = Order {
            waiters: 1,
            at_most: plan.alone,
            ..self.order(plan.hold, Duration::from_secs(3))
        };
        let alone = Alone::of(&self.work(&[alone]).await?);

        let before = Commands::so_far(&servers.testbed).await?;
        let order = self.order(plan.hold, plan.warm_up + plan.window);
        let window = (order.start + nanos(plan.warm_up), order.until);
        let record = self.work(&vec![order; self.world.processes]).await?;
        let after = Commands::so_far(&servers.testbed).await?;

        let mut figures = Figures::new(&record, &alone, window, self.world.workers());
        if self.who.is_redis() {
            let each = |commands: u64| commands as f64 / record.grants.len() as f64;
            figures.sent = each(after.sent_since(&before, self.who.sends_set()));
            figures.executed = each(after.executed_since(&before));
        }
        Ok(figures)
    }

    /// An order for each process, from the first on.
    pub(crate) async fn work(&mut self, orders: &[Order]) -> Result<Record, Box<dyn Error>> {
        let record = self.crew.work(orders).await;
        let record = record.map_err(|error| format!("{}: {error}", self.who.name()))?;
        self.violation = self.violation.take().or_else(|| two_holders(&record));
        Ok(record)
    }

    /// For everybody in a process, over and over, for so long, beginning shortly.
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
