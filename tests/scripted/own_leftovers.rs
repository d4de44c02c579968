//! Keys whose deletion failed: the next attempt of the same client deletes them, and does not report them as held (A6).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quorlock::simulation::{Action, Fault, Listener, Listening, Node, Request};
use quorlock::{AcquireError, Redlock};
use tokio::time::{Instant, sleep};

use crate::nodes::{Answer, Reachable, Server, ms, redlock};

const TTL: Duration = ms(60_000);
const ROUND_TRIP: Duration = ms(2);

/// A connection that loses deletions while `loses` is set.
struct LossyNode {
    node: Arc<dyn Node>,
    loses: Arc<AtomicBool>,
}

impl fmt::Debug for LossyNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl Node for LossyNode {
    fn name(&self) -> &Arc<str> {
        self.node.name()
    }

    fn listen(&self, key: &Arc<str>, listener: Listener) -> Option<Listening> {
        self.node.listen(key, listener)
    }

    fn clock(&self) -> Option<u64> {
        self.node.clock()
    }

    fn call(&self, request: Request, budget: Duration) -> BoxFuture<'static, Answer> {
        let is_release = matches!(request.action, Action::Release { .. });
        if is_release && self.loses.load(Relaxed) {
            let reason = "lost".into();
            return Box::pin(std::future::ready(Err(Fault::ConnectionLost { reason })));
        }
        self.node.call(request, budget)
    }
}

struct World {
    servers: Vec<Arc<Server>>,
    loses: Arc<AtomicBool>,
    redlock: Redlock,
}

/// Returns nodes of which the first `lossy` can lose deletions.
fn world(nodes: usize, lossy: usize) -> World {
    let servers: Vec<_> = (0..nodes)
        .map(|number| Server::new(number, || ROUND_TRIP / 2))
        .collect();
    let loses = Arc::new(AtomicBool::new(false));
    let way = |(number, server): (usize, &Arc<Server>)| {
        Arc::new(LossyNode {
            node: server.clone().reach(),
            loses: match number < lossy {
                true => loses.clone(),
                false => Arc::default(),
            },
        })
    };
    let lines: Vec<_> = servers.iter().enumerate().map(way).collect();
    let redlock = redlock(&lines, Redlock::builder().ttl(TTL));
    World {
        servers,
        loses,
        redlock,
    }
}

impl World {
    /// Drops a lease while deletions are lost.
    async fn leave(&self, fencing: bool) {
        let lease = self.redlock.lock("job").fencing(fencing).acquire().await.unwrap();
        sleep(ROUND_TRIP).await;
        self.loses.store(true, Relaxed);
        drop(lease);
        // The clean-up has seen the failure, and backs off.
        sleep(ROUND_TRIP).await;
    }

    async fn cleans_up(&self) {
        self.loses.store(false, Relaxed);
        let started = Instant::now();
        self.redlock.shutdown().await;
        assert!(started.elapsed() < ms(3_000));
        for server in &self.servers {
            assert_eq!((server.keys(), server.expired()), (0, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_has_what_is_left_deleted_and_does_not_wait_for_the_janitor() {
    for (nodes, lossy) in [(1, 1), (3, 2), (3, 3), (4, 2), (5, 3), (5, 5)] {
        for fencing in [true, false] {
            let world = world(nodes, lossy);
            for is_single in [true, false] {
                world.leave(fencing).await;
                world.loses.store(false, Relaxed);
                let started = Instant::now();
                let lock = world.redlock.lock("job").fencing(fencing);
                let lease = match is_single {
                    true => lock.try_acquire().await,
                    false => lock.acquire().await,
                };
                // Refusal, deletion, second request, and a raised counter.
                assert!(started.elapsed() <= 4 * ROUND_TRIP, "{:?}", started.elapsed());
                let _ = lease.unwrap().release().await;
                sleep(ms(2_000)).await;
            }
            world.cleans_up().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_deleted_is_a_fault_of_its_node_alone() {
    for (nodes, lossy) in [(1, 1), (3, 2), (5, 3), (5, 5)] {
        let world = world(nodes, lossy);
        world.leave(true).await;
        for within in [Duration::ZERO, ms(200)] {
            let outcome = world.redlock.lock("job").within(within).acquire().await;
            let Err(AcquireError::NoQuorum { votes, .. }) = outcome else {
                panic!("{outcome:?}")
            };
            let left = |answer: &Option<Answer>| *answer == Some(Err(Fault::OwnLeftover));
            assert!(votes.iter().any(|vote| left(&vote.answer)), "{votes}");
            assert_eq!(votes.no(), 0, "{votes}");
        }
        world.cleans_up().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_another_client_is_held_beside_own_leftovers() {
    let world = world(5, 2);
    world.leave(true).await;
    let other = redlock(&world.servers, Redlock::builder().ttl(TTL));
    let lease = other.lock("job").acquire().await.unwrap();
    let outcome = world.redlock.lock("job").try_acquire().await;
    assert!(matches!(outcome, Err(AcquireError::Held { .. })), "{outcome:?}");
    let _ = lease.release().await;
    other.shutdown().await;
    world.cleans_up().await;
}

/// A lease of this client is no leftover.
#[tokio::test(start_paused = true)]
async fn a_lease_of_this_client_is_no_leftover() {
    let world = world(3, 3);
    let lease = world.redlock.lock("job").acquire().await.unwrap();
    let outcome = world.redlock.lock("job").try_acquire().await;
    assert!(matches!(outcome, Err(AcquireError::Held { .. })), "{outcome:?}");
    assert!(lease.is_held());
    drop(lease);
    world.cleans_up().await;
}

/// Until its minimum hold is over, the key is meant to be there although no node has confirmed the release.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_kept_is_no_leftover() {
    let world = world(3, 3);
    let lock = || world.redlock.lock("job").min_hold(ms(20_000));
    let lease = lock().acquire().await.unwrap();
    world.loses.store(true, Relaxed);
    drop(lease);
    let outcome = lock().try_acquire().await;
    assert!(matches!(outcome, Err(AcquireError::Held { .. })), "{outcome:?}");
    world.loses.store(false, Relaxed);
    world.redlock.shutdown().await;
}
