//! The testbed itself, with real servers.
#![cfg(feature = "testbed")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod proxies;
mod servers;

use std::time::Duration;

use common::{PATIENCE, eventually};
use quorlock::testbed::Testbed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Long enough to notice what should not happen. Too short can only miss a bug, not report one.
pub(crate) const MOMENT: Duration = Duration::from_millis(150);

pub(crate) fn exists(pid: u32) -> bool {
    // A zombie counts as gone.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

pub(crate) async fn read_pong(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).await?;
    assert_eq!(&pong, b"+PONG\r\n");
    Ok(())
}

pub(crate) async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"PING\r\n").await?;
    timeout(PATIENCE, read_pong(stream))
        .await
        .expect("neither an answer nor an error came in time")
}

pub(crate) async fn proxied() -> Testbed {
    Testbed::builder().nodes(1).proxies(true).start().await.unwrap()
}

pub(crate) async fn client(testbed: &Testbed) -> TcpStream {
    let mut stream = TcpStream::connect(testbed.nodes()[0].addr()).await.unwrap();
    ping(&mut stream).await.unwrap();
    stream
}
