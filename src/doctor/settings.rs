//! Settings with which a server may vote, but should not run. Each connection warns about them (R1).

use super::finding::Finding;
use super::info::Info;
use crate::protocol::memory::Durability;

/// Returns whether the server keeps everything that it acknowledges. If that is not certain, also returns why.
///
/// `fsync` has the settings with `appendfsync` in their name. It is empty if the server does not show them.
pub(crate) fn durability(info: &Info, fsync: &[(String, String)]) -> (Durability, Option<Finding>) {
    const ADVICE: &str = "use appendonly yes and appendfsync always";
    let partial = |code, seen: String, advice: &str| {
        let finding = Finding::warning(code, seen, advice);
        (Durability::Partial, Some(finding))
    };
    if info.text("aof_enabled") == Some("0") {
        let seen = "appendonly is off: locks are forgotten in a restart";
        return partial("appendonly_off", seen.to_owned(), ADVICE);
    }
    let setting = |name| {
        let mut settings = fsync.iter().filter(|(setting, _)| setting == name);
        settings.next().map(|(_, value)| value.as_str())
    };
    match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
        (Some("always"), Some("yes")) => partial(
            "no_appendfsync_on_rewrite",
            "no-appendfsync-on-rewrite is yes: the latest locks may be forgotten in a crash".to_owned(),
            &format!("{ADVICE}, and no-appendfsync-on-rewrite no"),
        ),
        (Some("always"), _) => (Durability::Full, None),
        (Some(policy), _) => partial(
            "appendfsync_not_always",
            format!("appendfsync is {policy}: the latest locks may be forgotten in a crash"),
            ADVICE,
        ),
        (None, _) => (Durability::Unknown, Some(fsync_unreadable())),
    }
}

/// The server's `appendfsync` is not known.
pub(super) fn fsync_unreadable() -> Finding {
    Finding::warning(
        "appendfsync_unreadable",
        "appendfsync cannot be read, so the node is left out after each restart",
        "give the user +config|get",
    )
}

/// Returns the finding about a server that may delete locks before they expire.
pub(crate) fn eviction(info: &Info) -> Option<Finding> {
    let policy = info
        .text("maxmemory_policy")
        .filter(|policy| *policy != "noeviction")?;
    let seen = format!("maxmemory-policy is {policy}: locks can be evicted before they expire");
    let advice = "use noeviction";
    Some(match info.number("maxmemory") {
        // Without a limit, nothing is evicted until somebody sets one.
        Some(0) => Finding::warning("eviction", seen, advice),
        _ => Finding::error("eviction", seen, advice),
    })
}

/// The user may not announce releases (W2).
pub(crate) fn cannot_publish(prefix: &str) -> Finding {
    Finding::warning(
        "cannot_publish",
        "releases cannot be announced, so waiters in other processes notice them up to 16 s late",
        format!("give the user +publish and &{prefix}*"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn durability_needs_every_write_on_disk() {
        for (info, fsync, durability, code) in [
            (
                "aof_enabled:1",
                &[("appendfsync", "always")][..],
                Durability::Full,
                None,
            ),
            (
                "aof_enabled:0",
                &[("appendfsync", "always")],
                Durability::Partial,
                Some("appendonly_off"),
            ),
            (
                "aof_enabled:1",
                &[("appendfsync", "everysec")],
                Durability::Partial,
                Some("appendfsync_not_always"),
            ),
            (
                "aof_enabled:1",
                &[("no-appendfsync-on-rewrite", "yes"), ("appendfsync", "always")],
                Durability::Partial,
                Some("no_appendfsync_on_rewrite"),
            ),
            ("", &[], Durability::Unknown, Some("appendfsync_unreadable")),
        ] {
            let fsync: Vec<_> = fsync
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect();
            let (found, finding) = self::durability(&Info::read(info), &fsync);
            assert_eq!(
                (found, finding.map(|finding| finding.code)),
                (durability, code),
                "{info}"
            );
        }
    }

    #[test]
    fn eviction_matters_more_with_a_limit() {
        for (info, severity) in [
            ("maxmemory_policy:noeviction\nmaxmemory:1", None),
            (
                "maxmemory_policy:allkeys-lru\nmaxmemory:0",
                Some(Severity::Warning),
            ),
            (
                "maxmemory_policy:volatile-ttl\nmaxmemory:1",
                Some(Severity::Error),
            ),
            ("", None),
        ] {
            let found = eviction(&Info::read(info));
            assert_eq!(found.map(|finding| finding.severity), severity, "{info}");
        }
    }
}
