//! Exit codes, and failures with their codes.

use std::fmt::Display;

use serde_json::Value;

pub(crate) const OK: u8 = 0;
pub(crate) const FINDINGS: u8 = 1;
pub(crate) const USAGE: u8 = 2;
/// EX_UNAVAILABLE.
pub(crate) const NO_QUORUM: u8 = 69;
/// EX_OSERR.
pub(crate) const SYSTEM: u8 = 71;
/// EX_TEMPFAIL.
pub(crate) const HELD: u8 = 75;
/// EX_CONFIG.
pub(crate) const MISCONFIGURED: u8 = 78;
/// One more than the last code of `sysexits.h`, so it has no other meaning.
pub(crate) const LOST: u8 = 79;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

// The tables of `--help` must agree with the constants. Without a terminal, clap wraps lines at 100 columns.
pub(crate) const TABLE: &str = "\
Exit codes:
  the command's own, or 128+n if signal n ended it. After INT and QUIT, quorlock dies of the same
  signal, so that Ctrl-C also ends the script around it; shells show 128+n. Otherwise:
    0  the period is done already (--once-per): the command was not run (-E sets another code)
    2  usage error: options, URLs, durations; nothing was done
   69  no quorum of nodes is in reach and gives locks, or --testbed found no server: the command
       was not run
   71  the system refused a process, a pipe or a signal handler
   75  the lock is held by another client: the command was not run (-E sets another code)
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names),
       or other clients use another list of nodes: the command was not run
   79  the lease was lost, or --max-hold was over: quorlock ended the command, or did not run it
  126  the command was found but cannot be executed, or its interpreter is missing
  127  the command was not found
  128+n  quorlock itself got signal n before the command ran";

pub(crate) const OF_ACQUIRE: &str = "\
Exit codes:
    0  the lock was acquired
    2  usage error: options, URLs, durations, the lock's name
   69  no quorum of nodes is in reach and gives locks
   71  the handle could not be printed: the lock was released
   75  the lock is held by another client (-E sets another code)
   78  a node may not vote, or other clients use another list of nodes
  128+n  quorlock got signal n; nothing is locked";

pub(crate) const OF_EXTEND: &str = "\
Exit codes:
    0  the lock is held for another TTL
    2  usage error: options, URLs, the handle
   69  no quorum of nodes confirmed it; the lock may be held until its TTL is over
   71  the result could not be printed
   78  a node may not vote, or other clients use another list of nodes
   79  the lease was lost: it expired, was released, or another client holds the lock";

pub(crate) const OF_RELEASE: &str = "\
Exit codes:
    0  the lock was released
    2  usage error: options, URLs, the handle
   69  too few nodes answered; the lock ends when its TTL is over
   71  the result could not be printed
   78  a node may not vote
   79  the lease had ended before: another client may have held the lock meanwhile";

pub(crate) const OF_STATUS: &str = "\
Exit codes:
    0  a quorum of nodes gives locks (--all: every node)
    2  usage error: options, URLs, durations
   69  no quorum of nodes is up and gives locks (writes are refused, restart guard, or another list
       of nodes is in use); with --all, one node or more does not
   71  the result could not be printed
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names),
       even if there is a quorum";

pub(crate) const OF_DOCTOR: &str = "\
Exit codes:
    0  nothing was found, or only warnings and checks that could not be made
    1  the nodes are unfit: findings of severity \"error\"; with --strict, any finding
    2  usage error: options, URLs, durations
   69  no quorum of nodes is in reach
   71  the result could not be printed";

pub(crate) const OF_LOCKS: &str = "\
Exit codes:
    0  a quorum of nodes was listed
    2  usage error: options, URLs, durations
   69  too few nodes are in reach, could be listed (the user needs +scan), or remember all locks
   71  the result could not be printed
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names)";

pub(crate) const OF_SHOW: &str = "\
Exit codes:
    0  a quorum of nodes answered; the output says whether the lock is held
    2  usage error: options, URLs, the lock's name
   69  too few nodes are in reach, or remember all locks
   71  the result could not be printed
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names)";

pub(crate) const OF_BREAK: &str = "\
Exit codes:
    0  the lock was broken, or there was nothing to break, or the answer was no
    2  usage error: options, URLs, the lock's name; no terminal to ask on, and no --owner; the key
       is no owner token
   69  too few nodes are in reach: the lock may still be held
   71  the result could not be printed
   75  another owner holds the lock by now: nothing was deleted there
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names)";

pub(crate) const OF_MEMBERS: &str = "\
Exit codes:
    0  all clients use the same list of nodes, or there are no clients
    2  usage error: options, URLs, durations
   69  no node could be asked
   71  the result could not be printed
   78  more than one list of nodes is in use";

pub(crate) const OF_EXPORTER: &str = "\
Exit codes:
    0  Ctrl-C or TERM ended it
    2  usage error: options, URLs, durations
   71  the system refused the address, or the result could not be printed";

pub(crate) const OF_TOP: &str = "\
Exit codes:
    0  a key or a signal ended it, or nodes and locks were printed, with or without a quorum
    2  usage error: options, URLs, durations
   71  the system refused the terminal, or the result could not be printed";

pub(crate) const OF_BENCH: &str = "\
Exit codes:
    0  there are results
    2  usage error: options, URLs, durations, a chart that cannot be written; nothing was done
   69  no quorum of nodes is in reach, no lock could be acquired, or --testbed found no server
   71  the system refused a process, a signal handler or a file
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names);
       nothing was done
  128+n  signal n ended it early; the results so far are shown";

pub(crate) const OF_TESTBED: &str = "\
Exit codes:
  the command's own, or 128+n if signal n ended it; otherwise
    0  without a command: Ctrl-C or TERM ended it
    2  usage error: options
   69  no server was found, or one did not start
   71  the system refused a process, a pipe or a signal handler
  126  the command was found but cannot be executed
  127  the command was not found
  128+n  quorlock itself got signal n before the servers were up";

pub(crate) const OF_COMPLETIONS: &str = "\
Exit codes:
    0  the completions were printed
    2  usage error: the shell
   71  the completions could not be printed";

pub(crate) const OF_MAN: &str = "\
Exit codes:
    0  the page was printed, or the pages were written
    2  usage error
   71  the page could not be printed, or a file could not be written";

/// Why the tool exits with a code that is not the command's.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One line: what happened, and what to do.
    pub(crate) message: String,
    /// More for programs: an object, or null.
    pub(crate) details: Value,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure {
            code,
            message: message.into(),
            details: Value::Null,
        }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Failure::new(USAGE, message.to_string())
    }

    pub(crate) fn system(doing: &str, error: &dyn Display) -> Self {
        Failure::new(SYSTEM, format!("cannot {doing}: {error}"))
    }
}

/// Returns the code for an end by this signal.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
