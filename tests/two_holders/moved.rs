//! Addresses that lead to new, empty servers while the old servers live on.

use quorlock::testbed::{Data, Testbed};

use crate::{Client, Holders, short};

/// The addresses of two of three nodes, from now on, lead to servers that have just been started.
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

/// The first client keeps its connections to the old servers and renews its lease there. The second one knows the new servers
/// only, and nothing but the first node is common to both.
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
        "the first client knows nothing of the move"
    );
    drop((lease, taken));
    first.end(&holders).await;
    second.succeed("job", &holders).await;
}

/// As above, and both take the lock only after the move.
#[tokio::test]
async fn clients_of_old_and_new_servers_do_not_both_get_a_lock() {
    let testbed = testbed().await;
    let urls = testbed.urls()[..3].to_vec();
    let holders = Holders::default();
    let mut first = Client::connected("the client of the old servers", || short(&urls)).await;
    first.succeed("warm", &Holders::default()).await;
    move_two(&testbed).await;
    let mut second = Client::new("the client of the new servers", || short(&urls));
    // One of them gets it, or neither as long as both live.
    if let Ok(lease) = first.try_acquire("job", &holders).await {
        let taken = second.contest(&lease, &holders).await;
        drop((lease, taken));
    }
    first.end(&holders).await;
    second.succeed("job", &holders).await;
}
