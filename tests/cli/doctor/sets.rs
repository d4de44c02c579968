//! Sets of nodes, and the lists of nodes in use.

use quorlock::testbed::Testbed;

use super::{ON_ONE_HOST, examine, finds, recommended, set};
use crate::common::open;
use crate::support::{finish, holder, text, with};

#[tokio::test]
async fn sets_that_are_wrong_are_found() {
    let testbed = recommended().await;
    let urls = testbed.urls();
    finds("one node", &urls[..1], &[], 0, &["all too_few_nodes"]).await;
    finds(
        "two nodes",
        &urls[..2],
        &[],
        0,
        &["all too_few_nodes", ON_ONE_HOST],
    )
    .await;
    finds("three nodes", &urls[..3], &[], 0, &[ON_ONE_HOST]).await;
    finds(
        "four nodes",
        &urls[..4],
        &[],
        0,
        &["all even_number", ON_ONE_HOST],
    )
    .await;

    let twice = [&urls[..4], &[urls[0].replace("127.0.0.1", "localhost")]].concat();
    let (code, mut found, told) = examine(&twice, &[]).await;
    assert!(
        found.remove("0 same_server_twice") != found.remove("4 same_server_twice"),
        "{told:#}"
    );
    assert_eq!(
        (code, found),
        (Some(1), [ON_ONE_HOST.to_owned()].into()),
        "{told:#}"
    );

    let wrong: Vec<String> = urls
        .iter()
        .map(|url| url.replace("redis://", "redis://:wrong@"))
        .collect();
    for node in testbed.nodes() {
        set(node, &[("requirepass", "right")]).await;
    }
    let refused = ["0 auth", "1 auth", "2 auth", "3 auth", "4 auth"];
    finds("a wrong password", &wrong, &[], 1, &refused).await;
    let right: Vec<String> = urls
        .iter()
        .map(|url| url.replace("redis://", "redis://:right@"))
        .collect();

    // The nodes that are left are examined, also without a quorum.
    testbed.nodes()[4].kill().await.unwrap();
    let short = ["--connect-timeout", "2s"];
    finds(
        "a dead node",
        &right,
        &short,
        1,
        &["4 not_connected", ON_ONE_HOST],
    )
    .await;
    testbed.nodes()[3].kill().await.unwrap();
    testbed.nodes()[2].stop().unwrap();
    let mut connection = open(&right[0]).await.unwrap();
    let eviction = redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory-policy", "allkeys-lru"])
        .to_owned();
    eviction.exec_async(&mut connection).await.unwrap();
    let expected = [
        "0 eviction",
        "2 not_connected",
        "3 not_connected",
        "4 not_connected",
        ON_ONE_HOST,
    ];
    finds("no quorum", &right, &short, 69, &expected).await;
    let output = finish(with(&right, &[&["doctor"], &short[..]].concat())).await;
    let shown = text(&output.stdout);
    assert!(
        shown.ends_with("3 errors, 2 warnings on 5 nodes; NO QUORUM IS IN REACH\n"),
        "{shown}"
    );
}

#[tokio::test]
async fn other_lists_and_other_names_are_found() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut first = holder(&urls, "first").await;
    finds("one list", &urls, &[], 0, &[ON_ONE_HOST]).await;
    let names: Vec<String> = urls
        .iter()
        .map(|url| url.replace("127.0.0.1", "localhost"))
        .collect();
    let mut second = holder(&names, "second").await;
    finds("two names", &urls, &[], 0, &["all several_names", ON_ONE_HOST]).await;
    let members = finish(with(&urls, &["members"])).await;
    let shown = text(&members.stdout);
    assert_eq!(members.status.code(), Some(0), "{shown}");
    assert!(shown.contains("by different names"), "{shown}");
    finds(
        "a part of it",
        &urls[..1],
        &[],
        1,
        &["all several_lists", "all too_few_nodes"],
    )
    .await;
    for holder in [&mut first, &mut second] {
        holder.close_input();
    }
    assert_eq!((first.end().await.0, second.end().await.0), (Some(0), Some(0)));

    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let alone = holder(&urls[..1], "alone").await;
    finds(
        "another list",
        &urls,
        &[],
        1,
        &["all other_list_of_nodes", ON_ONE_HOST],
    )
    .await;
    // Two lists that no node knows both of.
    let apart = holder(&urls[1..2], "apart").await;
    let members = finish(with(&urls[..2], &["members"])).await;
    let shown = text(&members.stdout);
    assert_eq!(members.status.code(), Some(78), "{shown}");
    assert!(shown.contains("MORE THAN ONE LIST"), "{shown}");
    for mut holder in [alone, apart] {
        holder.close_input();
        assert_eq!(holder.end().await.0, Some(0));
    }
}
