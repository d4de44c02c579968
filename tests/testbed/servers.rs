//! Servers: settings, start, stop and restart.

use std::collections::HashSet;
use std::time::Duration;

use quorlock::testbed::{Data, TestNode, Testbed, TestbedError, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{MOMENT, PATIENCE, eventually, exists, read_pong};

async fn run_id(node: &TestNode) -> String {
    let info = node.command(&["INFO", "server"]).await.unwrap();
    let line = info
        .as_str()
        .unwrap()
        .lines()
        .find(|line| line.starts_with("run_id:"))
        .unwrap();
    line.to_owned()
}

#[tokio::test]
async fn starts_independent_masters() {
    let testbed = Testbed::builder().start().await.unwrap();
    assert_eq!(testbed.nodes().len(), 5);
    assert_eq!(testbed.urls().iter().collect::<HashSet<_>>().len(), 5);
    let mut run_ids = HashSet::new();
    for (i, node) in testbed.nodes().iter().enumerate() {
        assert_eq!(node.url(), format!("redis://{}", node.addr()));
        assert_eq!((node.url(), node.addr()), (node.direct_url(), node.direct_addr()));
        assert_eq!(testbed.node(i).unwrap().url(), testbed.urls()[i]);
        assert!(node.addr().ip().is_loopback() && node.folder().starts_with(testbed.folder()));
        assert!(node.proxy().is_none() && node.unix_url().is_none());
        assert_eq!(
            node.command(&["PING"]).await.unwrap(),
            Value::Simple("PONG".into())
        );
        for (name, value) in [("appendonly", "yes"), ("appendfsync", "always"), ("save", "")] {
            let answer = node.command(&["CONFIG", "GET", name]).await.unwrap();
            assert_eq!(answer.as_array().unwrap()[1].as_str(), Some(value), "{name}");
        }
        run_ids.insert(run_id(node).await);
    }
    assert_eq!(run_ids.len(), 5);
    assert!(testbed.node(5).is_none());
}

#[tokio::test]
async fn restart_keeps_or_wipes_the_data() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let (url, first_pid, first_run) = (node.url(), node.pid().unwrap(), run_id(node).await);
    node.command(&["SET", "key", "7"]).await.unwrap();

    node.kill().await.unwrap();
    assert!(!exists(first_pid));
    assert_eq!(node.pid(), None);
    assert!(matches!(
        node.command(&["PING"]).await,
        Err(TestbedError::Connection { .. })
    ));
    assert!(matches!(node.stop(), Err(TestbedError::NotRunning { node: 0 })));
    node.kill().await.unwrap(); // nothing to do

    node.restart(Data::Keep).await.unwrap();
    assert_eq!(node.url(), url);
    assert_eq!(node.command(&["GET", "key"]).await.unwrap().as_int(), Some(7));
    let second_run = run_id(node).await;
    assert_ne!(second_run, first_run);

    node.restart(Data::Wipe).await.unwrap(); // from running
    assert!(node.command(&["GET", "key"]).await.unwrap().is_nil());
    assert_ne!(run_id(node).await, second_run);

    node.stop().unwrap();
    node.restart(Data::Keep).await.unwrap(); // from stopped
    assert_eq!(node.command(&["PING"]).await.unwrap().as_str(), Some("PONG"));
}

#[tokio::test]
async fn a_restart_comes_to_its_end_without_its_caller() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let first = node.pid();
    assert!(timeout(Duration::ZERO, node.restart(Data::Keep)).await.is_err());
    eventually("the server has restarted", || async {
        node.pid().is_some() && node.pid() != first
    })
    .await;
    assert_eq!(node.command(&["PING"]).await.unwrap().as_str(), Some("PONG"));
}

#[tokio::test]
async fn a_stopped_server_answers_after_it_is_resumed() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    node.stop().unwrap();
    let mut stream = TcpStream::connect(node.addr()).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    assert!(
        timeout(MOMENT, stream.peek(&mut [0])).await.is_err(),
        "a stopped server answered"
    );
    assert!(matches!(
        node.command(&["PING"]).await,
        Err(TestbedError::Timeout { .. })
    ));
    node.resume().unwrap();
    timeout(PATIENCE, read_pong(&mut stream)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_ends_by_itself_is_noticed() {
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    // The server closes the connection.
    assert!(matches!(
        node.command(&["SHUTDOWN"]).await,
        Err(TestbedError::Connection { .. })
    ));
    eventually("the node has no pid", || async { node.pid().is_none() }).await;
    node.restart(Data::Keep).await.unwrap();
    assert!(node.pid().is_some());
}

#[tokio::test]
async fn passwords_settings_and_unix_sockets() {
    let testbed = Testbed::builder()
        .nodes(1)
        .password("s:cret/ä%41%")
        .unix_sockets(true)
        .proxies(true)
        .arg("--maxmemory", "10mb")
        .arg("appendfsync", "everysec")
        .start()
        .await
        .unwrap();
    let node = &testbed.nodes()[0];
    assert_eq!(
        node.url(),
        format!("redis://:s%3Acret%2F%C3%A4%2541%25@{}", node.addr())
    );
    for (name, value) in [("maxmemory", "10485760"), ("appendfsync", "everysec")] {
        let answer = node.command(&["CONFIG", "GET", name]).await.unwrap();
        assert_eq!(answer.as_array().unwrap()[1].as_str(), Some(value));
    }
    node.restart(Data::Wipe).await.unwrap();

    let mut stream = TcpStream::connect(node.addr()).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"-NOAUTH");

    let url = node.unix_url().unwrap();
    let path = url
        .strip_prefix("redis+unix://:s%3Acret%2F%C3%A4%2541%25@localhost")
        .unwrap();
    tokio::net::UnixStream::connect(path).await.unwrap();
    let changed = node
        .command(&["CONFIG", "SET", "requirepass", "other"])
        .await
        .unwrap();
    assert!(!changed.is_error());
    assert!(matches!(
        node.command(&["PING"]).await,
        Err(TestbedError::Refused { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_does_not_matter() {
    let testbed = Testbed::builder().nodes(1).proxies(true).start().await.unwrap();
    let node = &testbed.nodes()[0];
    node.proxy().unwrap().delay(Duration::from_millis(20));
    assert_eq!(node.command(&["PING"]).await.unwrap().as_str(), Some("PONG"));
    node.restart(Data::Wipe).await.unwrap();
    testbed.shutdown().await;
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let error = Testbed::builder()
        .server("/nowhere/redis-server")
        .start()
        .await
        .unwrap_err();
    let text = error.to_string();
    for part in [
        "/nowhere/redis-server",
        "apt-get install redis-server",
        "brew install redis",
        "QUORLOCK_REDIS_SERVER",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(matches!(Testbed::start(0).await, Err(TestbedError::NoNodes)));

    let error = Testbed::builder()
        .nodes(2)
        .arg("no-such-setting", "1")
        .start()
        .await
        .unwrap_err();
    assert!(matches!(error, TestbedError::Exited { .. }), "{error:?}");
    assert!(error.to_string().contains("no-such-setting"), "{error}"); // printed by the server

    let error = Testbed::builder()
        .nodes(1)
        .arg("unixsocket", "/nowhere/s")
        .start()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("Unix socket"), "{error}"); // logged
}
