//! What the script does with counters, and with keys that it cannot count (F1, F3, F4, E4).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock::node::{Fault, Reply};
use quorlock::testbed::Testbed;
use quorlock::{NodeVote, ReleaseOutcome};

/// F1: the client is told that nothing was set, and does not clean up.
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

/// E4: the lease's token may be ahead of the node's clock, and the next token must be larger.
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
    crate::eventually("it is set everywhere", async || crate::keys(node).await == 1).await;
    node.command(&["DEL", "quorlock:job", "quorlock:job#fence"])
        .await
        .unwrap();
    lease.extend().await.unwrap();
    crate::eventually("it is set again", async || crate::keys(node).await == 1).await;
    let counter = node.command(&["GET", "quorlock:job#fence"]).await.unwrap();
    let counter: u64 = counter.as_str().unwrap().parse().unwrap();
    assert!(counter >= token, "{counter} below {token}");
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
        crate::eventually("the node has been up for a while", async || {
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
        assert_eq!(crate::keys(node).await, 0);
    }
}
