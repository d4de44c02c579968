//! A connection of the client library, for everything that is no request for a lock: made once, never made again by itself.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::socket2::TcpKeepalive;
use fred::types::config::{Config, ConnectionConfig, TcpConfig};
use fred::types::{ConnectHandle, CustomCommand, Value};

use super::address::pinned;
use super::connection::KEEPALIVE;
use super::fault;
use crate::node::Fault;

/// The client's own task, which owns the socket. Dropping the client alone would leak both.
pub(super) struct Task(ConnectHandle);

impl Task {
    /// Waits for the end of the connection, and says why it ended.
    pub(super) async fn ended(&mut self) -> Fault {
        fault::disconnected(match (&mut self.0).await {
            Ok(Ok(())) => "connection closed".into(),
            Ok(Err(error)) => reason(&error),
            Err(_) => "connection task ended".into(),
        })
    }
}

impl Drop for Task {
    /// Closes the socket with a reset (linger is zero), so that the kernel sends nothing of it later.
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Not the library's `init`: that leaves its task running when its future is dropped.
pub(super) async fn start(client: &Client) -> Result<Task, Fault> {
    let mut connected = pin!(client.wait_for_connect());
    // The first poll subscribes, before the task can report.
    let _ = futures_util::poll!(connected.as_mut());
    let task = Task(client.connect());
    connected.await.map_err(|error| refusal(&error))?;
    Ok(task)
}

/// A client that connects once, to this address of the server.
pub(super) fn client(config: &Config, peer: Option<SocketAddr>, timeout: Duration) -> Client {
    let config = Config {
        fail_fast: true,
        ..pinned(config, peer)
    };
    Client::new(config, None, Some(settings(timeout)), None)
}

/// Runs a script of one key by its text.
pub(super) async fn run(client: &Client, script: &'static str, key: String) -> Result<Value, Fault> {
    let all = vec![
        Value::from_static_str(script),
        Value::Integer(1),
        Value::from(key),
    ];
    let answer = client.custom::<Value, Value>(command("EVAL"), all).await;
    answer.map_err(|error| refusal(&error))
}

pub(super) fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, None::<u16>, false)
}

pub(super) fn settings(timeout: Duration) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: timeout,
        internal_command_timeout: timeout,
        // A8: one attempt.
        max_command_attempts: 1,
        max_redirections: 0,
        // It would be one more command, and one more right.
        auto_client_setname: false,
        // A bounded buffer leaks its counter on every overflow, until the client answers nothing any more.
        max_command_buffer_len: 0,
        tcp: TcpConfig {
            nodelay: Some(true),
            // A closed connection is reset: the kernel must not deliver leftovers when a partition heals.
            linger: Some(Duration::ZERO),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE)),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    }
}

/// What the client library reports: error replies, and failures of its own. Nothing that it carries can set a lock's key.
pub(super) fn refusal(error: &Error) -> Fault {
    match error.kind() {
        ErrorKind::Timeout => fault::disconnected("no answer for too long".into()),
        ErrorKind::IO | ErrorKind::Canceled => fault::disconnected(reason(error)),
        _ => fault::named(error.details()).unwrap_or_else(|| unknown(error)),
    }
}

fn unknown(error: &Error) -> Fault {
    let details = error.details();
    // The library's own words for a command that died with its connection.
    if ["channel closed", "not initialized", "send command to router"]
        .iter()
        .any(|text| details.contains(text))
    {
        return fault::disconnected(fault::short(details));
    }
    match error.kind() {
        ErrorKind::Protocol | ErrorKind::Parse => Fault::Protocol {
            detail: fault::short(details),
        },
        _ => Fault::Server {
            message: fault::short(details),
        },
    }
}

/// The library's words for a person: it prints an I/O error with all its Rust around it.
fn reason(error: &Error) -> Arc<str> {
    fault::short(plain(error.details()))
}

/// The words in `Os { code: .., kind: .., message: "words" }` and `Custom { kind: .., error: words }`.
fn plain(details: &str) -> &str {
    let of_os = || {
        let (_, rest) = details.split_once("message: \"")?;
        rest.split_once('"').map(|(text, _)| text)
    };
    let custom = || {
        let (_, rest) = details.strip_prefix("Custom {")?.split_once("error: ")?;
        Some(rest.strip_suffix('}')?.trim().trim_matches('"'))
    };
    of_os().or_else(custom).unwrap_or(details)
}
