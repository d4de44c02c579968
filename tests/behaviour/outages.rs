//! Nodes that die and come back.

use std::time::{Duration, Instant};

use quorlock::node::{Fault, NodeState};
use quorlock::testbed::{Data, Testbed};
use quorlock::{AcquireError, ConnectError, ExtendError, LossReason, Redlock, ReleaseOutcome, Votes};

use crate::common::{ask, eventually, keys};
use crate::world::{Behaviour, Case, World, behaviours, cases};

pub(crate) fn behaviours() -> Vec<Behaviour> {
    behaviours![true;
        without_a_quorum_it_says_so_at_once_and_names_each_node,
        without_a_quorum_waiting_ends_and_names_each_node,
        a_quorum_that_returns_is_used_again,
        a_lease_whose_nodes_die_is_lost_at_its_deadline_with_the_reason,
        a_lease_whose_nodes_fall_silent_is_lost_at_its_deadline,
        a_minority_that_hangs_holds_up_no_short_lease,
        without_a_quorum_a_release_is_uncertain,
        without_a_quorum_connecting_fails_in_time_and_names_each_node,
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        nodes_that_are_down_at_first_join_by_themselves,
        a_node_that_was_killed_rejoins_when_it_is_back,
        killed_nodes_forget_nothing_that_was_acknowledged,
    ]
}

/// Kills as many nodes as it takes to leave no quorum. Returns their addresses.
async fn kill_the_quorum(world: &World) -> Vec<String> {
    let mut killed = Vec::new();
    for node in &world.servers()[world.quorum() - 1..world.live().len()] {
        node.kill().await.unwrap();
        killed.push(node.addr().to_string());
    }
    killed
}

fn assert_named(votes: &Votes, killed: &[String], text: &str) {
    assert!(votes.faults() > votes.iter().count() - votes.quorum(), "{text}");
    for addr in killed {
        let vote = votes.iter().find(|vote| *vote.node == **addr).unwrap();
        match &vote.answer {
            // The verdict fell before this node's failure was known.
            None => {}
            Some(Err(Fault::Disconnected { .. } | Fault::ConnectionLost { .. })) => {
                assert!(text.contains(addr), "{text}");
            }
            other => panic!("{addr}: {other:?}"),
        }
    }
}

async fn without_a_quorum_it_says_so_at_once_and_names_each_node(world: &World) {
    let redlock = world.redlock().await;
    let killed = kill_the_quorum(world).await;
    for _ in 0..2 {
        // An attempt that waited for a dead node would outlast the test.
        let request = redlock
            .lock(world.resource("job"))
            .ttl(Duration::from_secs(3_600))
            .node_budget(Duration::from_secs(600));
        let error = request.try_acquire().await.unwrap_err();
        let text = error.to_string();
        match &error {
            AcquireError::NoQuorum {
                votes, attempts: 1, ..
            } => assert_named(votes, &killed, &text),
            other => panic!("{other:?}"),
        }
        assert!(!text.contains("held"), "{text}");
    }
}

async fn without_a_quorum_waiting_ends_and_names_each_node(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    let holder = world
        .redlock()
        .await
        .lock(resource.as_str())
        .acquire()
        .await
        .unwrap();
    let limit = Duration::from_secs(2);
    let waiting = redlock.lock(resource.as_str()).within(limit).acquire();
    let (outcome, killed) = tokio::join!(waiting, kill_the_quorum(world));
    let error = outcome.unwrap_err();
    match &error {
        AcquireError::NoQuorum { votes, waited, .. } => {
            assert_named(votes, &killed, &error.to_string());
            assert!(*waited >= limit);
        }
        other => panic!("{other:?}"),
    }
    drop(holder);
}

async fn a_quorum_that_returns_is_used_again(world: &World) {
    let redlock = world.redlock().await;
    kill_the_quorum(world).await;
    let request = redlock.lock(world.resource("job"));
    let error = request.clone().try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
    let waiting = request.within(Duration::from_secs(60)).acquire();
    let returning = async {
        for node in &world.servers()[..world.live().len()] {
            if node.pid().is_none() {
                node.restart(Data::Keep).await.unwrap();
            }
        }
    };
    let (lease, ()) = tokio::join!(waiting, returning);
    assert_eq!(lease.unwrap().release().await, ReleaseOutcome::Released);
}

async fn a_lease_whose_nodes_die_is_lost_at_its_deadline_with_the_reason(world: &World) {
    let redlock = world.redlock().await;
    let ttl = Duration::from_secs(8);
    let request = redlock.lock(world.resource("job")).ttl(ttl).node_budget(ttl / 2);
    let lease = request.acquire().await.unwrap();
    let killed = kill_the_quorum(world).await;
    match lease.extend().await {
        Err(ExtendError::NoQuorum { votes }) => {
            assert!(votes.faults() >= killed.len());
            assert!(lease.is_held() || Instant::now() >= lease.deadline());
        }
        other => panic!("{other:?}"),
    }
    let lost = lease.lost().await;
    assert!(Instant::now() >= lease.deadline());
    let LossReason::Expired {
        last_failure: Some(votes),
    } = &lost.reason
    else {
        panic!("{lost:?}")
    };
    assert_named(votes, &killed, &lost.to_string());
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
}

/// As in a partition: no node answers, and `lost` needs no answer.
async fn a_lease_whose_nodes_fall_silent_is_lost_at_its_deadline(world: &World) {
    let redlock = world.redlock().await;
    let resource = world.resource("job");
    let ttl = Duration::from_secs(4);
    let request = redlock.lock(resource.as_str()).ttl(ttl).node_budget(ttl / 4);
    let lease = request.forever().acquire().await.unwrap();
    let acquired_until = lease.deadline();
    eventually("it is renewed", async || lease.deadline() > acquired_until).await;
    let nodes = &world.servers()[..world.live().len()];
    nodes.iter().for_each(|node| node.stop().unwrap());
    let lead = ttl / 2;
    let winding_up = async {
        lease.expiring(lead).await;
        lease.is_held() && lease.remaining() <= lead
    };
    let (winds_up, lost) = tokio::join!(winding_up, lease.lost());
    assert!(winds_up, "held still, with the lead left to wind up in");
    assert!(Instant::now() >= lease.deadline());
    let LossReason::Expired {
        last_failure: Some(_),
    } = &lost.reason
    else {
        panic!("{lost:?}")
    };
    assert!(!lease.is_held());
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lease.release().await, ReleaseOutcome::AlreadyGone);
    nodes.iter().for_each(|node| node.resume().unwrap());
    redlock.shutdown().await;
    assert_eq!(world.copies(&resource).await, 0);
}

/// The TTL is hardly longer than what it takes to find out that a node hangs.
async fn a_minority_that_hangs_holds_up_no_short_lease(world: &World) {
    let redlock = world.redlock().await;
    let hanging = &world.servers()[world.quorum()..world.live().len()];
    hanging.iter().for_each(|node| node.stop().unwrap());
    let mut released = 0;
    for _ in 0..200 {
        let request = redlock.lock(world.resource("job")).ttl(Duration::from_secs(1));
        let lease = request.forever().acquire().await.unwrap();
        released += usize::from(lease.release().await == ReleaseOutcome::Released);
    }
    assert!(released > 100, "only {released} of 200 were released in time");
    hanging.iter().for_each(|node| node.resume().unwrap());
    redlock.shutdown().await;
    for node in &world.servers()[..world.live().len()] {
        assert_eq!(keys(node).await, 0);
    }
}

async fn without_a_quorum_a_release_is_uncertain(world: &World) {
    let redlock = world.redlock().await;
    let request = redlock.lock(world.resource("job")).ttl(Duration::from_secs(20));
    let lease = request
        .node_budget(Duration::from_secs(15))
        .acquire()
        .await
        .unwrap();
    let killed = kill_the_quorum(world).await;
    match lease.release().await {
        ReleaseOutcome::Uncertain(votes) => assert_named(&votes, &killed, &votes.to_string()),
        other => panic!("{other:?}"),
    }
    // Nodes that return within the TTL receive the deletion.
    for node in &world.servers()[..world.live().len()] {
        if node.pid().is_none() {
            node.restart(Data::Keep).await.unwrap();
        }
    }
    redlock.shutdown().await;
    for node in &world.servers()[..world.live().len()] {
        assert_eq!(keys(node).await, 0);
    }
}

async fn without_a_quorum_connecting_fails_in_time_and_names_each_node(world: &World) {
    let killed = kill_the_quorum(world).await;
    let timeout = Duration::from_millis(300);
    let error = world
        .builder()
        .connect_timeout(timeout)
        .connect()
        .await
        .unwrap_err();
    let text = error.to_string();
    match &error {
        ConnectError::NoQuorum { waited, votes } => {
            assert!(*waited >= timeout);
            assert_named(votes, &killed, &text);
        }
        other => panic!("{other:?}"),
    }
    for addr in &killed {
        assert!(text.contains(addr), "{text}");
    }
}

async fn all_up(redlock: &Redlock) {
    eventually("every node is up", || async {
        redlock
            .nodes()
            .iter()
            .all(|node| matches!(node.state, NodeState::Up { .. }))
    })
    .await;
}

/// Waits until a lock is on all nodes. A slow node may need longer than 20 ms, so this may take several locks.
async fn all_take_part(redlock: &Redlock, testbed: &Testbed) {
    eventually("every node has the key", || async {
        let lease = redlock.lock("everybody").acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut found = 0;
        for url in testbed.urls() {
            found += ask::<i64>(&url, &[b"EXISTS", b"quorlock:everybody"])
                .await
                .unwrap();
        }
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        found == 5
    })
    .await;
}

async fn nodes_that_are_down_at_first_join_by_themselves() {
    let testbed = Testbed::start(5).await.unwrap();
    for node in &testbed.nodes()[3..] {
        node.kill().await.unwrap();
    }
    // No client was registered on these nodes, so they vote only after the guard (M9).
    let short = Duration::from_secs(1);
    let builder = Redlock::builder().urls(testbed.urls()).guard_window(short);
    let redlock = builder.ttl(short).connect().await.unwrap();
    let down = |state: &NodeState| matches!(state, NodeState::Down(Fault::Disconnected { .. }));
    assert_eq!(
        redlock.nodes().iter().filter(|node| down(&node.state)).count(),
        2,
        "{:?}",
        redlock.nodes()
    );
    for node in &testbed.nodes()[3..] {
        node.restart(Data::Keep).await.unwrap();
    }
    all_up(&redlock).await;
    all_take_part(&redlock, &testbed).await;
    testbed.shutdown().await;
}

async fn a_node_that_was_killed_rejoins_when_it_is_back() {
    let testbed = Testbed::start(5).await.unwrap();
    let redlock = Redlock::connect(testbed.urls()).await.unwrap();
    for round in 0..2 {
        let node = &testbed.nodes()[round];
        node.kill().await.unwrap();
        eventually("the client notices the loss", || async {
            matches!(redlock.nodes()[round].state, NodeState::Down(_))
        })
        .await;
        let lease = redlock.lock("without").acquire().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        node.restart(Data::Keep).await.unwrap();
        all_up(&redlock).await;
        all_take_part(&redlock, &testbed).await;
    }
    testbed.shutdown().await;
}

async fn killed_nodes_forget_nothing_that_was_acknowledged() {
    let testbed = Testbed::start(3).await.unwrap();
    // Clients look at their nodes often, so restarted nodes give locks soon.
    let builder = || {
        Redlock::builder()
            .urls(testbed.urls())
            .guard_window(Duration::from_secs(3))
    };
    let redlock = builder().connect().await.unwrap();
    let lease = redlock.lock("kept").watchdog(false).acquire().await.unwrap();
    for node in testbed.nodes() {
        node.restart(Data::Keep).await.unwrap();
    }
    let second = builder().connect().await.unwrap();
    eventually("the nodes report the lock as held", || async {
        match second.lock("kept").try_acquire().await {
            Err(AcquireError::Held { .. }) => true,
            Err(AcquireError::NoQuorum { .. }) => false,
            other => panic!("{other:?}"),
        }
    })
    .await;
    all_up(&redlock).await;
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
    testbed.shutdown().await;
}
