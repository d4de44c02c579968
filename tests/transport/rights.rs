//! Nodes that become replicas, and users with restricted rights.

use quorlock::node::{Fault, NodeState, Unfit};
use quorlock::testbed::Value;
use quorlock::{AcquireError, Redlock, ReleaseOutcome};

use crate::common::unguarded;
use crate::{connect, eventually, only_fault, testbed};

/// A replica follows its master, and so has no vote (R1).
#[tokio::test]
async fn a_node_that_becomes_a_replica_confirms_nothing_and_is_found_out() {
    let testbed = testbed(2, false).await;
    let redlock = connect(&testbed).await;
    let lease = redlock.lock("replica").watchdog(false).acquire().await.unwrap();
    let master = testbed.nodes()[0].direct_addr();
    let (host, port) = (master.ip().to_string(), master.port().to_string());
    let reply = testbed.nodes()[1]
        .command(&["REPLICAOF", &host, &port])
        .await
        .unwrap();
    assert!(!reply.is_error());
    for _ in 0..200 {
        lease.extend().await.unwrap_err();
    }
    let replica = NodeState::Down(Fault::Unfit(Unfit::Replica));
    eventually("the node is probed", async || redlock.nodes()[1].state == replica).await;
}

/// Requests in one call do not share their faults (T2).
#[tokio::test]
async fn a_forbidden_key_does_not_affect_other_locks() {
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
        "+@all",
    ];
    assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
    let builder = unguarded([format!("redis://app:pw@{}", node.addr())]);
    let redlock = builder.connect().await.unwrap();
    for _ in 0..5 {
        let mut attempts = tokio::task::JoinSet::new();
        for number in 0..64 {
            let forbidden = number % 16 == 7;
            let name = if forbidden {
                "forbidden".to_owned()
            } else {
                format!("may{number}")
            };
            let lock = redlock.lock(name);
            attempts.spawn(async move { (forbidden, lock.try_acquire().await) });
        }
        while let Some(outcome) = attempts.join_next().await {
            match outcome.unwrap() {
                (false, lease) => assert_eq!(lease.unwrap().release().await, ReleaseOutcome::Released),
                (true, outcome) => {
                    let fault = only_fault(&outcome.unwrap_err());
                    assert!(matches!(fault, Fault::NoPermission { .. }), "{fault}");
                }
            }
        }
    }
}

/// The README's line of rights is enough for locks.
#[tokio::test]
async fn the_rights_in_the_readme_are_enough() {
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let readme = include_str!("../../README.md");
    let rights = readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("resetchannels "))
        .unwrap();
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pw"];
    command.extend(rights.split(' '));
    let answer = node.command(&command).await.unwrap();
    assert_eq!(answer.as_str(), Some("OK"), "{command:?}");
    let url = format!("redis://app:pw@{}", node.addr());
    let redlock = Redlock::connect([&url]).await.unwrap();
    let warnings = match redlock.nodes()[0].state.clone() {
        NodeState::Up { warnings } => warnings,
        down => panic!("{down:?}"),
    };
    assert!(warnings.is_empty(), "{warnings:?}");
    for fencing in [true, false] {
        let lock = redlock.lock("x").fencing(fencing);
        let lease = lock.clone().acquire().await.unwrap();
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        lease.extend().await.unwrap();

        // A waiter elsewhere is notified.
        let elsewhere = Redlock::connect([&url]).await.unwrap();
        let waiting = tokio::spawn(async move { elsewhere.lock("x").acquire().await });
        eventually("the waiter has subscribed", async || {
            let listeners = ["PUBSUB", "NUMSUB", "quorlock:x#free"];
            let Value::Array(Some(answer)) = node.command(&listeners).await.unwrap() else {
                unreachable!()
            };
            answer[1].as_int() == Some(1)
        })
        .await;
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        let lease = waiting.await.unwrap().unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
    assert_eq!(
        node.command(&["SCRIPT", "FLUSH"]).await.unwrap().as_str(),
        Some("OK")
    );
    let lease = redlock.lock("x").acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}
