//! Servers that take the place of another.

use quorlock::testbed::{Data, Testbed};

use crate::common::eventually;
use crate::{Client, Holders, WINDOW, acquire_on_two, info, short};

/// The replacement has been running for some seconds when it is first seen, and the third node comes back at the same time:
/// two nodes that know nothing of the lease. The guard counts from when clients see the replacement, not from its start.
///
/// The old server lives on for those that are connected to it, and the second client connects only then; or the old server goes,
/// and both clients see the replacement.
async fn replaced(old_lives: bool) {
    let testbed = Testbed::builder().nodes(4).proxies(true).start().await.unwrap();
    let urls = testbed.urls()[..3].to_vec();
    let window = 2 * WINDOW;
    let builder = || short(&urls).ttl(window).guard_window(window).watchdog(false);
    let holders = Holders::default();
    let mut first = Client::connected("first", builder).await;
    let mut second = Client::connected("second", builder).await;
    let replacement = &testbed.nodes()[3];
    replacement.restart(Data::Wipe).await.unwrap();
    eventually("the replacement is 3 s old", async || {
        info(replacement, "uptime_in_seconds").await == "3"
    })
    .await;
    let lease = acquire_on_two(&testbed, &mut first, &second, &holders).await;
    let proxy = testbed.nodes()[1].proxy().unwrap();
    proxy.lead_to(replacement.direct_addr());
    if old_lives {
        second = Client::new("second, connected anew", builder);
    } else {
        proxy.drop_connections();
    }
    second.contest(&lease, &holders).await;
    assert!(!lease.is_held(), "it was contested until its end");
    if old_lives {
        first.end(&holders).await; // as long as it is there, the two clients differ in what the second node is
    }
    second.succeed("job", &holders).await;
}

#[tokio::test]
async fn by_a_server_that_is_some_seconds_old() {
    replaced(false).await;
}

#[tokio::test]
async fn by_a_server_that_is_some_seconds_old_while_the_old_one_lives_on() {
    replaced(true).await;
}
