//! Exit codes, and failures that carry one.

use std::fmt::Display;

pub(crate) const OK: u8 = 0;
pub(crate) const USAGE: u8 = 2;
/// EX_UNAVAILABLE.
pub(crate) const NO_QUORUM: u8 = 69;
/// EX_OSERR.
pub(crate) const SYSTEM: u8 = 71;
/// EX_TEMPFAIL.
pub(crate) const HELD: u8 = 75;
/// EX_CONFIG.
pub(crate) const MISCONFIGURED: u8 = 78;
/// One past the last of `sysexits.h`, so that it means nothing else.
pub(crate) const LOST: u8 = 79;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

// The tables for `--help`. Keep them in step with the constants.
pub(crate) const TABLE: &str = "\
Exit codes:
  that of the command, or 128+n if it was ended by signal n (INT and QUIT: quorlock dies of the same signal, which shells
  show as 128+n, so that Ctrl-C also ends the script around it); otherwise
    2  usage: options, URLs or durations that make no sense; nothing was done
   69  no quorum of nodes can be reached, or may give locks yet (or --testbed found no server): the command was not run
   71  the system refused something: a process, a pipe, a signal handler
   75  the lock is held by someone else: the command was not run
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names), or other clients use another
       list of nodes: the command was not run
   79  the lease was lost, or --max-hold was over: the command was ended before its end
  126  the command was found but cannot be executed, or its interpreter is not there
  127  the command was not found
  128+n  quorlock itself got signal n before the command ran";

pub(crate) const OF_STATUS: &str = "\
Exit codes:
    0  a quorum of nodes gives locks
    2  usage: options, URLs or durations that make no sense
   69  no quorum of nodes is up, or gives locks (the restart guard, or another list of nodes is in use)
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names), even if there is a quorum";

pub(crate) const OF_MEMBERS: &str = "\
Exit codes:
    0  all clients use the same list of nodes, or there are none
    2  usage: options, URLs or durations that make no sense
   69  no node could be asked
   78  more than one list of nodes is in use";

pub(crate) const OF_BENCH: &str = "\
Exit codes:
    0  it was measured, whatever came of it
    2  usage: options, URLs or durations that make no sense, or a chart that cannot be written; nothing was done
   69  no quorum of nodes can be reached, no lock could be acquired, or --testbed found no server
   71  the system refused something: a process, a signal handler, the rest of the chart
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names); nothing was done
  128+n  signal n has ended it early; what was measured is shown";

pub(crate) const OF_TESTBED: &str = "\
Exit codes:
  that of the command, or 128+n if it was ended by signal n; otherwise
    0  without a command: Ctrl-C or TERM has ended it
    2  usage: options that make no sense
   69  no server was found, or one did not start
   71  the system refused something: a process, a pipe, a signal handler
  126  the command was found but cannot be executed
  127  the command was not found
  128+n  quorlock itself got signal n before the servers were there";

/// Why the tool ends without (or in spite of) the command's own exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One line, with what to do.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Failure::new(USAGE, message.to_string())
    }

    pub(crate) fn system(doing: &str, error: &dyn Display) -> Self {
        Failure::new(SYSTEM, format!("cannot {doing}: {error}"))
    }
}

/// The code that says "ended by this signal".
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
