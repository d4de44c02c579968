//! Many clients contend for one lock: never do two hold it at a time, and one always gets it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::{AcquireError, LeaseHandle, Redlock};
use tokio::time::{Instant, sleep};

use crate::nodes::{Server, ms, redlock};

const TTL: Duration = ms(1_000);

#[derive(Default)]
struct Watch {
    holder: Mutex<Option<LeaseHandle>>,
    grants: AtomicUsize,
}

impl Watch {
    fn enter(&self, handle: LeaseHandle, seed: u64) {
        let mut holder = self.holder.lock().unwrap();
        if let Some(other) = &*holder {
            assert!(!other.is_held(), "two leases at once, seed {seed}");
            let (earlier, later) = (other.fencing_token().unwrap(), handle.fencing_token().unwrap());
            assert!(earlier < later, "{earlier}, then {later}, seed {seed}");
        }
        self.grants.fetch_add(1, Relaxed);
        *holder = Some(handle);
    }
}

fn servers(nodes: usize, seed: u64, slowest: u64) -> Vec<Arc<Server>> {
    (0..nodes)
        .map(|number| {
            let mut random = fastrand::Rng::with_seed(seed ^ (number as u64) << 32);
            Server::new(number, move || {
                Duration::from_micros(random.u64(1..=slowest * 1_000))
            })
        })
        .collect()
}

/// Runs one client: it acquires the lock four times, and each time releases it, drops it or lets it expire.
async fn live(servers: &[Arc<Server>], watch: &Watch, seed: u64, client: u64) {
    let mut random = fastrand::Rng::with_seed(seed.rotate_left(17) ^ client);
    let manager = redlock(servers, Redlock::builder().ttl(TTL).within(ms(600_000)));
    for _ in 0..4 {
        let watchdog = random.bool();
        let request = manager.lock("job").watchdog(watchdog);
        let lease = request.acquire().await.unwrap();
        watch.enter(lease.handle(), seed);
        match random.u8(0..4) {
            0 => drop(lease),
            1 if !watchdog => {
                lease.expiring(Duration::ZERO).await;
            }
            _ => {
                sleep(ms(random.u64(0..1_500))).await;
                let _ = lease.release().await;
            }
        }
        sleep(ms(random.u64(0..50))).await;
    }
    manager.shutdown().await;
}

/// Returns how often a second round trip was needed for a raise, and the number of grants.
async fn world(nodes: usize, clients: u64, slowest: u64, seed: u64) -> (usize, usize) {
    // The library draws its back-off from this generator.
    fastrand::seed(seed);
    let servers = servers(nodes, seed, slowest);
    // As after grants of lost attempts: a quorum of counters differs from the others.
    for server in &servers[..nodes / 2 + 1] {
        server.set_counter("quorlock:job", 1 + seed);
    }
    let watch = Watch::default();
    let started = Instant::now();
    join_all((0..clients).map(|client| live(&servers, &watch, seed, client))).await;
    assert!(started.elapsed() < ms(600_000));
    assert!(servers.iter().all(|server| server.keys() == 0), "seed {seed}");
    let raises = servers.iter().map(|server| server.raised()).sum();
    (raises, watch.grants.into_inner())
}

#[tokio::test(start_paused = true)]
async fn clients_on_five_nodes_never_overlap() {
    let mut total = (0, 0);
    for seed in 0..40 {
        // With the largest latencies, a round trip may exceed the node budget.
        let (raises, grants) = world(5, 4, 1 + 20 * (seed % 4), seed).await;
        total = (total.0 + raises, total.1 + grants);
    }
    let (raises, grants) = total;
    println!("{grants} grants, {raises} raises");
    assert!(
        raises > 0,
        "no second round trip was needed, so this run shows little"
    );
    assert!(grants == 40 * 4 * 4, "{grants}");
}

#[tokio::test(start_paused = true)]
async fn clients_on_any_number_of_nodes_never_overlap() {
    for nodes in 1..=4 {
        for seed in 0..15 {
            world(nodes, 3, 1 + 20 * (seed % 4), seed).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_clients_that_start_in_the_same_moment_at_most_one_wins_and_soon_one_does() {
    for seed in 0..100 {
        fastrand::seed(seed);
        let nodes = 1 + (seed % 5) as usize;
        let servers = servers(nodes, seed, 3);
        let managers: Vec<Redlock> = (0..6).map(|_| redlock(&servers, Redlock::builder())).collect();
        let tries = managers.iter().map(|manager| manager.lock("job").try_acquire());
        let leases: Vec<_> = join_all(tries)
            .await
            .into_iter()
            .filter_map(|outcome| match outcome {
                Ok(lease) => Some(lease),
                Err(AcquireError::Held { .. }) => None,
                Err(other) => panic!("{other}"),
            })
            .collect();
        assert!(leases.len() <= 1, "seed {seed}");
        drop(leases);
        for manager in &managers {
            manager.shutdown().await;
        }
        assert!(servers.iter().all(|server| server.keys() == 0), "seed {seed}");

        let managers: Vec<Redlock> = (0..6).map(|_| redlock(&servers, Redlock::builder())).collect();
        let waits = managers
            .iter()
            .map(|manager| Box::pin(manager.lock("job").within(ms(5_000)).acquire()));
        let (first, _, _) = futures_util::future::select_all(waits).await;
        assert!(first.is_ok(), "no client got the lock, seed {seed}");
    }
}
