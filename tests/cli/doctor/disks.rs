//! Disks that fail, or are slow.

use std::time::Duration;

use quorlock::testbed::TestNode;

use super::{ON_ONE_HOST, field, finds, recommended, set, tell};
use crate::server::{fail_writes, slow_disk};
use crate::support::eventually;

async fn becomes(node: &TestNode, status: &str, value: &str) {
    eventually(status, async || field(node, status).await == value).await;
}

#[tokio::test]
async fn disks_that_fail_are_found() {
    let testbed = recommended().await;
    let (urls, node) = (testbed.urls(), &testbed.nodes()[0]);

    // With appendfsync always, the server would end.
    set(node, &[("appendfsync", "everysec")]).await;
    fail_writes(node, true);
    tell(node, &["SET", "written", "x", "PX", "600000"]).await;
    becomes(node, "aof_last_write_status", "err").await;
    let refused = ["0 appendfsync_not_always", "0 cannot_persist", ON_ONE_HOST];
    finds("a failed write", &urls, &[], 1, &refused).await;
    fail_writes(node, false);
    becomes(node, "aof_last_write_status", "ok").await;
    set(node, &[("appendfsync", "always")]).await;

    fail_writes(node, true);
    // Some versions refuse the command, others start a process that fails.
    let _ = node.command(&["BGREWRITEAOF"]).await.unwrap();
    becomes(node, "aof_last_bgrewrite_status", "err").await;
    fail_writes(node, false);
    let failed = ["0 aof_rewrite_failed", ON_ONE_HOST];
    finds("a failed rewrite", &urls, &[], 0, &failed).await;
    tell(node, &["BGREWRITEAOF"]).await;
    becomes(node, "aof_last_bgrewrite_status", "ok").await;
    finds("after all", &urls, &[], 0, &[ON_ONE_HOST]).await;
}

#[tokio::test]
async fn slow_disks_are_found() {
    let testbed = recommended().await;
    let (urls, node) = (testbed.urls(), &testbed.nodes()[0]);
    // A node may take a second for a lock. The server remembers delays above its threshold.
    let ttl = ["--ttl", "10s"];
    slow_disk(node, Duration::from_millis(500));
    finds("slow writes", &urls, &ttl, 0, &["0 slow_write", ON_ONE_HOST]).await;
    set(node, &[("latency-monitor-threshold", "100")]).await;
    tell(node, &["SET", "written", "x", "PX", "600000"]).await;
    slow_disk(node, Duration::ZERO);
    finds(
        "a slow write before",
        &urls,
        &ttl,
        0,
        &["0 slow_disk", ON_ONE_HOST],
    )
    .await;
    finds(
        "slow only for others",
        &urls,
        &["--ttl", "60s", "--guard-window", "60s"],
        0,
        &[ON_ONE_HOST],
    )
    .await;
    tell(node, &["LATENCY", "RESET"]).await;
    finds("after all", &urls, &ttl, 0, &[ON_ONE_HOST]).await;
}
