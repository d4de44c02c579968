//! Connections of the client library, for all but requests for locks. They connect once, and never reconnect by themselves.

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
    /// Waits until the connection ends. Returns why it ended.
    pub(super) async fn ended(&mut self) -> Fault {
        fault::disconnected(match (&mut self.0).await {
            Ok(Ok(())) => "connection closed".into(),
            Ok(Err(error)) => reason(&error),
            Err(_) => "connection task ended".into(),
        })
    }
}

impl Drop for Task {
    /// Closes the socket with a reset (linger is zero), so that the kernel sends no buffered data later.
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects. The library's `init` would leave its task running if its future is dropped.
pub(super) async fn start(client: &Client) -> Result<Task, Fault> {
    let mut connected = pin!(client.wait_for_connect());
    // The first poll subscribes to the outcome, before the task can report it.
    let _ = futures_util::poll!(connected.as_mut());
    let task = Task(client.connect());
    connected.await.map_err(|error| refusal(&error))?;
    Ok(task)
}

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
        // The library must not resend a command (A8).
        max_command_attempts: 1,
        max_redirections: 0,
        // It would take one more command, and one more right.
        auto_client_setname: false,
        // A bounded buffer leaks its counter on every overflow, until the client stops answering.
        max_command_buffer_len: 0,
        tcp: TcpConfig {
            nodelay: Some(true),
            // A closed connection is reset: the kernel must not deliver buffered data when a partition ends.
            linger: Some(Duration::ZERO),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE)),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    }
}

/// Turns the client library's error into a fault. A lost connection is `Disconnected`: no command sent here can set a lock's key.
pub(super) fn refusal(error: &Error) -> Fault {
    match error.kind() {
        ErrorKind::Timeout => fault::disconnected("no answer for too long".into()),
        ErrorKind::IO | ErrorKind::Canceled => fault::disconnected(reason(error)),
        _ => fault::named(error.details()).unwrap_or_else(|| unknown(error)),
    }
}

fn unknown(error: &Error) -> Fault {
    let details = error.details();
    // The library's texts for a command whose connection has ended.
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

/// Returns the library's error without the Rust syntax that it prints around an I/O error.
fn reason(error: &Error) -> Arc<str> {
    fault::short(plain(error.details()))
}

/// Extracts the text from `Os { code: .., kind: .., message: "text" }` and `Custom { kind: .., error: text }`.
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
