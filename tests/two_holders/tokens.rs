//! Tokens rise when nodes lose their counters. A counter lives as long as its longest retention.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::ReleaseOutcome;
use quorlock::testbed::{TestNode, Testbed};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::common::{PATIENCE, connect, eventually, unguarded};
use crate::{flush, info};

/// Returns the milliseconds that the counter has left; `None` if it never expires.
async fn left(node: &TestNode) -> Option<u64> {
    let left = node.command(&["PTTL", "quorlock:job#fence"]).await.unwrap();
    let left = left.as_int().unwrap();
    assert_ne!(left, -2, "there is no counter");
    u64::try_from(left).ok()
}

#[tokio::test]
async fn a_longer_retention_lengthens_the_life_of_the_counter_and_no_shorter_one_shortens_it() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let testbed = Testbed::start(1).await.unwrap();
    let node = &testbed.nodes()[0];
    let redlock = connect(&testbed).await;
    // Counters from before the start of the node would be started anew.
    eventually("the node was started a while ago", async || {
        info(node, "uptime_in_seconds").await.parse::<u32>().unwrap() >= 5
    })
    .await;
    let short = Duration::from_secs(60);
    let mut longest = 0;
    for retention in [short, HOUR, short, Duration::MAX, HOUR] {
        let lock = redlock
            .lock("job")
            .ttl(Duration::from_secs(1))
            .counter_retention(retention);
        let lease = lock.acquire().await.unwrap();
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
        let left = left(node).await.unwrap_or(u64::MAX);
        longest = u64::try_from(retention.as_millis())
            .unwrap_or(u64::MAX)
            .max(longest);
        // At worst, the test takes half of it.
        assert!(
            left >= longest - longest / 2,
            "{left} ms left, after {retention:?}"
        );
    }
}

/// Returns an address that leads to a server, with delayed answers.
async fn slow_answers(server: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.unwrap();
            let (mut requests, mut answers) = client.into_split();
            let (mut from, mut to) = server.into_split();
            tokio::spawn(async move { copy(&mut requests, &mut to).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(read @ 1..) = from.read(&mut bytes).await {
                    sleep(delay).await;
                    answers.write_all(&bytes[..read]).await.unwrap();
                }
            });
        }
    });
    addr
}

/// A client with slow answers takes clocks to be behind by half of the delay. It must not start a counter below one that was lost
/// just after its start.
#[tokio::test]
async fn memory_that_is_lost_just_after_counters_were_started() {
    let testbed = Testbed::start(3).await.unwrap();
    let mut far = Vec::new();
    for node in testbed.nodes() {
        far.push(format!(
            "redis://{}",
            slow_answers(node.direct_addr(), Duration::from_millis(900)).await
        ));
    }
    // One that waits that long for answers.
    let far = unguarded(&far).connect().await.unwrap();
    let near = connect(&testbed).await;
    let before = near.lock("job").acquire().await.unwrap();
    let first = before.fencing_token().unwrap();
    assert_eq!(before.release().await, ReleaseOutcome::Released);
    join_all(testbed.nodes().iter().map(flush)).await;
    near.shutdown().await;
    drop(near);
    let after = far.lock("job").within(PATIENCE).acquire().await.unwrap();
    let second = after.fencing_token().unwrap();
    assert!(first < second, "{first}, then {second}");
}
