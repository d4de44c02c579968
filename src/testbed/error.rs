//! Errors of a testbed.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

/// The environment variable that names the server binary, if the builder does not.
pub(super) const VARIABLE: &str = "QUORLOCK_REDIS_SERVER";

/// An error of a testbed or one of its nodes. `node` is a node's index, counted from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestbedError {
    /// There is no server binary to run.
    #[error(
        "no Redis server found (looked for {looked_for}): install one (`apt-get install redis-server` or \
         `brew install redis`), or set {variable} to the path of a redis-server or valkey-server",
        variable = VARIABLE
    )]
    ServerMissing {
        /// The names or the path that were tried.
        looked_for: String,
    },
    /// A testbed of no nodes was asked for.
    #[error("a testbed needs at least one node")]
    NoNodes,
    /// A folder or file of the testbed could not be created or removed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Folder {
        /// The operation that failed.
        doing: &'static str,
        /// Its folder or file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A process, a pipe, a socket or the background thread could not be set up.
    #[error("cannot {doing}: {source}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The server exited during its start.
    #[error("node {node}: the server exited during its start; its output:\n{log}")]
    Exited {
        /// The node.
        node: usize,
        /// The end of the server's output and log.
        log: String,
    },
    /// The server did not answer in time after its start. It has been ended.
    #[error("node {node}: the server did not answer PING within {waited:?} ({last}); its output:\n{log}")]
    NotReady {
        /// The node.
        node: usize,
        /// How long the testbed waited.
        waited: Duration,
        /// The result of the last try.
        last: String,
        /// The end of the server's output and log.
        log: String,
    },
    /// The node's server does not run: it was killed, or it exited.
    #[error("node {node}: the server is not running")]
    NotRunning {
        /// The node.
        node: usize,
    },
    /// The server did not answer a command in time: it may be stopped. It may still execute the command.
    #[error("node {node}: no answer from {addr} within {waited:?}")]
    Timeout {
        /// The node.
        node: usize,
        /// Where the command was sent.
        addr: SocketAddr,
        /// How long the testbed waited.
        waited: Duration,
    },
    /// The connection for a command failed, or carried data that is not RESP.
    #[error("node {node}: {addr}: {source}")]
    Connection {
        /// The node.
        node: usize,
        /// Where the command was sent.
        addr: SocketAddr,
        /// Why it failed.
        source: io::Error,
    },
    /// The server did not accept the testbed's password.
    #[error("node {node}: the server refused the password: {message}")]
    Refused {
        /// The node.
        node: usize,
        /// The server's message.
        message: String,
    },
    /// The testbed was ended during the call.
    #[error("the testbed has ended")]
    Ended,
}

impl TestbedError {
    pub(crate) fn folder(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| TestbedError::Folder { doing, path, source }
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| TestbedError::System { doing, source }
    }
}
