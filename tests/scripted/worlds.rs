//! How near and far processes share one lock, also while some waiting processes are frozen.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::Redlock;
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::{Line, Server, ms, redlock};

/// One simulated scenario. The shortest one-way distance is 1 ms, the resolution of timers.
pub(crate) struct World {
    pub(crate) servers: usize,
    /// For each process: the one-way distance in milliseconds, and the number of tasks.
    pub(crate) processes: Vec<(u64, usize)>,
    /// The number of frozen processes that wait, and their one-way distance in milliseconds.
    pub(crate) frozen: (usize, u64),
    /// How long a lease is held, in milliseconds.
    pub(crate) hold: u64,
    /// Whether leases are dropped, not released.
    pub(crate) drops: bool,
    /// How long the scenario runs, in seconds.
    pub(crate) length: u64,
}

impl World {
    pub(crate) fn new(processes: &[(u64, usize)], hold: u64) -> World {
        World {
            servers: 3,
            processes: processes.to_vec(),
            frozen: (0, 1),
            hold,
            drops: false,
            length: 60,
        }
    }
}

pub(crate) struct Figures {
    /// For each process, the grants of each of its tasks.
    pub(crate) grants: Vec<Vec<usize>>,
    pub(crate) ideal: f64,
    pub(crate) longest: Duration,
    /// Requests that the servers have executed, for each grant.
    pub(crate) requests: f64,
}

impl Figures {
    pub(crate) fn total(&self) -> usize {
        self.grants.iter().flatten().sum()
    }

    /// Returns the mean number of grants per task, for each process.
    pub(crate) fn turns(&self) -> Vec<usize> {
        let mean = |of: &Vec<usize>| of.iter().sum::<usize>() / of.len();
        self.grants.iter().map(mean).collect()
    }

    /// Returns the grants of the process with the fewest, relative to an equal share.
    pub(crate) fn least_share(&self) -> f64 {
        let fewest = self.turns().into_iter().min().unwrap() as f64;
        fewest * self.grants.iter().flatten().count() as f64 / self.total() as f64
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} grants, {:.2} of the ideal, least share {:.2}, longest wait {:?}, {:.1} requests a grant",
            self.total(),
            self.total() as f64 / self.ideal,
            self.least_share(),
            self.longest,
            self.requests,
        )
    }
}

/// Returns a manager that reaches the servers over this distance, within 20 %.
fn at(servers: &[Arc<Server>], number: u64, one_way: u64) -> Redlock {
    let way = |(node, server)| {
        let random = Mutex::new(fastrand::Rng::with_seed(number * 10 + node as u64));
        let micros = one_way * 800..=one_way * 1200;
        Line::at(server, move || {
            Duration::from_micros(random.lock().unwrap().u64(micros.clone()))
        })
    };
    let lines: Vec<_> = servers.iter().enumerate().map(way).collect();
    redlock(&lines, Redlock::builder().within(ms(600_000)))
}

impl World {
    /// Returns the number of grants if turns are equal. Between processes, a hand-over takes four one-way trips: release,
    /// announcement, request, answer. Within a process, it takes two.
    fn ideal(&self) -> f64 {
        let tasks: usize = self.processes.iter().map(|(_, tasks)| tasks).sum();
        let turn = |(one_way, tasks): &(u64, usize)| {
            *tasks as u64 * self.hold + one_way * (4 + 2 * (*tasks as u64 - 1))
        };
        let cycle: u64 = self.processes.iter().map(turn).sum();
        (self.length * 1_000 * tasks as u64) as f64 / cycle as f64
    }

    pub(crate) async fn run(&self) -> Figures {
        fastrand::seed(7);
        let servers: Vec<_> = (0..self.servers)
            .map(|number| Server::new(number, || ms(0)))
            .collect();
        let managers: Vec<Redlock> = (0..)
            .zip(&self.processes)
            .map(|(number, (one_way, _))| at(&servers, number, *one_way))
            .collect();
        let mut frozen = Vec::new();
        if self.frozen.0 > 0 {
            let lease = managers[0].lock("job").acquire().await.unwrap();
            for number in 0..self.frozen.0 {
                let manager = at(&servers, 1_000 + number as u64, self.frozen.1);
                frozen.push(Box::pin(manager.lock("job").acquire()));
            }
            let begin = frozen.iter_mut().map(|waiting| timeout(ms(1_500), waiting));
            assert!(join_all(begin).await.iter().all(Result::is_err));
            let _ = lease.release().await;
        }
        let executed = || servers.iter().map(|server| server.executed()).sum::<usize>();
        let before = executed();
        let until = Instant::now() + Duration::from_secs(self.length);
        let lives = managers.iter().enumerate().map(|(number, manager)| {
            let life = move |task: usize| {
                let mut random = fastrand::Rng::with_seed((number * 100 + task) as u64);
                async move {
                    let (mut grants, mut longest) = (0, Duration::ZERO);
                    while Instant::now() < until {
                        let asked = Instant::now();
                        let asking = timeout(until - asked, manager.lock("job").acquire());
                        let lease = asking.await;
                        longest = longest.max(asked.elapsed());
                        let Ok(lease) = lease else {
                            break;
                        };
                        grants += 1;
                        sleep(Duration::from_micros(
                            random.u64(self.hold * 700..=self.hold * 1300),
                        ))
                        .await;
                        let lease = lease.unwrap();
                        match self.drops {
                            true => drop(lease),
                            false => drop(lease.release().await),
                        }
                    }
                    (grants, longest)
                }
            };
            join_all((0..self.processes[number].1).map(life))
        });
        let lives = join_all(lives).await;
        let grants: Vec<Vec<usize>> = lives
            .iter()
            .map(|of| of.iter().map(|(grants, _)| *grants).collect())
            .collect();
        let total: usize = grants.iter().flatten().sum();
        Figures {
            grants,
            ideal: self.ideal(),
            longest: lives.iter().flatten().map(|(_, longest)| *longest).max().unwrap(),
            requests: (executed() - before) as f64 / total as f64,
        }
    }
}

/// Prints figures with which versions can be compared.
#[tokio::test(start_paused = true)]
#[ignore = "prints a table: make fairness"]
async fn figures_of_many_worlds() {
    let near = |processes: usize, tasks: usize| vec![(1, tasks); processes];
    let mixed = |tasks: usize| {
        let far = [5, 25, 80].map(|one_way| (one_way, tasks));
        [&near(3, tasks)[..], &far].concat()
    };
    let frozen = |processes: &[(u64, usize)], number, one_way| World {
        frozen: (number, one_way),
        ..World::new(processes, 2)
    };
    for (name, world) in [
        ("2 near x1, 1 ms", World::new(&near(2, 1), 1)),
        ("8 near x4, 2 ms", World::new(&near(8, 4), 2)),
        ("30 near x1, 2 ms", World::new(&near(30, 1), 2)),
        ("50 near x1, 2 ms", World::new(&near(50, 1), 2)),
        ("mixed x1, 5 ms", World::new(&mixed(1), 5)),
        ("mixed x1, 50 ms", World::new(&mixed(1), 50)),
        ("mixed x4, 5 ms", World::new(&mixed(4), 5)),
        ("mixed x30, 5 ms", World::new(&mixed(30), 5)),
        ("4 far x4, 5 ms", World::new(&[(80, 4); 4], 5)),
        (
            "1 far x1 among 8 near x4, 2 ms",
            World::new(&[near(8, 4), vec![(80, 1)]].concat(), 2),
        ),
        ("3 near x4 + 20 frozen far", frozen(&near(3, 4), 20, 80)),
        ("3 near x4 + 200 frozen near", frozen(&near(3, 4), 200, 1)),
        ("mixed x4 + 200 frozen near", frozen(&mixed(4), 200, 1)),
    ] {
        let world = World {
            servers: 5,
            length: 30,
            ..world
        };
        println!("{name}: {}", world.run().await);
    }
}
