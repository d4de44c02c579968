//! Names with several addresses.

use std::net::ToSocketAddrs;
use std::time::Duration;

use libtest_mimic::Trial;
use quorlock::node::NodeState;
use quorlock::testbed::{TestNode, Testbed};
use quorlock::{ConnectError, ReleaseOutcome};

use crate::common::eventually;
use crate::network::{builder, lead, one_port, open, swallow};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "an_address_that_swallows_connections_does_not_keep_the_node_out",
            swallowed,
        ),
        trial("a_server_that_hangs_does_not_keep_the_node_out", hung),
        trial("a_name_of_two_servers_is_found", two_servers),
        trial("the_reasons_of_all_addresses_are_named_if_none_accepts", || {
            refused()
        }),
    ]
}

async fn swallowed() {
    let testbed = Testbed::start(1).await.unwrap();
    let [near, far] = one_port(["127.0.0.2", "127.0.9.1"]).await;
    let (lost, _swallowing) = swallow(near).await;
    let (served, _door) = open(far, &testbed.nodes()[0]);
    lead("swallowed.test", &[lost, served]);
    let url = format!("swallowed.test:{}", lost.port());
    let first = url.to_socket_addrs().unwrap().next();
    assert_eq!(
        first,
        Some(lost),
        "the system sorts the addresses differently, so this test shows nothing"
    );
    let redlock = builder(format!("redis://{url}")).connect().await.unwrap();
    let lease = redlock.lock("job").try_acquire().await.unwrap();
    assert_eq!(lease.release().await, ReleaseOutcome::Released);
}

/// The kernel accepts connections for a stopped process.
async fn hung() {
    let testbed = Testbed::start(3).await.unwrap();
    let [near, far] = one_port(["127.0.0.2", "127.0.9.1"]).await;
    let hung = near.local_addr().unwrap();
    let _hangs = near.listen(64).unwrap();
    let (served, _door) = open(far, &testbed.nodes()[0]);
    lead("hung.test", &[hung, served]);
    let builder = builder(format!("redis://hung.test:{}", hung.port()));
    let others = testbed.nodes()[1..].iter().map(TestNode::url);
    let builder = builder.urls(others).connect_timeout(Duration::from_secs(1));
    let redlock = builder.connect().await.unwrap();
    eventually("the other address is tried", async || {
        matches!(redlock.nodes()[0].state, NodeState::Up { .. })
    })
    .await;
}

/// `quorlock doctor` tells what the library finds.
async fn two_servers() {
    let testbed = Testbed::start(3).await.unwrap();
    let several = async |server: &TestNode| {
        let [near, far] = one_port(["127.0.0.2", "127.0.9.1"]).await;
        let (first, _door) = open(near, &testbed.nodes()[0]);
        let (second, _other_door) = open(far, server);
        lead("several.test", &[first, second]);
        let builder = builder(format!("redis://several.test:{}", first.port()));
        let others = testbed.nodes()[1..].iter().map(TestNode::url);
        let found = builder.urls(others).check_up().await.unwrap().findings;
        let several = found.iter().filter(|finding| finding.code == "several_servers");
        several.count()
    };
    assert_eq!(several(&testbed.nodes()[0]).await, 0);
    let other = Testbed::start(1).await.unwrap();
    assert_eq!(several(&other.nodes()[0]).await, 1);
}

async fn refused() {
    let [near, far] = one_port(["127.0.0.2", "127.0.9.1"]).await;
    let addresses = [near, far].map(|socket| socket.local_addr().unwrap());
    lead("refused.test", &addresses);
    let builder = builder(format!("redis://refused.test:{}", addresses[0].port()));
    let refused = builder.connect_timeout(Duration::from_secs(1)).connect().await;
    let error = refused.unwrap_err();
    assert!(matches!(error, ConnectError::NoQuorum { .. }), "{error:?}");
    for address in addresses {
        let reason = format!("{address}: Connection refused");
        assert!(error.to_string().contains(&reason), "{error}");
    }
}
