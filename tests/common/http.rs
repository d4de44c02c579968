//! Asks a server on this machine.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the status and the body of the answer. HTTP 1.0 has neither chunks nor connections that stay open.
pub(crate) async fn ask(address: &str, method: &str, path: &str) -> io::Result<(u16, String)> {
    ask_as(address, address, method, path).await
}

/// As `ask`, by a name of the server.
pub(crate) async fn ask_as(address: &str, host: &str, method: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let parts = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    });
    parts.ok_or_else(|| io::Error::other(format!("no answer: {answer}")))
}
