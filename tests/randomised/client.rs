//! One client process: a runtime with its own clock, which can be frozen.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use quorlock::simulation::Node;
use quorlock::{LeaseHandle, Redlock};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{advance, sleep_until};

use crate::desk::node::SimulatedNode;
use crate::desk::{Desk, Parcel};
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::programme::Programme;
use crate::world::event::Event;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The machine was suspended, so its monotonic clock stood still.
    pub(crate) suspended: bool,
}

pub(crate) struct Glance {
    pub(crate) grant: usize,
    pub(crate) deadline: i64,
    pub(crate) is_held: bool,
}

pub(crate) struct Client {
    runtime: Runtime,
    /// The true time that the client has reached.
    pub(crate) time: u64,
    pub(crate) desk: Arc<Desk>,
    /// Since when the client is paused, and whether its machine is suspended.
    pub(crate) frozen: Option<(u64, bool)>,
    pub(crate) pauses: Vec<Pause>,
    /// Events that arrived during the pause.
    pub(crate) inbox: VecDeque<Event>,
    /// The number of phases that have ended and were audited.
    pub(crate) phases: u32,
}

impl Client {
    pub(crate) fn new(plan: &Plan) -> Client {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let desk = {
            let _inside = runtime.enter();
            Desk::new(plan.clocks.len(), plan.look_period())
        };
        Client {
            runtime,
            time: 0,
            desk,
            frozen: None,
            pauses: Vec::new(),
            inbox: VecDeque::new(),
            phases: 0,
        }
    }

    pub(crate) fn inside<T>(&self, look: impl FnOnce(&Desk) -> T) -> T {
        let _inside = self.runtime.enter();
        look(&self.desk)
    }

    /// Runs until `horizon`, or until the client sends something.
    pub(crate) fn run(&mut self, horizon: u64) {
        self.runtime.block_on(async {
            let horizon = self.desk.instant(horizon);
            tokio::select! {
                biased;
                () = self.desk.sent.notified() => {}
                () = sleep_until(horizon) => {}
            }
        });
        self.time = self.inside(Desk::now);
    }

    /// Ends a pause. Timers that were due meanwhile are due now.
    pub(crate) fn resume(&mut self, now: u64) {
        let Some((from, suspended)) = self.frozen.take() else {
            return;
        };
        let gap = now.saturating_sub(self.time);
        if suspended {
            self.desk.sleep(gap);
        } else {
            self.runtime.block_on(advance(Duration::from_millis(gap)));
        }
        self.time = now;
        self.pauses.push(Pause {
            from,
            to: now,
            suspended,
        });
    }

    pub(crate) fn start(&self, number: usize, plan: &Arc<Plan>, ledger: &Arc<Ledger>, rng: Rng) {
        let _inside = self.runtime.enter();
        let node = |server| {
            Arc::new(SimulatedNode {
                name: format!("server{server}").into(),
                server,
                desk: self.desk.clone(),
            }) as Arc<dyn Node>
        };
        let desk = self.desk.clone();
        let builder = Redlock::builder()
            .simulated_owner_tokens(|| fastrand::u128(..))
            .suspended_time(move || Duration::from_millis(desk.slept()))
            .restart_guard(plan.guard.is_some())
            .guard_window(plan.guard.unwrap_or(Duration::from_secs(30)));
        let redlock = builder
            .custom_nodes((0..plan.clocks.len()).map(node).collect())
            .unwrap();
        let programme = Arc::new(Programme {
            client: number,
            desk: self.desk.clone(),
            ledger: ledger.clone(),
            plan: plan.clone(),
        });
        if self.phases == 0 {
            self.runtime.spawn(programme.work(redlock, rng));
        } else {
            self.runtime.spawn(programme.finish(redlock));
        }
    }

    pub(crate) fn take_outbox(&self) -> Vec<Parcel> {
        self.desk.take_outbox()
    }

    pub(crate) fn glance(&self) -> Vec<Glance> {
        let _inside = self.runtime.enter();
        let look = |(grant, lease): (usize, LeaseHandle)| Glance {
            grant,
            deadline: self.desk.moment(lease.deadline()),
            is_held: lease.is_held(),
        };
        self.desk.leases().into_iter().map(look).collect()
    }

    pub(crate) fn alive_tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }
}
