//! What goes wrong: never with more than two of the five nodes at a time, but for counters, which all may lose at once.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use quorlock::testbed::{Data, TestNode, Testbed};
use tokio::time::sleep;

use crate::worker::TTL;

/// How emptied nodes come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Not before every lock that they have forgotten has expired: then no two clients ever hold a lock.
    StayAway,
    /// At once: two clients may hold a lock. Their tokens tell them apart.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Killed,
    Stopped,
    RestartedEmpty,
    Flushed,
    LostCounters,
    AllLostCounters,
}

pub(crate) struct Nemesis<'a> {
    testbed: &'a Testbed,
    manners: Manners,
    random: fastrand::Rng,
    /// When each of the nodes is to be made good, and how.
    broken: BTreeMap<usize, (Instant, Fault)>,
    struck: BTreeMap<Fault, usize>,
}

const AT_A_TIME: usize = 2;

impl<'a> Nemesis<'a> {
    pub(crate) fn new(testbed: &'a Testbed, manners: Manners, seed: u64) -> Self {
        Nemesis {
            testbed,
            manners,
            random: fastrand::Rng::with_seed(seed),
            broken: BTreeMap::new(),
            struck: BTreeMap::new(),
        }
    }

    fn faults(&self) -> &'static [Fault] {
        use Fault::{AllLostCounters, Flushed, Killed, LostCounters, RestartedEmpty, Stopped};
        match self.manners {
            Manners::StayAway => &[Killed, Stopped, RestartedEmpty, LostCounters, AllLostCounters],
            Manners::None => &[
                Killed,
                Stopped,
                RestartedEmpty,
                Flushed,
                LostCounters,
                AllLostCounters,
            ],
        }
    }

    /// One fault, or one repair; then a moment of peace.
    pub(crate) async fn strike(&mut self) {
        let now = Instant::now();
        let due = self
            .broken
            .iter()
            .find(|(_, (until, _))| *until <= now)
            .map(|(node, _)| *node);
        if let Some(node) = due {
            self.repair(node).await;
        } else if self.broken.len() < AT_A_TIME {
            let node = self.random.usize(..self.testbed.nodes().len());
            if !self.broken.contains_key(&node) {
                self.break_one(node).await;
            }
        }
        sleep(Duration::from_millis(self.random.u64(20..120))).await;
    }

    async fn break_one(&mut self, number: usize) {
        let fault = self.faults()[self.random.usize(..self.faults().len())];
        let node = &self.testbed.nodes()[number];
        let mut away = Duration::from_millis(self.random.u64(0..600));
        match fault {
            Fault::Killed => node.kill().await.unwrap(),
            Fault::Stopped => node.stop().unwrap(),
            Fault::RestartedEmpty => {
                node.kill().await.unwrap();
                if self.manners == Manners::StayAway {
                    away = TTL + TTL / 10;
                }
            }
            // A quorum forgets what is held: somebody else gets it as well.
            Fault::Flushed => {
                for other in number..number + 3 {
                    let other = other % self.testbed.nodes().len();
                    if !self.broken.contains_key(&other) {
                        tell(&self.testbed.nodes()[other], &["FLUSHALL"]).await;
                    }
                }
            }
            // Its counters start again far ahead of the others'. Then it is away: those who were granted by it may have got
            // their tokens from there, and those who come next have to get larger ones without it.
            Fault::LostCounters => {
                lose_counters(node).await;
                sleep(Duration::from_millis(self.random.u64(20..200))).await;
                node.stop().unwrap();
                away = TTL + TTL / 4;
            }
            Fault::AllLostCounters => {
                for number in 0..self.testbed.nodes().len() {
                    if !self.broken.contains_key(&number) {
                        lose_counters(&self.testbed.nodes()[number]).await;
                    }
                }
            }
        }
        *self.struck.entry(fault).or_default() += 1;
        if matches!(
            fault,
            Fault::Killed | Fault::Stopped | Fault::RestartedEmpty | Fault::LostCounters
        ) {
            self.broken.insert(number, (Instant::now() + away, fault));
        }
    }

    async fn repair(&mut self, number: usize) {
        let node = &self.testbed.nodes()[number];
        match self.broken.remove(&number) {
            Some((_, Fault::Killed)) => node.restart(Data::Keep).await.unwrap(),
            Some((_, Fault::RestartedEmpty)) => node.restart(Data::Wipe).await.unwrap(),
            Some((_, Fault::Stopped | Fault::LostCounters)) => node.resume().unwrap(),
            _ => {}
        }
    }

    /// All nodes are well again.
    pub(crate) async fn make_good(&mut self) {
        while let Some(number) = self.broken.keys().next().copied() {
            self.repair(number).await;
        }
    }

    pub(crate) fn struck_in_every_way(&self) -> bool {
        self.faults().iter().all(|fault| self.struck.contains_key(fault))
    }
}

async fn tell(node: &TestNode, command: &[&str]) {
    let answer = node.command(command).await.unwrap();
    assert!(!answer.is_error(), "{answer:?}");
}

/// As if they had expired. No counter does so long before the time that it shows, and those that start within a second of the
/// beginning of a memory are ahead of the clock.
async fn lose_counters(node: &TestNode) {
    let script = "
        local time = redis.call('TIME')
        local now = time[1] * 1000000 + time[2]
        for _, key in ipairs(redis.call('KEYS', '*#fence')) do
            if tonumber(redis.call('GET', key)) < now then redis.call('DEL', key) end
        end";
    tell(node, &["EVAL", script, "0"]).await;
}

impl fmt::Display for Nemesis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (fault, times) in &self.struck {
            write!(f, "{separator}{fault:?} x {times}")?;
            separator = ", ";
        }
        Ok(())
    }
}
