//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

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
    Status(Status),
    Members(Members),
    Bench(Bench),
    Testbed(Testbed),
    #[command(hide = true)]
    Guard(Guard),
}

/// What is told on standard error.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Say more: -v acquiring, votes, releasing; -vv what happens inside. The variable QUORLOCK_LOG takes filters
    /// such as "quorlock=debug" instead
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Events as JSON, one object a line on standard error; results as JSON on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Run a command under a lock
///
/// Acquires the lock, runs the command, renews the lease for as long as it runs, then releases. The command runs in a
/// process group of its own, with this terminal and this input; it finds the name of the lock in QUORLOCK_RESOURCE.
/// Signals that would end quorlock (TERM, INT, HUP, QUIT, USR1, USR2, ALRM, ...) are passed on to the whole group, or to
/// the command alone (--signal command).
///
/// When the lease is lost, or cannot be renewed in time, the whole group gets TERM, and KILL --kill-after later:
/// before the lease ends, so that nothing of it runs when somebody else may have the lock. The same happens if
/// quorlock itself is killed or stopped. A process that leaves the group (setsid) is out of reach.
///
/// A command that was paused can still write after somebody else has got the lock, and no lock can prevent that. So it finds a
/// number in QUORLOCK_FENCING_TOKEN that is larger for every later run: send it with every write, and have the store
/// refuse smaller ones than it has seen.
///
/// The lock is released when the command itself ends; what it left in the background goes on without the lock.
/// If the lock turns out to be gone by then (deleted by hand, say), that is a warning, and the exit code stays the command's.
/// While a job is suspended (Ctrl-Z) its lease is not renewed: if it ends, the command is ended too.
#[derive(Debug, Args)]
#[command(after_help = exit::TABLE)]
pub(crate) struct Run {
    /// What to lock: any name
    pub(crate) resource: String,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Use five local Redis masters, started for this run only: to try things out, not to lock anything out
    #[arg(long, conflicts_with = "node")]
    pub(crate) testbed: bool,
    /// How long the lock outlives a crash of this machine, from 40ms to 365days; renewed every third of it
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// How long to wait for the lock: a duration, or "forever" (ends only if no quorum is in reach; nodes that are left out by the restart guard are waited for)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = Wait::parse)]
    pub(crate) wait: Wait,
    /// Try once; do not wait if it is held
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Time between TERM and KILL when the lease is lost [default: 5s, or a quarter of the TTL if that is less]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Which processes get the signals that are sent to quorlock. A prefork server (gunicorn, Celery, PostgreSQL) ends its workers
    /// itself, and would lose their work if they got TERM as well
    #[arg(long, value_name = "TO", value_enum, default_value_t = Recipient::Group)]
    pub(crate) signal: Recipient,
    /// Keep QUORLOCK_NODES, and with it the nodes' passwords, out of the command's environment
    #[arg(long)]
    pub(crate) hide_nodes: bool,
    /// Give the lock up after this long, and so end the command
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) max_hold: Option<Duration>,
    /// In front of the lock's name on the nodes; empty shares locks with other Redlock clients
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
    /// Take the lock without a fencing token, as other Redlock clients do. QUORLOCK_FENCING_TOKEN is not set then
    #[arg(long)]
    pub(crate) no_fencing: bool,
    /// How long the nodes keep the counter that fencing tokens come from, after which it starts again from their clocks: a
    /// duration of at least ten TTLs, or "forever" [default: 24h, or ten TTLs if that is more]
    #[arg(long, value_name = "DURATION", conflicts_with = "no_fencing", value_parser = retention)]
    pub(crate) counter_retention: Option<Duration>,
    /// How long nodes whose memory has just begun give no locks: for this long, at least for the TTL, and up to 5s more.
    /// Set it to the longest TTL that anyone uses on these nodes [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) guard_window: Option<Duration>,
    /// Use nodes whose memory has just begun, and which may have forgotten locks that are still held
    #[arg(long, conflicts_with = "guard_window")]
    pub(crate) no_restart_guard: bool,
    /// The command, after "--"
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Which nodes.
#[derive(Clone, Debug, Args)]
#[group(id = "nodes", multiple = true)]
pub(crate) struct Nodes {
    /// A node: redis://[[user]:password@]host[:port][/db]; once for each, or several separated by commas or blanks. Passwords
    /// are better kept in the variable QUORLOCK_NODES, which is used if there is no --node
    #[arg(long, visible_alias = "nodes", value_name = "URL,...")]
    pub(crate) node: Vec<String>,
    /// Read the nodes' password from this file, anew for each connection. The user is the one in the URL
    #[arg(long, value_name = "FILE", conflicts_with = "credentials_command")]
    pub(crate) password_file: Option<PathBuf>,
    /// Run this with sh for the nodes' password, anew for each connection. It prints the password in one line, and perhaps for how
    /// long it is valid in a second one, such as 15m: live connections authenticate again in time
    #[arg(long, value_name = "COMMAND")]
    pub(crate) credentials_command: Option<String>,
    /// How long to wait for a quorum of nodes to be connected
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) connect_timeout: Duration,
    /// Trust these certificate authorities (PEM) instead of the system's, for rediss://. Files are read anew for each connection
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Client certificate (PEM)
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Show which nodes are up, and why the others are not
///
/// Ends with 0 if a quorum of nodes gives locks, with 69 if not, or not yet (the restart guard), with 78 if any node may not vote,
/// even if there is a quorum. Nodes that have not answered a quarter of a second after the quorum are shown as such.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_STATUS)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// How long nodes whose memory has just begun give no locks: as for run, or the TTL there if that is longer [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) guard_window: Option<Duration>,
    /// In front of the names of the locks
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
}

/// Show which lists of nodes clients use, and which clients
///
/// Clients whose lists differ could both have a quorum, so the later ones take no locks. The list given here only says which nodes to
/// ask: it is not registered. Listing the clients takes the right to list keys (+scan).
///
/// Ends with 0 if all clients use one list, with 78 if there are more, with 69 if no node could be asked.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_MEMBERS)]
pub(crate) struct Members {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// In front of the names of the locks
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
}

/// Measure what a lock costs on these nodes, and say what to do about it
///
/// Measures, one after the other: the round trip to each node; acquiring and releasing a lock, by one task and by many at
/// once; and how one lock is handed over among tasks of this process. Takes about half a minute.
///
/// Takes real locks, under names of its own (bench:RANDOM:*, behind the prefix), and releases them. Only their counters stay, and
/// expire by themselves within minutes. No other key and no setting of a server is touched. The nodes are kept busy meanwhile: with
/// --tasks 1, as busy as one client keeps them.
///
/// Ctrl-C ends it early, and shows what was measured until then.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_BENCH)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Use local Redis masters, started for this run only: five, or N. To try things out: all share this machine
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5", conflicts_with = "node")]
    pub(crate) testbed: Option<usize>,
    /// How long each measurement takes: up to a day
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) duration: Duration,
    /// How many tasks take locks at once, each of a name of its own: one measurement for each number from 1 to 10000 (that with one task is
    /// always made)
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64,256", value_parser = number(1, 10_000))]
    pub(crate) tasks: Vec<usize>,
    /// How many wait for the same lock, where it is handed on: from 2 to 10000
    #[arg(long, value_name = "N", default_value = "8", value_parser = number(2, 10_000))]
    pub(crate) waiters: usize,
    /// How long each of them holds it: shorter than --duration. Timers make it longer by a millisecond or so
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = humantime::parse_duration)]
    pub(crate) hold: Duration,
    /// The TTL of your locks, from 10ms to 365days. A tenth of it is what a node may take to answer. (The locks taken here live for 10s at most)
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// In front of the names of the locks taken
    #[arg(long, value_name = "PREFIX", default_value = "quorlock:")]
    pub(crate) key_prefix: String,
    /// Take locks without fencing tokens
    #[arg(long)]
    pub(crate) no_fencing: bool,
    /// Also draw the results, as an SVG: a name that ends in .svg
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
}

/// How long counters are kept.
fn retention(text: &str) -> Result<Duration, humantime::DurationError> {
    match text {
        "forever" => Ok(Duration::MAX),
        text => humantime::parse_duration(text),
    }
}

/// A number within bounds.
fn number(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.trim().parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("not a number from {least} to {most}")),
    }
}

/// Start local Redis masters to try things out
///
/// Without a command: prints their URLs and keeps them until Ctrl-C or TERM. With one: runs it with QUORLOCK_NODES
/// set, and ends with its exit code. Nothing is left behind.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_TESTBED)]
pub(crate) struct Testbed {
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    pub(crate) nodes: usize,
    /// Kill the last N of them again before anything else happens: to see what that does
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

/// The second process of a run; not for people.
#[derive(Debug, Args)]
pub(crate) struct Guard {
    grace_ms: u64,
}

impl Guard {
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }
}

/// Which processes signals are passed on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipient {
    /// The command and all that it has started: a pipeline, or a script, whose parts would otherwise go on
    Group,
    /// The command alone. When the lease is lost, the whole group is ended nevertheless
    Command,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Within(Duration),
    Forever,
}

impl Command {
    /// Whether what is wrong with a node's settings is part of the result, and need not be told besides.
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
