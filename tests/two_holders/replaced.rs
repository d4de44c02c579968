//! Servers that take the place of others.

use quorlock::testbed::{Data, Testbed};

use crate::common::eventually;
use crate::{Client, Holders, WINDOW, acquire_on_two, info, short};

/// A replacement has run for some seconds when clients first see it. The guard counts from then. The third node comes back at the
/// same time, so two nodes do not know of the lease.
///
/// If `old_lives`, the old server serves its open connections, and the second client connects after the move. Otherwise, both
/// clients see the replacement.
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
    assert!(!lease.is_held(), "the contest ended before the lease did");
    if old_lives {
        first.end(&holders).await; // while it runs, the clients disagree about the second node
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
