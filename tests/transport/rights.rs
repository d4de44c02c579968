//! Servers that are no longer what they were, and users who may not do everything.

use quorlock::node::{Fault, NodeState, Unfit};
use quorlock::{AcquireError, Redlock, ReleaseOutcome};

use crate::common::unguarded;
use crate::{connect, eventually, only_fault, testbed};

/// R1: a server that has become a replica follows its master, and so has no vote of its own.
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
    eventually("it is probed again", async || redlock.nodes()[1].state == replica).await;
}

/// T2: requests that share a call do not share their faults.
#[tokio::test]
async fn a_forbidden_key_does_not_spoil_the_locks_of_others() {
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
    let redlock = unguarded([format!("redis://app:pw@{}", node.addr())]).await;
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

/// The README names the rights that a lock needs.
#[tokio::test]
async fn the_rights_in_the_readme_are_enough() {
    let readme = include_str!("../../README.md");
    let line = readme
        .lines()
        .find_map(|line| line.trim().strip_prefix("~quorlock:* "));
    let rights = line.unwrap();
    let testbed = testbed(1, false).await;
    let node = &testbed.nodes()[0];
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pw", "~quorlock:*", "-@all"];
    command.extend(rights.split(' '));
    assert_eq!(
        node.command(&command).await.unwrap().as_str(),
        Some("OK"),
        "{command:?}"
    );
    let redlock = Redlock::connect([format!("redis://app:pw@{}", node.addr())])
        .await
        .unwrap();
    for fencing in [true, false] {
        let lease = redlock.lock("x").fencing(fencing).acquire().await.unwrap();
        let error = redlock
            .lock("x")
            .fencing(fencing)
            .try_acquire()
            .await
            .unwrap_err();
        assert!(matches!(error, AcquireError::Held { .. }), "{error}");
        lease.extend().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    }
    assert_eq!(
        node.command(&["SCRIPT", "FLUSH"]).await.unwrap().as_str(),
        Some("OK")
    );
    let lease = redlock.lock("x").acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}
