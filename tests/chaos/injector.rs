//! Chooses the faults: at most two of the five nodes are affected at a time, unless a majority is flushed.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::{Duration, Instant};

use quorlock::testbed::{TestNode, Testbed};
use tokio::time::{sleep, sleep_until};

use crate::event::{FaultEvent, Target};
use crate::fault::{Fault, FaultModel, STEP, Scope};
use crate::history::now;
use crate::node_faults::{self, Undo, inject, reconnect_all};
use crate::worker::{GUARD, TTL};
use crate::workers::{PROCESSES, Workers};
use crate::{FOREIGN, NODES, SPARE};

const AT_A_TIME: usize = 2;
/// After this time, a node that lost its counters has got them from the others, and counters from a clock that was ahead are in
/// the past.
const RELEARN_TIME: Duration = Duration::from_secs(1).saturating_add(STEP);

enum Stage {
    Broken(Fault, Undo),
    /// The node's address leads to its server again, but some clients are still connected to the other one.
    Divided,
    /// The node is repaired, but gives no new locks yet.
    Guarded,
}

pub(crate) struct Injector<'a> {
    testbed: &'a Testbed,
    workers: &'a mut Workers,
    model: FaultModel,
    random: fastrand::Rng,
    /// Each fault once, in a random order; then again.
    pending: VecDeque<Fault>,
    /// The nodes that are affected, and until when.
    broken: BTreeMap<usize, (Instant, Stage)>,
    /// The worker that is stopped, and until when.
    stopped: Option<(usize, Instant)>,
    /// Until when a process with another list of nodes runs.
    intruder: Option<Instant>,
    /// The nodes that lost data recently, and since when they can learn again.
    forgot: BTreeMap<usize, Instant>,
    /// When a clock was last ahead of the others.
    ahead: Option<Instant>,
    pub(crate) injected: BTreeMap<Fault, usize>,
    pub(crate) events: Vec<FaultEvent>,
}

impl<'a> Injector<'a> {
    pub(crate) fn new(testbed: &'a Testbed, workers: &'a mut Workers, model: FaultModel, seed: u64) -> Self {
        Injector {
            testbed,
            workers,
            model,
            random: fastrand::Rng::with_seed(seed),
            pending: VecDeque::new(),
            broken: BTreeMap::new(),
            stopped: None,
            intruder: None,
            forgot: BTreeMap::new(),
            ahead: None,
            injected: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Repairs what is due, causes another fault, and pauses.
    pub(crate) async fn inject_next(&mut self) {
        self.workers.assert_all_run();
        self.repair_what_is_due(Instant::now()).await;
        if let Some(fault) = self.next() {
            match fault.scope() {
                Scope::Node => self.inject_on_node(fault).await,
                Scope::Moment => self.inject_momentary(fault).await,
                Scope::Worker => self.inject_on_worker(fault).await,
            }
            *self.injected.entry(fault).or_default() += 1;
        }
        sleep(Duration::from_millis(self.random.u64(20..150))).await;
    }

    /// Takes the first pending fault that is possible now.
    fn next(&mut self) -> Option<Fault> {
        if self.pending.is_empty() {
            let mut faults = Fault::all(self.model).to_vec();
            self.random.shuffle(&mut faults);
            self.pending = faults.into();
        }
        self.forgot.retain(|_, since| since.elapsed() < RELEARN_TIME);
        let at = self.pending.iter().position(|fault| self.has_room(*fault))?;
        self.pending.remove(at)
    }

    fn has_room(&self, fault: Fault) -> bool {
        let room = match (fault, fault.scope()) {
            // If the workers' list stood on no node, an intruder's list might be the first.
            (Fault::ListsMixed, _) => self.intruder.is_none() && self.broken.len() <= AT_A_TIME,
            (Fault::MajorityFlushed, _) if self.model.is_guarded() => {
                self.broken.is_empty() && self.intruder.is_none()
            }
            (Fault::MajorityFlushed, _) => true,
            (_, Scope::Node) => self.broken.len() + fault.forgetting().max(1) <= AT_A_TIME,
            (_, Scope::Moment) => self.broken.len() + fault.forgetting() <= AT_A_TIME,
            (_, Scope::Worker) => self.stopped.is_none(),
        };
        room && match fault.forgetting() {
            0 => true,
            _ if self.model != FaultModel::Anything => true,
            // F5: counters that are lost start from the clock, so those that started from a clock that was ahead have to be
            // past, where no quorum remembers them.
            3.. => self.forgot.is_empty() && self.ahead.is_none_or(|ahead| ahead.elapsed() > RELEARN_TIME),
            nodes => self.forgot.len() + nodes <= AT_A_TIME,
        }
    }

    fn node(&self, number: usize) -> &'a TestNode {
        &self.testbed.nodes()[number]
    }

    /// Returns the nodes that are not affected, in a random order.
    fn good_nodes(&mut self) -> Vec<usize> {
        let all = 0..NODES;
        let mut good: Vec<usize> = all.filter(|node| !self.broken.contains_key(node)).collect();
        self.random.shuffle(&mut good);
        good
    }

    async fn inject_on_node(&mut self, fault: Fault) {
        let good = self.good_nodes();
        let other = match fault {
            Fault::ReplicaFlipped if self.random.bool() => good[1],
            Fault::VolumesSwapped => good[1],
            _ => SPARE,
        };
        let from = now();
        let mut undo = inject(self.node(good[0]), fault, self.node(other)).await;
        if fault == Fault::AddressMoved {
            self.lead_some_clients(good[0]).await;
        }
        if fault.shift().is_some_and(|shift| shift > 0) {
            self.ahead = Some(Instant::now());
        }
        let until = Instant::now() + self.duration(fault);
        let nodes = if fault == Fault::VolumesSwapped { 2 } else { 1 };
        for number in &good[..nodes] {
            self.note(fault, false, Target::Node(*number), from);
            if fault.forgetting() > 0 {
                self.forgot.insert(*number, until + GUARD);
            }
            let undo = mem::replace(&mut undo, Undo::Nothing);
            self.broken.insert(*number, (until, Stage::Broken(fault, undo)));
        }
    }

    fn duration(&mut self, fault: Fault) -> Duration {
        Duration::from_millis(self.random.u64(fault.millis(self.model)))
    }

    /// After a node's address was moved: all clients connect anew, or just a new one. Whether all do.
    async fn lead_some_clients(&mut self, number: usize) -> bool {
        let all = self.random.bool();
        if all {
            reconnect_all(self.node(number));
        } else {
            self.inject_on_worker(Fault::WorkerKilled).await;
        }
        all
    }

    async fn inject_momentary(&mut self, fault: Fault) {
        let good = self.good_nodes();
        let nodes = match fault {
            Fault::ConnectionsDropped | Fault::Flushed => 1,
            Fault::MajorityFlushed => 3,
            _ => good.len(),
        };
        for number in &good[..nodes] {
            let from = now();
            inject(self.node(*number), fault, self.node(SPARE)).await;
            self.note(fault, false, Target::Node(*number), from);
            if fault.forgetting() > 0 {
                self.leave_out(*number);
            }
        }
    }

    /// Leaves out a node whose memory is new, until its guard ends.
    fn leave_out(&mut self, number: usize) {
        if !self.model.is_guarded() {
            return;
        }
        let votes = Instant::now() + GUARD;
        self.broken.insert(number, (votes, Stage::Guarded));
        self.forgot.insert(number, votes);
    }

    async fn inject_on_worker(&mut self, fault: Fault) {
        let worker = self.random.usize(..PROCESSES);
        let from = now();
        if fault == Fault::ListsMixed {
            let nodes = self.another_list();
            self.workers.intrude(&nodes);
            self.intruder = Some(Instant::now() + Duration::from_millis(self.random.u64(2_000..8_000)));
            return self.note(fault, false, Target::Intruder, from);
        }
        if fault == Fault::WorkerKilled {
            self.workers.kill(worker).await;
        } else {
            self.workers.stop(worker);
            let longer = TTL + Duration::from_millis(self.random.u64(200..1_500));
            self.stopped = Some((worker, Instant::now() + longer));
        }
        self.note(fault, false, Target::Worker(worker), from);
    }

    /// Returns three of the nodes; or all, one of them replaced; or all, and two more.
    fn another_list(&mut self) -> Vec<String> {
        let mut urls = self.testbed.urls();
        let foreign = urls.swap_remove(FOREIGN);
        let spare = urls.swap_remove(SPARE);
        self.random.shuffle(&mut urls);
        match self.random.u8(..3) {
            0 => urls.truncate(3),
            1 => urls[0] = foreign,
            _ => urls.extend([foreign, spare]),
        }
        urls
    }

    fn note(&mut self, fault: Fault, repaired: bool, target: Target, from: i64) {
        let to = now();
        self.events.push(FaultEvent {
            fault,
            repaired,
            target,
            from,
            to,
        });
    }

    async fn repair_what_is_due(&mut self, due: Instant) {
        if let Some((worker, _)) = self.stopped.take_if(|(_, until)| *until <= due) {
            let from = now();
            self.workers.resume(worker);
            self.note(Fault::WorkerStopped, true, Target::Worker(worker), from);
        }
        if self.intruder.take_if(|until| *until <= due).is_some() {
            let from = now();
            self.workers.expel().await;
            self.note(Fault::ListsMixed, true, Target::Intruder, from);
        }
        let nodes = self.broken.iter().filter(|(_, (until, _))| *until <= due);
        for number in nodes.map(|(number, _)| *number).collect::<Vec<_>>() {
            match self.broken.remove(&number) {
                Some((_, Stage::Broken(fault, undo))) => self.repair(number, fault, undo).await,
                Some((_, Stage::Divided)) => {
                    reconnect_all(self.node(number));
                    self.leave_out(number);
                }
                Some((_, Stage::Guarded)) | None => {}
            }
        }
    }

    async fn repair(&mut self, number: usize, fault: Fault, undo: Undo) {
        let from = now();
        node_faults::repair(self.node(number), fault, undo).await;
        self.note(fault, true, Target::Node(number), from);
        if fault.shift().is_some_and(|shift| shift > 0) {
            self.ahead = Some(Instant::now());
        }
        if fault == Fault::AddressMoved && !self.lead_some_clients(number).await {
            let until = Instant::now() + self.duration(fault);
            self.forgot.insert(number, until + GUARD);
            self.broken.insert(number, (until, Stage::Divided));
        } else if fault.forgetting() > 0 {
            self.leave_out(number);
        }
    }

    /// Repairs everything, each fault when it is due: some nodes must not come back earlier. The nodes vote as soon as their
    /// guard ends.
    pub(crate) async fn repair_all(&mut self) {
        while let Some(next) = self.next_repair() {
            sleep_until(next.into()).await;
            self.repair_what_is_due(Instant::now()).await;
        }
    }

    fn next_repair(&self) -> Option<Instant> {
        let broken = self.broken.values();
        let nodes = broken.filter(|(_, stage)| !matches!(stage, Stage::Guarded));
        let nodes = nodes.map(|(until, _)| *until);
        let worker = self.stopped.map(|(_, until)| until);
        nodes.chain(worker).chain(self.intruder).min()
    }

    pub(crate) fn has_injected_every_fault(&self) -> bool {
        let mut faults = Fault::all(self.model).iter();
        faults.all(|fault| self.injected.contains_key(fault))
    }
}
