//! Options that several commands have: the nodes, and how locks are taken on them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::times::{LockTimes, Wait, duration};
use crate::variables::{CREDENTIALS_COMMAND, NODES, PASSWORD_FILE};

/// The nodes, and how to connect to them.
#[derive(Clone, Debug, Args)]
#[group(id = "nodes", multiple = true)]
pub(crate) struct Nodes {
    /// A node: redis://[[user]:password@]host[:port][/db]. Repeat it, or separate several by commas or blanks. The variable and
    /// the configuration file keep passwords out of the process list
    #[arg(long, visible_alias = "nodes", value_name = "URL,...", env = NODES)]
    pub(crate) node: Vec<String>,
    /// Read the nodes' password from this file, anew for each connection. The user name comes from the URL
    #[arg(
        long,
        value_name = "FILE",
        env = PASSWORD_FILE,
        conflicts_with = "credentials_command"
    )]
    pub(crate) password_file: Option<PathBuf>,
    /// Run this with sh for the nodes' password, anew for each connection. It prints the password in its first line. A second
    /// line may say how long the password is valid, such as 15m; connections then authenticate again before that
    #[arg(long, value_name = "COMMAND", env = CREDENTIALS_COMMAND)]
    pub(crate) credentials_command: Option<String>,
    /// How long to wait until a quorum of nodes is connected
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_CONNECT_TIMEOUT", default_value = "5s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
    /// The CAs (PEM) to trust for rediss://, instead of the system's. TLS files are read anew for each connection
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", env = "QUORLOCK_TLS_CA")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The client certificate (PEM). Needs --tls-key
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", env = "QUORLOCK_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The client certificate's key (PEM)
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", env = "QUORLOCK_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Where existing locks and clients are looked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Existing {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// The prefix of the locks' keys
    #[arg(
        long,
        value_name = "PREFIX",
        env = "QUORLOCK_KEY_PREFIX",
        default_value = "quorlock:"
    )]
    pub(crate) key_prefix: String,
}

/// How to acquire a lock.
#[derive(Debug, Args)]
pub(crate) struct Locking {
    #[command(flatten)]
    pub(crate) times: LockTimes,
    /// How long to wait for the lock: a duration, or "forever" (for a holder or the restart guard, not for an outage)
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_WAIT", default_value = "10s", value_parser = Wait::parse)]
    pub(crate) wait: Wait,
    /// Try once, without waiting
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Exit with this code, instead of 75, if the lock is held by another client; also if the period is done (--once-per)
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// The name by which other clients and `quorlock locks` know this run [default: quorlock run PROGRAM]
    #[arg(long, value_name = "NAME", env = "QUORLOCK_NAME")]
    pub(crate) name: Option<String>,
    /// The prefix of the lock's key on the nodes. An empty one shares locks with other Redlock clients
    #[arg(
        long,
        value_name = "PREFIX",
        env = "QUORLOCK_KEY_PREFIX",
        default_value = "quorlock:"
    )]
    pub(crate) key_prefix: String,
    /// Acquire the lock without a fencing token, as other Redlock clients do. QUORLOCK_FENCING_TOKEN is then not set
    #[arg(long, env = "QUORLOCK_NO_FENCING", conflicts_with = "counter_retention")]
    pub(crate) no_fencing: bool,
    /// Use nodes whose memory has just begun, although they may have forgotten locks that are still held
    #[arg(long, conflicts_with = "guard_window")]
    pub(crate) no_restart_guard: bool,
}
