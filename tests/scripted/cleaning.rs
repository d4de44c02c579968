//! Deletion of leftovers: in the right order, with few requests to a node that is away, and before a shutdown returns.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quorlock::simulation::{Action, Fault, Node, Reply, Request};
use quorlock::{AcquireError, Redlock, ReleaseOutcome};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::{
    Answer, DelayedLine, Plan, ScriptedNode, Server, at_once, ms, redlock, scripted_nodes, yes,
};

#[tokio::test(start_paused = true)]
async fn a_node_that_is_away_is_asked_about_one_leftover_at_a_time_and_about_all_once_it_is_back() {
    const LEASES: usize = 1_000;
    let away = Arc::new(AtomicBool::new(true));
    let nodes = scripted_nodes(3, {
        let away = away.clone();
        move |node, action| match action {
            Action::Release { .. } if node == 0 && away.load(Ordering::Relaxed) => {
                at_once(Err(Fault::Disconnected {
                    reason: "away".into(),
                }))
            }
            other => at_once(Ok(yes(other))),
        }
    });
    let redlock = redlock(
        &nodes,
        Redlock::builder().ttl(Duration::from_secs(3_600)).watchdog(false),
    );
    for number in 0..LEASES {
        drop(redlock.lock(format!("job{number}")).acquire().await.unwrap());
    }
    sleep(Duration::from_secs(60)).await;
    let asked = nodes[0].calls().iter().filter(|call| call.is_release()).count();
    assert!(asked > 30, "only {asked} deletions in a minute");
    assert!(asked < 300, "{asked} deletions in a minute: too many");
    for node in &nodes[1..] {
        let removed = node.calls().iter().filter(|call| call.is_release()).count();
        assert_eq!(removed, LEASES, "deletions on this node waited for another node");
    }
    away.store(false, Ordering::Relaxed);
    let back = Instant::now();
    redlock.shutdown().await;
    assert!(
        back.elapsed() < Duration::from_secs(2),
        "{:?} after it was back",
        back.elapsed()
    );
    let calls = nodes[0].calls();
    let mut removed: Vec<String> = calls
        .iter()
        .filter(|call| call.is_release())
        .map(|call| call.owner.value())
        .collect();
    removed.sort_unstable();
    removed.dedup();
    assert_eq!(removed.len(), LEASES);
}

/// Deletions are sent at once, but only so many to a node that does not answer.
#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_is_not_sent_all_that_is_dropped() {
    const LEASES: usize = 1_000;
    let nodes = scripted_nodes(3, |node, action| match action {
        Action::Release { .. } if node == 0 => Plan::Never,
        other => at_once(Ok(yes(other))),
    });
    let redlock = redlock(
        &nodes,
        Redlock::builder().ttl(Duration::from_secs(3_600)).watchdog(false),
    );
    let asked = |node: usize| {
        nodes[node]
            .calls()
            .iter()
            .filter(|call| call.is_release())
            .count()
    };
    for _ in 0..5 {
        let mut leases = Vec::new();
        for number in 0..LEASES {
            leases.push(redlock.lock(format!("job{number}")).acquire().await.unwrap());
        }
        drop(leases);
        assert!(asked(1) > 0, "no deletion was sent at once");
        // From now on, one deletion a second is tried.
        sleep(Duration::from_secs(5)).await;
        assert!(asked(0) < 200, "{} deletions sent to a hung node", asked(0));
    }
    assert_eq!([asked(1), asked(2)], [5 * LEASES; 2]);
}

/// More leases are dropped than deletions are sent at once, and each has a waiter (W1).
#[tokio::test(start_paused = true)]
async fn waiters_for_a_dropped_lease_do_not_wait_for_a_hung_node() {
    const LOCKS: usize = 400;
    let hung = Arc::new(AtomicBool::new(false));
    let servers: Vec<_> = (0..3).map(|number| Server::new(number, || ms(1))).collect();
    let way = |(number, server)| {
        let hung = hung.clone();
        DelayedLine::to(server, move |_| {
            match number == 0 && hung.load(Ordering::Relaxed) {
                true => Duration::from_secs(100_000),
                false => Duration::ZERO,
            }
        })
    };
    let lines: Vec<_> = servers.iter().enumerate().map(way).collect();
    let redlock = redlock(
        &lines,
        Redlock::builder().ttl(Duration::from_secs(600)).watchdog(false),
    );
    let lock = |number: usize| redlock.lock(format!("job{number}")).forever();
    let mut leases = Vec::new();
    for number in 0..LOCKS {
        leases.push(lock(number).acquire().await.unwrap());
    }
    let mut waiting: JoinSet<_> = (0..LOCKS).map(|number| lock(number).acquire()).collect();
    sleep(Duration::from_secs(1)).await;
    hung.store(true, Ordering::Relaxed);
    drop(leases);
    let mut got = Vec::new();
    let all = async {
        while let Some(lease) = waiting.join_next().await {
            got.push(lease.unwrap().unwrap());
        }
    };
    timeout(ms(100), all).await.expect("a waiter was not woken");
    assert_eq!(got.len(), LOCKS);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_attempts_under_way_and_hands_out_no_lease_after_it() {
    let nodes = scripted_nodes(3, |_, action| match action {
        Action::Acquire { .. } => Plan::Answer(ms(100), Ok(yes(action))),
        other => at_once(Ok(yes(other))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let attempt = tokio::spawn(redlock.lock("job").acquire());
    sleep(ms(10)).await;
    redlock.shutdown().await;
    for node in &nodes {
        let calls = node.calls();
        assert!(
            calls.last().unwrap().is_release(),
            "the shutdown did not wait for the deletion: {calls:?}"
        );
    }
    assert!(matches!(attempt.await.unwrap(), Err(AcquireError::ShutDown)));
}

/// A node that records its deletions, and when an unanswered acquire is given up.
struct RecordingNode {
    name: Arc<str>,
    entries: Arc<Mutex<Vec<&'static str>>>,
}

struct Entry(Arc<Mutex<Vec<&'static str>>>);

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.lock().unwrap().push("acquire given up");
    }
}

impl fmt::Debug for RecordingNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Node for RecordingNode {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn call(&self, request: Request, _: Duration) -> BoxFuture<'static, Answer> {
        match request.action {
            Action::Acquire { .. } => {
                let entry = Entry(self.entries.clone());
                Box::pin(async move {
                    let _entry = entry;
                    std::future::pending().await
                })
            }
            _ => {
                self.entries.lock().unwrap().push("release sent");
                Box::pin(std::future::ready(Ok(Reply::Missing)))
            }
        }
    }
}

/// Otherwise a pipeline might resend the acquire behind its deletion.
#[tokio::test(start_paused = true)]
async fn an_acquire_is_given_up_before_its_deletion_is_sent() {
    let entries = Arc::new(Mutex::new(Vec::new()));
    let node = Arc::new(RecordingNode {
        name: "diary".into(),
        entries: entries.clone(),
    });
    let redlock = redlock(&[node], Redlock::builder());
    timeout(ms(1), redlock.lock("job").acquire()).await.unwrap_err();
    redlock.shutdown().await;
    assert_eq!(entries.lock().unwrap()[..2], ["acquire given up", "release sent"]);
}

/// A panic is cleaned up as well (A6).
#[tokio::test(start_paused = true)]
async fn a_node_that_panics_when_it_is_asked_leaves_nothing_on_the_others() {
    let nodes = scripted_nodes(3, |node, action| match action {
        Action::Acquire { .. } if node == 2 => panic!("a user's node panics"),
        other => at_once(Ok(yes(other))),
    });
    let redlock = redlock(&nodes, Redlock::builder());
    let attempt = tokio::spawn(redlock.lock("job").acquire());
    assert!(attempt.await.unwrap_err().is_panic());
    redlock.shutdown().await;
    for node in &nodes[..2] {
        let calls = node.calls();
        assert!(
            calls[0].is_acquire() && calls.last().unwrap().is_release(),
            "{calls:?}"
        );
    }
}

/// Each node keeps one key, and is away until that has expired. After the outage, dropped leases are deleted at once again.
#[tokio::test(start_paused = true)]
async fn after_an_outage_an_acquire_again_follows_the_deletion_of_a_dropped_lease() {
    let away = Arc::new(AtomicBool::new(false));
    let nodes = scripted_nodes(3, {
        let (away, mut held) = (away.clone(), false);
        move |_, action| {
            if away.load(Ordering::Relaxed) {
                held = false;
                let reason = "away".into();
                return at_once(Err(Fault::Disconnected { reason }));
            }
            let is_acquire = matches!(action, Action::Acquire { .. });
            let answer = match is_acquire && held {
                true => Reply::Held {
                    remaining: None,
                    holder: None,
                },
                false => yes(action),
            };
            held = is_acquire;
            at_once(Ok(answer))
        }
    });
    let redlock = redlock(&nodes, Redlock::builder().ttl(ms(2_000)).watchdog(false));
    let lease = redlock.lock("before").acquire().await.unwrap();
    away.store(true, Ordering::Relaxed);
    drop(lease);
    sleep(Duration::from_secs(20)).await;
    away.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(3_600)).await;
    for _ in 0..3 {
        drop(redlock.lock("job").try_acquire().await.unwrap());
    }
}

/// One node has nothing to delete: the acquire was not sent, is still in flight, or found other data.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_nothing_is_asked_again_only_if_something_may_come() {
    // The connections of the acquire and of the deletion (0: unknown), and whether the acquire may still arrive.
    for (acquire, release, may_come) in [(1, 1, false), (1, 2, true), (0, 0, true)] {
        for (is_dropped, answer) in [
            (false, Ok(Reply::Missing)),
            (true, Ok(Reply::Missing)),
            (false, Ok(Reply::Foreign)),
            (true, Ok(Reply::Foreign)),
            (false, Err(Fault::WrongType)),
            (true, Err(Fault::WrongType)),
        ] {
            let nodes = scripted_nodes(3, move |node, action| match action {
                Action::Acquire { .. } if node == 2 => Plan::Never,
                Action::Release { .. } if node == 2 => at_once(answer.clone()),
                other => at_once(Ok(yes(other))),
            });
            let connect = |connection| nodes.iter().for_each(|node| node.connect(connection));
            let redlock = redlock(&nodes, Redlock::builder());
            connect(acquire);
            let lease = redlock
                .lock("job")
                .node_budget(ms(3_000))
                .acquire()
                .await
                .unwrap();
            connect(release);
            let given_up = Instant::now();
            match is_dropped {
                true => drop(lease),
                false => assert_eq!(lease.release().await, ReleaseOutcome::Released),
            }
            redlock.shutdown().await;
            let took = given_up.elapsed();
            let asked = nodes[2].calls().iter().filter(|call| call.is_release()).count();
            assert_eq!(took >= ms(3_000), may_come, "{took:?}");
            assert_eq!(asked > 1, may_come, "{asked}");
        }
    }
}

/// A node answers a deletion with "missing". Until that is evaluated, the acquire may have arrived over another connection.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_about_the_time_before_the_acquire_came() {
    for is_dropped in [false, true] {
        let nodes = scripted_nodes(4, |node, action| match action {
            Action::Acquire { .. } if node == 3 => Plan::Never,
            Action::Release { .. } if node == 3 => Plan::Answer(ms(50), Ok(Reply::Missing)),
            // A quorum answers only when the acquire can no longer arrive.
            Action::Release { .. } if node == 2 => Plan::Answer(ms(500), Ok(yes(action))),
            other => at_once(Ok(yes(other))),
        });
        let redlock = redlock(&nodes, Redlock::builder());
        let request = redlock.lock("job").node_budget(ms(100));
        let lease = request.acquire().await.unwrap();
        match is_dropped {
            true => drop(lease),
            false => assert_eq!(lease.release().await, ReleaseOutcome::Released),
        }
        redlock.shutdown().await;
        let asked = nodes[3].calls().iter().filter(|call| call.is_release()).count();
        assert_eq!(asked, 2);
    }
}

/// The keys should have expired, but nodes have clocks of their own.
#[tokio::test(start_paused = true)]
async fn a_key_that_should_have_expired_is_asked_about_once() {
    let nodes = scripted_nodes(3, |_, action| at_once(Ok(yes(action))));
    let redlock = redlock(&nodes, Redlock::builder().watchdog(false));
    let lease = redlock.lock("job").ttl(ms(100)).acquire().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    drop(lease);
    redlock.shutdown().await;
    for node in &nodes {
        let calls = node.calls();
        assert!(calls.last().unwrap().is_release(), "{calls:?}");
    }
}

#[test]
fn retries_of_a_failed_node_do_not_spin() {
    // With a busy loop, the paused clock would never end this test. So another thread limits its time.
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let nodes = scripted_nodes(3, |node, action| match action {
                Action::Release { .. } if node == 0 => Plan::Never,
                other => at_once(Ok(yes(other))),
            });
            let redlock = redlock(
                &nodes,
                Redlock::builder().ttl(Duration::from_secs(10)).watchdog(false),
            );
            for resource in ["one", "two", "three"] {
                drop(redlock.lock(resource).acquire().await.unwrap());
            }
            redlock.shutdown().await;
        });
        let _ = done.send(());
    });
    ended
        .recv_timeout(Duration::from_secs(30))
        .expect("the clean-up did not end with the TTL");
}

/// A connection is replaced while a request is in flight. The request is then sent once more (A8).
mod replaced {
    use super::*;

    fn lost() -> Plan {
        Plan::Answer(
            ms(10),
            Err(Fault::ConnectionLost {
                reason: "silent".into(),
            }),
        )
    }

    /// Runs `what`, and replaces the node's connection after 5 ms.
    async fn during<T>(node: &ScriptedNode, connection: u64, what: impl Future<Output = T>) -> T {
        node.connect(connection);
        let replaced = async {
            tokio::time::sleep(ms(5)).await;
            node.connect(connection + 1);
        };
        tokio::join!(what, replaced).0
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquire_is_granted_over_the_next_connection_and_its_first_copy_is_reckoned_with() {
        for deleted in [
            Reply::Missing,
            Reply::Foreign,
            Reply::Released { notified: false },
        ] {
            is_reckoned_with(deleted).await;
        }
    }

    async fn is_reckoned_with(deleted: Reply) {
        let mut acquires = 0;
        let node = ScriptedNode::new(0, move |action| match action {
            Action::Acquire { .. } => {
                acquires += 1;
                match acquires {
                    1 => lost(),
                    _ => at_once(Ok(yes(action))),
                }
            }
            _ => at_once(Ok(deleted)),
        });
        let redlock = redlock(std::slice::from_ref(&node), Redlock::builder());
        let lock = redlock.lock("job").node_budget(ms(3_000)).watchdog(false);
        let lease = during(&node, 1, lock.try_acquire()).await.unwrap();
        let calls = node.calls();
        assert!(calls.len() == 2 && calls.iter().all(|call| call.owner == calls[0].owner));
        // Whether or not there was a key, the first copy of the acquire may still arrive.
        let given_up = Instant::now();
        let _ = lease.release().await;
        redlock.shutdown().await;
        assert!(given_up.elapsed() >= ms(2_900), "{:?}", given_up.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_deletion_that_finds_nothing_does_not_say_that_the_lock_was_gone() {
        for (second, outcome_is) in [
            (Reply::Missing, "uncertain"),
            (Reply::Released { notified: false }, "released"),
        ] {
            let mut releases = 0;
            let node = ScriptedNode::new(0, move |action| match action {
                Action::Release { .. } => {
                    releases += 1;
                    match releases {
                        1 => lost(),
                        _ => at_once(Ok(second)),
                    }
                }
                _ => at_once(Ok(yes(action))),
            });
            let redlock = redlock(std::slice::from_ref(&node), Redlock::builder());
            node.connect(1);
            let lease = redlock.lock("job").watchdog(false).try_acquire().await.unwrap();
            match during(&node, 1, lease.release()).await {
                ReleaseOutcome::Released => assert_eq!(outcome_is, "released"),
                ReleaseOutcome::Uncertain(_) => assert_eq!(outcome_is, "uncertain"),
                other => panic!("{other:?}"),
            }
            redlock.shutdown().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_asked_for_once_more_and_not_again() {
        let node = ScriptedNode::new(0, |action| match action {
            Action::Acquire { .. } => lost(),
            _ => at_once(Ok(Reply::Missing)),
        });
        let redlock = redlock(std::slice::from_ref(&node), Redlock::builder());
        let lock = redlock.lock("job").watchdog(false);
        let error = during(&node, 1, lock.try_acquire()).await.unwrap_err();
        assert!(error.to_string().contains("silent"), "{error}");
        assert_eq!(node.calls().iter().filter(|call| call.is_acquire()).count(), 2);
    }
}
