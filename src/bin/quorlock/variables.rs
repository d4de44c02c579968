//! Names of environment variables that are used outside `args/`.

// Set for a command that runs under a lock.
pub(crate) const RESOURCE: &str = "QUORLOCK_RESOURCE";
pub(crate) const FENCING_TOKEN: &str = "QUORLOCK_FENCING_TOKEN";
pub(crate) const PERIOD: &str = "QUORLOCK_PERIOD";
/// What `quorlock acquire` prints for the steps that follow.
pub(crate) const HANDLE: &str = "QUORLOCK_HANDLE";

// Options. They are removed from a command's environment, or replaced in it.
pub(crate) const NODES: &str = "QUORLOCK_NODES";
pub(crate) const PASSWORD_FILE: &str = "QUORLOCK_PASSWORD_FILE";
pub(crate) const CREDENTIALS_COMMAND: &str = "QUORLOCK_CREDENTIALS_COMMAND";

/// Names the configuration file.
pub(crate) const CONFIG: &str = "QUORLOCK_CONFIG";
/// Filters of the log, which replace those of `-v`.
pub(crate) const LOG: &str = "QUORLOCK_LOG";
/// The server of a testbed.
pub(crate) const REDIS_SERVER: &str = "QUORLOCK_REDIS_SERVER";
