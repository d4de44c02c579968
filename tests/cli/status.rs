//! `quorlock status`: a quorum is said to give locks only if it accepts a write now.

use quorlock::testbed::Testbed;
use serde_json::Value as Json;

use crate::support::{eventually, finish, text, with};
use crate::testbed;

/// Runs `status`. Returns its exit code and its document.
async fn status(urls: &[String], options: &[&str]) -> (Option<i32>, Json) {
    let output = finish(with(urls, &[&["status", "--json"], options].concat())).await;
    let told = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no document: {}", text(&output.stderr)));
    (output.status.code(), told)
}

/// Makes the nodes refuse writes: `setting` is the cause, `usual` its value on a healthy node.
async fn set(testbed: &Testbed, nodes: usize, setting: &str, value: &str) {
    for node in &testbed.nodes()[..nodes] {
        let answer = node.command(&["CONFIG", "SET", setting, value]).await.unwrap();
        assert_eq!(answer.as_str(), Some("OK"), "{setting}");
    }
}

#[tokio::test]
async fn nodes_that_refuse_writes_are_no_quorum() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    assert_eq!(status(&urls, &[]).await.0, Some(0));
    for (setting, value, usual, reason, words) in [
        ("maxmemory", "1", "0", "out_of_memory", "OOM"),
        ("min-replicas-to-write", "1", "0", "no_replicas", "NOREPLICAS"),
    ] {
        set(&testbed, 1, setting, value).await;
        let (code, told) = status(&urls, &[]).await;
        assert_eq!(code, Some(0), "two nodes are enough: {told}");
        assert_eq!((&told["up"], &told["ready"]), (&3.into(), &2.into()), "{told}");
        assert_eq!(told["nodes"][0]["reason"], reason, "{told}");

        set(&testbed, 2, setting, value).await;
        let (code, told) = status(&urls, &[]).await;
        assert_eq!(code, Some(69), "{told}");
        assert_eq!(
            (&told["verdict"], &told["quorum_in_ms"]),
            (&"no_quorum".into(), &Json::Null)
        );
        let shown = text(&finish(with(&urls, &["status"])).await.stdout);
        assert_eq!(shown.matches(words).count(), 2, "{shown}");
        assert!(
            shown.contains("3 of 3 nodes up, 2 needed: NO QUORUM: 1 of them gives locks"),
            "{shown}"
        );
        set(&testbed, 2, setting, usual).await;
    }
    assert_eq!(status(&urls, &[]).await.0, Some(0));
}

/// The disk of a quorum of nodes is not writable.
#[tokio::test]
async fn nodes_that_cannot_persist_are_no_quorum() {
    let testbed = testbed().await;
    for node in &testbed.nodes()[..2] {
        // A snapshot cannot replace this folder.
        std::fs::create_dir_all(node.folder().join("data/dump.rdb/in-the-way")).unwrap();
        assert!(!node.command(&["BGSAVE"]).await.unwrap().is_error());
        eventually("the snapshot has failed", async || {
            let info = node.command(&["INFO", "persistence"]).await.unwrap();
            info.as_str().unwrap().contains("rdb_last_bgsave_status:err")
        })
        .await;
    }
    set(&testbed, 2, "save", "3600 1").await;
    let (code, told) = status(&testbed.urls(), &[]).await;
    assert_eq!((code, &told["ready"]), (Some(69), &1.into()), "{told}");
    for node in &told["nodes"].as_array().unwrap()[..2] {
        assert_eq!(
            (&node["up"], &node["reason"]),
            (&true.into(), &"cannot_persist".into())
        );
    }
}

/// The write of `status` leaves nothing, and a user without the right to write is told.
#[tokio::test]
async fn the_write_leaves_nothing_and_needs_its_rights() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let user = [
        "ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-set",
    ];
    assert_eq!(node.command(&user).await.unwrap().as_str(), Some("OK"));
    let urls = [format!("redis://reader:pw@{}", node.addr())];
    let (code, told) = status(&urls, &[]).await;
    assert_eq!(
        (code, &told["nodes"][0]["reason"]),
        (Some(69), &"no_permission".into()),
        "{told}"
    );
    assert_eq!(status(&testbed.urls(), &[]).await.0, Some(0));
    let keys = node.command(&["EVAL", "return table.concat(redis.call('KEYS', '*'))", "0"]);
    assert_eq!(keys.await.unwrap().as_str(), Some("quorlock:#node"));
}

/// What is wrong with the other nodes does not depend on whether there is a quorum.
#[tokio::test]
async fn warnings_and_the_guard_are_shown_without_a_quorum_and_beside_a_node_that_may_not_vote() {
    let testbed = Testbed::builder().nodes(3).arg("appendonly", "no");
    let testbed = testbed.start().await.unwrap();
    let urls = testbed.urls();
    let again = urls[0].replace("127.0.0.1", "localhost");
    let twice = [&urls[..], &[again]].concat();
    let (code, told) = status(&twice, &[]).await;
    assert_eq!(code, Some(78), "{told}");
    let (mut refused, mut guarded) = (0, 0);
    for node in told["nodes"].as_array().unwrap() {
        refused += usize::from(node["reason"] == "may_not_vote");
        if node["up"] == true {
            assert_eq!(node["reason"], "restart_guard", "{node}");
            assert!(
                node["warnings"][0]
                    .as_str()
                    .unwrap()
                    .contains("appendonly is off"),
                "{node}"
            );
            guarded += 1;
        }
    }
    assert_eq!((refused, guarded), (1, 3), "{told}");

    for node in &testbed.nodes()[1..] {
        node.kill().await.unwrap();
    }
    let (code, told) = status(&urls, &["--connect-timeout", "500ms"]).await;
    assert_eq!(
        (code, &told["verdict"]),
        (Some(69), &"no_quorum".into()),
        "{told}"
    );
    let node = &told["nodes"][0];
    assert_eq!(node["reason"], "restart_guard", "{node}");
    assert_eq!(node["warnings"].as_array().unwrap().len(), 1, "{node}");
}
