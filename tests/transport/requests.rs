//! Requests that arrive late, are lost, or could be sent twice.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::FutureExt;
use quorlock::node::{Fault, Reply};
use quorlock::testbed::{TestNode, Testbed, Value};
use quorlock::{AcquireError, NodeVote, ReleaseOutcome};
use tokio::task::JoinSet;

use crate::common::unguarded;
use crate::{PATIENCE, calls, connect, eventually, grants, is_up, keys, only_fault, testbed};

/// The bytes wait in the stopped server's receive buffer (A9).
#[tokio::test]
async fn a_request_that_a_stopped_server_finds_later_refuses_itself() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    let before = calls(node, "evalsha").await;
    node.stop().unwrap();
    let request = redlock
        .lock("late")
        .ttl(Duration::from_secs(60))
        .node_budget(Duration::from_millis(100));
    let error = request.try_acquire().await.unwrap_err();
    assert!(matches!(only_fault(&error), Fault::Timeout { .. }), "{error}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.resume().unwrap();
    redlock.shutdown().await;
    assert!(
        calls(node, "evalsha").await > before,
        "the request never arrived, so this test shows nothing"
    );
    assert_eq!(grants(node).await, 0, "the old acquire took effect");
    assert_eq!(keys(node).await, 0);
}

/// A6: the others decide the attempt, and the stopped server grants in time what it is asked for.
#[tokio::test]
async fn a_grant_of_a_stopped_server_after_the_verdict_is_deleted() {
    for fencing in [true, false] {
        let testbed = testbed(3, false).await;
        let redlock = connect(&testbed).await;
        for node in &testbed.nodes()[1..] {
            node.command(&["SET", "quorlock:late", "somebody"]).await.unwrap();
        }
        let stopped = &testbed.nodes()[0];
        stopped.stop().unwrap();
        let lock = redlock.lock("late").fencing(fencing).ttl(Duration::from_secs(60));
        let error = lock.node_budget(PATIENCE).try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        stopped.resume().unwrap();
        redlock.shutdown().await;
        assert_eq!(keys(stopped).await, 0);
        assert_eq!(grants(stopped).await, u64::from(fencing), "this shows nothing");
    }
}

/// A9: or it would let a key live on for which nobody cleans up any more.
#[tokio::test]
async fn an_extension_that_a_stopped_server_finds_later_refuses_itself() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    for fencing in [true, false] {
        let lock = redlock.lock("late").ttl(Duration::from_secs(60)).watchdog(false);
        let lock = lock.node_budget(Duration::from_millis(100)).fencing(fencing);
        let lease = lock.acquire().await.unwrap();
        let before = calls(node, "evalsha").await;
        node.stop().unwrap();
        lease.extend().await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(300)).await;
        node.resume().unwrap();
        eventually("extension read", async || calls(node, "evalsha").await > before).await;
        let left = node.command(&["PTTL", "quorlock:late"]).await.unwrap();
        assert!(left.as_int().unwrap() < 59_800, "{left:?}");
        // An extension in time takes effect.
        lease.extend().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

/// Returns how many acquires the server's slow log has. Here it records every command.
async fn asked_for(node: &TestNode) -> usize {
    let log = node.command(&["SLOWLOG", "GET", "-1"]).await.unwrap();
    let acquires = |entry: &&Value| {
        let command = entry.as_array().unwrap()[3].as_array().unwrap();
        let item = command.get(5).and_then(|item| item.as_str()).unwrap_or_default();
        command[0].as_str() == Some("EVALSHA") && item.starts_with(['a', 's'])
    };
    log.as_array().unwrap().iter().filter(acquires).count()
}

/// An attempt sends its acquire once, whatever happens to its connection (A8).
#[tokio::test]
async fn a_connection_cut_in_the_middle_of_an_attempt_sends_nothing_again() {
    for fencing in [true, false] {
        let testbed = testbed(1, true).await;
        let node = &testbed.nodes()[0];
        let proxy = node.proxy().unwrap();
        let redlock = connect(&testbed).await;
        for (setting, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "10000")] {
            node.command(&["CONFIG", "SET", setting, value]).await.unwrap();
        }
        // The server gets the request, and its answer is lost.
        proxy.blackhole_from_server();
        let lock = redlock.lock("cut").fencing(fencing).ttl(Duration::from_secs(60));
        let attempt = tokio::spawn(lock.node_budget(Duration::from_secs(30)).try_acquire());
        eventually("the request has arrived", async || keys(node).await == 1).await;
        let asked = asked_for(node).await;
        assert_eq!(asked, 1);
        proxy.cut();
        let error = attempt.await.unwrap().unwrap_err();
        assert!(
            matches!(only_fault(&error), Fault::ConnectionLost { .. }),
            "{error}"
        );
        proxy.heal();
        redlock.shutdown().await;
        assert_eq!(asked_for(node).await, asked, "the acquire was sent again");
        assert_eq!(keys(node).await, 0, "the key was left behind");
    }
}

/// The network heals before anybody has noticed.
#[tokio::test]
async fn a_request_held_up_on_its_way_for_longer_than_its_budget_is_refused() {
    let testbed = testbed(1, true).await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let redlock = connect(&testbed).await;
    proxy.blackhole_to_server();
    let lock = redlock
        .lock("slow")
        .ttl(Duration::from_secs(60))
        .node_budget(Duration::from_millis(100));
    let error = lock.try_acquire().await.unwrap_err();
    assert!(matches!(only_fault(&error), Fault::Timeout { .. }), "{error}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.heal();
    redlock.shutdown().await;
    assert!(
        is_up(&redlock, 0),
        "the connection was given up, so this test shows nothing new"
    );
    assert_eq!(grants(node).await, 0, "a late acquire took effect");
    assert_eq!(keys(node).await, 0);
}

/// A request goes out in its first poll, even without cooperative budget (T1).
#[tokio::test]
async fn an_attempt_is_sent_in_its_first_poll_even_when_the_tasks_turn_is_over() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    for fencing in [true, false] {
        let mut acquire = Box::pin(redlock.lock("turn").fencing(fencing).acquire());
        poll_fn(|cx| {
            while pin!(tokio::task::coop::consume_budget()).poll(cx).is_ready() {}
            assert!(acquire.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        eventually("the key is there", async || keys(node).await == 1).await;
        drop(acquire);
        eventually("the key is gone", async || keys(node).await == 0).await;
    }
}

/// Requests that queue up together go out together (T2).
#[tokio::test]
async fn requests_that_queue_up_go_out_in_one_call() {
    const EACH: usize = 10;
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    let lock = |number: usize, fencing: bool| {
        let request = redlock.lock(format!("{number} {fencing}")).fencing(fencing);
        request.watchdog(false).node_budget(PATIENCE)
    };
    let mut leases = VecDeque::new();
    for number in 0..EACH {
        for fencing in [true, false] {
            leases.push_back(lock(number, fencing).acquire().await.unwrap());
        }
    }
    let before = calls(node, "evalsha").await;
    node.stop().unwrap();
    let mut others = JoinSet::new();
    for number in EACH..2 * EACH {
        for fencing in [true, false] {
            let lease = leases.pop_front().unwrap();
            others.spawn(async move {
                assert_eq!(lease.release().await, ReleaseOutcome::Released);
                None
            });
            let acquire = lock(number, fencing).acquire();
            others.spawn(async move { Some(acquire.await.unwrap()) });
        }
    }
    // All tasks have sent their requests by then.
    tokio::task::yield_now().await;
    node.resume().unwrap();
    let leases: Vec<_> = others.join_all().await.into_iter().flatten().collect();
    assert_eq!(leases.len(), 2 * EACH);
    assert!(leases.iter().all(|lease| lease.is_held()));
    assert_eq!(keys(node).await, 2 * EACH as i64);
    // The first requests found the pipeline idle.
    let sent = calls(node, "evalsha").await - before;
    assert!(sent <= 4, "{} requests in {sent} calls", 4 * EACH);
}

/// The acquire arrives after its deletion, over an earlier connection.
#[tokio::test]
async fn an_acquire_overtaken_by_its_deletion_is_deleted_once_more() {
    let testbed = testbed(1, true).await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let redlock = connect(&testbed).await;
    proxy.delay(Duration::from_millis(2_500));
    let lock = redlock.lock("overtaken").ttl(Duration::from_secs(60));
    let mut attempt = Box::pin(lock.node_budget(Duration::from_secs(5)).try_acquire());
    assert!((&mut attempt).now_or_never().is_none());
    // This request's short budget makes the client give up the connection.
    let hasty = redlock.lock("hasty").node_budget(Duration::from_millis(50));
    hasty.try_acquire().await.unwrap_err();
    drop(attempt);
    proxy.delay(Duration::ZERO);
    // "Down" may be too short to be seen, so the second probe is counted.
    eventually("the client is connected again", async || {
        calls(node, "script|load").await == 2
    })
    .await;
    assert_eq!(
        grants(node).await,
        0,
        "the acquire arrived first, so this test shows nothing"
    );
    redlock.shutdown().await;
    assert!(
        grants(node).await > 0,
        "the acquire never came, so this test shows nothing"
    );
    assert_eq!(keys(node).await, 0);
}

/// A server refuses a whole call if the user may not touch one of its keys. Its requests are resent one by one, but not behind
/// their callers' deletions. That moment is hit only once or twice in all rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_resent_acquire_is_not_sent_after_its_deletion() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let rights = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pw",
        "~quorlock:may*",
        "~quorlock:#*",
        "~quorlock:*#client",
        "&*",
        "+@all",
    ];
    assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
    let builder = unguarded([format!("redis://app:pw@{}", node.addr())]);
    let redlock = builder.connect().await.unwrap();
    let lock = |name: String| {
        redlock
            .lock(name)
            .ttl(Duration::from_secs(600))
            .node_budget(PATIENCE)
    };
    let mut early = 0;
    for round in 0..6_000 {
        let mut forbidden: Vec<_> = (0..3)
            .map(|number| Box::pin(lock(format!("forbidden{number}")).try_acquire()))
            .collect();
        let mut allowed = Box::pin(lock(format!("may{round}")).try_acquire());
        let mut over = Vec::new();
        for attempt in &mut forbidden[..2] {
            over.push(attempt.now_or_never().is_some());
        }
        // Another thread may be quick enough to answer. The round then shows nothing.
        early += usize::from((&mut allowed).now_or_never().is_some());
        over.push((&mut forbidden[2]).now_or_never().is_some());
        let given_up = Instant::now() + Duration::from_micros(fastrand::u64(100..700));
        while Instant::now() < given_up {
            std::hint::spin_loop();
        }
        drop(allowed);
        for (attempt, over) in forbidden.into_iter().zip(over) {
            if !over {
                let _ = attempt.await;
            }
        }
    }
    redlock.shutdown().await;
    assert_eq!(keys(node).await, 0);
    assert!(early < 600, "{early} of 6000 rounds show nothing");
}

/// F3: servers that forget the script at any moment, in the second round too, are sent its text.
#[tokio::test]
async fn a_second_round_survives_scripts_being_flushed() {
    let testbed = Testbed::builder()
        .nodes(3)
        .arg("appendfsync", "no")
        .start()
        .await
        .unwrap();
    // Before, counters are started anew with each grant, and so agree.
    for node in testbed.nodes() {
        eventually("the node has been up for a while", async || {
            let info = node.command(&["INFO", "server"]).await.unwrap();
            let mut lines = info.as_str().unwrap().lines();
            let uptime = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"));
            uptime.unwrap().parse::<u64>().unwrap() >= 4
        })
        .await;
    }
    let redlock = connect(&testbed).await;
    let (mut latest, mut raised) = (None, 0);
    for round in 0..200 {
        let lease = redlock.lock("job").acquire().await.unwrap();
        assert!(latest < lease.fencing_token(), "{latest:?}, then {lease:?}");
        latest = lease.fencing_token();
        let is_raised = |vote: &NodeVote| matches!(vote.answer, Some(Ok(Reply::Raised { .. })));
        raised += lease.votes().iter().filter(|vote| is_raised(vote)).count();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        // One node is ahead of the others from here on, and all forget.
        let ahead = &testbed.nodes()[round % 3];
        ahead
            .command(&["INCRBY", "quorlock:job#fence", "5"])
            .await
            .unwrap();
        for node in testbed.nodes() {
            node.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        }
    }
    assert!(raised > 50, "{raised} raises: this shows little");
    redlock.shutdown().await;
    for node in testbed.nodes() {
        assert_eq!(keys(node).await, 0);
    }
}
