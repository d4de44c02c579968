//! Rights of the user.

use quorlock::testbed::{TestNode, Testbed};

use super::{ON_ONE_HOST, finds, recommended, tell};
use crate::support::{finish, text, with};

/// Creates a user on each node. The first node's lacks something.
async fn user(testbed: &Testbed, rights: &[&str], lacks: &[&str]) -> Vec<String> {
    for (number, node) in testbed.nodes().iter().enumerate() {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">pw"];
        let lacks = if number == 0 { lacks } else { &[] };
        tell(node, &[&user, rights, lacks].concat()).await;
    }
    let url = |node: &TestNode| format!("redis://app:pw@{}", node.addr());
    testbed.nodes().iter().map(url).collect()
}

#[tokio::test]
async fn missing_rights_are_named() {
    let testbed = recommended().await;
    for (lacks, code, named, findings) in [
        (&["-set"][..], 1, "+set", &["0 missing_rights"][..]),
        (&["-del"], 1, "+del", &["0 missing_rights"]),
        (&["-incr"], 1, "+incr", &["0 missing_rights"]),
        (
            &["-incrby", "-pexpire"],
            1,
            "+incrby +pexpire",
            &["0 missing_rights"],
        ),
        (&["-evalsha"], 1, "+evalsha", &["0 missing_rights"]),
        (&["-eval"], 1, "+eval", &["0 missing_rights"]),
        (&["-info"], 1, "+info", &["0 missing_rights", "0 not_checked"]),
        (&["-time"], 1, "+time", &["0 missing_rights"]),
        (
            &["resetkeys", "~other:*"],
            1,
            "~quorlock:*",
            &["0 missing_rights"],
        ),
        (&["-config"], 0, "+config|get", &["0 appendfsync_unreadable"]),
        (&["-script"], 0, "+script|load", &["0 cannot_load_script"]),
        (&["-publish"], 0, "+publish", &["0 cannot_publish"]),
        (&["-subscribe"], 0, "+subscribe", &["0 cannot_subscribe"]),
        (
            &["resetchannels"],
            0,
            "&quorlock:*",
            &["0 cannot_publish", "0 cannot_subscribe"],
        ),
        (&["-latency"], 0, "+latency", &["0 not_checked"]),
        (&["-pubsub"], 0, "+pubsub", &["0 not_checked"]),
        (&["-scan"], 0, "+scan", &["0 not_checked"]),
    ] {
        let urls = user(&testbed, &["~*", "&*", "+@all"], lacks).await;
        let told = finds(
            &format!("{lacks:?}"),
            &urls,
            &[],
            code,
            &[findings, &[ON_ONE_HOST]].concat(),
        )
        .await;
        assert!(told.to_string().contains(named), "{lacks:?}: {told:#}");
    }
}

/// The README's rights are enough for locks. What they are not enough for is said not to have been checked.
#[tokio::test]
async fn with_the_recommended_rights_nothing_is_wrong() {
    let testbed = recommended().await;
    let readme = include_str!("../../../README.md");
    let rights = readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("resetchannels "));
    let rights: Vec<&str> = rights.unwrap().split(' ').collect();
    let urls = user(&testbed, &rights, &[]).await;
    let unchecked: Vec<String> = (0..5).map(|node| format!("{node} not_checked")).collect();
    let expected: Vec<&str> = unchecked
        .iter()
        .map(String::as_str)
        .chain([ON_ONE_HOST])
        .collect();
    let told = finds("the recommended rights", &urls, &[], 0, &expected).await;
    assert_eq!(
        (&told["errors"], &told["unknown"]),
        (&0.into(), &15.into()),
        "{told:#}"
    );
    finds("the same, strictly", &urls, &["--strict"], 1, &expected).await;
    // The same on all nodes, so it is shown once.
    let shown = text(&finish(with(&urls, &["doctor"])).await.stdout);
    assert_eq!(shown.matches("+latency|latest").count(), 1, "{shown}");
    assert!(
        shown.starts_with("each node\n")
            && shown.ends_with("1 warning on 5 nodes; 15 things could not be checked\n"),
        "{shown}"
    );
}

/// The doctor cannot look into the database, so all that it can tell is this right. It does not know the nodes' hosts.
#[tokio::test]
async fn the_right_to_select_a_database_is_named() {
    let testbed = Testbed::start(3).await.unwrap();
    let mut urls = Vec::new();
    for node in testbed.nodes() {
        tell(
            node,
            &[
                "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-select",
            ],
        )
        .await;
        urls.push(format!("redis://app:pw@{}/1", node.addr()));
    }
    let expected = ["0 missing_rights", "1 missing_rights", "2 missing_rights"];
    let told = finds("no right to select", &urls, &[], 1, &expected).await;
    assert!(told.to_string().contains("lacks +select"), "{told:#}");
}
