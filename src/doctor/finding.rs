//! A finding: a fault of a node or of the set, and the advice against it.

use std::fmt;
use std::sync::Arc;

/// What makes a node, or the set of nodes, unfit for locks.
///
/// `Display` writes one line: what was seen, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The finding's name, for programs. It does not change between versions.
    pub code: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// The node's name. `None` for a finding about the whole set.
    pub node: Option<Arc<str>>,
    /// What was seen, and what follows from it.
    pub seen: String,
    /// What to do about it.
    pub advice: String,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// The node gives no locks, and waiting does not help; or two holders of one lock are possible.
    Error,
    /// Locks work, but they are slower, or fewer failures are survived.
    Warning,
    /// Something could not be checked.
    Unknown,
}

impl Severity {
    /// Returns the severity's name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Unknown => "unknown",
        }
    }
}

impl Finding {
    pub(super) fn new(
        severity: Severity,
        code: &'static str,
        seen: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding {
            code,
            severity,
            node: None,
            seen: seen.into(),
            advice: advice.into(),
        }
    }

    pub(super) fn error(code: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding::new(Severity::Error, code, seen, advice)
    }

    pub(super) fn warning(code: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, code, seen, advice)
    }

    /// `what` could not be checked, for the reason `why`.
    pub(super) fn unknown(what: &str, why: impl fmt::Display, advice: impl Into<String>) -> Finding {
        let seen = format!("could not be checked: {what} ({why})");
        Finding::new(Severity::Unknown, "not_checked", seen, advice)
    }

    pub(super) fn on(mut self, node: &Arc<str>) -> Finding {
        self.node = Some(node.clone());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.seen, self.advice)
    }
}
