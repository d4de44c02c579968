//! A connection of the client library, for everything that is no request for a lock: made once, never made again by itself.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::ClientLike;
use fred::socket2::TcpKeepalive;
use fred::types::config::{Config, ConnectionConfig, TcpConfig};
use fred::types::{ConnectHandle, CustomCommand, Value};

use super::address::pinned;
use super::fault;
use crate::node::Fault;

/// Finds out about peers that are gone while nothing is sent.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The client's own task, which owns the socket. Dropping the client alone would leak both.
pub(super) struct Task(ConnectHandle);

impl Task {
    /// Waits for the end of the connection, and says why it ended.
    pub(super) async fn ended(&mut self) -> Fault {
        fault::disconnected(match (&mut self.0).await {
            Ok(Ok(())) => "connection closed".into(),
            Ok(Err(error)) => fault::reason(&error),
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

/// Runs a script by its text.
pub(super) async fn run(
    client: &Client,
    script: &'static str,
    keys: &[String],
    args: Vec<Value>,
) -> Result<Value, Fault> {
    let mut all = vec![Value::from_static_str(script), Value::Integer(keys.len() as i64)];
    all.extend(keys.iter().map(|key| Value::from(&**key)));
    all.extend(args);
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

pub(super) fn refusal(error: &Error) -> Fault {
    fault::before(fault::from_error(error))
}
