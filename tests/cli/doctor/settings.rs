//! Settings and states of a server.

use std::fs;

use quorlock::testbed::Value;

use super::{ON_ONE_HOST, field, finds, recommended, set, tell};
use crate::common::open;
use crate::server::shift;
use crate::support::eventually;

#[tokio::test]
async fn settings_that_are_wrong_are_found() {
    let testbed = recommended().await;
    let (urls, node) = (testbed.urls(), &testbed.nodes()[0]);
    for (wrong, right, code, finding) in [
        (
            &[("appendonly", "no")][..],
            &[("appendonly", "yes")][..],
            0,
            "appendonly_off",
        ),
        (
            &[("appendfsync", "everysec")],
            &[("appendfsync", "always")],
            0,
            "appendfsync_not_always",
        ),
        (
            &[("no-appendfsync-on-rewrite", "yes")],
            &[("no-appendfsync-on-rewrite", "no")],
            0,
            "no_appendfsync_on_rewrite",
        ),
        (
            &[("maxmemory-policy", "allkeys-lru")],
            &[("maxmemory-policy", "noeviction")],
            0,
            "eviction",
        ),
        (
            &[("maxmemory-policy", "volatile-ttl"), ("maxmemory", "1gb")],
            &[("maxmemory-policy", "noeviction"), ("maxmemory", "0")],
            1,
            "eviction",
        ),
        (&[("maxmemory", "1")], &[("maxmemory", "0")], 1, "out_of_memory"),
        (
            &[("min-replicas-to-write", "1")],
            &[("min-replicas-to-write", "0")],
            1,
            "no_replicas",
        ),
    ] {
        set(node, wrong).await;
        let expected = [&format!("0 {finding}"), ON_ONE_HOST];
        let told = finds(finding, &urls, &[], code, &expected).await;
        let seen = &told["findings"][0];
        assert!(!seen["seen"].as_str().unwrap().is_empty() && !seen["advice"].as_str().unwrap().is_empty());
        set(node, right).await;
    }
    finds("after all", &urls, &[], 0, &[ON_ONE_HOST]).await;
    finds("after all, strictly", &urls, &["--strict"], 1, &[ON_ONE_HOST]).await;
}

#[tokio::test]
async fn states_that_are_wrong_are_found() {
    let testbed = recommended().await;
    let (urls, node) = (testbed.urls(), &testbed.nodes()[0]);

    // Nearly full: room is left for connections.
    tell(node, &["SETRANGE", "filling", "30000000", "x"]).await;
    let used: u64 = field(node, "used_memory").await.parse().unwrap();
    set(node, &[("maxmemory", &(used * 100 / 94).to_string())]).await;
    finds(
        "little memory",
        &urls,
        &[],
        0,
        &["0 memory_nearly_full", ON_ONE_HOST],
    )
    .await;
    set(node, &[("maxmemory", "0")]).await;
    tell(node, &["DEL", "filling"]).await;

    // The doctor's own connection is the 27th of 30. It has never more than three.
    set(node, &[("maxclients", "30")]).await;
    let mut connections = Vec::new();
    for _ in 0..26 {
        connections.push(open(&node.url()).await.unwrap());
    }
    let full = ["0 connections_nearly_full", ON_ONE_HOST];
    finds("many connections", &urls, &[], 0, &full).await;
    drop(connections);
    set(node, &[("maxclients", "10000")]).await;

    // A snapshot cannot replace this folder.
    let obstacle = node.folder().join("data/dump.rdb");
    let _ = fs::remove_file(&obstacle);
    fs::create_dir_all(obstacle.join("in-the-way")).unwrap();
    tell(node, &["BGSAVE"]).await;
    eventually("the snapshot has failed", async || {
        field(node, "rdb_last_bgsave_status").await == "err"
    })
    .await;
    finds(
        "a failed snapshot",
        &urls,
        &[],
        0,
        &["0 snapshot_failed", ON_ONE_HOST],
    )
    .await;
    set(node, &[("save", "3600 1")]).await;
    finds(
        "snapshots that are needed",
        &urls,
        &[],
        1,
        &["0 cannot_persist", ON_ONE_HOST],
    )
    .await;
    set(node, &[("save", "")]).await;
    fs::remove_dir_all(&obstacle).unwrap();
    tell(node, &["BGSAVE"]).await;
    eventually("a snapshot was taken", async || {
        field(node, "rdb_last_bgsave_status").await == "ok"
    })
    .await;

    shift(node, 5_000_000);
    eventually("the clock has moved", async || {
        let time = tell(node, &["EVAL", "return redis.call('TIME')[1]", "0"]).await;
        let other = tell(
            &testbed.nodes()[1],
            &["EVAL", "return redis.call('TIME')[1]", "0"],
        )
        .await;
        time.parse::<i64>().unwrap() - other.parse::<i64>().unwrap() > 3
    })
    .await;
    finds("a wrong clock", &urls, &[], 0, &["0 clock_off", ON_ONE_HOST]).await;
    shift(node, 0);

    tell(node, &["SET", "quorlock:stuck", "x"]).await;
    let told = finds(
        "an endless lock",
        &urls,
        &[],
        0,
        &["all lock_without_expiry", ON_ONE_HOST],
    )
    .await;
    assert!(told.to_string().contains("stuck"), "{told}");
    tell(node, &["DEL", "quorlock:stuck"]).await;

    let client = redis::Client::open(node.url()).unwrap();
    let mut sentinel = client.get_async_pubsub().await.unwrap();
    sentinel.subscribe("__sentinel__:hello").await.unwrap();
    finds(
        "a sentinel",
        &urls,
        &[],
        0,
        &["0 watched_by_sentinel", ON_ONE_HOST],
    )
    .await;
    drop(sentinel);
    eventually("the sentinel has gone", async || {
        let Value::Array(Some(answer)) = node
            .command(&["PUBSUB", "NUMSUB", "__sentinel__:hello"])
            .await
            .unwrap()
        else {
            unreachable!()
        };
        answer[1].as_int() == Some(0)
    })
    .await;

    let record = tell(node, &["GET", "quorlock:#node"]).await;
    tell(node, &["SET", "quorlock:#node", "mine"]).await;
    finds(
        "a key in the way",
        &urls,
        &[],
        1,
        &["0 other_record", ON_ONE_HOST],
    )
    .await;
    tell(node, &["SET", "quorlock:#node", &record]).await;
    finds("after all", &urls, &[], 0, &[ON_ONE_HOST]).await;
    for node in testbed.nodes() {
        let keys = tell(
            node,
            &["EVAL", "return table.concat(redis.call('KEYS', '*'), ' ')", "0"],
        )
        .await;
        assert_eq!(keys, "quorlock:#node");
    }
}
