//! Nodes announce releases, so waiters in other processes need not poll (W2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::simulation::lock_script::Announcement;
use quorlock::simulation::{
    Action, OwnerToken, ReleaseKind, ReleaseNotice, Reply, Sender, Successor, Turn, WaitNotice, WaiterId,
};
use quorlock::{AcquireError, Lease, Redlock};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::crowd::{ONE_WAY, asked, manager, servers};
use crate::nodes::{DelayedLine, Server, at_once, ms, redlock, scripted_nodes, yes};

type Waiting = JoinHandle<Result<Lease, AcquireError>>;

const KEY: &str = "quorlock:job";

/// Returns a release as an earlier version announces it.
fn released(kind: ReleaseKind) -> Announcement {
    Announcement::Release(OwnerToken::random(), ReleaseNotice { kind, turn: None })
}

async fn held_and_waited_for(servers: &[Arc<Server>]) -> (Lease, Waiting) {
    let (holder, waiter) = (manager(servers), manager(servers));
    let lease = holder.lock("job").acquire().await.unwrap();
    (lease, tokio::spawn(waiter.lock("job").acquire()))
}

/// Asserts that the waiter gets the lock within this time after the release.
async fn passes_on(lease: Lease, waiting: Waiting, within: Duration) {
    let _ = lease.release().await;
    let _ = timeout(within, waiting).await.unwrap().unwrap().unwrap();
}

/// Asserts that for five seconds no acquire is sent, after those `before`.
async fn nobody_asks(servers: &[Arc<Server>], before: usize) {
    sleep(ms(5_000)).await;
    assert_eq!(asked(servers), before);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_another_process_is_notified_and_asks_at_once() {
    fastrand::seed(7);
    let servers = servers(5);
    let (holder, waiter) = (manager(&servers), manager(&servers));
    for _ in 0..20 {
        let lease = holder.lock("job").acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("job").acquire());
        sleep(ms(20_000)).await;
        let given_up = Instant::now();
        let _ = lease.release().await;
        let next = waiting.await.unwrap().unwrap();
        // Release, announcement, request, answer. Timers have the resolution of a millisecond.
        assert!(
            given_up.elapsed() <= ms(4 * ONE_WAY + 8),
            "{:?}",
            given_up.elapsed()
        );
        let _ = next.release().await;
        // Until both processes have forgotten each other's waiters.
        sleep(ms(3_000)).await;
    }
}

/// A release during a minimum hold lets the keys expire earlier. A waiter that knows their first expiry only would wait for it.
#[tokio::test(start_paused = true)]
async fn waiters_learn_that_kept_keys_expire_earlier() {
    let servers = servers(5);
    let (holder, waiter) = (manager(&servers), manager(&servers));
    let kept_until = Instant::now() + ms(3_000);
    let lease = holder.lock("job").min_hold(ms(3_000)).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("job").acquire());
    sleep(ms(1_000)).await;
    let _ = lease.release().await;
    let next = timeout(ms(3_000), waiting).await.unwrap().unwrap().unwrap();
    assert!(Instant::now() >= kept_until);
    let _ = next.release().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_release_no_waiter_asks() {
    let servers = servers(5);
    let holder = manager(&servers);
    let _lease = holder.lock("job").acquire().await.unwrap();
    let waiters: Vec<Redlock> = (0..4).map(|_| manager(&servers)).collect();
    let mut waiting = JoinSet::new();
    for waiter in waiters.iter().chain([&holder]) {
        for _ in 0..8 {
            waiting.spawn(waiter.lock("job").acquire());
        }
    }
    sleep(ms(1_000)).await;
    let before = asked(&servers);
    nobody_asks(&servers, before).await;
    // In case a notification was lost, they still poll, every 8 to 16 seconds.
    sleep(ms(60_000)).await;
    let later = asked(&servers) - before;
    assert!((4 * 5 * 3..4 * 5 * 10).contains(&later), "{later}");
}

/// While a process holds the lock, its own waiters do not ask the nodes.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_ask_while_their_process_holds_the_lock() {
    let servers = servers(5);
    let manager = manager(&servers);
    let works = (0..50).map(|_| async {
        let lease = manager.lock("job").acquire().await.unwrap();
        sleep(ms(1_000)).await;
        let _ = lease.release().await;
    });
    join_all(works).await;
    // One for each grant, and one that was refused.
    assert_eq!(asked(&servers), 5 * 51);
}

#[tokio::test(start_paused = true)]
async fn waiters_without_notifications_poll() {
    for silent in [3, 5] {
        let servers = servers(5);
        servers[..silent].iter().for_each(|server| server.mute(true));
        let (lease, waiting) = held_and_waited_for(&servers).await;
        sleep(ms(10_000)).await;
        assert!(asked(&servers) > 5 * 20, "{}", asked(&servers));
        passes_on(lease, waiting, ms(600)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_silent_nodes_of_five_make_no_difference() {
    let servers = servers(5);
    servers[..2].iter().for_each(|server| server.mute(true));
    let (lease, waiting) = held_and_waited_for(&servers).await;
    sleep(ms(1_000)).await;
    let before = asked(&servers);
    nobody_asks(&servers, before).await;
    passes_on(lease, waiting, ms(4 * ONE_WAY + 8)).await;
}

/// Announcements of a few nodes may be forged, or about leftovers.
#[tokio::test(start_paused = true)]
async fn a_minority_of_nodes_makes_no_waiter_ask() {
    let servers = servers(5);
    let (lease, waiting) = held_and_waited_for(&servers).await;
    sleep(ms(1_000)).await;
    let before = asked(&servers);
    for _ in 0..100 {
        servers[3].say(KEY, released(ReleaseKind::Free));
        servers[4].say(KEY, released(ReleaseKind::HandedOver));
        sleep(ms(30)).await;
    }
    assert_eq!(asked(&servers), before);
    servers[0].say(KEY, released(ReleaseKind::Free));
    sleep(ms(500)).await;
    assert_eq!(asked(&servers), before + 5);
    passes_on(lease, waiting, ms(4 * ONE_WAY + 8)).await;
}

/// Every node announces hand-overs without end, but the holder has died.
#[tokio::test(start_paused = true)]
async fn forged_announcements_do_not_hide_an_expired_lock() {
    for nodes in [1, 3, 5] {
        let servers = servers(nodes);
        let holder = redlock(&servers, Redlock::builder().ttl(ms(3_000)).watchdog(false));
        let lease = holder.lock("job").acquire().await.unwrap();
        let waiting = tokio::spawn(manager(&servers).lock("job").acquire());
        sleep(ms(1_000)).await;
        std::mem::forget(lease);
        let saying = tokio::spawn({
            let servers = servers.clone();
            async move {
                loop {
                    let release = released(ReleaseKind::HandedOver);
                    servers.iter().for_each(|server| server.say(KEY, release));
                    sleep(ms(1)).await;
                }
            }
        });
        let lease = timeout(ms(2_500), waiting).await;
        saying.abort();
        let _ = lease.expect("no waiter asked").unwrap().unwrap().release().await;
    }
}

/// Returns the number of acquires in six seconds in which nodes exceed their budgets, so that no attempt can succeed.
async fn asked_in_an_overload(listening: bool) -> usize {
    fastrand::seed(7);
    let slow = Arc::new(AtomicBool::new(false));
    let server = |number| {
        let slow = slow.clone();
        Server::new(number, move || ms(if slow.load(Relaxed) { 15 } else { 1 }))
    };
    let servers: Vec<_> = (0..3).map(server).collect();
    // A node's budget is a tenth of it.
    let manager = || redlock(&servers, Redlock::builder().ttl(ms(200)).within(ms(600_000)));
    let lease = manager().lock("job").acquire().await.unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|_| tokio::spawn(manager().lock("job").forever().acquire()))
        .collect();
    sleep(ms(2_000)).await;
    servers.iter().for_each(|server| server.mute(!listening));
    slow.store(true, Relaxed);
    let _ = lease.release().await;
    sleep(ms(2_000)).await;
    let before = asked(&servers);
    sleep(ms(6_000)).await;
    waiting.iter().for_each(JoinHandle::abort);
    asked(&servers) - before
}

/// Lost attempts that may have had a quorum are announced as abandoned. If that woke waiters before their back-off ends, each
/// attempt would cause the next ones.
#[tokio::test(start_paused = true)]
async fn an_overload_does_not_feed_itself() {
    let (told, not_told) = (
        asked_in_an_overload(true).await,
        asked_in_an_overload(false).await,
    );
    println!("{told} acquires with notifications, {not_told} without");
    assert!(not_told > 100 && told < 2 * not_told, "{told}, {not_told}");
}

/// The connections for announcements break, and are opened again.
#[tokio::test(start_paused = true)]
async fn waiters_poll_only_while_notifications_are_interrupted() {
    let servers = servers(5);
    let (lease, waiting) = held_and_waited_for(&servers).await;
    sleep(ms(2_000)).await;
    let before = asked(&servers);
    servers.iter().for_each(|server| server.mute(true));
    sleep(ms(5_000)).await;
    let meanwhile = asked(&servers);
    assert!(meanwhile - before > 5 * 8, "{}", meanwhile - before);
    servers.iter().for_each(|server| server.mute(false));
    sleep(ms(100)).await;
    // The waiter asks once, because it may have missed a release.
    let again = asked(&servers);
    assert!(again - meanwhile <= 10, "{}", again - meanwhile);
    nobody_asks(&servers, again).await;
    passes_on(lease, waiting, ms(4 * ONE_WAY + 8)).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_while_nobody_listens_yet_is_not_missed() {
    for after in 0..120 {
        let servers = servers(5);
        let (lease, waiting) = held_and_waited_for(&servers).await;
        sleep(ms(after)).await;
        let _ = lease.release().await;
        let released = Instant::now();
        let _ = timeout(ms(500), waiting).await.unwrap().unwrap().unwrap();
        assert!(released.elapsed() < ms(200), "{after}: {:?}", released.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_died_is_waited_for_until_its_keys_expire_and_no_longer() {
    let servers = servers(5);
    let holder = redlock(&servers, Redlock::builder().ttl(ms(3_000)).watchdog(false));
    let waiter = manager(&servers);
    std::mem::forget(holder.lock("job").acquire().await.unwrap());
    let started = Instant::now();
    let _ = waiter.lock("job").acquire().await.unwrap();
    let waited = started.elapsed();
    assert!((ms(2_900)..ms(3_100)).contains(&waited), "{waited:?}");
}

/// The lease is leaked, so nothing announces its end.
#[tokio::test(start_paused = true)]
async fn a_leaked_lease_of_the_same_process_is_waited_for_until_its_keys_expire() {
    let servers = servers(5);
    let manager = redlock(&servers, Redlock::builder().ttl(ms(3_000)).watchdog(false));
    for _ in 0..3 {
        std::mem::forget(manager.lock("job").acquire().await.unwrap());
        let started = Instant::now();
        let waits = (0..3).map(|_| manager.lock("job").forever().acquire());
        let (lease, _, others) = futures_util::future::select_all(waits.map(Box::pin)).await;
        let waited = started.elapsed();
        assert!((ms(2_800)..ms(3_100)).contains(&waited), "{waited:?}");
        drop(others);
        let _ = lease.unwrap().release().await;
    }
}

/// Otherwise the process would keep connections for nothing.
#[tokio::test(start_paused = true)]
async fn a_process_without_waiters_unsubscribes() {
    let servers = servers(5);
    // A dropped manager does not listen either, so both are kept.
    let (holder, waiter) = (manager(&servers), manager(&servers));
    let lease = holder.lock("job").acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("job").acquire());
    // The holder does not listen yet.
    sleep(ms(900)).await;
    assert!(servers.iter().all(|server| server.listeners() == 1));
    let _ = lease.release().await;
    let lease = waiting.await.unwrap().unwrap();
    let _ = lease.release().await;
    sleep(ms(3_000)).await;
    assert!(servers.iter().all(|server| server.listeners() == 0));
}

/// After one wait, the process only acquires the lock when it is free.
#[tokio::test(start_paused = true)]
async fn a_process_unsubscribes_some_time_after_its_last_wait() {
    let servers = servers(3);
    let (other, manager) = (manager(&servers), manager(&servers));
    let lease = other.lock("job").acquire().await.unwrap();
    let waited = manager.lock("job").within(ms(300)).acquire().await;
    assert!(waited.is_err());
    assert!(servers.iter().all(|server| server.listeners() == 1));
    let _ = lease.release().await;
    for _ in 0..20 {
        let lease = manager.lock("job").acquire().await.unwrap();
        sleep(ms(200)).await;
        let _ = lease.release().await;
        sleep(ms(200)).await;
    }
    assert!(servers.iter().all(|server| server.listeners() == 0));
}

/// Returns the announcement of a dead or invented process that it waits, with this slot in milliseconds.
fn bogus(number: u64, slot: u64) -> Announcement {
    let from = Sender {
        id: WaiterId(number),
        count: 1,
    };
    let slot = ms(slot);
    Announcement::Wait(WaitNotice { from, slot })
}

/// Passes a lock back and forth between two processes. Returns how long each waiter waited after the release. Once both listen,
/// `dead` processes announce that they wait.
async fn hand_overs(servers: &[Arc<Server>], times: usize, dead: u64, slot: u64) -> Vec<Duration> {
    let managers = [manager(servers), manager(servers)];
    let mut waits = Vec::new();
    let mut lease = managers[0].lock("job").acquire().await.unwrap();
    for number in 0..times {
        let waiting = tokio::spawn(managers[(number + 1) % 2].lock("job").forever().acquire());
        sleep(ms(100)).await;
        for dead in 1..=if number == 1 { dead } else { 0 } {
            let says = bogus(dead, slot);
            servers.iter().for_each(|server| server.say(KEY, says));
        }
        let given_up = Instant::now();
        let _ = lease.release().await;
        lease = timeout(ms(20_000), waiting).await.unwrap().unwrap().unwrap();
        waits.push(given_up.elapsed());
    }
    let _ = lease.release().await;
    waits
}

/// The time for a hand-over between processes: release, announcement, request, answer.
const AT_ONCE: Duration = ms(4 * ONE_WAY + 8);

#[tokio::test(start_paused = true)]
async fn a_dead_process_costs_a_slot_once_and_a_crowd_of_them_hardly_more() {
    // The last case has more processes than a list holds.
    for (dead, slot) in [(1, 500), (20, 500), (200, 5), (200, 500), (300, 500)] {
        let waits = hand_overs(&servers(5), 40, dead, slot).await;
        let late: Vec<&Duration> = waits.iter().filter(|wait| **wait > AT_ONCE).collect();
        let longest = waits.iter().max().unwrap();
        println!("{dead} dead, {slot} ms: {} late, {longest:?} at most", late.len());
        // One slot, and the requests after it.
        assert!(*longest < ms(slot) + ms(8 * ONE_WAY), "{dead}: {longest:?}");
        let long = late.iter().filter(|wait| ***wait > ms(100)).count();
        assert!(long <= 1, "{dead}: {late:?}");
    }
}

/// Anybody who may publish can announce without end that another process is next.
#[tokio::test(start_paused = true)]
async fn a_forged_successor_does_not_stop_waiters_from_asking() {
    let servers = servers(5);
    let (holder, waiter) = (manager(&servers), manager(&servers));
    // No key expires meanwhile.
    let lease = holder.lock("job").ttl(ms(30_000)).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("job").forever().acquire());
    sleep(ms(2_000)).await;
    let before = asked(&servers);
    let saying = tokio::spawn({
        let servers = servers.clone();
        async move {
            for count in 1.. {
                let turn = Turn {
                    from: Sender {
                        id: WaiterId(1),
                        count,
                    },
                    next: Some(Successor {
                        id: WaiterId(2),
                        slot: ms(500),
                    }),
                };
                let notice = ReleaseNotice {
                    kind: ReleaseKind::Free,
                    turn: Some(turn),
                };
                let release = Announcement::Release(OwnerToken::random(), notice);
                servers.iter().for_each(|server| server.say(KEY, release));
                sleep(ms(50)).await;
            }
        }
    });
    // A poll is due after 8 to 16 seconds.
    sleep(ms(17_000)).await;
    saying.abort();
    let asked = asked(&servers) - before;
    assert!((5..=15).contains(&asked), "{asked}");
    passes_on(lease, waiting, ms(600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_crashed_is_waited_for_once() {
    let servers = servers(5);
    let holder = manager(&servers);
    let lease = holder.lock("job").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(tokio::spawn(manager(&servers).lock("job").forever().acquire()));
        sleep(ms(500)).await;
    }
    let given_up = Instant::now();
    let releasing = tokio::spawn(lease.release());
    // The first waiter is named, and would have asked by now.
    waiting.remove(0).abort();
    let next = waiting.remove(0).await.unwrap().unwrap();
    let _ = releasing.await;
    // The slot (1.5 round trips and 5 ms), one more round trip, and the requests.
    let most = ms(35 + 20 + 20 + 4 * ONE_WAY);
    assert!(given_up.elapsed() < most, "{:?}", given_up.elapsed());
    let _ = next.release().await;
}

/// Nodes that have lost the key do not announce its release.
#[tokio::test(start_paused = true)]
async fn a_release_that_a_minority_announces_is_not_slept_through() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let servers = servers(5);
        let (lease, waiting) = held_and_waited_for(&servers).await;
        sleep(ms(2_000)).await;
        servers[..3].iter().for_each(|server| server.forget());
        let _ = lease.release().await;
        let next = timeout(ms(600), waiting).await.unwrap().unwrap().unwrap();
        let _ = next.release().await;
    }
}

/// After a forged announcement, the waiter asks too early. Announcements of the nodes that still held the key wake it again.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_asked_too_early_is_notified_again() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let servers = servers(3);
        let lines = [0, 1, 2].map(|number| {
            DelayedLine::to(&servers[number], move |action| match action {
                Action::Release { .. } if number != 1 => ms(400),
                _ => ms(0),
            })
        });
        let holder = redlock(&lines, Redlock::builder());
        let waiter = manager(&servers);
        let lease = holder.lock("job").acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("job").acquire());
        sleep(ms(2_000)).await;
        // Forged, or about a leftover.
        servers[0].say(KEY, released(ReleaseKind::Free));
        let given_up = Instant::now();
        drop(tokio::spawn(lease.release()));
        let next = timeout(ms(1_000), waiting).await.unwrap().unwrap().unwrap();
        assert!(given_up.elapsed() >= ms(400), "{:?}", given_up.elapsed());
        let _ = next.release().await;
    }
}

/// The first waiter relies on notifications, so the waiters behind it have no recent answer. One of them asks for all (W1).
#[tokio::test(start_paused = true)]
async fn waiters_that_time_out_share_their_last_attempts() {
    // Their times end one after the other, or at once.
    for (apart, most) in [(5, 50), (0, 1)] {
        fastrand::seed(7);
        let servers = servers(5);
        let (holder, waiter) = (manager(&servers), manager(&servers));
        let lease = holder.lock("job").acquire().await.unwrap();
        let front = tokio::spawn(waiter.lock("job").acquire());
        sleep(ms(2_000)).await;
        let before = asked(&servers);
        let others = (0..200).map(|number| {
            let lock = waiter.lock("job").within(ms(1_000));
            async move {
                sleep(ms(number * apart)).await;
                lock.acquire().await.unwrap_err()
            }
        });
        for error in join_all(others).await {
            assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        }
        let asked = asked(&servers) - before;
        assert!(asked <= 5 * most, "{asked}");
        let _ = lease.release().await;
        let _ = front.await.unwrap().unwrap().release().await;
    }
}

/// The first waiter's future is kept and not polled. The waiters behind it end all the same.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_all_waiting_even_if_the_front_waiter_is_not_polled() {
    let servers = servers(5);
    let (holder, waiter) = (manager(&servers), manager(&servers));
    let _lease = holder.lock("job").acquire().await.unwrap();
    let mut front = Box::pin(waiter.lock("job").forever().acquire());
    assert!(timeout(ms(500), &mut front).await.is_err());
    let behind = tokio::spawn(waiter.lock("job").forever().acquire());
    sleep(ms(500)).await;
    timeout(ms(1_000), waiter.shutdown()).await.unwrap();
    let outcome = timeout(ms(1_000), behind).await.unwrap().unwrap();
    assert!(matches!(outcome, Err(AcquireError::ShutDown)), "{outcome:?}");
    assert!(matches!(front.await, Err(AcquireError::ShutDown)));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_all_waiting() {
    let servers = servers(5);
    let (one, other) = (manager(&servers), manager(&servers));
    let _held_here = one.lock("here").acquire().await.unwrap();
    let _held_elsewhere = other.lock("elsewhere").acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..5 {
        waiting.spawn(one.lock("here").forever().acquire());
        waiting.spawn(one.lock("elsewhere").forever().acquire());
    }
    sleep(ms(5_000)).await;
    timeout(ms(1_000), one.shutdown()).await.unwrap();
    let all = async {
        while let Some(outcome) = waiting.join_next().await {
            let outcome = outcome.unwrap();
            assert!(matches!(outcome, Err(AcquireError::ShutDown)), "{outcome:?}");
        }
    };
    timeout(ms(1_000), all).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_may_be_held_for_however_long() {
    for remaining in [Duration::MAX, Duration::from_secs(i64::MAX as u64 - 1_000_000)] {
        let nodes = scripted_nodes(3, move |_, action| match action {
            Action::Acquire { .. } => at_once(Ok(Reply::Held {
                remaining: Some(remaining),
                holder: None,
            })),
            action => at_once(Ok(yes(action))),
        });
        let lock = redlock(&nodes, Redlock::builder()).lock("job");
        let error = lock.within(ms(1_000)).acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
    }
}
