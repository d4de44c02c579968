//! What all parts need.

use std::cell::Cell;
use std::error::Error;
use std::time::{Duration, Instant};

use crate::contender::ContenderKind;
use crate::plan::{Plan, World};
use crate::record::Job;
use crate::round::Turns;
use crate::servers::Servers;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

pub(crate) struct Bench {
    pub(crate) everybody: Vec<ContenderKind>,
    pub(crate) plan: Plan,
    pub(crate) servers: Servers,
    pub(crate) multi_thread: bool,
    pub(crate) progress: Progress,
}

impl Bench {
    /// Returns those of `some` that are to be measured.
    pub(crate) fn among(&self, some: &[ContenderKind]) -> Vec<ContenderKind> {
        let mut some = some.to_vec();
        some.retain(|who| self.everybody.contains(who));
        some
    }

    pub(crate) async fn prepare(&self, who: ContenderKind, world: World) -> Outcome<Turns> {
        let job = Job {
            who,
            waiters: world.waiters,
            addresses: self.servers.addresses(),
            multi_thread: self.multi_thread,
        };
        let prepared = Turns::prepare(&job, world).await;
        prepared.map_err(|error| format!("{}: {error}", who.name()).into())
    }
}

pub(crate) struct Progress {
    started: Instant,
    planned: Cell<Duration>,
    done: Cell<Duration>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            started: Instant::now(),
            planned: Cell::default(),
            done: Cell::default(),
        }
    }

    pub(crate) fn plan(&self, length: Duration) {
        self.planned.set(self.planned.get() + length);
    }

    /// Prints what comes next, which should take this long.
    pub(crate) fn next(&self, length: Duration, what: &str) {
        let (planned, done) = (self.planned.get().as_secs_f64(), self.done.get().as_secs_f64());
        // How much longer than planned it has taken so far.
        let slower = match done {
            0.0 => 1.0,
            done => self.started.elapsed().as_secs_f64() / done,
        };
        let left = (planned - done).max(0.0) * slower;
        eprintln!(
            "[{:>3.0} %, some {left:.0} s left] {what}",
            (100.0 * done / planned).min(100.0)
        );
        self.done.set(self.done.get() + length);
    }
}
