//! Addresses that lead to new, empty servers while the old servers live on.

use quorlock::node::NodeState;
use quorlock::testbed::{Data, TestNode, Testbed};
use tokio::time::sleep;

use crate::common::eventually;
use crate::{Client, Holders, WINDOW, info, short};

/// Makes the addresses of two of three nodes lead to new servers.
async fn move_two(testbed: &Testbed) {
    for (node, replacement) in [(1, 3), (2, 4)] {
        let replacement = &testbed.nodes()[replacement];
        replacement.restart(Data::Wipe).await.unwrap();
        testbed.nodes()[node]
            .proxy()
            .unwrap()
            .lead_to(replacement.direct_addr());
    }
}

async fn testbed() -> Testbed {
    let builder = Testbed::builder().nodes(5).proxies(true);
    builder.start().await.unwrap()
}

/// The first client renews on the old servers. The second one knows only the new ones. They share one node.
#[tokio::test]
async fn a_client_of_the_new_servers_does_not_get_what_is_held_on_the_old_ones() {
    let testbed = testbed().await;
    let urls = testbed.urls()[..3].to_vec();
    let holders = Holders::default();
    let mut first = Client::connected("the client of the old servers", || short(&urls)).await;
    let lease = first.acquire("job", &holders).await;
    move_two(&testbed).await;
    let mut second = Client::new("the client of the new servers", || short(&urls));
    let taken = second.contest(&lease, &holders).await;
    let told = first.redlock().nodes().iter().any(|node| node.left_out.is_some());
    assert!(
        !lease.is_held() || told,
        "the first client did not notice the move"
    );
    drop((lease, taken));
    first.end(&holders).await;
    second.succeed("job", &holders).await;
}

/// The same, but both clients take the lock after the move.
#[tokio::test]
async fn clients_of_old_and_new_servers_do_not_both_get_a_lock() {
    let testbed = testbed().await;
    let urls = testbed.urls()[..3].to_vec();
    let holders = Holders::default();
    let mut first = Client::connected("the client of the old servers", || short(&urls)).await;
    first.succeed("warm", &Holders::default()).await;
    move_two(&testbed).await;
    let mut second = Client::new("the client of the new servers", || short(&urls));
    // At most one of them gets the lock while both run.
    if let Ok(lease) = first.try_acquire("job", &holders).await {
        let taken = second.contest(&lease, &holders).await;
        drop((lease, taken));
    }
    first.end(&holders).await;
    second.succeed("job", &holders).await;
}

/// A new server takes the first node's place until it votes, and then the old one is back. When the second client asks, all nodes
/// that are up have missed the first client's lock.
#[tokio::test]
async fn an_address_that_leads_back_leads_to_a_server_that_has_missed_locks() {
    let testbed = testbed().await;
    let urls = testbed.urls()[..3].to_vec();
    let holders = Holders::default();
    let mut first = Client::connected("first", || short(&urls).watchdog(false)).await;
    let mut second = Client::connected("second", || short(&urls).watchdog(false)).await;
    first.succeed("job", &holders).await;
    let [old, other, away, new, _] = testbed.nodes() else {
        unreachable!("there are five")
    };
    let lead_to = |server: &TestNode| {
        let proxy = old.proxy().unwrap();
        proxy.lead_to(server.direct_addr());
        proxy.drop_connections();
    };
    new.restart(Data::Wipe).await.unwrap();
    lead_to(new);
    for client in [&first, &second] {
        eventually("the new server votes", async || {
            let mut nodes = client.redlock().nodes().into_iter();
            nodes.all(|node| matches!(node.state, NodeState::Up { .. }) && node.left_out.is_none())
                && info(new, "connected_clients").await != "1"
        })
        .await;
    }
    away.kill().await.unwrap();
    sleep(WINDOW / 2).await;
    let lease = first.acquire("job", &holders).await;
    lead_to(old);
    other.kill().await.unwrap();
    away.restart(Data::Keep).await.unwrap();
    second.contest(&lease, &holders).await;
}
