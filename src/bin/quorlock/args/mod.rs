//! The command line.

mod holding;
mod operating;
mod shared;
mod shell;
mod times;
mod trials;
mod watching;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

pub(crate) use holding::{Acquire, Extend, Handle, Recipient, Release, Run};
pub(crate) use operating::{Break, Doctor, Locks, Members, Show, Status};
pub(crate) use shared::{Existing, Locking, Nodes};
pub(crate) use shell::{Completions, Man};
pub(crate) use times::{LockTimes, Wait};
pub(crate) use trials::{Bench, Testbed};
pub(crate) use watching::{Exporter, Top};

use crate::exit;
use crate::variables::CONFIG;

/// Options that name other nodes than those of a testbed, or their passwords.
const OTHER_NODES: [&str; 3] = ["node", "password_file", "credentials_command"];

/// Runs commands under a lock held on a quorum of independent Redis or Valkey masters (Redlock).
#[derive(Debug, Parser)]
#[command(version, after_help = exit::TABLE, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: Output,
    /// Read options from this TOML file. Without it, ~/.config/quorlock/config.toml (or its place in $XDG_CONFIG_HOME) or
    /// /etc/quorlock/config.toml is read, if there is one. Options come before variables, and variables before the file
    #[arg(long, global = true, value_name = "FILE", env = CONFIG)]
    pub(crate) config: Option<PathBuf>,
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
    Doctor(Doctor),
    Locks(Locks),
    Show(Show),
    Break(Break),
    Members(Members),
    Exporter(Exporter),
    Top(Top),
    Bench(Bench),
    Testbed(Testbed),
    Completions(Completions),
    Man(Man),
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

impl Command {
    /// Returns whether the result contains warnings about nodes' settings. The log then leaves them out.
    pub(crate) fn shows_settings(&self) -> bool {
        matches!(
            self,
            Command::Status(_)
                | Command::Doctor(_)
                | Command::Exporter(_)
                | Command::Top(_)
                | Command::Bench(_)
        )
    }
}
