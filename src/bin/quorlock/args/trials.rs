//! The commands that measure nodes, and that start local ones.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::times::{duration, ttl, within};
use super::{Nodes, OTHER_NODES};
use crate::exit;

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
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5", conflicts_with_all = OTHER_NODES)]
    pub(crate) testbed: Option<usize>,
    /// How long each measurement takes, from 1ms to 1day
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = measured)]
    pub(crate) duration: Duration,
    /// How many tasks acquire locks at once, each its own: a measurement for each number, from 1 to 10000, and always for 1
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64,256", value_parser = number(1, 10_000))]
    pub(crate) tasks: Vec<usize>,
    /// How many tasks share one lock in the hand-over, from 2 to 10000
    #[arg(long, value_name = "N", default_value = "8", value_parser = number(2, 10_000))]
    pub(crate) waiters: usize,
    /// How long each of them holds it: less than --duration. Timers add about a millisecond
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = duration)]
    pub(crate) hold: Duration,
    /// The TTL of your locks, from 10ms to 365days. A node may take a tenth of it to answer. (Here, locks have 10s at most)
    #[arg(long, value_name = "DURATION", env = "QUORLOCK_TTL", default_value = "30s", value_parser = ttl)]
    pub(crate) ttl: Duration,
    /// The prefix of the locks' keys
    #[arg(
        long,
        value_name = "PREFIX",
        env = "QUORLOCK_KEY_PREFIX",
        default_value = "quorlock:"
    )]
    pub(crate) key_prefix: String,
    /// Acquire locks without fencing tokens
    #[arg(long, env = "QUORLOCK_NO_FENCING")]
    pub(crate) no_fencing: bool,
    /// Also draw the results into this file, whose name ends in .svg
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
}

/// Parses how long a measurement takes.
fn measured(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_millis(1)..=Duration::from_secs(86_400),
        "1ms to 1day",
    )
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
/// set and no configuration file, and exits with its code. In the end, removes the masters and their data.
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
