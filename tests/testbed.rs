//! The testbed itself, with real servers.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::HashSet,
    env,
    future::Future,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use quorlock::testbed::{Data, TestNode, Testbed, TestbedError, Value};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Long enough for anything that is going to happen, on any machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough to notice what should not happen. Too short can only miss a bug, not report one.
const MOMENT: Duration = Duration::from_millis(150);

fn exists(pid: u32) -> bool {
    // A zombie whose parent is slow to collect it is gone for all purposes.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

fn pids(testbed: &Testbed) -> Vec<u32> {
    testbed.nodes().iter().map(|node| node.pid().unwrap()).collect()
}

fn assert_gone(pids: &[u32], folder: &Path) {
    for &pid in pids {
        assert!(!exists(pid), "server {pid} is still there");
    }
    assert!(!folder.exists(), "{} is still there", folder.display());
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let give_up = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < give_up, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

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

async fn read_pong(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).await?;
    assert_eq!(&pong, b"+PONG\r\n");
    Ok(())
}

async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"PING\r\n").await?;
    timeout(PATIENCE, read_pong(stream))
        .await
        .expect("an answer or an error")
}

async fn proxied() -> Testbed {
    Testbed::builder().nodes(1).proxies(true).start().await.unwrap()
}

async fn client(testbed: &Testbed) -> TcpStream {
    let mut stream = TcpStream::connect(testbed.nodes()[0].addr()).await.unwrap();
    ping(&mut stream).await.unwrap();
    stream
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
    eventually("restarted", || async {
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
    // It closes the connection instead of answering.
    assert!(matches!(
        node.command(&["SHUTDOWN"]).await,
        Err(TestbedError::Connection { .. })
    ));
    eventually("no pid", || async { node.pid().is_none() }).await;
    node.restart(Data::Keep).await.unwrap();
    assert!(node.pid().is_some());
}

#[tokio::test]
async fn passwords_settings_and_unix_sockets() {
    let testbed = Testbed::builder()
        .nodes(1)
        .password("s:cret/ä")
        .unix_sockets(true)
        .proxies(true)
        .arg("--maxmemory", "10mb")
        .arg("appendfsync", "everysec")
        .start()
        .await
        .unwrap();
    let node = &testbed.nodes()[0];
    assert_eq!(node.url(), format!("redis://:s%3Acret%2F%C3%A4@{}", node.addr()));
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
        .strip_prefix("redis+unix://:s%3Acret%2F%C3%A4@localhost")
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

#[tokio::test]
async fn delay_is_added_without_limiting_throughput() {
    let testbed = proxied().await;
    let proxy = testbed.nodes()[0].proxy().unwrap();
    assert_eq!(testbed.nodes()[0].addr(), proxy.addr());
    let mut stream = client(&testbed).await;
    let delay = Duration::from_millis(50);
    proxy.delay(delay);

    let sent = Instant::now();
    ping(&mut stream).await.unwrap();
    assert!(
        sent.elapsed() >= 2 * delay,
        "a round trip of {:?}",
        sent.elapsed()
    );

    // 100 requests in separate packets: one after the other they would take 10 s.
    let sent = Instant::now();
    for _ in 0..100 {
        stream.write_all(b"PING\r\n").await.unwrap();
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        read_pong(&mut stream).await.unwrap();
    }
    assert!(
        sent.elapsed() < 100 * delay,
        "100 requests took {:?}",
        sent.elapsed()
    );

    proxy.delay(Duration::ZERO);
    ping(&mut stream).await.unwrap();
}

#[tokio::test]
async fn a_proxy_carries_large_values_unchanged() {
    let testbed = proxied().await;
    let stream = client(&testbed).await;
    let value: Vec<u8> = (0..8_000_000_u32).map(|i| (i * 31 % 251) as u8).collect();
    let (mut from, mut to) = stream.into_split();
    let mut request = format!("*2\r\n$4\r\nECHO\r\n${}\r\n", value.len()).into_bytes();
    request.extend_from_slice(&value);
    request.extend_from_slice(b"\r\n");
    let sending = tokio::spawn(async move {
        to.write_all(&request).await.unwrap();
        to // kept open: the server drops clients that half-close
    });
    let mut answer = vec![0; value.len() + 12];
    timeout(PATIENCE, from.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer[10..answer.len() - 2] == value, "the bytes changed");
    drop(sending.await.unwrap());
}

#[tokio::test]
async fn cut_resets_and_refuses_until_healed() {
    let testbed = proxied().await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let mut stream = client(&testbed).await;
    assert_eq!(proxy.connections(), 1);
    for _ in 0..3 {
        proxy.cut();
        assert_eq!(proxy.connections(), 0);
        let error = TcpStream::connect(node.addr()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(node.command(&["PING"]).await.unwrap().as_str(), Some("PONG")); // past the proxy
        proxy.heal();
        stream = client(&testbed).await;
    }
}

#[tokio::test]
async fn dropped_connections_can_be_made_again_at_once() {
    let testbed = proxied().await;
    let proxy = testbed.nodes()[0].proxy().unwrap();
    for _ in 0..20 {
        let mut used = client(&testbed).await;
        let mut fresh = TcpStream::connect(proxy.addr()).await.unwrap(); // the proxy may not have seen it yet
        proxy.drop_connections();
        assert_eq!(proxy.connections(), 0);
        for stream in [&mut used, &mut fresh] {
            assert_eq!(
                stream.read_u8().await.unwrap_err().kind(),
                std::io::ErrorKind::ConnectionReset
            );
        }
    }
    client(&testbed).await;
}

#[tokio::test]
async fn a_black_hole_holds_bytes_back() {
    let testbed = proxied().await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let mut old = client(&testbed).await;
    proxy.blackhole();
    let mut new = TcpStream::connect(node.addr()).await.unwrap();
    eventually("two connections", || async { proxy.connections() == 2 }).await;
    for stream in [&mut old, &mut new] {
        stream.write_all(b"INCR n\r\n").await.unwrap();
    }
    assert!(
        timeout(MOMENT, old.peek(&mut [0])).await.is_err(),
        "a byte got through"
    );
    assert!(
        timeout(MOMENT, new.peek(&mut [0])).await.is_err(),
        "a byte got through"
    );
    assert!(node.command(&["GET", "n"]).await.unwrap().is_nil());
    proxy.heal();
    for stream in [&mut old, &mut new] {
        let mut answer = [0; 4];
        timeout(PATIENCE, stream.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(answer[0], b':');
    }
    assert_eq!(node.command(&["GET", "n"]).await.unwrap().as_int(), Some(2));

    // Dropping the connections before healing loses the bytes.
    proxy.blackhole();
    old.write_all(b"INCR n\r\n").await.unwrap();
    proxy.drop_connections();
    proxy.heal();
    ping(&mut client(&testbed).await).await.unwrap();
    assert_eq!(node.command(&["GET", "n"]).await.unwrap().as_int(), Some(2));
}

#[tokio::test]
async fn one_way_black_holes() {
    let testbed = proxied().await;
    let node = &testbed.nodes()[0];
    let proxy = node.proxy().unwrap();
    let mut stream = client(&testbed).await;

    proxy.blackhole_from_server();
    stream.write_all(b"INCR n\r\n").await.unwrap();
    eventually("executed", || async {
        node.command(&["GET", "n"]).await.unwrap().as_int() == Some(1)
    })
    .await;
    assert!(
        timeout(MOMENT, stream.peek(&mut [0])).await.is_err(),
        "the answer got through"
    );
    proxy.heal();
    let mut answer = [0; 4];
    timeout(PATIENCE, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();

    proxy.blackhole_to_server();
    stream.write_all(b"INCR n\r\n").await.unwrap();
    assert!(
        timeout(MOMENT, stream.peek(&mut [0])).await.is_err(),
        "the request got through"
    );
    assert_eq!(node.command(&["GET", "n"]).await.unwrap().as_int(), Some(1));
    proxy.heal();
    timeout(PATIENCE, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&answer, b":2\r\n");
}

#[tokio::test]
async fn a_proxy_survives_its_server() {
    let testbed = proxied().await;
    let node = &testbed.nodes()[0];
    let mut old = client(&testbed).await;
    node.kill().await.unwrap();
    let mut bytes = Vec::new();
    let ended = timeout(PATIENCE, old.read_to_end(&mut bytes)).await.unwrap();
    assert!(ended.is_err() || bytes.is_empty());
    drop(old);
    // Accepted, then reset: it depends on the moment which of the two the client sees.
    if let Ok(mut new) = TcpStream::connect(node.addr()).await {
        assert!(timeout(PATIENCE, new.read_u8()).await.unwrap().is_err());
    }
    eventually("no connections", || async {
        node.proxy().unwrap().connections() == 0
    })
    .await;
    node.restart(Data::Keep).await.unwrap();
    client(&testbed).await;
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
async fn drop_and_shutdown_leave_nothing() {
    for how in 0..3 {
        let testbed = Testbed::builder().nodes(3).proxies(true).start().await.unwrap();
        let (pids, folder) = (pids(&testbed), testbed.folder().to_owned());
        assert!(pids.iter().all(|&pid| exists(pid)) && folder.is_dir());
        let _client = client(&testbed).await;
        testbed.nodes()[1].stop().unwrap();
        testbed.nodes()[2].kill().await.unwrap();
        match how {
            0 => drop(testbed),
            1 => testbed.shutdown().await,
            _ => {
                drop(testbed.shutdown()); // goes on
                eventually("gone", || async { !folder.exists() }).await;
            }
        }
        assert_gone(&pids, &folder);
    }
}

#[tokio::test]
async fn a_restart_under_way_does_not_outlive_the_testbed() {
    let testbed = Testbed::start(1).await.unwrap();
    let folder = testbed.folder().to_owned();
    let _ = timeout(Duration::ZERO, testbed.nodes()[0].restart(Data::Wipe)).await;
    drop(testbed);
    assert!(!folder.exists());
    assert_eq!(processes_naming(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_cancelled_start_leaves_nothing() {
    let marker = unique("cancelled");
    let testbed = Testbed::builder()
        .nodes(3)
        .arg("proc-title-template", marker.as_str())
        .start()
        .await;
    assert_eq!(processes_naming(Path::new(&marker)).len(), 6); // servers and guards
    drop(testbed);
    for millis in [0, 3, 10, 20, 40] {
        let start = Testbed::builder()
            .nodes(3)
            .arg("proc-title-template", marker.as_str())
            .start();
        if let Ok(testbed) = timeout(Duration::from_millis(millis), start).await {
            drop(testbed.unwrap());
        }
        assert_eq!(processes_naming(Path::new(&marker)), Vec::<String>::new());
    }
}

#[tokio::test]
async fn neither_ctrl_c_nor_a_lost_guard_matters() {
    let testbed = Testbed::start(1).await.unwrap();
    let (pids, folder) = (pids(&testbed), testbed.folder().to_owned());
    // Fields of /proc/pid/stat after the name: state, parent, process group.
    let stat = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit(") ").next().unwrap().split(' ').map(str::to_owned);
        fields.collect::<Vec<_>>()
    };
    let (server, us) = (stat(pids[0]), stat(std::process::id()));
    assert_ne!(server[2], us[2], "Ctrl-C would reach the server");

    let guard = &server[1];
    assert_eq!(&server[2], guard);
    assert_eq!(stat(guard.parse().unwrap())[1], std::process::id().to_string());
    assert!(
        Command::new("/bin/sh")
            .args(["-c", "kill -9 $0", guard])
            .status()
            .unwrap()
            .success()
    );
    drop(testbed);
    eventually("the server gone", || async { !exists(pids[0]) }).await;
    assert_gone(&pids, &folder);
}

#[test]
fn can_be_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Testbed>();
    check::<TestNode>();
    check::<TestbedError>();
}

#[test]
fn a_panic_leaves_nothing() {
    let (send, receive) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let testbed = Testbed::start(2).await.unwrap();
            send.send((pids(&testbed), testbed.folder().to_owned())).unwrap();
            panic!("on purpose");
        });
    });
    let (pids, folder) = receive.recv().unwrap();
    assert!(panicked.join().is_err());
    assert_gone(&pids, &folder);
}

#[test]
fn outlives_a_current_thread_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let testbed = first
        .block_on(Testbed::builder().nodes(2).proxies(true).start())
        .unwrap();
    drop(first);
    runtime().block_on(async {
        client(&testbed).await;
        testbed.nodes()[1].restart(Data::Wipe).await.unwrap();
    });
    let (pids, folder) = (pids(&testbed), testbed.folder().to_owned());
    drop(testbed); // no runtime at all
    assert_gone(&pids, &folder);
}

const CHILD: &str = "QUORLOCK_TESTBED_TEST_CHILD";

/// Not a test of its own: what `a_killed_parent_leaves_nothing` runs and kills.
#[tokio::test]
async fn child_that_waits_to_be_killed() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let testbed = Testbed::builder().nodes(3).proxies(true).start().await.unwrap();
    testbed.nodes()[1].stop().unwrap();
    testbed.nodes()[2].restart(Data::Keep).await.unwrap();
    let pids: Vec<_> = pids(&testbed).iter().map(u32::to_string).collect();
    println!("\nTESTBED {} {}", testbed.folder().display(), pids.join(" "));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_parent_leaves_nothing() {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "child_that_waits_to_be_killed"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .find(|line| line.starts_with("TESTBED "))
        .expect("the child starts a testbed");
    let mut words = line.split(' ').skip(1);
    let folder = PathBuf::from(words.next().unwrap());
    let pids: Vec<u32> = words.map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|&pid| exists(pid)) && folder.is_dir());

    child.kill().unwrap();
    child.wait().unwrap();
    eventually("all gone", || async {
        !pids.iter().any(|&pid| exists(pid)) && !folder.exists()
    })
    .await;
    eventually("no guards", || async { processes_naming(&folder).is_empty() }).await;
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

fn unique(what: &str) -> String {
    format!("quorlock-test-{what}-{}", std::process::id())
}

/// Command lines of running processes that contain `what`.
fn processes_naming(what: &Path) -> Vec<String> {
    let what = what.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(what)).collect()
}
