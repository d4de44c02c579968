//! The size of the measurements.

use std::time::Duration;

/// The processes and waiters that want the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) processes: usize,
    /// In each process.
    pub(crate) waiters: usize,
    /// From a release to the next acquire.
    pub(crate) pause: Duration,
}

/// The pause of waiters that do something else between two leases.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

impl World {
    pub(crate) const fn new(processes: usize, waiters: usize, pause: Duration) -> World {
        World {
            processes,
            waiters,
            pause,
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.processes * self.waiters
    }

    /// Returns processes x waiters, and the pause if there is one.
    pub(crate) fn label(&self) -> String {
        let workers = format!("{} x {}", self.processes, self.waiters);
        match self.pause {
            Duration::ZERO => workers,
            pause => format!("{workers}, {pause:?} later"),
        }
    }

    pub(crate) fn title(&self) -> String {
        let World {
            processes, waiters, ..
        } = self;
        let processes = match processes {
            1 => format!("1 process, {waiters} waiters"),
            _ => format!("{processes} processes, {waiters} waiters each"),
        };
        match self.pause {
            Duration::ZERO => format!("{processes}, asking again at once"),
            pause => format!("{processes}, asking again after {pause:?}"),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Plan {
    /// Servers trust no counter from before their start, whose time is known only to a few seconds.
    pub(crate) up_for: Duration,
    pub(crate) worlds: Vec<World>,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// Leases without contention, in each round.
    pub(crate) alone: usize,
    pub(crate) hold: Duration,
    pub(crate) fault_rounds: usize,
    pub(crate) fault_window: Duration,
    /// How long the lock is held while all others wait.
    pub(crate) idle: Duration,
    pub(crate) hand_overs: usize,
    pub(crate) hand_overs_within: Duration,
}

impl Plan {
    /// Returns how long a turn is expected to take.
    pub(crate) fn turn(&self) -> Duration {
        self.warm_up + self.window + Duration::from_millis(3 * self.alone as u64 + 250)
    }

    pub(crate) fn full() -> Plan {
        let at_once = [(1, 8), (1, 32), (1, 128), (2, 4), (4, 4), (8, 4)];
        let at_once = at_once.map(|(processes, waiters)| World::new(processes, waiters, Duration::ZERO));
        let later = [World::new(1, 32, PAUSE), World::new(8, 4, PAUSE)];
        Plan {
            up_for: Duration::from_secs(4),
            worlds: [&at_once[..], &later[..]].concat(),
            rounds: 5,
            warm_up: Duration::from_millis(100),
            window: Duration::from_millis(600),
            alone: 30,
            hold: Duration::from_millis(1),
            fault_rounds: 3,
            fault_window: Duration::from_millis(1_500),
            idle: Duration::from_secs(5),
            hand_overs: 10_000,
            hand_overs_within: Duration::from_secs(30),
        }
    }

    /// Only checks that the benchmark runs.
    pub(crate) fn quick() -> Plan {
        Plan {
            up_for: Duration::ZERO,
            worlds: vec![World::new(1, 8, Duration::ZERO), World::new(2, 4, PAUSE)],
            rounds: 1,
            warm_up: Duration::from_millis(50),
            window: Duration::from_millis(200),
            alone: 10,
            fault_rounds: 1,
            fault_window: Duration::from_millis(300),
            idle: Duration::from_secs(1),
            hand_overs: 100,
            hand_overs_within: Duration::from_millis(500),
            ..Plan::full()
        }
    }
}
