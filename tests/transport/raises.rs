//! The script's handling of counters (F1, F3, F4, E4).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock::node::{Fault, Reply};
use quorlock::testbed::{TestNode, Testbed, Value};
use quorlock::{NodeVote, ReleaseOutcome};

const SCRIPT: &str = include_str!("../../src/redis/lock.lua");
const OURS: &str = "11111111-1111-4111-8111-111111111111";
/// The beginning of the node's record.
const MEMORY: &str = "1 11111111111111111111111111111111";

/// Runs the script for one request about the lock "k". The client takes the node for `memory`.
async fn run(node: &TestNode, item: &str, memory: &str) -> Value {
    let text = format!("local replies = (function() {SCRIPT}\nend)() return replies[1]");
    let command = ["EVAL", &text, "2", "k", "record", item, memory];
    node.command(&command).await.unwrap()
}

/// A request that is late, early, or meant for another memory sets no key and prolongs none (M1, A9). Only an early extension
/// prolongs the key, without counting (M2).
#[tokio::test]
async fn requests_out_of_time_and_to_another_memory_do_nothing() {
    let testbed = Testbed::builder().nodes(1).start().await.unwrap();
    let node = &testbed.nodes()[0];
    let (past, future, other) = (0, 9_999_999_999_999_999_u64, MEMORY.replace("11", "22"));
    // After the times: the counter's settings, the token (`m` only), the TTL.
    let sets = [
        ("s", String::new()),
        ("a", format!("{:016}{:016}{:016}", 2, 2, 0)),
        ("m", format!("{:016}{:016}{:016}{:016}", 2, 2, 0, 9)),
    ];
    for (operation, counter) in sets {
        for (last, first, memory, answer) in [
            (past, past, MEMORY, -1),
            (future, future, MEMORY, -5),
            (future, past, &*other, -4),
        ] {
            node.command(&["FLUSHALL"]).await.unwrap();
            node.command(&["SET", "record", MEMORY]).await.unwrap();
            let item = format!("{operation}{OURS}{last:016}{first:016}{counter}60000");
            let said = run(node, &item, memory).await;
            assert_eq!(said.as_int(), Some(answer), "{operation}: {said:?}");
            assert_eq!(
                node.command(&["DBSIZE"]).await.unwrap().as_int(),
                Some(1),
                "{operation}"
            );
        }
    }
    for (last, first, memory, answer, lives_on) in [
        (past, past, MEMORY, -1, false),
        (future, future, MEMORY, -5, true),
        (future, past, &*other, -4, false),
        (future, past, MEMORY, 0, true),
    ] {
        node.command(&["SET", "k", OURS, "PX", "60000"]).await.unwrap();
        let said = run(node, &format!("e{OURS}{last:016}{first:016}600000"), memory).await;
        assert_eq!(said.as_int(), Some(answer), "{said:?}");
        let left = node.command(&["PTTL", "k"]).await.unwrap().as_int().unwrap();
        assert_eq!(left > 60_000, lives_on, "{answer}: {left} ms");
    }
    // A deletion is never refused.
    let said = run(node, &format!("r{OURS}{:016}", 0), &other).await;
    assert_eq!(said.as_int(), Some(0));
    assert_eq!(node.command(&["EXISTS", "k"]).await.unwrap().as_int(), Some(0));
}

/// The client learns that no key was set (F1).
#[tokio::test]
async fn a_grant_that_cannot_be_counted_leaves_no_key() {
    let testbed = crate::testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let redlock = crate::connect(&testbed).await;
    node.command(&["RPUSH", "quorlock:job#fence", "data"])
        .await
        .unwrap();
    let error = redlock.lock("job").try_acquire().await.unwrap_err();
    assert!(matches!(crate::only_fault(&error), Fault::WrongType), "{error}");
    redlock.shutdown().await;
    assert_eq!(crate::keys(node).await, 0);
}

/// The token may be ahead of the node's clock. The next one must be larger all the same (E4).
#[tokio::test]
async fn a_heal_starts_a_missing_counter_at_the_token_at_least() {
    let testbed = crate::testbed(3, false).await;
    let redlock = crate::connect(&testbed).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let tomorrow = (now + Duration::from_secs(86_400)).as_micros().to_string();
    for node in testbed.nodes() {
        node.command(&["SET", "quorlock:job#fence", &tomorrow])
            .await
            .unwrap();
    }
    let lease = redlock.lock("job").watchdog(false).acquire().await.unwrap();
    let token = lease.fencing_token().unwrap().get();
    let node = &testbed.nodes()[2];
    crate::eventually("the node has the key", async || crate::keys(node).await == 1).await;
    node.command(&["DEL", "quorlock:job", "quorlock:job#fence"])
        .await
        .unwrap();
    lease.extend().await.unwrap();
    crate::eventually("the key is set again", async || crate::keys(node).await == 1).await;
    let counter = node.command(&["GET", "quorlock:job#fence"]).await.unwrap();
    let counter: u64 = counter.as_str().unwrap().parse().unwrap();
    assert!(counter >= token, "{counter} below {token}");
}

/// Nodes that forget the script at any moment are sent its text (F3).
#[tokio::test]
async fn a_second_round_survives_scripts_being_flushed() {
    let testbed = Testbed::builder()
        .nodes(3)
        .arg("appendfsync", "no")
        .start()
        .await
        .unwrap();
    for node in testbed.nodes() {
        crate::eventually("the node has been up for 4 s", async || {
            let info = node.command(&["INFO", "server"]).await.unwrap();
            let mut lines = info.as_str().unwrap().lines();
            let uptime = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"));
            uptime.unwrap().parse::<u64>().unwrap() >= 4
        })
        .await;
    }
    let redlock = crate::connect(&testbed).await;
    let (mut latest, mut raised) = (None, 0);
    for round in 0..200 {
        let lease = redlock.lock("job").acquire().await.unwrap();
        assert!(latest < lease.fencing_token(), "{latest:?}, then {lease:?}");
        latest = lease.fencing_token();
        let is_raised = |vote: &NodeVote| matches!(vote.answer, Some(Ok(Reply::Raised { .. })));
        raised += lease.votes().iter().filter(|vote| is_raised(vote)).count();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        // One counter is ahead now, and no node knows the script.
        let ahead = &testbed.nodes()[round % 3];
        ahead
            .command(&["INCRBY", "quorlock:job#fence", "5"])
            .await
            .unwrap();
        for node in testbed.nodes() {
            node.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        }
    }
    assert!(raised > 50, "{raised} raises are too few to show anything");
    redlock.shutdown().await;
    for node in testbed.nodes() {
        assert_eq!(crate::keys(node).await, 0);
    }
}
