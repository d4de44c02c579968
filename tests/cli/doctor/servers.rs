//! Servers that are no masters of their own, that are far away, or that answer nothing else.

use std::time::Duration;

use quorlock::testbed::Testbed;

use super::{ON_ONE_HOST, examine, field, finds, recommended, set, tell};
use crate::common::open;
use crate::support::eventually;

#[tokio::test]
async fn servers_that_are_no_masters_of_their_own_are_found() {
    let testbed = recommended().await;
    let (urls, node) = (testbed.urls(), &testbed.nodes()[0]);
    let other = Testbed::builder()
        .nodes(1)
        .arg("cluster-enabled", "yes")
        .start()
        .await
        .unwrap();
    let with_member = [&urls[..4], &other.urls()].concat();
    finds(
        "a cluster member",
        &with_member,
        &[],
        1,
        &["4 cluster_member", ON_ONE_HOST],
    )
    .await;

    let master = node.direct_addr();
    let follower = Testbed::start(1).await.unwrap();
    let follow = ["REPLICAOF", &master.ip().to_string(), &master.port().to_string()];
    tell(&follower.nodes()[0], &follow).await;
    eventually("the replica has connected", async || {
        field(node, "connected_slaves").await == "1"
    })
    .await;
    finds("a replica", &urls, &[], 0, &["0 replicas_connected", ON_ONE_HOST]).await;
    let with_replica = [&urls[1..], &follower.urls()].concat();
    finds(
        "a replica as a node",
        &with_replica,
        &[],
        1,
        &["4 replica", ON_ONE_HOST],
    )
    .await;
    drop(follower);
    eventually("the replica has gone", async || {
        field(node, "connected_slaves").await == "0"
    })
    .await;

    tell(node, &["FLUSHALL"]).await;
    finds(
        "an emptied node",
        &urls,
        &[],
        0,
        &["0 restart_guard", ON_ONE_HOST],
    )
    .await;

    // As if one node's data had been copied to another.
    let record = tell(&testbed.nodes()[1], &["GET", "quorlock:#node"]).await;
    tell(&testbed.nodes()[2], &["SET", "quorlock:#node", &record]).await;
    let copied = ["0 restart_guard", "2 copied_data", "2 restart_guard", ON_ONE_HOST];
    finds("copied data", &urls, &[], 0, &copied).await;
}

#[tokio::test]
async fn a_node_far_away_is_found() {
    let testbed = Testbed::builder().nodes(3).proxies(true).start().await.unwrap();
    testbed.nodes()[0]
        .proxy()
        .unwrap()
        .delay(Duration::from_millis(300));
    let slow = ["--ttl", "20s", "--connect-timeout", "60s"];
    finds(
        "a slow node",
        &testbed.urls(),
        &slow,
        0,
        &["0 slow_answers", ON_ONE_HOST],
    )
    .await;
    let slower = ["--ttl", "5s", "--connect-timeout", "60s"];
    let (code, found, told) = examine(&testbed.urls(), &slower).await;
    assert!(code == Some(1) && found.contains("0 slow_answers"), "{told:#}");
}

/// A server that is busy with a script refuses all commands.
#[tokio::test]
async fn a_busy_server_is_found() {
    let testbed = Testbed::start(3).await.unwrap();
    let node = &testbed.nodes()[0];
    set(node, &[("lua-time-limit", "1")]).await;
    let mut endless = open(&node.url()).await.unwrap();
    let working = tokio::spawn(async move {
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0);
        script.exec_async(&mut endless).await
    });
    eventually("the server is busy", async || {
        node.command(&["PING"]).await.unwrap().is_error()
    })
    .await;
    let expected = ["0 busy", ON_ONE_HOST];
    finds(
        "a busy server",
        &testbed.urls(),
        &["--connect-timeout", "2s"],
        1,
        &expected,
    )
    .await;
    tell(node, &["SCRIPT", "KILL"]).await;
    let _ = working.await;
}
