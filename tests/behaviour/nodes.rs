//! Servers that may vote, and ways to reach them.

use std::time::Duration;

use quorlock::node::{Fault, NodeState, Unfit};
use quorlock::testbed::Testbed;
use quorlock::{ConfigError, ConnectError, Redlock, ReleaseOutcome, Votes};

use crate::common::{ask, eventually, unguarded};
use crate::world::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_same_url_twice_is_refused,
        the_same_server_under_two_names_is_refused,
        a_replica_is_refused,
        a_member_of_a_cluster_is_refused,
        a_server_that_evicts_is_warned_about,
        nonsense_lists_of_nodes_are_refused,
        unix_sockets_work,
        the_database_number_is_used,
        a_key_prefix_is_used,
        connecting_needs_a_runtime,
    ]
}

fn misconfigured(error: &ConnectError) -> &Votes {
    match error {
        ConnectError::Misconfigured(votes) => votes,
        other => panic!("{other:?}"),
    }
}

fn unfit(votes: &Votes) -> Vec<(String, Unfit)> {
    votes
        .iter()
        .filter_map(|vote| match &vote.answer {
            Some(Err(Fault::Unfit(unfit))) => Some((vote.node.to_string(), unfit.clone())),
            _ => None,
        })
        .collect()
}

async fn the_same_url_twice_is_refused() {
    let testbed = Testbed::start(2).await.unwrap();
    let [a, b] = [testbed.nodes()[0].addr(), testbed.nodes()[1].addr()];
    let error = Redlock::connect([
        format!("redis://{a}"),
        format!("redis://{b}"),
        format!("redis://:password@{a}/0"),
    ])
    .await
    .unwrap_err();
    match &error {
        ConnectError::Config(ConfigError::DuplicateNode { name }) => assert_eq!(**name, *a.to_string()),
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains(&a.to_string()), "{error}");
}

async fn the_same_server_under_two_names_is_refused() {
    let testbed = Testbed::builder()
        .nodes(2)
        .unix_sockets(true)
        .start()
        .await
        .unwrap();
    let node = &testbed.nodes()[0];
    let (url, other) = (node.url(), testbed.nodes()[1].url());
    for alias in [
        url.replace("127.0.0.1", "localhost"),
        format!("{url}/1"),
        node.unix_url().unwrap(),
    ] {
        let error = Redlock::connect([&url, &other, &alias]).await.unwrap_err();
        let found = unfit(misconfigured(&error));
        assert!(
            matches!(&found[..], [(_, Unfit::Duplicate { .. })]),
            "{alias}: {error:?}"
        );
        let text = error.to_string();
        assert!(text.contains(&node.addr().to_string()), "{text}");
        assert!(text.contains("same server"), "{text}");
    }
}

async fn a_replica_is_refused() {
    let testbed = Testbed::start(3).await.unwrap();
    let master = testbed.nodes()[0].addr();
    let replica = &testbed.nodes()[2];
    let (host, port) = (master.ip().to_string(), master.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]).await.unwrap();
    let error = Redlock::connect(testbed.urls()).await.unwrap_err();
    assert_eq!(
        unfit(misconfigured(&error)),
        [(replica.addr().to_string(), Unfit::Replica)]
    );
    assert!(error.to_string().contains(&replica.addr().to_string()), "{error}");
    testbed.shutdown().await;
}

async fn a_member_of_a_cluster_is_refused() {
    let testbed = Testbed::builder()
        .nodes(1)
        .arg("cluster-enabled", "yes")
        .start()
        .await
        .unwrap();
    let others = Testbed::start(2).await.unwrap();
    let urls = [testbed.urls(), others.urls()].concat();
    let error = Redlock::connect(urls).await.unwrap_err();
    let member = testbed.nodes()[0].addr().to_string();
    assert_eq!(
        unfit(misconfigured(&error)),
        [(member.clone(), Unfit::ClusterMember)]
    );
    assert!(error.to_string().contains(&member), "{error}");
}

async fn a_server_that_evicts_is_warned_about() {
    let testbed = Testbed::builder()
        .nodes(1)
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .await
        .unwrap();
    let redlock = Redlock::connect(testbed.urls()).await.unwrap();
    match &redlock.nodes()[0].state {
        NodeState::Up { warnings } => {
            assert_eq!(warnings.len(), 1);
            assert!(warnings[0].contains("allkeys-lru"), "{warnings:?}");
        }
        other => panic!("{other:?}"),
    }
    let lease = redlock.lock("job").acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn nonsense_lists_of_nodes_are_refused() {
    let none: [&str; 0] = [];
    let error = Redlock::connect(none).await.unwrap_err();
    assert!(matches!(error, ConnectError::Config(ConfigError::NoNodes)));
    let refused = Redlock::builder().url("redis://127.0.0.1:1").ttl(Duration::ZERO);
    let error = refused.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Config(ConfigError::Ttl { .. })));
    let many = (0..65).map(|port| format!("redis://127.0.0.1:{}", port + 1));
    let error = Redlock::connect(many).await.unwrap_err();
    assert!(error.to_string().contains("65 nodes"), "{error}");
    let error = Redlock::connect(["redis://127.0.0.1:1", "127.0.0.1:2"])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:2"), "{error}");
}

async fn unix_sockets_work() {
    let testbed = Testbed::builder()
        .nodes(3)
        .unix_sockets(true)
        .start()
        .await
        .unwrap();
    let sockets = testbed.nodes().iter().map(|node| node.unix_url().unwrap());
    let redlock = Redlock::connect(sockets).await.unwrap();
    let lease = redlock.lock("job").acquire().await.unwrap();
    for url in testbed.urls() {
        eventually("every node has the key", || async {
            ask::<i64>(&url, &[b"EXISTS", b"quorlock:job"]).await.unwrap() == 1
        })
        .await;
    }
    assert!(lease.extend().await.is_ok());
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn the_database_number_is_used() {
    let testbed = Testbed::start(1).await.unwrap();
    let url = format!("{}/7", testbed.urls()[0]);
    let redlock = unguarded([&url]).connect().await.unwrap();
    let lease = redlock.lock("job").acquire().await.unwrap();
    let exists: [&[u8]; 2] = [b"EXISTS", b"quorlock:job"];
    assert_eq!(ask::<i64>(&url, &exists).await.unwrap(), 1);
    assert_eq!(ask::<i64>(&testbed.urls()[0], &exists).await.unwrap(), 0);
    // Also over a new connection.
    let _: i64 = ask(&url, &[b"CLIENT", b"KILL", b"TYPE", b"normal"])
        .await
        .unwrap();
    eventually("the lease is extended", || async { lease.extend().await.is_ok() }).await;
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

async fn a_key_prefix_is_used() {
    let testbed = Testbed::start(1).await.unwrap();
    let url = &testbed.urls()[0];
    let builder = || unguarded([url]);
    let redlock = builder().key_prefix("app:").connect().await.unwrap();
    let lease = redlock.lock("job").acquire().await.unwrap();
    assert_eq!(ask::<i64>(url, &[b"EXISTS", b"app:job"]).await.unwrap(), 1);
    let other = builder().connect().await.unwrap();
    let unrelated = other.lock("job").try_acquire().await.unwrap();
    assert_eq!(unrelated.release().await, ReleaseOutcome::Released);
    assert_eq!(lease.release().await, ReleaseOutcome::Released);

    let error = builder().key_prefix("p".repeat(257)).connect().await.unwrap_err();
    assert!(error.to_string().contains("257"), "{error}");
}

async fn connecting_needs_a_runtime() {
    let outcome = std::thread::spawn(|| {
        let mut connecting = std::pin::pin!(Redlock::connect(["redis://127.0.0.1:1"]));
        let waker = std::task::Waker::noop();
        match connecting
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker))
        {
            std::task::Poll::Ready(outcome) => outcome.map(|_| ()),
            std::task::Poll::Pending => panic!("connecting without a runtime waits"),
        }
    })
    .join()
    .unwrap();
    assert!(matches!(outcome, Err(ConnectError::NoRuntime)));
}
