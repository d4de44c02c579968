//! Decides what goes wrong next: with never more than two of the five nodes at a time, but for what stops no votes.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use quorlock::testbed::{TestNode, Testbed};
use tokio::time::sleep;

use crate::fault::{Fault, Manners, STEP, Scope};
use crate::hands::{Held, break_it, make_good};
use crate::history::now;
use crate::stroke::{Stroke, Victim};
use crate::worker::{GUARD, TTL};
use crate::workers::{PROCESSES, Workers};

const AT_A_TIME: usize = 2;
/// After so long, a node that has forgotten its counters has got them from the others; and what a clock that was ahead has
/// started them from is past.
const FORGETFUL: Duration = Duration::from_secs(1).saturating_add(STEP);

enum Stage {
    Broken(Fault, Held),
    /// All is well again, but the node does not vote yet.
    Guarded,
}

pub(crate) struct Nemesis<'a> {
    testbed: &'a Testbed,
    workers: &'a mut Workers,
    manners: Manners,
    random: fastrand::Rng,
    /// Each fault once, in a random order; then again.
    deck: VecDeque<Fault>,
    /// By node: until when.
    broken: BTreeMap<usize, (Instant, Stage)>,
    /// The worker that is stopped, and until when.
    stopped: Option<(usize, Instant)>,
    /// The nodes that forgot lately: since when they have been able to learn again.
    forgot: BTreeMap<usize, Instant>,
    /// When a clock was last ahead of the others.
    ahead: Option<Instant>,
    pub(crate) struck: BTreeMap<Fault, usize>,
    /// In the order of time.
    pub(crate) strokes: Vec<Stroke>,
}

impl<'a> Nemesis<'a> {
    pub(crate) fn new(testbed: &'a Testbed, workers: &'a mut Workers, manners: Manners, seed: u64) -> Self {
        Nemesis {
            testbed,
            workers,
            manners,
            random: fastrand::Rng::with_seed(seed),
            deck: VecDeque::new(),
            broken: BTreeMap::new(),
            stopped: None,
            forgot: BTreeMap::new(),
            ahead: None,
            struck: BTreeMap::new(),
            strokes: Vec::new(),
        }
    }

    /// What is due is made good, and something else goes wrong; then a moment of peace.
    pub(crate) async fn strike(&mut self) {
        self.workers.assert_all_run();
        self.repair_what_is_due(Instant::now()).await;
        if let Some(fault) = self.next() {
            match fault.scope() {
                Scope::Node => self.strike_node(fault).await,
                Scope::Moment => self.strike_for_a_moment(fault).await,
                Scope::Worker => self.strike_worker(fault).await,
            }
            *self.struck.entry(fault).or_default() += 1;
        }
        sleep(Duration::from_millis(self.random.u64(20..150))).await;
    }

    /// The first in the deck that there is room for.
    fn next(&mut self) -> Option<Fault> {
        if self.deck.is_empty() {
            let mut faults = Fault::all(self.manners).to_vec();
            self.random.shuffle(&mut faults);
            self.deck = faults.into();
        }
        self.forgot.retain(|_, since| since.elapsed() < FORGETFUL);
        let at = self.deck.iter().position(|fault| self.has_room(*fault))?;
        self.deck.remove(at)
    }

    fn has_room(&self, fault: Fault) -> bool {
        let room = match fault.scope() {
            Scope::Node => self.broken.len() < AT_A_TIME,
            Scope::Moment => true,
            Scope::Worker => self.stopped.is_none(),
        };
        room && match fault.forgetting() {
            0 => true,
            // F5: counters that are lost start from the clock, so those that started from a clock that was ahead have to be
            // past, where no quorum remembers them.
            3.. => self.forgot.is_empty() && self.ahead.is_none_or(|ahead| ahead.elapsed() > FORGETFUL),
            nodes => self.forgot.len() + nodes <= AT_A_TIME,
        }
    }

    fn node(&self, number: usize) -> &'a TestNode {
        &self.testbed.nodes()[number]
    }

    /// Those that nothing is wrong with, in a random order.
    fn good_nodes(&mut self) -> Vec<usize> {
        let all = 0..self.testbed.nodes().len();
        let mut good: Vec<usize> = all.filter(|node| !self.broken.contains_key(node)).collect();
        self.random.shuffle(&mut good);
        good
    }

    async fn strike_node(&mut self, fault: Fault) {
        let number = self.good_nodes()[0];
        let from = now();
        let held = break_it(self.node(number), fault).await;
        self.note(fault, false, Victim::Node(number), from);
        if fault.shift().is_some_and(|shift| shift > 0) {
            self.ahead = Some(Instant::now());
        }
        // What was forgotten matters as long as somebody holds it.
        let longest = if fault == Fault::Emptied { 300 } else { 1_500 };
        let until = Instant::now() + Duration::from_millis(self.random.u64(100..longest));
        if fault.forgetting() > 0 {
            self.forgot.insert(number, until + GUARD);
        }
        self.broken.insert(number, (until, Stage::Broken(fault, held)));
    }

    async fn strike_for_a_moment(&mut self, fault: Fault) {
        let good = self.good_nodes();
        let nodes = match fault {
            Fault::ConnectionsDropped | Fault::Flushed => 1,
            Fault::MajorityFlushed => 3,
            _ => good.len(),
        };
        for number in &good[..nodes] {
            let from = now();
            break_it(self.node(*number), fault).await;
            self.note(fault, false, Victim::Node(*number), from);
            if fault.forgetting() > 0 {
                self.forgot.insert(*number, Instant::now());
            }
        }
    }

    async fn strike_worker(&mut self, fault: Fault) {
        let worker = self.random.usize(..PROCESSES);
        let from = now();
        if fault == Fault::WorkerKilled {
            self.workers.kill(worker).await;
        } else {
            self.workers.stop(worker);
            let longer = TTL + Duration::from_millis(self.random.u64(200..1_500));
            self.stopped = Some((worker, Instant::now() + longer));
        }
        self.note(fault, false, Victim::Worker(worker), from);
    }

    fn note(&mut self, fault: Fault, mended: bool, victim: Victim, from: i64) {
        let to = now();
        self.strokes.push(Stroke {
            fault,
            mended,
            victim,
            from,
            to,
        });
    }

    async fn repair_what_is_due(&mut self, due: Instant) {
        if let Some((worker, _)) = self.stopped.take_if(|(_, until)| *until <= due) {
            let from = now();
            self.workers.resume(worker);
            self.note(Fault::WorkerStopped, true, Victim::Worker(worker), from);
        }
        let nodes = self.broken.iter().filter(|(_, (until, _))| *until <= due);
        for number in nodes.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Some((_, Stage::Broken(fault, held))) = self.broken.remove(&number) else {
                continue;
            };
            let from = now();
            make_good(self.node(number), fault, held).await;
            self.note(fault, true, Victim::Node(number), from);
            if fault.shift().is_some_and(|shift| shift > 0) {
                self.ahead = Some(Instant::now());
            }
            if fault.is_guarded() {
                let votes = Instant::now() + GUARD;
                self.broken.insert(number, (votes, Stage::Guarded));
                self.forgot.entry(number).and_modify(|since| *since = votes);
            }
        }
    }

    /// All nodes are well again, and vote as soon as the guard lets them.
    pub(crate) async fn make_good(&mut self) {
        let most = Duration::from_secs(3_600);
        self.repair_what_is_due(Instant::now() + most).await;
    }

    pub(crate) fn struck_in_every_way(&self) -> bool {
        let mut faults = Fault::all(self.manners).iter();
        faults.all(|fault| self.struck.contains_key(fault))
    }
}
