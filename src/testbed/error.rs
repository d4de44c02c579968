//! What can go wrong with a testbed.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

/// The environment variable that names the server binary, if the builder does not.
pub(super) const VARIABLE: &str = "QUORLOCK_REDIS_SERVER";

/// Why a testbed, or one of its nodes, could not do what it was asked to do.
///
/// A node is named by its index, counted from 0.
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
    /// A folder or file of the testbed could not be made or removed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Folder {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A process, a pipe, a socket or the background thread could not be set up.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried, as a verb.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The server ended while it was starting.
    #[error("node {node}: the server ended while it was starting; it said:\n{log}")]
    Exited {
        /// The node.
        node: usize,
        /// The end of what the server printed and logged.
        log: String,
    },
    /// The server runs but did not get ready to answer in time. It has been ended.
    #[error("node {node}: the server did not answer PING within {waited:?} ({last}); it said:\n{log}")]
    NotReady {
        /// The node.
        node: usize,
        /// How long was waited.
        waited: Duration,
        /// What came of the last try.
        last: String,
        /// The end of what the server printed and logged.
        log: String,
    },
    /// The node's server does not run: it was killed, or it ended by itself.
    #[error("node {node}: the server is not running")]
    NotRunning {
        /// The node.
        node: usize,
    },
    /// No answer to a command in time: the server may be stopped. Whether it will still execute the command
    /// is unknown.
    #[error("node {node}: no answer from {addr} within {waited:?}")]
    Timeout {
        /// The node.
        node: usize,
        /// Where the command was sent.
        addr: SocketAddr,
        /// How long was waited.
        waited: Duration,
    },
    /// The connection for a command could not be made, broke, or carried something that is not RESP.
    #[error("node {node}: {addr}: {source}")]
    Connection {
        /// The node.
        node: usize,
        /// Where the command was sent.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The server did not accept the testbed's password.
    #[error("node {node}: the server refused the password: {message}")]
    Refused {
        /// The node.
        node: usize,
        /// The server's words.
        message: String,
    },
    /// The testbed was ended while the call was on its way.
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
