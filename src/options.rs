//! All settings, and the checks of their bounds.

use std::sync::Arc;
use std::time::Duration;

pub use crate::protocol::backoff::Backoff;
pub use crate::protocol::validity::Drift;
use crate::protocol::validity::validity;
use crate::sys::metrics::Label;

/// Longest resource name, in bytes of UTF-8.
pub const MAX_RESOURCE_BYTES: usize = 1_024;
/// Longest key prefix, in bytes of UTF-8.
pub const MAX_PREFIX_BYTES: usize = 256;
/// Shortest TTL. A large drift needs a longer one.
pub const MIN_TTL: Duration = Duration::from_millis(10);
/// Longest TTL: 365 days.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3_600);
/// Longest connect timeout: an hour.
pub const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Longest [`counter_retention`](crate::LockRequest::counter_retention), except [`Duration::MAX`]: ten times [`MAX_TTL`].
pub const MAX_RETENTION: Duration = Duration::from_secs(3_650 * 24 * 3_600);
/// Shortest retention in TTLs: a counter must outlive the leases that it has counted by far (F5).
const RETENTION_IN_TTLS: u32 = 10;
/// Shortest retention: more than the clocks that counters start from may disagree by.
const MIN_RETENTION: Duration = Duration::from_secs(5);
const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// The end of a counter's key (`redis/lock.lua`).
pub(crate) const COUNTER_SUFFIX: &str = "#fence";
/// The end of the key of a node's record, after the prefix.
pub(crate) const RECORD_SUFFIX: &str = "#node";
/// The end of the key of the lists of nodes in use, after the prefix.
pub(crate) const VIEWS_SUFFIX: &str = "#views";
/// The end of the keys that describe clients.
pub(crate) const CLIENT_SUFFIX: &str = "#client";
/// The end of the key that tells until when a resource's work counts as done (`redis/lock.lua`).
const DONE_SUFFIX: &str = "#done";
/// The end of the keys that are written to see whether a node accepts writes.
pub(crate) const PROBE_SUFFIX: &str = "#probe";
/// Ends that a lock's key must not have. Version 0.1 uses the last one.
const RESERVED: [&str; 7] = [
    COUNTER_SUFFIX,
    DONE_SUFFIX,
    RECORD_SUFFIX,
    VIEWS_SUFFIX,
    CLIENT_SUFFIX,
    PROBE_SUFFIX,
    "#memory",
];
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How long nodes that have restarted give no locks, unless the TTL is longer (R2).
const DEFAULT_GUARD_WINDOW: Duration = DEFAULT_TTL;
/// Longest [`name`](crate::RedlockBuilder::name) of a client.
pub const MAX_NAME_BYTES: usize = 200;
/// Most nodes in a set.
pub const MAX_NODES: usize = 64;

/// An invalid setting. The message names the value and its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The resource's name is empty.
    #[error("the resource name is empty: name what to lock")]
    EmptyResource,
    /// The resource's name is too long.
    #[error("the resource name has {bytes} bytes: use at most {MAX_RESOURCE_BYTES}")]
    LongResource {
        /// The given length.
        bytes: usize,
    },
    /// The resource's key has a reserved end: `#fence`, `#done`, `#node`, `#views`, `#client`, `#probe` or `#memory`.
    #[error(
        "the key {key:?} ends in {suffix:?}, which is reserved for {}: use another resource name",
        reserved_for(suffix)
    )]
    ReservedName {
        /// The prefix and the name.
        key: Arc<str>,
        /// The reserved end.
        suffix: &'static str,
    },
    /// The key prefix is too long.
    #[error("the key prefix has {bytes} bytes: use at most {MAX_PREFIX_BYTES}")]
    LongPrefix {
        /// The given length.
        bytes: usize,
    },
    /// The client's name is too long.
    #[error("the client's name has {bytes} bytes: use at most {MAX_NAME_BYTES}")]
    LongName {
        /// The given length.
        bytes: usize,
    },
    /// The TTL is out of bounds.
    #[error("a TTL of {ttl:?} is out of bounds: use {MIN_TTL:?} to 365 days")]
    Ttl {
        /// The given value.
        ttl: Duration,
    },
    /// The TTL is longer than the guard window.
    #[error(
        "a TTL of {ttl:?} is longer than the guard window of {window:?}: if nodes lose data, or clients use different lists of \
         nodes, another client could get the lock before it ends; give all clients of these nodes a guard_window of {ttl:?}"
    )]
    TtlBeyondGuard {
        /// The given value.
        ttl: Duration,
        /// The guard window, or the manager's own TTL if that is longer.
        window: Duration,
    },
    /// The drift is as long as the TTL.
    #[error(
        "a TTL of {ttl:?} leaves no validity, because the drift is {drift:?}: use a longer TTL, or less drift"
    )]
    NoValidity {
        /// The given value.
        ttl: Duration,
        /// The drift over that TTL.
        drift: Duration,
    },
    /// The per-node budget is out of bounds.
    #[error(
        "a node budget of {budget:?} is out of bounds: use more than zero, and less than the TTL of {ttl:?}"
    )]
    NodeBudget {
        /// The given value.
        budget: Duration,
        /// The TTL.
        ttl: Duration,
    },
    /// `max_hold` is zero.
    #[error("max_hold is zero, so no lock could be held: use a longer time")]
    MaxHold,
    /// The minimum hold is longer than the TTL.
    #[error(
        "a min_hold of {min_hold:?} is longer than the TTL of {ttl:?}, so a crash would end the lock earlier: use a TTL of at \
         least {min_hold:?}"
    )]
    MinHold {
        /// The given value.
        min_hold: Duration,
        /// The TTL.
        ttl: Duration,
    },
    /// The length of a period is out of bounds.
    #[error("a period of {length:?} is out of bounds: use whole seconds, from 1 s to 365 days")]
    Period {
        /// The given value.
        length: Duration,
    },
    /// The counter retention is out of bounds.
    #[error(
        "a counter retention of {retention:?} is out of bounds: use at least {least:?} (ten TTLs of this length, \
         or 5 s if that is more), and at most 3,650 days, or for ever"
    )]
    Retention {
        /// The given value.
        retention: Duration,
        /// The shortest retention: ten TTLs, or 5 s if that is more.
        least: Duration,
    },
    /// The restart guard's window is out of bounds.
    #[error(
        "a guard window of {window:?} is out of bounds: use at most 365 days, also if the restart guard is off"
    )]
    GuardWindow {
        /// The given value.
        window: Duration,
    },
    /// The connect timeout is out of bounds.
    #[error(
        "a connect timeout of {timeout:?} is out of bounds: use more than zero, and at most {MAX_CONNECT_TIMEOUT:?}"
    )]
    ConnectTimeout {
        /// The given value.
        timeout: Duration,
    },
    /// There are no nodes.
    #[error("no nodes are named: use three or five (one is enough for a test)")]
    NoNodes,
    /// There are too many nodes.
    #[error("{nodes} nodes are named: use at most {MAX_NODES}")]
    TooManyNodes {
        /// Their number.
        nodes: usize,
    },
    /// The same address is listed twice.
    #[error("node {name} is listed twice, and would vote twice: list it once")]
    DuplicateNode {
        /// The address, without credentials.
        name: Arc<str>,
    },
    /// A node's URL cannot be used.
    #[error("the node URL {shown:?} cannot be used: {reason}")]
    Url {
        /// The URL without its credentials, or as much of it as could be understood.
        shown: Arc<str>,
        /// What is wrong with it.
        reason: Arc<str>,
    },
}

/// How long an acquire keeps trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// One attempt.
    Try,
    /// Attempts until one wins, or this time has passed.
    Within(Duration),
    /// Attempts for as long as a quorum of nodes answers.
    Forever,
}

/// The options of one request, or a manager's defaults.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    /// `None`: [`DEFAULT_TTL`], or the guard window if that is shorter.
    pub(crate) ttl: Option<Duration>,
    pub(crate) node_budget: Option<Duration>,
    pub(crate) drift: Drift,
    pub(crate) wait: Wait,
    pub(crate) watchdog: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) fencing: bool,
    pub(crate) retention: Option<Duration>,
    pub(crate) restart_guard: bool,
    pub(crate) guard_window: Duration,
    /// The longest TTL of a lock. Nodes that may have forgotten locks are left out for that long (W).
    pub(crate) longest_ttl: Duration,
    pub(crate) backoff: Backoff,
    /// The label of metrics and of the log.
    pub(crate) label: Label,
}

impl Default for LockOptions {
    fn default() -> Self {
        LockOptions {
            ttl: None,
            node_budget: None,
            drift: Drift::default(),
            wait: Wait::Within(Duration::from_secs(10)),
            watchdog: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            fencing: true,
            retention: None,
            restart_guard: true,
            guard_window: DEFAULT_GUARD_WINDOW,
            longest_ttl: MAX_TTL,
            backoff: Backoff::default(),
            label: None,
        }
    }
}

/// Checked [`LockOptions`], and the values that follow from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockSettings {
    /// The TTL that is set on the nodes, in whole milliseconds.
    pub(crate) ttl: Duration,
    /// TTL less drift: `deadline = t0 + validity` (A5).
    pub(crate) validity: Duration,
    /// The time that a node has to answer (A3).
    pub(crate) node_budget: Duration,
    pub(crate) watchdog: bool,
    pub(crate) max_hold: Option<Duration>,
    /// How long the lock stays held from `t0` on, also if it is released earlier (L4).
    pub(crate) min_hold: Duration,
    pub(crate) fencing: bool,
    /// How long a counter lives from its start, in whole milliseconds; `None`: for ever (F5).
    pub(crate) retention: Option<Duration>,
    /// A node that may have forgotten locks of this time gives none (R2). `None`: every node does.
    pub(crate) guard: Option<Duration>,
    pub(crate) label: Label,
}

impl LockSettings {
    /// Returns the time, or `max_hold` if that is shorter (E5).
    pub(crate) fn cap_at_max_hold(&self, time: Duration) -> Duration {
        self.max_hold.map_or(time, |limit| time.min(limit))
    }
}

impl LockOptions {
    /// Returns these options as a manager's defaults. Its own TTL may be longer than the guard window. The guard of all its requests is
    /// then that TTL: its other locks may live for that long.
    pub(crate) fn of_manager(self) -> LockOptions {
        LockOptions {
            longest_ttl: self.guard_window.max(self.ttl()),
            ..self
        }
    }

    fn ttl(&self) -> Duration {
        let shorter = || DEFAULT_TTL.min(self.guard_window).max(MIN_TTL);
        self.ttl.unwrap_or_else(shorter)
    }

    pub(crate) fn settings(&self) -> Result<LockSettings, ConfigError> {
        let ttl = self.ttl();
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(ConfigError::Ttl { ttl });
        }
        if self.guard_window > MAX_TTL {
            return Err(ConfigError::GuardWindow {
                window: self.guard_window,
            });
        }
        if ttl > self.longest_ttl {
            return Err(ConfigError::TtlBeyondGuard {
                ttl,
                window: self.longest_ttl,
            });
        }
        // Redis counts in milliseconds. Rounding down keeps the deadline on the safe side.
        let ttl = Duration::from_millis(ttl.as_millis() as u64);
        let validity = validity(ttl, self.drift).ok_or_else(|| ConfigError::NoValidity {
            ttl,
            drift: self.drift.over(ttl),
        })?;
        let node_budget = self.node_budget.unwrap_or(ttl / 10);
        if node_budget.is_zero() || node_budget >= ttl {
            return Err(ConfigError::NodeBudget {
                budget: node_budget,
                ttl,
            });
        }
        if self.max_hold.is_some_and(|limit| limit.is_zero()) {
            return Err(ConfigError::MaxHold);
        }
        if self.min_hold > ttl {
            let min_hold = self.min_hold;
            return Err(ConfigError::MinHold { min_hold, ttl });
        }
        Ok(LockSettings {
            ttl,
            validity,
            node_budget,
            watchdog: self.watchdog,
            max_hold: self.max_hold,
            min_hold: self.min_hold,
            fencing: self.fencing,
            retention: self.retention(ttl)?,
            guard: self.restart_guard.then_some(self.longest_ttl),
            label: self.label,
        })
    }

    fn retention(&self, ttl: Duration) -> Result<Option<Duration>, ConfigError> {
        let least = MIN_RETENTION.max(ttl * RETENTION_IN_TTLS);
        let retention = self.retention.unwrap_or(DEFAULT_RETENTION.max(least));
        if retention == Duration::MAX {
            return Ok(None);
        }
        if retention < least || retention > MAX_RETENTION {
            return Err(ConfigError::Retention { retention, least });
        }
        Ok(Some(Duration::from_millis(retention.as_millis() as u64)))
    }
}

fn reserved_for(suffix: &str) -> &'static str {
    match suffix {
        COUNTER_SUFFIX => "fencing counters",
        DONE_SUFFIX => "periods that are done",
        _ => "records and checks of nodes and clients",
    }
}

/// Returns the key of a resource: prefix and name, both checked.
pub(crate) fn key(prefix: &str, resource: &str) -> Result<Arc<str>, ConfigError> {
    if resource.is_empty() {
        return Err(ConfigError::EmptyResource);
    }
    if resource.len() > MAX_RESOURCE_BYTES {
        return Err(ConfigError::LongResource {
            bytes: resource.len(),
        });
    }
    let key: Arc<str> = format!("{prefix}{resource}").into();
    match RESERVED.into_iter().find(|suffix| key.ends_with(suffix)) {
        Some(suffix) => Err(ConfigError::ReservedName { key, suffix }),
        None => Ok(key),
    }
}

pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    if prefix.len() > MAX_PREFIX_BYTES {
        return Err(ConfigError::LongPrefix { bytes: prefix.len() });
    }
    Ok(())
}

/// Returns whether the key is no lock's: a counter's, a record's or a client's.
pub(crate) fn is_reserved(key: &str) -> bool {
    RESERVED.iter().any(|suffix| key.ends_with(suffix))
}

/// Returns a pattern that matches this text only.
pub(crate) fn literal(text: &str) -> String {
    let special = |character: char| matches!(character, '*' | '?' | '[' | ']' | '\\');
    let escaped = |character| special(character).then_some('\\').into_iter().chain([character]);
    text.chars().flat_map(escaped).collect()
}

pub(crate) fn check_name(name: Option<&str>) -> Result<(), ConfigError> {
    match name.map_or(0, str::len) {
        bytes if bytes > MAX_NAME_BYTES => Err(ConfigError::LongName { bytes }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_match_themselves_only() {
        assert_eq!(literal("app[1]*:"), "app\\[1\\]\\*:");
    }

    fn settings(change: impl FnOnce(&mut LockOptions)) -> Result<LockSettings, ConfigError> {
        let mut options = LockOptions::default();
        change(&mut options);
        options.of_manager().settings()
    }

    #[test]
    fn defaults_follow_the_specification() {
        let settings = settings(|_| ()).unwrap();
        assert_eq!(settings.ttl, Duration::from_secs(30));
        assert_eq!(settings.node_budget, Duration::from_secs(3));
        assert_eq!(settings.validity, Duration::from_millis(30_000 - 300 - 2));
        assert!(settings.watchdog && settings.fencing);
    }

    #[test]
    fn every_ttl_is_either_refused_or_leaves_validity() {
        for millis in 0..2_000 {
            match settings(|o| o.ttl = Some(Duration::from_millis(millis))) {
                Ok(settings) => assert!(!settings.validity.is_zero() && settings.validity < settings.ttl),
                Err(error) => assert!(matches!(error, ConfigError::Ttl { .. }), "{millis}: {error}"),
            }
        }
        let (nano, too_long) = (Duration::from_nanos(1), MAX_TTL + Duration::from_millis(1));
        for ttl in [Duration::ZERO, nano, MIN_TTL - nano, too_long, Duration::MAX] {
            let error = settings(|o| o.ttl = Some(ttl)).unwrap_err();
            assert_eq!(error, ConfigError::Ttl { ttl });
            assert!(error.to_string().contains(&format!("{ttl:?}")), "{error}");
        }
        let eaten = settings(|o| o.drift = Drift::from_ppm(2_000_000, Duration::ZERO)).unwrap_err();
        assert_eq!(
            eaten.to_string(),
            "a TTL of 30s leaves no validity, because the drift is 60s: use a longer TTL, or less drift"
        );
    }

    #[test]
    fn fractions_of_a_millisecond_are_rounded_down_like_the_node_sees_them() {
        let settings = settings(|o| o.ttl = Some(Duration::from_micros(50_900))).unwrap();
        assert_eq!(settings.ttl, Duration::from_millis(50));
    }

    #[test]
    fn no_ttl_is_longer_than_the_guard_window_and_a_managers_own_makes_that_longer() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let with = |manager: LockOptions, ttl| {
            LockOptions {
                ttl: Some(ttl),
                ..manager
            }
            .settings()
        };
        let manager = LockOptions::default().of_manager();
        assert!(with(manager.clone(), DEFAULT_GUARD_WINDOW).is_ok());
        let refused = ConfigError::TtlBeyondGuard {
            ttl: minute,
            window: DEFAULT_GUARD_WINDOW,
        };
        assert_eq!(with(manager, minute).unwrap_err(), refused);
        let options = LockOptions {
            ttl: Some(minute),
            ..LockOptions::default()
        };
        let manager = options.of_manager();
        for ttl in [minute, second] {
            assert_eq!(with(manager.clone(), ttl).unwrap().guard, Some(minute));
        }
        let options = LockOptions {
            guard_window: second,
            ..LockOptions::default()
        };
        let settings = options.of_manager().settings().unwrap();
        assert_eq!((settings.ttl, settings.guard), (second, Some(second)));
        assert!(with(manager, minute + second).is_err());
    }

    #[test]
    fn budgets_and_holds_are_checked() {
        for budget in [Duration::ZERO, Duration::from_secs(30), Duration::MAX] {
            let error = settings(|o| o.node_budget = Some(budget)).unwrap_err();
            let ttl = Duration::from_secs(30);
            assert_eq!(error, ConfigError::NodeBudget { budget, ttl });
            assert!(error.to_string().contains(&format!("{budget:?}")), "{error}");
        }
        assert_eq!(
            settings(|o| o.max_hold = Some(Duration::ZERO)).unwrap_err(),
            ConfigError::MaxHold
        );
        let ttl = Duration::from_secs(30);
        assert_eq!(settings(|o| o.min_hold = ttl).unwrap().min_hold, ttl);
        let min_hold = ttl + Duration::from_nanos(1);
        assert_eq!(
            settings(|o| o.min_hold = min_hold).unwrap_err(),
            ConfigError::MinHold { min_hold, ttl }
        );
    }

    #[test]
    fn retentions_are_checked() {
        let least = Duration::from_secs(300);
        for seconds in [0, 299, 3_650 * 24 * 3_600 + 1] {
            let retention = Duration::from_secs(seconds);
            let error = settings(|o| o.retention = Some(retention)).unwrap_err();
            assert_eq!(error, ConfigError::Retention { retention, least });
        }
    }

    #[test]
    fn names_of_any_script_up_to_the_limit() {
        assert_eq!(
            &*key("quorlock:", "Rechnung/ä 料金\n\0").unwrap(),
            "quorlock:Rechnung/ä 料金\n\0"
        );
        assert_eq!(key("", "").unwrap_err(), ConfigError::EmptyResource);
        assert!(key("p", &"x".repeat(MAX_RESOURCE_BYTES)).is_ok());
        let long = key("p", &"é".repeat(MAX_RESOURCE_BYTES / 2 + 1)).unwrap_err();
        assert_eq!(
            long,
            ConfigError::LongResource {
                bytes: MAX_RESOURCE_BYTES + 2
            }
        );
        assert!(
            long.to_string().contains("1026") && long.to_string().contains("1024"),
            "{long}"
        );
        let reserved = key("quorlock:", "job#fence").unwrap_err();
        assert!(matches!(reserved, ConfigError::ReservedName { .. }));
        assert!(reserved.to_string().contains("#fence"), "{reserved}");
        assert!(check_prefix(&"x".repeat(MAX_PREFIX_BYTES + 1)).is_err());
    }
}
