//! The spans of the log. `docs/logging.md` describes them for users.
//!
//! Each lock has two spans below its caller's: `acquire`, with its attempts, and `hold`, with its renewals and its release.
//! Background work on a lease belongs to `hold`.

use tracing::field::Empty;
use tracing::{Span, debug_span, info_span};

use super::metrics::Label;

/// From the call until the lock is acquired, or not.
pub(crate) fn acquire(resource: &str, label: Label) -> Span {
    info_span!(target: "quorlock::acquire", "acquire", resource, label, outcome = Empty, attempts = Empty, wait_ms = Empty)
}

/// One attempt: a child of the current span.
pub(crate) fn attempt() -> Span {
    debug_span!(target: "quorlock::acquire", "attempt", outcome = Empty, yes = Empty, no = Empty, faults = Empty)
}

/// From the attempt that acquired the lock until the lease has ended: a part of the caller's span. It does not show the owner
/// token, with which a reader of the log could delete the lock.
pub(crate) fn hold(caller: &Span, resource: &str, label: Label, token: Option<u64>) -> Span {
    info_span!(target: "quorlock::lease", parent: caller, "hold", resource, label, token)
}

/// One renewal or extension.
pub(crate) fn renew(hold: &Span) -> Span {
    debug_span!(target: "quorlock::lease", parent: hold, "renew", outcome = Empty)
}

/// A release that somebody waits for.
pub(crate) fn release(hold: &Span) -> Span {
    debug_span!(target: "quorlock::lease", parent: hold, "release", outcome = Empty)
}
