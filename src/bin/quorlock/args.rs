//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use quorlock::DetachedLease;

use crate::exit;

/// Runs commands under a lock held on a quorum of independent Redis or Valkey masters (Redlock).
#[derive(Debug, Parser)]
#[command(version, after_help = exit::TABLE, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Acquire(Acquire),
    Extend(Extend),
    Release(Release),
    Status(Status),
    Locks(Locks),
    Show(Show),
    Break(Break),
    Members(Members),
    Bench(Bench),
    Testbed(Testbed),
    #[command(hide = true)]
    Guard(Guard),
}

/// How much is printed, and in which form.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print more: -v the acquire, votes and the release; -vv also renewals and the library's log. The variable QUORLOCK_LOG sets
    /// log filters instead, such as "quorlock=debug"
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print events as JSON on standard error, one object a line; print results as JSON on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Run a command under a lock
///
/// Acquires the lock, runs the command, renews the lease while the command runs, then releases the lock. The command runs in its
/// own process group, with this terminal and standard input. QUORLOCK_RESOURCE contains the lock's name. Signals that would end
/// quorlock (TERM, INT, HUP, QUIT, USR1, USR2, ALRM, ...) go to the whole group, or to the command alone (--signal command).
///
/// If the lease is lost, or cannot be renewed in time, the whole group gets TERM, and KILL --kill-after later. This is before the
/// lease ends, so that no process of the group runs when another client may hold the lock. The same happens if quorlock itself is
/// killed or stopped. A process that leaves the group (setsid) is not ended.
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
    #[arg(long, conflicts_with = "node")]
    pub(crate) testbed: bool,
    #[command(flatten)]
    pub(crate) lock: Locking,
    /// Time between TERM and KILL when the lease is lost [default: 5s, at most a quarter of the TTL and of --max-hold]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Which processes get the signals that are sent to quorlock. A prefork server (gunicorn, Celery, PostgreSQL) needs
    /// "command": it ends its workers itself, and loses their work if they get TERM as well
    #[arg(long, value_name = "TO", value_enum, default_value_t = Recipient::Group)]
    pub(crate) signal: Recipient,
    /// Remove QUORLOCK_NODES, and so the nodes' passwords, from the command's environment
    #[arg(long)]
    pub(crate) hide_nodes: bool,
    /// End the command and release the lock after this time
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for at least this time after it was acquired, at most the TTL, however short the command is. quorlock does
    /// not wait for it
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = humantime::parse_duration)]
    pub(crate) min_hold: Duration,
    /// Run the command only if no run with this option has ended with code 0 in the current period of this length, from 1s to
    /// 365days. Periods are counted in UTC: 24h is a day. QUORLOCK_PERIOD contains its first moment. If the period is done, exits
    /// with 0, or the code of -E
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) once_per: Option<Duration>,
    /// The command, after "--"
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// How to acquire a lock.
#[derive(Debug, Args)]
pub(crate) struct Locking {
    /// The TTL, from 40ms (acquire: 10ms) to 365days: how long the lock stays held after a crash of this machine
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// How long to wait for the lock: a duration, or "forever" (for a holder or the restart guard, not for an outage)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = Wait::parse)]
    pub(crate) wait: Wait,
    /// Try once, without waiting
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Exit with this code, instead of 75, if the lock is held by another client
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// The name by which other clients and `quorlock locks` know this run [default: quorlock run PROGRAM]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The prefix of the lock's key on the nodes. An empty one shares locks with other Redlock clients
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
    /// Acquire the lock without a fencing token, as other Redlock clients do. QUORLOCK_FENCING_TOKEN is then not set
    #[arg(long)]
    pub(crate) no_fencing: bool,
    /// How long the nodes keep the counter of the fencing tokens, before it starts again from their clocks: at least ten TTLs and
    /// 5s, or "forever" [default: 24h, or ten TTLs if that is more]
    #[arg(long, value_name = "DURATION", conflicts_with = "no_fencing", value_parser = retention)]
    pub(crate) counter_retention: Option<Duration>,
    /// How long a node gives no locks after its memory began: this time, at least the TTL, and up to 5s more. Set it to the
    /// longest TTL that any client uses on these nodes [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) guard_window: Option<Duration>,
    /// Use nodes whose memory has just begun, although they may have forgotten locks that are still held
    #[arg(long, conflicts_with = "guard_window")]
    pub(crate) no_restart_guard: bool,
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
    #[arg(env = "QUORLOCK_HANDLE", hide_env_values = true)]
    pub(crate) handle: DetachedLease,
    #[command(flatten)]
    pub(crate) existing: Existing,
    /// How long a node gives no locks after its memory began: as for acquire [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) guard_window: Option<Duration>,
}

/// The nodes, and how to connect to them.
#[derive(Clone, Debug, Args)]
#[group(id = "nodes", multiple = true)]
pub(crate) struct Nodes {
    /// A node: redis://[[user]:password@]host[:port][/db]. Repeat it, or separate several by commas or blanks. Without it, the
    /// variable QUORLOCK_NODES is used, which keeps passwords out of the process list
    #[arg(long, visible_alias = "nodes", value_name = "URL,...")]
    pub(crate) node: Vec<String>,
    /// Read the nodes' password from this file, anew for each connection. The user name comes from the URL
    #[arg(long, value_name = "FILE", conflicts_with = "credentials_command")]
    pub(crate) password_file: Option<PathBuf>,
    /// Run this with sh for the nodes' password, anew for each connection. It prints the password in its first line. A second
    /// line may say how long the password is valid, such as 15m; connections then authenticate again before that
    #[arg(long, value_name = "COMMAND")]
    pub(crate) credentials_command: Option<String>,
    /// How long to wait until a quorum of nodes is connected
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) connect_timeout: Duration,
    /// The CAs (PEM) to trust for rediss://, instead of the system's. TLS files are read anew for each connection
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The client certificate (PEM)
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The client certificate's key (PEM)
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Show which nodes are up, and why the others are not
///
/// Exits with 0 if a quorum of nodes gives locks; with 69 if not, or not yet (restart guard); with 78 if any node may not vote,
/// even if there is a quorum. Nodes have a quarter of a second more than the quorum to answer.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_STATUS)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Exit with 0 only if all nodes give locks. For scripts that restart one node after the other
    #[arg(long)]
    pub(crate) all: bool,
    /// How long a node gives no locks after its memory began: as for run, or run's --ttl if that is longer [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) guard_window: Option<Duration>,
    /// The prefix of the locks' keys
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
}

/// Where existing locks are looked for.
#[derive(Debug, Args)]
pub(crate) struct Existing {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// The prefix of the locks' keys
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
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
/// A holder that runs loses its lease at once, or with its next renewal, and quorlock ends its command. A holder that hangs does
/// not notice. When it wakes up, it may go on to write: only a store that checks fencing tokens refuses that.
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
/// Exits with 0 if at most one list is in use, with 78 if there are more, with 69 if no node could be asked.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_MEMBERS)]
pub(crate) struct Members {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// The prefix of the locks' keys
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
}

/// Measure what a lock costs on these nodes, and give advice
///
/// Measures the round trip to each node; then acquires and releases, by one task and by many at once; then how one lock is handed
/// over among tasks of this process. Takes about half a minute.
///
/// Acquires real locks, with names of its own (bench:RANDOM:*, behind the prefix), and releases them. Their counters expire
/// within minutes. Creates a node's record if there is none; touches no other key and no setting. The nodes are busy meanwhile:
/// with --tasks 1, as busy as one client makes them.
///
/// Ctrl-C ends the measurement early, and shows the results so far.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_BENCH)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Use local Redis masters, started for this run only: five, or N. For trials: all share this machine
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5", conflicts_with = "node")]
    pub(crate) testbed: Option<usize>,
    /// How long each measurement takes, from 1ms to 1day
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) duration: Duration,
    /// How many tasks acquire locks at once, each its own: a measurement for each number, from 1 to 10000, and always for 1
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64,256", value_parser = number(1, 10_000))]
    pub(crate) tasks: Vec<usize>,
    /// How many tasks share one lock in the hand-over, from 2 to 10000
    #[arg(long, value_name = "N", default_value = "8", value_parser = number(2, 10_000))]
    pub(crate) waiters: usize,
    /// How long each of them holds it: less than --duration. Timers add about a millisecond
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = humantime::parse_duration)]
    pub(crate) hold: Duration,
    /// The TTL of your locks, from 10ms to 365days. A node may take a tenth of it to answer. (Here, locks have 10s at most)
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// The prefix of the locks' keys
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
    /// Acquire locks without fencing tokens
    #[arg(long)]
    pub(crate) no_fencing: bool,
    /// Also draw the results into this file, whose name ends in .svg
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
}

/// Parses how long counters are kept.
fn retention(text: &str) -> Result<Duration, humantime::DurationError> {
    match text {
        "forever" => Ok(Duration::MAX),
        text => humantime::parse_duration(text),
    }
}

/// Returns a parser of numbers from `least` to `most`.
fn number(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.trim().parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("not a number from {least} to {most}")),
    }
}

/// Start local Redis masters to try things out
///
/// Without a command, prints the masters' URLs and runs them until Ctrl-C or TERM. With a command, runs it with QUORLOCK_NODES
/// set, and exits with its code. In the end, removes the masters and their data.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_TESTBED)]
pub(crate) struct Testbed {
    /// How many masters
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    pub(crate) nodes: usize,
    /// Kill the last N masters before anything else runs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) dead: usize,
    /// The server binary [default: $QUORLOCK_REDIS_SERVER, or valkey-server or redis-server on the PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) server: Option<PathBuf>,
    /// Print a line for the shell to evaluate: export QUORLOCK_NODES='...'
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
    /// The command, after "--"
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The guard process of a run. Not for users.
#[derive(Debug, Args)]
pub(crate) struct Guard {
    grace_ms: u64,
}

impl Guard {
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
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

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Within(Duration),
    Forever,
}

impl Command {
    /// Returns whether the result contains warnings about nodes' settings. The log then leaves them out.
    pub(crate) fn shows_settings(&self) -> bool {
        matches!(self, Command::Status(_) | Command::Bench(_))
    }
}

impl Wait {
    fn parse(text: &str) -> Result<Wait, humantime::DurationError> {
        match text {
            "forever" => Ok(Wait::Forever),
            text => humantime::parse_duration(text).map(Wait::Within),
        }
    }
}
