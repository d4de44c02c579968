//! The restart guard: nodes that may have forgotten locks (R2).

use std::time::Duration;

use quorlock::node::{Fault, NodeState, Unfit};
use quorlock::testbed::{Data, Testbed};
use quorlock::{AcquireError, Lease, Redlock};
use tokio::time::sleep;

use crate::common::eventually;
use crate::records::{configure, durable, id, restart};
use crate::{LONG, WINDOW, all_up, grant, on};

/// Repeats a failing attempt until other lists have had their time (M8). Returns each node's fault; `None` without one.
async fn faults(redlock: &Redlock) -> Vec<Option<Fault>> {
    loop {
        let error = redlock.lock("job").try_acquire().await.unwrap_err();
        let votes = error.votes().unwrap().iter();
        let faults: Vec<_> = votes
            .map(|vote| vote.answer.clone().and_then(Result::err))
            .collect();
        let is_unsettled = |fault: &Option<Fault>| matches!(fault, Some(Fault::Unsettled { .. }));
        if !faults.iter().any(is_unsettled) {
            return faults;
        }
        sleep(WINDOW / 10).await;
    }
}

/// Returns whether the node is left out for about the locks' lifetime.
fn is_left_out(fault: Option<&Fault>) -> bool {
    let limits = LONG - WINDOW..=LONG + WINDOW;
    match fault {
        Some(Fault::Restarted { ago, remaining }) => limits.contains(&(*ago + *remaining)),
        // The node's earlier memory may have held a lock.
        Some(Fault::Replaced { remaining }) => *remaining <= LONG + WINDOW,
        _ => false,
    }
}

async fn votes(redlock: &Redlock, number: usize) {
    eventually("the node gives locks", async || {
        let status = redlock.nodes().remove(number);
        matches!(status.state, NodeState::Up { .. }) && status.left_out.is_none()
    })
    .await;
}

/// The first client has nodes 0 and 1. Then node 1 forgets the lock, so nodes 1 and 2 would grant it to a second client.
async fn while_a_node_forgets(guard: bool) -> (Testbed, Lease, Result<Lease, AcquireError>) {
    let testbed = durable(3).await;
    let first = on(&testbed).restart_guard(guard).connect().await.unwrap();
    testbed.nodes()[2].kill().await.unwrap();
    let lease = first.lock("job").acquire().await.unwrap();
    restart(&testbed, 1, Data::Wipe).await;
    restart(&testbed, 2, Data::Keep).await;
    let second = on(&testbed).restart_guard(guard).connect().await.unwrap();
    all_up(&second, &testbed).await;
    votes(&second, 2).await;
    let outcome = second.lock("job").try_acquire().await;
    (testbed, lease, outcome)
}

#[tokio::test]
async fn a_node_that_forgot_helps_nobody_to_a_second_lease() {
    let (_testbed, lease, outcome) = while_a_node_forgets(true).await;
    let error = outcome.unwrap_err();
    let said = error.votes().unwrap().iter().nth(1).unwrap().answer.clone();
    assert!(is_left_out(said.unwrap().err().as_ref()), "{error}");
    assert!(
        error.to_string().contains("counts for none for another"),
        "{error}"
    );
    assert!(lease.is_held());
}

#[tokio::test]
async fn without_the_guard_it_does() {
    let (_testbed, lease, outcome) = while_a_node_forgets(false).await;
    let second = outcome.unwrap();
    assert!(
        lease.is_held() && second.is_held(),
        "expected two holders without the guard"
    );
    assert!(
        second.fencing_token() > lease.fencing_token(),
        "the second lease has no larger token"
    );
}

/// The node confirms renewals at once, and gives new locks once all clients could look at it (M9).
#[tokio::test]
async fn a_node_that_keeps_everything_votes_again_soon() {
    let testbed = durable(1).await;
    let redlock = on(&testbed).connect().await.unwrap();
    let known = id(&testbed.nodes()[0]).await;
    for _ in 0..3 {
        let lease = redlock.lock("held").acquire().await.unwrap();
        restart(&testbed, 0, Data::Keep).await;
        all_up(&redlock, &testbed).await;
        // A busy client's look may be too old for the vote to count.
        eventually("the lease is renewed", async || lease.extend().await.is_ok()).await;
        drop(lease.release().await);
        grant(&redlock.lock("job").within(LONG / 2)).await;
    }
    // New clients trust the node, too.
    let other = on(&testbed).connect().await.unwrap();
    grant(&other.lock("job")).await;
    assert_eq!(id(&testbed.nodes()[0]).await, known);
}

/// The settings promise durability, but the data is gone, as in a container without a volume.
#[tokio::test]
async fn settings_are_not_believed_where_the_data_is_gone() {
    let testbed = durable(1).await;
    let redlock = on(&testbed).connect().await.unwrap();
    grant(&redlock.lock("job")).await;
    restart(&testbed, 0, Data::Wipe).await;
    all_up(&redlock, &testbed).await;
    assert!(is_left_out(faults(&redlock).await[0].as_ref()));
    // Later clients learn of it from the record.
    for _ in 0..2 {
        let other = on(&testbed).connect().await.unwrap();
        assert!(is_left_out(faults(&other).await[0].as_ref()));
    }
    // A restart that keeps the data does not undo the loss.
    restart(&testbed, 0, Data::Keep).await;
    all_up(&redlock, &testbed).await;
    assert!(is_left_out(faults(&redlock).await[0].as_ref()));
}

#[tokio::test]
async fn nodes_that_may_lose_the_last_second_are_left_out_when_they_have_restarted() {
    for (setting, value, said) in [
        ("appendfsync", "everysec", "appendfsync is everysec"),
        ("appendfsync", "no", "appendfsync is no"),
        ("appendonly", "no", "appendonly is off"),
        (
            "no-appendfsync-on-rewrite",
            "yes",
            "no-appendfsync-on-rewrite is yes",
        ),
    ] {
        let testbed = Testbed::builder()
            .nodes(1)
            .arg(setting, value)
            .start()
            .await
            .unwrap();
        let redlock = on(&testbed).connect().await.unwrap();
        let known = id(&testbed.nodes()[0]).await;
        restart(&testbed, 0, Data::Keep).await;
        all_up(&redlock, &testbed).await;
        assert!(
            is_left_out(faults(&redlock).await[0].as_ref()),
            "{setting} {value}"
        );
        assert_ne!(id(&testbed.nodes()[0]).await, known, "{setting} {value}");
        let status = &redlock.nodes()[0];
        let NodeState::Up { warnings } = &status.state else {
            panic!("{status:?}")
        };
        assert!(warnings[0].contains(said), "{warnings:?}");
        assert!(is_left_out(status.left_out.as_ref()), "{status:?}");
        let unguarded = on(&testbed).restart_guard(false).connect().await.unwrap();
        assert_eq!(unguarded.nodes()[0].left_out, None);
        grant(&unguarded.lock("job")).await;
    }
}

/// The guard lasts for the longer of TTL and window, plus a look period, from the beginning of the memory (M2).
#[tokio::test]
async fn a_node_that_forgot_votes_again_when_nothing_can_be_held_any_more() {
    let testbed = durable(1).await;
    for (ttl, window, look_millis) in [(1, 3, 500), (3, 1, 500)] {
        let builder = Redlock::builder()
            .urls(testbed.urls())
            .ttl(Duration::from_secs(ttl))
            .guard_window(Duration::from_secs(window));
        let redlock = builder.connect().await.unwrap();
        restart(&testbed, 0, Data::Wipe).await;
        all_up(&redlock, &testbed).await;
        let fault = faults(&redlock).await.remove(0);
        let Some(Fault::Restarted { ago, remaining }) = fault else {
            panic!("{fault:?}")
        };
        assert_eq!(ago + remaining, Duration::from_millis(3_000 + look_millis));
        grant(&redlock.lock("job").within(LONG)).await;
    }
}

/// A replica lacks what its master had not passed on. Later clients learn of it from the record. Without a master (no server uses
/// port 1), a replica may refuse to say that it is one.
#[tokio::test]
async fn a_node_that_was_a_replica_is_left_out() {
    for stale in ["yes", "no"] {
        let testbed = durable(2).await;
        let redlock = on(&testbed).connect().await.unwrap();
        let (node, other) = (&testbed.nodes()[0], &testbed.nodes()[1]);
        let known = id(node).await;
        let port = match stale {
            "yes" => other.addr().port().to_string(),
            _ => "1".to_owned(),
        };
        for command in [
            ["CONFIG", "SET", "replica-serve-stale-data", stale].as_slice(),
            &["REPLICAOF", "127.0.0.1", &port],
        ] {
            assert!(!node.command(command).await.unwrap().is_error());
        }
        // The refused write makes the client probe the node.
        eventually("the client knows that the node is a replica", async || {
            drop(redlock.lock("job").try_acquire().await);
            matches!(
                redlock.nodes()[0].state,
                NodeState::Down(Fault::Unfit(Unfit::Replica) | Fault::MasterDown)
            )
        })
        .await;
        node.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        all_up(&redlock, &testbed).await;
        assert!(![known, id(other).await].contains(&id(node).await));
        let later = on(&testbed).connect().await.unwrap();
        all_up(&later, &testbed).await;
        for redlock in [&redlock, &later] {
            let faults = faults(redlock).await;
            assert!(is_left_out(faults[0].as_ref()), "{faults:?}");
            assert!(!is_left_out(faults[1].as_ref()), "{faults:?}");
        }
    }
}

/// Otherwise, the record would be trusted after a restart with better settings.
#[tokio::test]
async fn a_server_that_is_seen_to_forget_is_not_trusted_for_what_it_was_before() {
    let testbed = durable(1).await;
    let redlock = on(&testbed).connect().await.unwrap();
    grant(&redlock.lock("job")).await;
    configure(&testbed, "appendfsync", "everysec").await;
    let _sees = on(&testbed).connect().await.unwrap();
    configure(&testbed, "appendfsync", "always").await;
    restart(&testbed, 0, Data::Keep).await;
    let other = on(&testbed).connect().await.unwrap();
    assert!(is_left_out(faults(&other).await[0].as_ref()));
}

/// The restarted server reads a file that lacks the latest data. A running client finds its registration missing (M9).
#[tokio::test]
async fn a_server_that_was_told_to_write_nothing_for_a_while_is_left_out() {
    let testbed = durable(1).await;
    let node = &testbed.nodes()[0];
    let redlock = on(&testbed).connect().await.unwrap();
    let known = id(node).await;
    configure(&testbed, "appendonly", "no").await;
    let told = async || {
        let text = "return redis.call('GET', redis.call('KEYS', '*#client')[1])";
        let told = node.command(&["EVAL", text, "0"]).await.unwrap();
        told.as_str().unwrap().to_owned()
    };
    let before = told().await;
    let lease = redlock.lock("job").acquire().await.unwrap();
    eventually("the client has registered itself on the node again", async || {
        told().await != before
    })
    .await;
    restart(&testbed, 0, Data::Keep).await;
    let other = on(&testbed).connect().await.unwrap();
    eventually("the node has a new memory", async || {
        let attempt = other.lock("job").try_acquire().await;
        assert!(attempt.is_err() || !lease.is_held(), "two holders at once");
        id(node).await != known
    })
    .await;
    eventually("the node is left out", async || {
        is_left_out(faults(&other).await[0].as_ref())
    })
    .await;
}
