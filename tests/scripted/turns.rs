//! Every task that wants a lock gets it in turn, however many there are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::Redlock;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::crowd::{asked, manager, servers};
use crate::nodes::{Server, ms};
use crate::worlds::{Figures, World};

/// Acquires the lock, holds it for 5 ms, and starts again at once. Returns how long each acquire waited.
async fn work(manager: Redlock, until: Instant) -> Vec<Duration> {
    let mut waits = Vec::new();
    while Instant::now() < until {
        let asked = Instant::now();
        let lease = manager.lock("job").acquire().await.unwrap();
        waits.push(asked.elapsed());
        sleep(ms(5)).await;
        let _ = lease.release().await;
    }
    waits
}

/// Runs this many tasks in each process for a minute, on five servers. Returns the servers and the tasks' results.
async fn crowd<F: Future>(
    processes: usize,
    workers: usize,
    life: impl Fn(Redlock, Instant) -> F,
) -> (Vec<Arc<Server>>, Vec<F::Output>) {
    fastrand::seed(7);
    let servers: Vec<_> = (0..5).map(|number| Server::new(number, || ms(1))).collect();
    let managers: Vec<Redlock> = (0..processes).map(|_| manager(&servers)).collect();
    let until = Instant::now() + ms(60_000);
    let lives = managers
        .iter()
        .flat_map(|manager| (0..workers).map(|_| life(manager.clone(), until)));
    let lives = join_all(lives).await;
    (servers, lives)
}

#[tokio::test(start_paused = true)]
async fn no_waiter_starves_and_the_lock_is_hardly_ever_idle() {
    for (processes, workers) in [(2, 1), (2, 4), (8, 1), (8, 4), (1, 16)] {
        let (servers, waits) = crowd(processes, workers, work).await;
        let grants: usize = waits.iter().map(Vec::len).sum();
        let all: Vec<Duration> = waits.iter().flatten().copied().collect();
        let mean = all.iter().sum::<Duration>() / grants as u32;
        let longest = all.iter().max().unwrap();
        let fewest = waits.iter().map(Vec::len).min().unwrap();
        let most = waits.iter().map(Vec::len).max().unwrap();
        println!(
            "{processes} x {workers}: {grants} grants, {fewest} to {most} each, wait {mean:?}, longest {longest:?}, {} asked",
            asked(&servers) / grants
        );
        // In milliseconds: a lease is held for 6, and a hand-over takes at least 2.
        assert!(grants > 60_000 / 20, "{grants}");
        assert!(*longest < 20 * mean, "{longest:?}");
        assert!(most <= 2 * fewest, "{fewest} to {most}");
        // Each node once for each grant, and sometimes for a refused attempt.
        assert!(asked(&servers) <= grants * 5 * 5 / 2, "{}", asked(&servers));
    }
}

/// The announcement of a release must reach the far process, and its request the nodes, before a near process asks again.
#[tokio::test(start_paused = true)]
async fn no_waiter_starves_however_far_away() {
    for hold in [5, 50, 300] {
        for places in [
            // All far away.
            vec![(10, 2), (10, 2)],
            vec![(30, 8), (30, 8)],
            vec![(75, 1), (75, 1), (75, 1)],
            vec![(40, 4); 8],
            // Some far away.
            vec![(1, 1), (5, 1)],
            vec![(1, 1), (30, 1)],
            vec![(1, 4), (30, 1)],
            vec![(1, 1), (1, 1), (30, 2)],
            vec![(1, 2), (30, 2), (100, 2)],
        ] {
            let world = World::new(&places, hold);
            let figures = world.run().await;
            println!("held {hold}: {places:?}: {:?}, {figures}", figures.turns());
            nobody_starves(&world, &figures);
        }
    }
}

/// Asserts that each task gets 40 % of an equal share, or of what it would get alone, if that is less: while requests of a far
/// task travel, near tasks go on.
fn nobody_starves(world: &World, figures: &Figures) {
    let equal = figures.ideal / figures.grants.iter().flatten().count() as f64;
    for ((one_way, tasks), turns) in world.processes.iter().zip(figures.turns()) {
        let alone = (world.length * 1_000) as f64 / (world.hold + 4 * one_way) as f64 / *tasks as f64;
        let most = equal.min(alone);
        assert!(
            turns as f64 > 0.4 * most,
            "{:?}: {turns} of {most}",
            world.processes
        );
    }
}

/// A process that drops its leases would go on for ever, and not hear of the other.
#[tokio::test(start_paused = true)]
async fn a_process_that_never_has_to_wait_hears_of_one_that_has_to() {
    let world = World {
        drops: true,
        ..World::new(&[(1, 1), (30, 1)], 50)
    };
    nobody_starves(&world, &world.run().await);
}

/// They have announced that they wait. After the first slot that passes unused, all slots are shortened.
#[tokio::test(start_paused = true)]
async fn stopped_processes_cost_hardly_anything() {
    let world = |frozen| World {
        frozen,
        length: 15,
        ..World::new(&[(1, 4); 3], 2)
    };
    let without = world((0, 1)).run().await;
    for (frozen, slot) in [((20, 80), 245), ((200, 1), 8)] {
        let with = world(frozen).run().await;
        println!("without: {without}\nwith {frozen:?}: {with}");
        assert!(with.total() * 10 > without.total() * 9, "{frozen:?}: {with}");
        assert!(
            with.longest < 2 * without.longest + ms(slot),
            "{frozen:?}: {with}"
        );
    }
}

/// Some tasks are always there. Visitors come now and then, and leave.
#[tokio::test(start_paused = true)]
async fn waiters_that_give_up_do_not_delay_the_others() {
    let mut grants = Vec::new();
    for visitors in [0, 1, 10] {
        fastrand::seed(7);
        let servers: Vec<_> = (0..5).map(|number| Server::new(number, || ms(1))).collect();
        let until = Instant::now() + ms(60_000);
        let staying = manager(&servers);
        let stay = join_all((0..4).map(|_| work(staying.clone(), until)));
        let visits = (0..visitors).map(|number| {
            let (manager, mut random) = (manager(&servers), fastrand::Rng::with_seed(number));
            async move {
                let mut longest = Duration::ZERO;
                while Instant::now() < until {
                    sleep(ms(random.u64(1_500..4_500))).await;
                    let asked = Instant::now();
                    let lease = manager.lock("job").acquire().await.unwrap();
                    longest = longest.max(asked.elapsed());
                    sleep(ms(5)).await;
                    let _ = lease.release().await;
                }
                longest
            }
        });
        let (stayed, longest) = tokio::join!(stay, join_all(visits));
        grants.push(stayed.iter().map(Vec::len).sum::<usize>());
        println!(
            "{visitors} visitors: {grants:?}, waited {:?}",
            longest.iter().max()
        );
        assert!(longest.iter().all(|longest| *longest < ms(1_000)), "{longest:?}");
    }
    // Each of 200 visits takes time, and afterwards costs a slot or two.
    assert!(
        grants[1] * 10 > grants[0] * 8 && grants[2] * 10 > grants[0] * 6,
        "{grants:?}"
    );
}

/// Measures the longest time for which the lock was free although a task wanted it.
#[derive(Default)]
struct Idle {
    wanted: usize,
    held: usize,
    since: Option<Instant>,
    longest: Duration,
}

impl Idle {
    fn change(&mut self, wanted: isize, held: isize) {
        if let Some(since) = self.since {
            self.longest = self.longest.max(since.elapsed());
        }
        self.wanted = self.wanted.checked_add_signed(wanted).unwrap();
        self.held = self.held.checked_add_signed(held).unwrap();
        let is_idle = self.wanted > 0 && self.held == 0;
        self.since = is_idle.then(|| self.since.unwrap_or_else(Instant::now));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_leaves_no_other_asleep() {
    let mut longest = Duration::ZERO;
    for seed in 0..100 {
        fastrand::seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let servers = servers(5);
        let managers: Vec<Redlock> = (0..3).map(|_| manager(&servers)).collect();
        let idle: Arc<Mutex<Idle>> = Arc::default();
        let mut lives = JoinSet::new();
        for life in 0..9 {
            let manager = managers[life % 3].clone();
            let mut random = random.fork();
            let idle = idle.clone();
            let change = move |wanted, held| idle.lock().unwrap().change(wanted, held);
            lives.spawn(async move {
                for _ in 0..20 {
                    let patience = ms(random.u64(0..400));
                    change(1, 0);
                    let outcome = timeout(patience, manager.lock("job").acquire()).await;
                    if let Ok(lease) = outcome {
                        let lease = lease.unwrap();
                        change(-1, 1);
                        sleep(ms(random.u64(0..60))).await;
                        change(0, -1);
                        match random.bool() {
                            true => drop(lease.release().await),
                            false => drop(lease),
                        }
                    } else {
                        change(-1, 0);
                        sleep(ms(random.u64(0..30))).await;
                    }
                }
            });
        }
        while let Some(life) = lives.join_next().await {
            life.unwrap();
        }
        let idle = idle.lock().unwrap().longest;
        // A task may give up just after its grant: the deletion takes some round trips. A named process that gave up costs its
        // slot.
        assert!(idle < ms(500), "seed {seed}: {idle:?}");
        longest = longest.max(idle);
        for manager in &managers {
            manager.shutdown().await;
        }
        assert!(servers.iter().all(|server| server.keys() == 0), "seed {seed}");
    }
    println!("idle for {longest:?} at most");
}

/// As [`work`], but drops the leases. Returns the number of grants.
async fn carefree_work(manager: Redlock, until: Instant) -> usize {
    let mut grants = 0;
    while Instant::now() < until {
        let lease = manager.lock("job").acquire().await.unwrap();
        grants += 1;
        sleep(ms(5)).await;
        drop(lease);
    }
    grants
}

#[tokio::test(start_paused = true)]
async fn no_waiter_starves_where_leases_are_dropped() {
    for (processes, workers) in [(2, 1), (2, 4), (4, 2)] {
        let (_, grants) = crowd(processes, workers, carefree_work).await;
        println!("{processes} x {workers}: {grants:?}");
        let (fewest, most) = (grants.iter().min().unwrap(), grants.iter().max().unwrap());
        assert!(most <= &(3 * fewest), "{grants:?}");
        assert!(grants.iter().sum::<usize>() > 60_000 / 40, "{grants:?}");
    }
}
