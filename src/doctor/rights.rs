//! The rights of the user: which commands the library needs, a form of each that changes nothing, and what is lost without it.
//!
//! Servers show their rules for a user only to administrators, and not before Redis 7. So each right is tried.

use super::finding::Finding;
use super::settings;

/// Stands for a key that was just written, in the forms of [`RIGHTS`].
pub(crate) const KEY: &str = "<key>";
/// Stands for a key that does not exist.
pub(crate) const MISSING: &str = "<missing>";
/// Stands for a channel that nobody listens to.
pub(crate) const CHANNEL: &str = "<channel>";
/// Needed where the nodes' database is not 0. It cannot be tried without effect.
pub(crate) const SELECT: &str = "+select";

/// What is lost without a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing works.
    Locks,
    /// The server cannot be known to be durable.
    Durability,
    /// The script cannot be loaded, and is sent with each request.
    Loading,
    /// The connection has no name.
    Naming,
    /// Releases cannot be announced.
    Announcing,
    /// Announcements cannot be received.
    Listening,
}

pub(crate) struct Right {
    /// As in a rule for a user.
    pub(crate) name: &'static str,
    /// A form of the command that changes nothing.
    pub(crate) form: &'static [&'static str],
    pub(crate) need: Need,
}

const fn right(name: &'static str, form: &'static [&'static str], need: Need) -> Right {
    Right { name, form, need }
}

/// The rights, in the order in which they are tried. `INCR` and `INCRBY` fail, because the key holds no number.
pub(crate) const RIGHTS: [Right; 21] = [
    right("+info", &["INFO", "server"], Need::Locks),
    right("+time", &["TIME"], Need::Locks),
    right("+eval", &["EVAL", "return", "0"], Need::Locks),
    right(
        "+evalsha",
        &["EVALSHA", "0000000000000000000000000000000000000000", "0"],
        Need::Locks,
    ),
    right("+get", &["GET", MISSING], Need::Locks),
    right("+mget", &["MGET", MISSING], Need::Locks),
    right("+pttl", &["PTTL", MISSING], Need::Locks),
    right("+incr", &["INCR", KEY], Need::Locks),
    right("+incrby", &["INCRBY", KEY, "1"], Need::Locks),
    right("+pexpire", &["PEXPIRE", MISSING, "1"], Need::Locks),
    right("+persist", &["PERSIST", MISSING], Need::Locks),
    right("+set", &["SET", MISSING, "x", "XX"], Need::Locks),
    right("+del", &["DEL", MISSING], Need::Locks),
    right("+config|get", &["CONFIG", "GET", "appendfsync"], Need::Durability),
    right("+script|load", &["SCRIPT", "LOAD", "return"], Need::Loading),
    right(
        "+client|setname",
        &["CLIENT", "SETNAME", "quorlock"],
        Need::Naming,
    ),
    right("+publish", &["PUBLISH", CHANNEL, ""], Need::Announcing),
    right("+client|id", &["CLIENT", "ID"], Need::Listening),
    right("+ping", &["PING"], Need::Listening),
    right("+subscribe", &["SUBSCRIBE", CHANNEL], Need::Listening),
    right("+unsubscribe", &["UNSUBSCRIBE", CHANNEL], Need::Listening),
];

/// A right that the user does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    /// As in a rule for a user.
    pub(crate) name: String,
    pub(crate) need: Need,
}

/// Returns the findings about rights that the user does not have.
pub(super) fn judge(lacks: &[Lack], prefix: &str) -> Vec<Finding> {
    let missing = |need: Need| {
        let mut names: Vec<&str> = Vec::new();
        for lack in lacks.iter().filter(|lack| lack.need == need) {
            if !names.contains(&&*lack.name) {
                names.push(&lack.name);
            }
        }
        (!names.is_empty()).then(|| names.join(" "))
    };
    let give = |names: &str| format!("give the user {names}");
    let for_locks = missing(Need::Locks).map(|names| {
        let seen = format!("the user lacks {names}: locks do not work");
        Finding::error("missing_rights", seen, give(&names))
    });
    let for_durability = missing(Need::Durability).map(|_| settings::fsync_unreadable());
    let for_loading = missing(Need::Loading).map(|names| {
        let seen = format!("the user lacks {names}: each request carries the script's text");
        Finding::warning("cannot_load_script", seen, give(&names))
    });
    let for_naming = missing(Need::Naming).map(|names| {
        let seen = format!("the user lacks {names}: CLIENT LIST does not show whose connections they are");
        Finding::warning("cannot_set_name", seen, give(&names))
    });
    let for_announcing = missing(Need::Announcing).map(|_| settings::cannot_publish(prefix));
    let for_listening = missing(Need::Listening).map(|names| {
        let seen = format!("the user lacks {names}: waiters poll, and may find a released lock late");
        Finding::warning("cannot_subscribe", seen, give(&names))
    });
    let all = [
        for_locks,
        for_durability,
        for_loading,
        for_naming,
        for_announcing,
        for_listening,
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_right_that_the_readme_names_is_tried() {
        let readme = include_str!("../../README.md");
        let line = readme
            .lines()
            .find(|line| line.trim().starts_with("resetchannels "))
            .unwrap();
        let named: BTreeSet<&str> = line
            .split_whitespace()
            .filter(|right| right.starts_with('+'))
            .collect();
        let tried: BTreeSet<&str> = RIGHTS.iter().map(|right| right.name).collect();
        assert_eq!(named, tried);
    }

    #[test]
    fn lacks_are_told_by_what_they_prevent() {
        let lack = |name: &str, need| Lack {
            name: name.into(),
            need,
        };
        let codes =
            |lacks: &[Lack]| -> Vec<&str> { judge(lacks, "p:").iter().map(|found| found.code).collect() };
        assert_eq!(codes(&[]), [""; 0]);
        let keys = lack("~p:*", Need::Locks);
        let found = judge(&[keys.clone(), lack("+del", Need::Locks), keys], "p:");
        assert_eq!(found.len(), 1);
        assert!(found[0].seen.contains("lacks ~p:* +del:"), "{}", found[0]);
        let channels = [lack("&p:*", Need::Announcing), lack("&p:*", Need::Listening)];
        assert_eq!(codes(&channels), ["cannot_publish", "cannot_subscribe"]);
        assert_eq!(
            codes(&[lack("+config|get", Need::Durability)]),
            ["appendfsync_unreadable"]
        );
    }
}
