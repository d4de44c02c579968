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
