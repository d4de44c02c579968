//! Metrics, health and a page over HTTP.

use std::time::Duration;

use quorlock::testbed::{Data, Testbed};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::{ask, ask_as};
use crate::support::{PATIENCE, Running, eventually, finish, holder, json, program, text, with};

fn address(url: &str) -> &str {
    url.trim_start_matches("http://").trim_end_matches('/')
}

/// Starts an exporter. Returns it, and its URL.
async fn exporter(urls: &[String], listen: &str) -> (Running, String) {
    let mut exporter = Running::start(with(urls, &["exporter", "--listen", listen]));
    let url = exporter.line().await;
    (exporter, url)
}

async fn get(url: &str, path: &str) -> (u16, String) {
    ask(address(url), "GET", path).await.unwrap()
}

#[tokio::test]
async fn nodes_locks_and_findings_are_served() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut held = holder(&urls, "job <b>&").await;
    let (exporter, url) = exporter(&urls, "127.0.0.1:0").await;

    let (status, metrics) = get(&url, "/metrics").await;
    assert_eq!(status, 200);
    let has = |line: &str| metrics.lines().any(|other| other == line);
    for node in urls.iter().map(|url| url.trim_start_matches("redis://")) {
        for name in ["up", "gives_locks"] {
            let line = format!("quorlock_exporter_node_{name}{{node=\"{node}\"}} 1");
            assert!(has(&line), "no {line}: {metrics}");
        }
    }
    assert!(has("quorlock_exporter_locks_held 1"), "{metrics}");
    assert!(
        has("quorlock_exporter_leaked_locks{kind=\"no_expiry\"} 0"),
        "{metrics}"
    );
    let finding = "quorlock_exporter_findings{node=\"\",code=\"same_host\",severity=\"warning\"} 1\n";
    eventually("the doctor has looked", async || {
        let (_, metrics) = get(&url, "/metrics").await;
        metrics.contains(finding) && metrics.contains("quorlock_exporter_doctor_ok 1\n")
    })
    .await;
    assert_eq!(get(&url, "/healthz").await, (200, "quorum\n".to_owned()));

    let (status, page) = get(&url, "/").await;
    assert_eq!(status, 200);
    assert!(page.contains("<b>job &lt;b&gt;&amp;</b>: held by "), "{page}");
    assert!(
        page.contains("same_host") || page.contains("fail together"),
        "{page}"
    );
    // A reader could break the lock with it.
    let shown = json(&urls, &["show", "job <b>&"]).await;
    let owner = shown["owner"].as_str().unwrap();
    assert!(!page.contains(owner) && !metrics.contains(owner));

    assert_eq!(get(&url, "/other").await.0, 404);
    assert_eq!(ask(address(&url), "POST", "/metrics").await.unwrap().0, 405);

    // A quorum of nodes knows all locks.
    testbed.nodes()[1].kill().await.unwrap();
    eventually("one node is not read", async || {
        let (_, metrics) = get(&url, "/metrics").await;
        let has = |line: &str| metrics.contains(&format!("quorlock_exporter_{line}\n"));
        has("unread_nodes 1") && has("locks_held 1") && has("list_is_cut 0")
    })
    .await;
    testbed.nodes()[2].kill().await.unwrap();
    eventually("no quorum", async || get(&url, "/healthz").await.0 == 503).await;
    eventually("locks are looked at again", async || {
        get(&url, "/metrics")
            .await
            .1
            .contains("quorlock_exporter_unread_nodes 2\n")
    })
    .await;
    let (_, metrics) = get(&url, "/metrics").await;
    assert_eq!(
        metrics.matches("quorlock_exporter_node_up").count(),
        3 + 2,
        "{metrics}"
    );
    assert_locks_are_unknown(&metrics);
    let (_, page) = get(&url, "/").await;
    assert!(page.contains("1 of 3 nodes read"), "{page}");
    assert!(page.contains(" not read: not connected"), "{page}");
    let shown = json(&urls, &["top"]).await;
    assert_eq!(
        (&shown["held"], &shown["uncertain"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(shown["unread_nodes"].as_array().unwrap().len(), 2, "{shown}");

    exporter.signal(Signal::TERM);
    assert_eq!(exporter.end().await.0, Some(0));
    held.close_input();
    held.end().await;
}

/// Zero would be a claim.
fn assert_locks_are_unknown(metrics: &str) {
    for unknown in ["locks_held", "locks_uncertain", "oldest_hold", "leaked_locks"] {
        assert!(!metrics.contains(unknown), "{metrics}");
    }
}

/// A quorum of nodes answers, and says that there is no lock. Two of these have lost it.
#[tokio::test]
async fn nodes_that_may_have_forgotten_locks_do_not_say_that_there_are_none() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut held = holder(&urls, "nightly").await;
    let [kept, lost @ ..] = testbed.nodes() else {
        unreachable!()
    };
    for node in lost {
        node.kill().await.unwrap();
    }
    kept.command(&["DEL", "quorlock:nightly"]).await.unwrap();
    for node in lost {
        node.restart(Data::Wipe).await.unwrap();
    }
    let (_exporter, url) = exporter(&urls, "127.0.0.1:0").await;
    eventually("two nodes do not count", async || {
        let (_, metrics) = get(&url, "/metrics").await;
        let is_so = metrics.contains("quorlock_exporter_unread_nodes 2\n");
        if is_so {
            assert_locks_are_unknown(&metrics);
        }
        is_so
    })
    .await;
    let (_, page) = get(&url, "/").await;
    assert!(page.contains(" may have forgotten locks: "), "{page}");
    held.close_input();
    held.end().await;
}

/// Each answer takes so long that five seconds do not suffice.
#[tokio::test]
async fn a_list_that_was_not_read_to_the_end_does_not_say_that_there_are_no_locks() {
    let testbed = Testbed::builder().nodes(3).proxies(true).start().await.unwrap();
    let urls = testbed.urls();
    let mut held = holder(&urls, "nightly").await;
    let (_exporter, url) = exporter(&urls, "127.0.0.1:0").await;
    for node in testbed.nodes() {
        node.proxy().unwrap().delay(Duration::from_millis(450));
    }
    eventually("not all is read", async || {
        let (_, metrics) = get(&url, "/metrics").await;
        assert!(!metrics.contains("quorlock_exporter_locks_held 0\n"), "{metrics}");
        assert!(
            !metrics.contains("quorlock_exporter_oldest_hold_seconds 0\n"),
            "{metrics}"
        );
        !metrics.contains("quorlock_exporter_unread_nodes 0\n")
    })
    .await;
    for node in testbed.nodes() {
        node.proxy().unwrap().heal();
        node.proxy().unwrap().delay(Duration::ZERO);
    }
    held.close_input();
    held.end().await;
}

/// As many clients as are served at a time send half a request, and wait.
#[tokio::test]
async fn clients_that_are_silent_do_not_keep_others_out() {
    let testbed = Testbed::start(1).await.unwrap();
    let (_exporter, url) = exporter(&testbed.urls(), "127.0.0.1:0").await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(address(&url)).await.unwrap();
        stream.write_all(b"GET /metr").await.unwrap();
        silent.push(stream);
    }
    let healthy = timeout(PATIENCE, get(&url, "/healthz")).await;
    assert_eq!(healthy.expect("an answer").0, 200);
    // Connections that stay open after an answer would do the same.
    let mut stream = TcpStream::connect(address(&url)).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
}

/// More clients than the process may have open files.
#[tokio::test]
async fn a_lack_of_open_files_is_told_once_and_its_end_too() {
    let testbed = Testbed::start(1).await.unwrap();
    let script = "ulimit -n 40; exec \"$0\" exporter --listen 127.0.0.1:0";
    let mut command = program("sh", &testbed.urls());
    command.args(["-c", script, env!("CARGO_BIN_EXE_quorlock")]);
    let mut exporter = Running::start(command);
    let url = exporter.line().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address(&url)).await.unwrap());
    }
    let healthy = timeout(PATIENCE, get(&url, "/healthz")).await;
    assert_eq!(healthy.expect("an answer").0, 200);
    exporter.signal(Signal::TERM);
    let (_, said) = exporter.end().await;
    let told: Vec<bool> = said.lines().filter_map(is_accepting).collect();
    assert_eq!(told.first(), Some(&false), "{said}");
    assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{said}");
}

fn is_accepting(line: &str) -> Option<bool> {
    let again = line.contains("connections are accepted again");
    let is_about_that = again || line.contains("connections are not accepted");
    is_about_that.then_some(again)
}

/// As if a page's name had been made to point to this host.
#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let testbed = Testbed::start(1).await.unwrap();
    let (_exporter, url) = exporter(&testbed.urls(), "localhost:0").await;
    let (_, port) = address(&url).rsplit_once(':').unwrap();
    for (host, status) in [
        ("rebound.example", 421),
        ("localhost.rebound.example", 421),
        ("127.0.0.1.rebound.example", 421),
        ("LOCALHOST", 200),
        ("quorlock.localhost.", 200),
        ("127.0.0.1", 200),
        ("[::1]", 200),
        ("[::ffff:127.0.0.1]", 200),
    ] {
        let answer = ask_as(address(&url), &format!("{host}:{port}"), "GET", "/healthz").await;
        assert_eq!(answer.unwrap().0, status, "{host}");
    }
    // Open to other machines, it has any name.
    let (_exporter, url) = exporter(&testbed.urls(), "0.0.0.0:0").await;
    let (_, port) = address(&url).rsplit_once(':').unwrap();
    let answer = ask_as(&format!("127.0.0.1:{port}"), "exporter:9654", "GET", "/healthz").await;
    assert_eq!(answer.unwrap().0, 200);
}

#[tokio::test]
async fn addresses_that_are_none_are_refused_with_an_example() {
    for wrong in [":9654", "9654", "exporter.example:9654"] {
        let output = finish(with(&[], &["exporter", "--listen", wrong])).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("such as 127.0.0.1:9654"), "{said}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let testbed = Testbed::start(1).await.unwrap();
    let urls = testbed.urls();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = finish(with(&urls, &["exporter", "--listen", &address])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}")), "{said}");
}

#[tokio::test]
async fn programs_read_the_address_as_json() {
    let testbed = Testbed::start(1).await.unwrap();
    let mut exporter = Running::start(with(
        &testbed.urls(),
        &["exporter", "--json", "--listen", "127.0.0.1:0"],
    ));
    let document: serde_json::Value = serde_json::from_str(&exporter.line().await).unwrap();
    assert_eq!(get(document["url"].as_str().unwrap(), "/healthz").await.0, 200);
    exporter.signal(Signal::INT);
    assert_eq!(exporter.end().await.0, Some(0));
}
