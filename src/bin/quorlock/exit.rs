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

/// The table for `--help`. Keep it in step with the constants.
pub(crate) const TABLE: &str = "\
Exit codes:
  that of the command, or 128+n if it was ended by signal n; otherwise
    2  usage: options, URLs or durations that make no sense; nothing was done
   69  no quorum of nodes can be reached, or may give locks yet (or --testbed found no server): the command was not run
   71  the system refused something: a process, a pipe, a signal handler
   75  the lock is held by someone else: the command was not run
   78  a node may not vote (a replica, a sentinel, a cluster member, one server under two names): the command was not run
   79  the lease was lost, or --max-hold was over: the command was ended before its end
  126  the command was found but cannot be executed
  127  the command was not found
  128+n  quorlock itself got signal n before the command ran";

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
