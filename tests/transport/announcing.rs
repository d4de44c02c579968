//! Announcements of releases, over connections of their own (W2, T5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{Redlock, ReleaseOutcome};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{MOMENT, unguarded};
use crate::{PATIENCE, calls, connect, eventually, testbed};

const CHANNEL: &str = "quorlock:job#free";

async fn listeners(node: &TestNode) -> i64 {
    let reply = node.command(&["PUBSUB", "NUMSUB", CHANNEL]).await.unwrap();
    reply.as_array().unwrap()[1].as_int().unwrap()
}

async fn all_listen(testbed: &Testbed, listeners_each: i64) {
    for node in testbed.nodes() {
        eventually("the expected number of clients has subscribed", async || {
            listeners(node).await == listeners_each
        })
        .await;
    }
}

/// Returns how often the nodes have run the lock script. Clients look at their nodes by `EVAL`, which is not counted.
async fn asked(testbed: &Testbed) -> u64 {
    let mut asked = 0;
    for node in testbed.nodes() {
        asked += calls(node, "evalsha").await;
    }
    asked
}

/// Returns how many connections only subscribe.
async fn ears(node: &TestNode) -> usize {
    let list = node.command(&["CLIENT", "LIST", "TYPE", "PUBSUB"]).await.unwrap();
    list.as_str()
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty())
        .count()
}

/// A process whose releases are heard (here by an operator) subscribes for a while, to learn of waiters.
#[tokio::test]
async fn a_process_that_is_heard_listens_for_a_while() {
    let testbed = testbed(3, false).await;
    let mut watching = Vec::new();
    for node in testbed.nodes() {
        let mut client = TcpStream::connect(node.addr()).await.unwrap();
        client.write_all(b"PSUBSCRIBE *\r\n").await.unwrap();
        watching.push(client);
        eventually("the operator has subscribed", async || {
            node.command(&["PUBSUB", "NUMPAT"]).await.unwrap().as_int() == Some(1)
        })
        .await;
    }
    let holder = connect(&testbed).await;
    // A lease that is renewed subscribes, too.
    let lease = holder.lock("job").watchdog(false).acquire().await.unwrap();
    all_listen(&testbed, 0).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    for node in testbed.nodes() {
        eventually("holder subscribed", async || calls(node, "subscribe").await == 1).await;
    }
    all_listen(&testbed, 0).await;
}

#[tokio::test]
async fn a_waiter_of_another_process_asks_only_when_notified() {
    let testbed = testbed(3, false).await;
    let (holder, waiter) = (connect(&testbed).await, connect(&testbed).await);
    let lease = holder.lock("job").watchdog(false).acquire().await.unwrap();
    assert_eq!(
        ears(&testbed.nodes()[0]).await,
        0,
        "a process subscribes although none waits"
    );
    let waiting = tokio::spawn(waiter.lock("job").forever().acquire());
    all_listen(&testbed, 1).await;
    // The waiter asks once more when it has subscribed (W2).
    eventually("the waiter stops asking", async || {
        let before = asked(&testbed).await;
        sleep(5 * MOMENT).await;
        asked(&testbed).await == before
    })
    .await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let lease = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    // Without waiters, the subscriptions end, and their connections a while later.
    all_listen(&testbed, 0).await;
    for node in testbed.nodes() {
        eventually("the connection is closed", async || ears(node).await == 0).await;
    }
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_hung_node_and_a_dead_one_do_not_stop_notifications() {
    let testbed = testbed(5, false).await;
    let (holder, waiter) = (connect(&testbed).await, connect(&testbed).await);
    testbed.nodes()[0].stop().unwrap();
    testbed.nodes()[1].kill().await.unwrap();
    for _ in 0..10 {
        let lease = holder.lock("job").forever().acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("job").forever().acquire());
        for node in &testbed.nodes()[2..] {
            eventually("the waiter has subscribed", async || listeners(node).await >= 1).await;
        }
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        let lease = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}

/// Lets each manager take the lock this many times. Panics if two hold it at once.
async fn contend(managers: Vec<Redlock>, times: usize) {
    let held = Arc::new(AtomicBool::new(false));
    let mut lives = JoinSet::new();
    for manager in managers {
        let held = held.clone();
        lives.spawn(async move {
            for _ in 0..times {
                let lease = manager.lock("job").forever().acquire().await.unwrap();
                assert!(!held.swap(true, SeqCst), "two holders at once");
                tokio::task::yield_now().await;
                held.store(false, SeqCst);
                assert_eq!(lease.release().await, ReleaseOutcome::Released);
            }
        });
    }
    let all = async {
        while let Some(life) = lives.join_next().await {
            life.unwrap()
        }
    };
    timeout(4 * PATIENCE, all).await.unwrap();
}

/// Frozen processes have announced that they wait. Each costs one slot only, because a release takes it off every list.
#[tokio::test]
async fn stopped_processes_cost_hardly_anything() {
    let testbed = testbed(3, false).await;
    let holder = connect(&testbed).await;
    // A lease that is renewed subscribes, too.
    let lease = holder.lock("job").watchdog(false).acquire().await.unwrap();
    let mut frozen = Vec::new();
    for _ in 0..20 {
        frozen.push(Box::pin(connect(&testbed).await.lock("job").forever().acquire()));
    }
    let begin = frozen.iter_mut().map(|waiting| timeout(10 * MOMENT, waiting));
    assert!(join_all(begin).await.iter().all(Result::is_err));
    all_listen(&testbed, 20).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let live = vec![holder, connect(&testbed).await, connect(&testbed).await];
    let began = Instant::now();
    contend(live, 50).await;
    println!("150 grants beside 20 frozen waiters: {:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE);
}

/// Cut connections are opened again, and waiters ask about missed releases.
#[tokio::test]
async fn connections_for_announcements_may_be_cut_at_any_time() {
    let testbed = testbed(3, false).await;
    let mut managers = Vec::new();
    for _ in 0..4 {
        managers.push(connect(&testbed).await);
    }
    let cut = async {
        loop {
            for node in testbed.nodes() {
                node.command(&["CLIENT", "KILL", "TYPE", "PUBSUB"]).await.unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    // How many connections are cut during one grant depends on the machine.
    let granted = async {
        contend(managers.clone(), 50).await;
        while calls(&testbed.nodes()[0], "subscribe").await <= 10 {
            contend(managers.clone(), 5).await;
        }
    };
    tokio::select! {
        () = async { timeout(PATIENCE, granted).await.unwrap() } => {}
        () = cut => {}
    }
}

/// A refused subscription must not be taken for another command's reply. Locks pass at the back-off rate.
#[tokio::test]
async fn users_without_the_right_to_listen_or_to_announce_have_locks_all_the_same() {
    for missing in ["-subscribe", "-publish", "resetchannels", "-pubsub"] {
        let testbed = testbed(3, false).await;
        let mut urls = Vec::new();
        for node in testbed.nodes() {
            let rights = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", missing];
            assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
            urls.push(format!("redis://app:pw@{}", node.addr()));
        }
        let mut managers = Vec::new();
        for _ in 0..2 {
            managers.push(unguarded(&urls).connect().await.unwrap());
        }
        let warned = managers[0].nodes().iter().any(
            |node| matches!(&node.state, quorlock::node::NodeState::Up { warnings } if warnings.iter().any(|warning| warning.contains("+publish"))),
        );
        assert_eq!(
            warned,
            ["-publish", "resetchannels"].contains(&missing),
            "{missing}"
        );
        if missing == "-publish" {
            // A waiter elsewhere would find the lock only with its next poll, after up to 16 s.
            let lease = managers[0].lock("job").acquire().await.unwrap();
            assert_eq!(lease.release().await, ReleaseOutcome::Released);
        } else {
            contend(managers, 5).await;
        }
        for node in testbed.nodes() {
            assert!(calls(node, "subscribe").await < 20, "{missing}");
        }
    }
}

/// Any client may publish in the channel.
#[tokio::test]
async fn other_messages_in_the_channel_are_ignored() {
    let testbed = testbed(3, false).await;
    let (holder, waiter) = (connect(&testbed).await, connect(&testbed).await);
    // No watchdog: its renewals would be counted.
    let lease = holder.lock("job").watchdog(false).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("job").forever().acquire());
    all_listen(&testbed, 1).await;
    sleep(3 * MOMENT).await;
    let before = asked(&testbed).await;
    let token = "6b0f3c5e-6a0e-4f0b-9d55-2f0c1d5f2a11";
    let long = "x".repeat(100_000);
    for said in [
        "",
        "f",
        "hello",
        token,
        &format!("x{token}"),
        &format!("f{token}0"),
        &long,
        "ü",
        "\u{0}",
    ] {
        for node in testbed.nodes() {
            node.command(&["PUBLISH", CHANNEL, said]).await.unwrap();
        }
    }
    sleep(3 * MOMENT).await;
    assert_eq!(asked(&testbed).await, before);
    // A forged announcement makes the waiter ask once. The failed attempt may send deletions.
    for node in testbed.nodes() {
        node.command(&["PUBLISH", CHANNEL, &format!("f{token}")])
            .await
            .unwrap();
    }
    eventually("the waiter asks", async || asked(&testbed).await >= before + 3).await;
    sleep(3 * MOMENT).await;
    // The waiter also announces itself again: a release that names no process is a roll call.
    assert!(asked(&testbed).await <= before + 3 * 3);
    assert!(lease.is_held());
    assert!(!waiting.is_finished());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    let _ = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
}

/// More announcements than the buffer holds, and each one is valid.
#[tokio::test]
async fn a_flood_of_announcements_wakes_and_confuses_but_nothing_is_missed() {
    let flood = "for i = 1, 20000 do redis.call('PUBLISH', KEYS[1], ('f6b0f3c5e-6a0e-4f0b-9d55-%012x'):format(i)) end";
    let testbed = testbed(3, false).await;
    let (holder, waiter) = (connect(&testbed).await, connect(&testbed).await);
    for flooded in [1, 3] {
        // A lease that is renewed subscribes, too.
        let lease = holder.lock("job").watchdog(false).acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("job").forever().acquire());
        all_listen(&testbed, 1).await;
        let before = asked(&testbed).await;
        for node in &testbed.nodes()[..flooded] {
            let done = node.command(&["EVAL", flood, "1", CHANNEL]).await.unwrap();
            assert!(!done.is_error(), "{done:?}");
        }
        assert!(lease.is_held() && !waiting.is_finished());
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        let lease = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
        let asked = asked(&testbed).await - before;
        println!("{flooded} of 3 nodes flooded: {asked} requests");
        // Far fewer than announcements: the waiter makes one attempt at a time.
        assert!(asked < 2_000, "{asked}");
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
}
