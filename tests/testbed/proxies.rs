//! Networks that are slow, broken, or swallow all bytes.

use std::time::{Duration, Instant};

use quorlock::testbed::{Data, Testbed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{MOMENT, PATIENCE, client, eventually, ping, proxied, read_pong};

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

    // One after the other, they would take 10 s.
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

/// Timers tick once in a millisecond, so a wait for zero would add one each way.
#[tokio::test]
async fn without_a_delay_none_is_added() {
    let testbed = proxied().await;
    let node = &testbed.nodes()[0];
    let proxied = client(&testbed).await;
    let direct = TcpStream::connect(node.direct_addr()).await.unwrap();
    direct.set_nodelay(true).unwrap();
    let mut streams = [direct, proxied];
    let mut took = [Vec::new(), Vec::new()];
    // In turns, so that load delays both alike.
    for _ in 0..200 {
        for (stream, took) in streams.iter_mut().zip(&mut took) {
            let sent = Instant::now();
            ping(stream).await.unwrap();
            took.push(sent.elapsed());
        }
    }
    let [direct, proxied] = took.map(|mut took| {
        took.sort_unstable();
        took[took.len() / 4]
    });
    assert!(
        proxied < direct + Duration::from_millis(1),
        "{proxied:?} through the proxy, {direct:?} past it"
    );
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
async fn new_connections_lead_to_another_server_and_open_ones_stay() {
    let testbed = Testbed::builder().nodes(2).proxies(true).start().await.unwrap();
    let [node, other] = testbed.nodes() else { panic!() };
    let proxy = node.proxy().unwrap();
    let mut old = client(&testbed).await;
    proxy.lead_to(other.direct_addr());
    let mut new = client(&testbed).await;
    // Healing the network does not change where connections lead.
    proxy.heal();
    for (stream, server) in [(&mut old, node), (&mut new, other)] {
        stream.write_all(b"INCR n\r\n").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b":1\r\n");
        assert_eq!(server.command(&["GET", "n"]).await.unwrap().as_str(), Some("1"));
    }
    proxy.lead_to(node.direct_addr());
    let mut back = client(&testbed).await;
    back.write_all(b"INCR n\r\n").await.unwrap();
    let mut answer = [0; 4];
    back.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b":2\r\n");
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
    eventually("the server has executed the request", || async {
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
    // The proxy may accept before it resets.
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
