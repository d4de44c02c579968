//! `quorlock doctor`: each set-up that is wrong on purpose is found, and nothing else is.

mod disks;
mod rights;
mod servers;
mod sets;
mod settings;

use std::collections::BTreeSet;

use quorlock::testbed::{TestNode, Testbed};
use serde_json::Value as Json;

use crate::server::tampered;
use crate::support::{finish, text, with};

/// All nodes of a testbed are on this machine. Each test starts from here: it is the one finding on the recommended set-up.
const ON_ONE_HOST: &str = "all same_host";

/// Runs the doctor. Returns its exit code, its findings as "NODE CODE" and the document. Nodes are counted from 0.
async fn examine(urls: &[String], options: &[&str]) -> (Option<i32>, BTreeSet<String>, Json) {
    let output = finish(with(urls, &[&["doctor", "--json"], options].concat())).await;
    let told: Json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no document: {}", text(&output.stderr)));
    let nodes: Vec<&Json> = told["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| &node["node"])
        .collect();
    let finding = |finding: &Json| {
        let node = nodes.iter().position(|node| **node == finding["node"]);
        let node = node.map_or("all".to_owned(), |node| node.to_string());
        format!("{node} {}", finding["code"].as_str().unwrap())
    };
    let found = told["findings"].as_array().unwrap().iter().map(finding).collect();
    (output.status.code(), found, told)
}

/// Checks that the doctor finds this and nothing else. Returns its document.
async fn finds(what: &str, urls: &[String], options: &[&str], code: i32, expected: &[&str]) -> Json {
    let (ended, found, told) = examine(urls, options).await;
    let expected: BTreeSet<String> = expected.iter().map(|finding| finding.to_string()).collect();
    assert_eq!(found, expected, "{what}: {told:#}");
    assert_eq!(ended, Some(code), "{what}: {told:#}");
    told
}

async fn tell(node: &TestNode, command: &[&str]) -> String {
    let answer = node.command(command).await.unwrap();
    assert!(!answer.is_error(), "{command:?}: {answer:?}");
    answer.as_str().unwrap_or_default().to_owned()
}

async fn set(node: &TestNode, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        tell(node, &["CONFIG", "SET", name, value]).await;
    }
}

async fn field(node: &TestNode, name: &str) -> String {
    let info = tell(node, &["INFO"]).await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim_end().to_owned()
}

/// Five durable masters without limits and replicas. The clock of each can be set.
async fn recommended() -> Testbed {
    let testbed = Testbed::builder()
        .nodes(5)
        .server(tampered())
        .start()
        .await
        .unwrap();
    finds("the recommended set-up", &testbed.urls(), &[], 0, &[ON_ONE_HOST]).await;
    testbed
}

#[tokio::test]
async fn the_words_are_grouped_by_node_and_end_in_a_verdict() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    set(node, &[("maxmemory", "1")]).await;
    let output = finish(with(&testbed.urls(), &["doctor"])).await;
    let shown = text(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0].starts_with(&format!("{} (version ", node.addr())),
        "{shown}"
    );
    assert_eq!(lines[1], "  error: server out of memory (OOM) [out_of_memory]");
    assert_eq!(
        lines[2],
        "    give it memory, and look for keys without an expiry"
    );
    assert_eq!(
        (lines[3], lines[lines.len() - 1]),
        ("the set of nodes", "1 error, 1 warning on 1 node")
    );
    set(node, &[("maxmemory", "0")]).await;
    let output = finish(with(&testbed.urls(), &["doctor", "--ttl", "1ms"])).await;
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
