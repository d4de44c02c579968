//! Waiters of one process queue up for a lock, and only the first one asks the nodes (W1).

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::simulation::{Action, Fault, Reply};
use quorlock::{AcquireError, Redlock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::nodes::{DelayedLine, ScriptedNode, Server, at_once, ms, redlock, scripted_nodes, yes};

const ONE_WAY: u64 = 10;

fn servers() -> Vec<Arc<Server>> {
    (0..5).map(|number| Server::new(number, || ms(ONE_WAY))).collect()
}

fn held_by_another() -> Vec<Arc<ScriptedNode>> {
    scripted_nodes(3, |_, action| match action {
        Action::Acquire { .. } => at_once(Ok(Reply::Held {
            remaining: None,
            holder: None,
        })),
        action => at_once(Ok(yes(action))),
    })
}

fn out_of_reach() -> Vec<Arc<ScriptedNode>> {
    scripted_nodes(3, |_, _| {
        at_once(Err(Fault::Disconnected {
            reason: "gone".into(),
        }))
    })
}

/// Returns how many acquires a node gets while this many waiters, with these TTLs in turn, wait for five seconds.
async fn acquires(nodes: &[Arc<ScriptedNode>], waiters: usize, ttls: &[u64]) -> usize {
    fastrand::seed(7);
    let redlock = redlock(nodes, Redlock::builder());
    let waiting = (0..waiters).map(|number| {
        let ttl = ms(ttls[number % ttls.len()]);
        redlock.lock("job").ttl(ttl).within(ms(5_000)).acquire()
    });
    let started = Instant::now();
    for outcome in join_all(waiting).await {
        outcome.unwrap_err();
    }
    assert_eq!(started.elapsed(), ms(5_000));
    nodes[0].calls().iter().filter(|call| call.is_acquire()).count()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_ask_no_more_often_than_one() {
    for nodes in [held_by_another, out_of_reach] {
        let one = acquires(&nodes(), 1, &[20_000]).await;
        assert!(one > 5);
        assert_eq!(acquires(&nodes(), 1_000, &[20_000]).await, one);
        let two_queues = acquires(&nodes(), 1_000, &[20_000, 30_000]).await;
        assert!((2..=3 * one).contains(&two_queues), "{two_queues} of {one}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_get_the_lock_in_the_order_of_their_arrival() {
    let servers = servers();
    let redlock = redlock(&servers, Redlock::builder().within(ms(600_000)));
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let lives = (0..50).map(|number| {
        let (redlock, order) = (redlock.clone(), order.clone());
        async move {
            let lease = redlock.lock("job").acquire().await.unwrap();
            order.lock().unwrap().push(number);
            sleep(ms(5)).await;
            let _ = lease.release().await;
        }
    });
    join_all(lives).await;
    assert!(order.lock().unwrap().is_sorted());
}

/// The next waiter's acquire is sent right behind the deletion. Only if an attempt is in flight, its answer comes first.
#[tokio::test(start_paused = true)]
async fn a_lock_is_handed_over_in_one_round_trip() {
    fastrand::seed(7);
    let servers = servers();
    let redlock = redlock(&servers, Redlock::builder());
    let mut lease = redlock.lock("job").acquire().await.unwrap();
    let mut at_once = 0;
    for _ in 0..40 {
        let next = tokio::spawn(redlock.lock("job").acquire());
        sleep(ms(1_000)).await;
        let given_up = Instant::now();
        tokio::spawn(lease.release());
        lease = next.await.unwrap().unwrap();
        // Timers have the resolution of a millisecond.
        assert!(given_up.elapsed() < ms(5 * ONE_WAY), "{:?}", given_up.elapsed());
        at_once += usize::from(given_up.elapsed() < ms(3 * ONE_WAY));
    }
    assert!(at_once > 30, "{at_once} of 40");
}

/// Whoever leaves, in front or behind, holding or not: the others get it, in time and without a gap of more than a back-off.
#[tokio::test(start_paused = true)]
async fn a_waiter_may_give_up_at_any_time() {
    for seed in 0..100 {
        fastrand::seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let servers = servers();
        let redlock = redlock(&servers, Redlock::builder().within(ms(600_000)));
        let mut waiting = JoinSet::new();
        let mut handles = Vec::new();
        for _ in 0..20 {
            let redlock = redlock.clone();
            let hold = ms(random.u64(0..30));
            handles.push(waiting.spawn(async move {
                let lease = redlock.lock("job").acquire().await.unwrap();
                sleep(hold).await;
                let _ = lease.release().await;
            }));
        }
        for _ in 0..15 {
            sleep(ms(random.u64(0..60))).await;
            handles[random.usize(0..20)].abort();
        }
        let started = Instant::now();
        while let Some(ended) = waiting.join_next().await {
            assert!(ended.is_ok() || ended.unwrap_err().is_cancelled());
        }
        assert!(
            started.elapsed() < ms(20 * 700),
            "seed {seed}: {:?}",
            started.elapsed()
        );
        redlock.shutdown().await;
        assert!(servers.iter().all(|server| server.keys() == 0), "seed {seed}");
    }
}

/// A waiter behind gets the first waiter's answer when its own time is up.
#[tokio::test(start_paused = true)]
async fn each_waits_for_as_long_as_it_said() {
    let redlock = redlock(&held_by_another(), Redlock::builder());
    let started = Instant::now();
    let waiting = [2_000, 700, 1_300, 0].map(|limit| {
        let lock = redlock.lock("job").within(ms(limit));
        async move {
            let error = lock.acquire().await.unwrap_err();
            (error, limit, started.elapsed())
        }
    });
    for (error, limit, after) in join_all(waiting).await {
        let AcquireError::Held { votes, waited, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((after, *waited), (ms(limit), ms(limit)));
        assert_eq!(votes.no(), 3, "{error}");
    }
}

/// An outage ends the wait of all waiters, not of one after the other.
#[tokio::test(start_paused = true)]
async fn an_outage_is_shared_by_all_waiters() {
    let redlock = redlock(&out_of_reach(), Redlock::builder().ttl(ms(20_000)));
    let started = Instant::now();
    let waiting = (0..100).map(|_| redlock.lock("job").forever().acquire());
    for outcome in join_all(waiting).await {
        assert!(
            matches!(outcome, Err(AcquireError::NoQuorum { .. })),
            "{outcome:?}"
        );
    }
    let patience = started.elapsed();
    assert!(patience >= ms(20_000) && patience < ms(40_000), "{patience:?}");
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_does_not_queue() {
    let redlock = redlock(&held_by_another(), Redlock::builder());
    let waiting = tokio::spawn(redlock.lock("job").forever().acquire());
    sleep(ms(100)).await;
    let started = Instant::now();
    redlock.lock("job").try_acquire().await.unwrap_err();
    assert_eq!(started.elapsed(), Duration::ZERO);
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn other_locks_have_other_queues() {
    let servers = servers();
    let redlock = redlock(&servers, Redlock::builder());
    let _held = redlock.lock("job").acquire().await.unwrap();
    let waiting = tokio::spawn(redlock.lock("job").forever().acquire());
    sleep(ms(100)).await;
    let started = Instant::now();
    let _other = redlock.lock("other").acquire().await.unwrap();
    assert_eq!(started.elapsed(), ms(2 * ONE_WAY));
    waiting.abort();
}

/// A user's node may panic half way through a release. The next waiter still gets the lock.
#[tokio::test(start_paused = true)]
async fn a_release_that_panics_leaves_no_waiter_asleep() {
    let servers = servers();
    let has_panicked = Arc::new(AtomicBool::new(false));
    let lines: Vec<_> = servers
        .iter()
        .map(|server| {
            let has_panicked = has_panicked.clone();
            DelayedLine::to(server, move |action| {
                if matches!(action, Action::Release { .. }) && !has_panicked.swap(true, SeqCst) {
                    panic!("a user's node panics");
                }
                Duration::ZERO
            })
        })
        .collect();
    let redlock = redlock(&lines, Redlock::builder());
    let lease = redlock.lock("job").acquire().await.unwrap();
    let _handle = lease.handle();
    let next = tokio::spawn(redlock.lock("job").forever().acquire());
    sleep(ms(1_000)).await;
    let given_up = Instant::now();
    assert!(tokio::spawn(lease.release()).await.unwrap_err().is_panic());
    let _ = next.await.unwrap().unwrap().release().await;
    assert!(given_up.elapsed() < ms(500), "{:?}", given_up.elapsed());
}

/// The first waiter cannot win: its node budget is shorter than a round trip. Waiters with other settings do not share this.
#[tokio::test(start_paused = true)]
async fn waiters_with_other_settings_do_not_share_a_failure() {
    let redlock = redlock(&servers(), Redlock::builder());
    let front = tokio::spawn(redlock.lock("job").node_budget(ms(2)).forever().acquire());
    sleep(ms(50)).await;
    for behind in [
        redlock.lock("job").within(ms(3_000)),
        redlock.lock("job").forever(),
    ] {
        let started = Instant::now();
        let lease = behind.acquire().await.unwrap();
        assert!(started.elapsed() < ms(1_500), "{:?}", started.elapsed());
        let _ = lease.release().await;
    }
    // Too short to become the first waiter. The first waiter's attempts may be in the way, but no node is out of reach.
    for _ in 0..1_000 {
        let outcome = redlock.lock("job").within(ms(5)).acquire().await;
        assert!(
            !matches!(outcome, Err(AcquireError::NoQuorum { .. })),
            "{outcome:?}"
        );
        drop(outcome);
        sleep(ms(3)).await;
    }
    assert!(!front.is_finished());
    front.abort();
}

/// The same with a thousand waiters that cannot win.
#[tokio::test(start_paused = true)]
async fn waiters_that_cannot_win_do_not_block_those_that_can() {
    let redlock = redlock(&servers(), Redlock::builder());
    let mut waiting: JoinSet<_> = (0..1_000)
        .map(|_| redlock.lock("job").node_budget(ms(2)).forever().acquire())
        .collect();
    sleep(ms(50)).await;
    for _ in 0..5 {
        let started = Instant::now();
        let lease = redlock.lock("job").forever().acquire().await.unwrap();
        assert!(started.elapsed() < ms(1_000), "{:?}", started.elapsed());
        let _ = lease.release().await;
    }
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
}

/// A waiter behind gets the first waiter's last answer. The remaining time in it has been counted down since.
#[tokio::test(start_paused = true)]
async fn a_hold_time_is_reported_as_of_now() {
    let nodes = scripted_nodes(3, |_, action| match action {
        Action::Acquire { .. } => at_once(Ok(Reply::Held {
            remaining: Some(ms(10_000)),
            holder: None,
        })),
        action => at_once(Ok(yes(action))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let front = tokio::spawn(redlock.lock("job").forever().acquire());
    // By then, the first waiter polls rarely.
    sleep(ms(60_000)).await;
    let mut ages = Vec::new();
    for _ in 0..50 {
        let before = Instant::now();
        let told = redlock.lock("job").within(ms(700)).acquire().await.unwrap_err();
        assert_eq!(before.elapsed(), ms(700));
        let since = nodes[0]
            .calls()
            .iter()
            .map(|call| call.at.elapsed())
            .min()
            .unwrap();
        for vote in told.votes().unwrap().iter() {
            match vote.answer {
                Some(Ok(Reply::Held { remaining, .. })) => assert_eq!(remaining, Some(ms(10_000) - since)),
                ref other => panic!("{other:?}"),
            }
        }
        ages.push(since);
    }
    front.abort();
    assert!(
        ages.iter().any(|age| !age.is_zero()),
        "every waiter asked the nodes: {ages:?}"
    );
}
