//! One client process: a runtime with its own clock, which can be frozen.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use quorlock::simulation::Node;
use quorlock::{LeaseHandle, Redlock};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{advance, sleep_until};

use crate::connections::node::SimulatedNode;
use crate::connections::{Connections, Message};
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::workload::Workload;
use crate::world::event::Event;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The machine was suspended, so its monotonic clock stood still.
    pub(crate) suspended: bool,
}

pub(crate) struct LeaseView {
    pub(crate) grant: usize,
    pub(crate) deadline: i64,
    pub(crate) is_held: bool,
}

pub(crate) struct Client {
    runtime: Runtime,
    /// The true time that the client has reached.
    pub(crate) time: u64,
    pub(crate) connections: Arc<Connections>,
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
        let connections = {
            let _inside = runtime.enter();
            Connections::new(plan.clocks.len(), plan.look_period())
        };
        Client {
            runtime,
            time: 0,
            connections,
            frozen: None,
            pauses: Vec::new(),
            inbox: VecDeque::new(),
            phases: 0,
        }
    }

    pub(crate) fn inside<T>(&self, look: impl FnOnce(&Connections) -> T) -> T {
        let _inside = self.runtime.enter();
        look(&self.connections)
    }

    /// Runs until `horizon`, or until the client sends something.
    pub(crate) fn run(&mut self, horizon: u64) {
        self.runtime.block_on(async {
            let horizon = self.connections.instant(horizon);
            tokio::select! {
                biased;
                () = self.connections.sent.notified() => {}
                () = sleep_until(horizon) => {}
            }
        });
        self.time = self.inside(Connections::now);
    }

    /// Ends a pause. Timers that were due meanwhile are due now.
    pub(crate) fn resume(&mut self, now: u64) {
        let Some((from, suspended)) = self.frozen.take() else {
            return;
        };
        let gap = now.saturating_sub(self.time);
        if suspended {
            self.connections.sleep(gap);
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
                connections: self.connections.clone(),
            }) as Arc<dyn Node>
        };
        let connections = self.connections.clone();
        let builder = Redlock::builder()
            .simulated_owner_tokens(|| fastrand::u128(..))
            .suspended_time(move || Duration::from_millis(connections.slept()))
            .restart_guard(plan.guard.is_some())
            .guard_window(plan.guard.unwrap_or(Duration::from_secs(30)));
        let redlock = builder
            .custom_nodes((0..plan.clocks.len()).map(node).collect())
            .unwrap();
        let workload = Arc::new(Workload {
            client: number,
            connections: self.connections.clone(),
            ledger: ledger.clone(),
            plan: plan.clone(),
        });
        if self.phases == 0 {
            self.runtime.spawn(workload.work(redlock, rng));
        } else {
            self.runtime.spawn(workload.finish(redlock));
        }
    }

    pub(crate) fn take_outbox(&self) -> Vec<Message> {
        self.connections.take_outbox()
    }

    pub(crate) fn lease_views(&self) -> Vec<LeaseView> {
        let _inside = self.runtime.enter();
        let look = |(grant, lease): (usize, LeaseHandle)| LeaseView {
            grant,
            deadline: self.connections.moment(lease.deadline()),
            is_held: lease.is_held(),
        };
        self.connections.leases().into_iter().map(look).collect()
    }

    pub(crate) fn alive_tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }
}
