//! The commands that hold a lock.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use quorlock::DetachedLease;

use super::times::duration;
use super::{Existing, Locking, Nodes, OTHER_NODES};
use crate::exit::{self, Failure};
use crate::variables::HANDLE;

/// Run a command under a lock
///
/// Acquires the lock, runs the command, renews the lease while the command runs, then releases the lock. The command runs in its
/// own process group, with this terminal and standard input. QUORLOCK_RESOURCE contains the lock's name. Signals that would end
/// quorlock (TERM, INT, HUP, QUIT, USR1, USR2, ALRM, ...) go to the whole group, or to the command alone (--signal command).
///
/// If the lease is lost, or cannot be renewed in time, the whole group gets TERM, and KILL --kill-after later. This is before the
/// lease ends, so that no process of the group runs when another client may hold the lock. The guard does the same if quorlock itself
/// is killed or stopped. A process that leaves the group (setsid) is not ended.
///
/// A command that was paused can still write after another client has acquired the lock. No lock can prevent this.
/// QUORLOCK_FENCING_TOKEN contains a number that is larger for every later run. Send it with every write, and let the store
/// refuse numbers smaller than the largest it has seen.
///
/// The lock is released when the command itself ends. Processes that it left in the background go on without the lock. If the
/// lock is already gone (deleted by hand, for example), quorlock warns and exits with the command's code. A suspended job
/// (Ctrl-Z) does not renew its lease. If the lease ends, the command is ended.
#[derive(Debug, Args)]
#[command(after_help = exit::TABLE)]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) resource: String,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Use five local Redis masters, started for this run only. For trials: the lock excludes no other run
    #[arg(long, conflicts_with_all = OTHER_NODES)]
    pub(crate) testbed: bool,
    #[command(flatten)]
    pub(crate) lock: Locking,
    /// Time between TERM and KILL when the lease is lost [default: 5s, at most a quarter of the TTL and of --max-hold]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Which processes get the signals that are sent to quorlock. A prefork server (gunicorn, Celery, PostgreSQL) needs
    /// "command": it ends its workers itself, and loses their work if they get TERM as well
    #[arg(long, value_name = "TO", value_enum, default_value_t = Recipient::Group)]
    pub(crate) signal: Recipient,
    /// Remove QUORLOCK_NODES and QUORLOCK_CREDENTIALS_COMMAND, and so the nodes' passwords, from the command's environment
    #[arg(long)]
    pub(crate) hide_nodes: bool,
    /// End the command and release the lock after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for at least this time, at most the TTL, however short the command is. quorlock does not wait for it
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub(crate) min_hold: Duration,
    /// Run the command only if no run that began in the current period of this length has ended with code 0. From 1s to
    /// 365days. Periods are counted in UTC: 24h is a day. QUORLOCK_PERIOD contains its first moment. If the period is done, exits
    /// with 0, or the code of -E
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) once_per: Option<Duration>,
    /// The command, after "--"
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Acquire a lock, and leave it to later steps of a script
///
/// Prints a handle, and ends. No process stays behind, and nothing renews the lock: it stays held until its TTL is over, or until
/// `quorlock release`. Any machine with the handle can extend or release it. Keep it secret: it proves ownership.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_ACQUIRE)]
pub(crate) struct Acquire {
    /// The lock's name
    pub(crate) resource: String,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) lock: Locking,
    /// Print a line for the shell to evaluate: QUORLOCK_HANDLE, QUORLOCK_RESOURCE, QUORLOCK_FENCING_TOKEN
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
}

/// Keep a lock of `quorlock acquire` for another TTL
#[derive(Debug, Args)]
#[command(after_help = exit::OF_EXTEND)]
pub(crate) struct Extend {
    #[command(flatten)]
    pub(crate) handle: Handle,
}

/// Release a lock of `quorlock acquire`
#[derive(Debug, Args)]
#[command(after_help = exit::OF_RELEASE)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) handle: Handle,
}

/// A handle, and where its lock is.
#[derive(Debug, Args)]
pub(crate) struct Handle {
    /// What `quorlock acquire` has printed. Without it, the variable QUORLOCK_HANDLE is used, which keeps it out of the process
    /// list
    #[arg(env = HANDLE, hide_env_values = true)]
    handle: Option<String>,
    #[command(flatten)]
    pub(crate) existing: Existing,
    /// How long a node gives no locks after its memory began: as for acquire [default: 30s]
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_GUARD_WINDOW", value_parser = duration)]
    pub(crate) guard_window: Option<Duration>,
}

impl Handle {
    pub(crate) fn lease(&self) -> Result<DetachedLease, Failure> {
        // An empty variable counts as unset.
        match self.handle.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => text.parse().map_err(Failure::usage),
            None => Err(Failure::usage(
                "no handle: give what `quorlock acquire` has printed, or set the variable QUORLOCK_HANDLE to it",
            )),
        }
    }
}

/// Which processes get signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipient {
    /// The command and all processes that it has started, so that no part of a pipeline or script goes on
    Group,
    /// The command alone. A lost lease still ends all processes
    Command,
}
