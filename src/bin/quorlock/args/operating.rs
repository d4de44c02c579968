//! The commands that show what is on the nodes, and that break a lock.

use clap::Args;

use super::{Existing, LockTimes};
use crate::exit;

/// Show which nodes are up, and why the others are not
///
/// Writes a key that expires to each node, to see whether the node accepts writes, and deletes it.
///
/// Exits with 0 if a quorum of nodes gives locks; with 69 if not, or not yet (restart guard); with 78 if any node may not vote,
/// even if there is a quorum. Nodes have a quarter of a second more than the quorum to answer.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_STATUS)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) existing: Existing,
    /// Exit with 0 only if all nodes give locks. For scripts that restart one node after the other
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) times: LockTimes,
}

/// Say everything that makes the nodes unfit for locks, and what to do about it
///
/// Checks settings, rights, real writes, memory, disks, speed, clocks, replicas, sentinels, hosts, the lists of nodes in use, and
/// locks that never expire. Facts that the user may not see are reported as not checked.
///
/// Takes no lock, and registers no list of nodes. Writes keys that expire within ten seconds, and deletes them. Creates a node's
/// record if there is none, which starts the guard of a new set.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_DOCTOR)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) times: LockTimes,
    /// Exit with 1 for any finding: also for warnings, and for what could not be checked
    #[arg(long)]
    pub(crate) strict: bool,
}

/// List the locks on the nodes: who holds them, since when, for how long, on how many nodes
///
/// Takes no lock, and changes no lock's key. Locks are printed as they are found, in no order. Needs the right +scan.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_LOCKS)]
pub(crate) struct Locks {
    /// Which names to list, as for KEYS: * for any text, ? for any character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
    /// Sum up by holder
    #[arg(long)]
    pub(crate) holders: bool,
    /// List only what needs a look: keys without an expiry, keys on too few nodes, data that is no lock, counters of fencing
    /// tokens without an expiry
    #[arg(long, conflicts_with = "holders")]
    pub(crate) leaked: bool,
    /// With --leaked: counters without an expiry are meant to be there (--counter-retention forever)
    #[arg(long, requires = "leaked")]
    pub(crate) endless_counters: bool,
}

/// Show who holds a lock, and what each node has of it
///
/// Takes no lock, and changes no lock's key.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_SHOW)]
pub(crate) struct Show {
    /// The lock's name
    pub(crate) resource: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// Take a lock away from its holder
///
/// Deletes the lock's keys if they still belong to the owner that was shown, and lets the next client have the lock. Without
/// --owner, shows the holder and asks on the terminal.
///
/// A holder that runs loses its lease at once, and quorlock ends its command. In the first second of a lease, that is at its end.
/// A holder that hangs does not notice. When it wakes up, it may go on to write: only a store that checks fencing tokens refuses
/// that.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_BREAK)]
pub(crate) struct Break {
    /// The lock's name
    pub(crate) resource: String,
    /// The owner, as `quorlock show` prints it
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// Show the lists of nodes in use, and their clients
///
/// Two different lists can both have a quorum, so clients of the later list get no locks. The list given here only says which
/// nodes to ask; it is not registered. Listing clients needs the right +scan.
///
/// Exits with 0 if at most one list is in use, with 78 if there are lists of different nodes, with 69 if no node could be asked.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_MEMBERS)]
pub(crate) struct Members {
    #[command(flatten)]
    pub(crate) existing: Existing,
}
