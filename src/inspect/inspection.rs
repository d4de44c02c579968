//! One lock as all nodes have it, and whether that makes it held.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::node::{Counter, Fault, Holder, KeyState, KeyValue, OwnerToken};
use crate::protocol::election;
use crate::protocol::quorum::quorum;

/// One lock, as it stands on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The lock's name.
    pub resource: Arc<str>,
    /// Whether the lock is held, by a quorum of nodes.
    pub status: LockStatus,
    /// The client of [`owner`](Self::owner). `None` if there is no owner token, or it names no client.
    pub holder: Option<Holder>,
    /// Each node, in the order in which the nodes were configured.
    pub nodes: Vec<NodeInspection>,
}

/// A node, and its answer to an inspection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInspection {
    /// The node's name: an address without credentials.
    pub node: Arc<str>,
    /// The lock's key and counter on this node, or why they are unknown.
    pub key: Result<KeyState, Fault>,
}

/// Whether a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// A quorum of nodes answered without a key, and no node has one.
    Free,
    /// A quorum of nodes has the same value under the key.
    Held,
    /// There are keys, but no quorum can have the same one. An attempt is under way, or has left keys on some nodes: they expire, or
    /// are deleted.
    Partial,
    /// Too few nodes answered to tell.
    Unknown,
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockStatus::Free => "free",
            LockStatus::Held => "held",
            LockStatus::Partial => "not held by a quorum",
            LockStatus::Unknown => "unknown, because too few nodes answered",
        })
    }
}

impl Inspection {
    pub(super) fn new(resource: Arc<str>, nodes: Vec<NodeInspection>) -> Inspection {
        let mut inspection = Inspection {
            resource,
            status: LockStatus::Unknown,
            holder: None,
            nodes,
        };
        inspection.status = inspection.quorum_status();
        inspection
    }

    fn quorum_status(&self) -> LockStatus {
        let quorum = quorum(self.nodes.len());
        let keys: Vec<&KeyValue> = self.values().collect();
        let answered = self.states().count();
        let (free, unanswered) = (answered - keys.len(), self.nodes.len() - answered);
        let is_partial = !keys.is_empty();
        let held = election::first(keys).map_or(0, |(nodes, _)| nodes);
        match () {
            () if held >= quorum => LockStatus::Held,
            // A minority of keys keeps no client from the lock.
            () if free >= quorum && is_partial => LockStatus::Partial,
            () if free >= quorum => LockStatus::Free,
            () if held + unanswered >= quorum || free + unanswered >= quorum => LockStatus::Unknown,
            () => LockStatus::Partial,
        }
    }

    /// Returns the owner token of the key that a quorum of nodes has; if none has, the token on the most nodes, and one of them if
    /// several are on equally many. `None` if there is no such token.
    pub fn owner(&self) -> Option<OwnerToken> {
        let owner = |value: &KeyValue| match value {
            KeyValue::Owner(owner) => Some(*owner),
            _ => None,
        };
        if self.status == LockStatus::Held {
            return election::first(self.values().collect()).and_then(|(_, value)| owner(value));
        }
        election::first(self.values().filter_map(owner).collect()).map(|(_, owner)| owner)
    }

    /// Returns how many nodes have a key.
    pub fn keys(&self) -> usize {
        self.values().count()
    }

    /// Returns the longest time until a key expires. `None` if there are no keys, or one never expires.
    pub fn remaining(&self) -> Option<Duration> {
        let endless = self.states().any(KeyState::is_endless);
        let longest = self.states().filter_map(|state| state.remaining).max();
        longest.filter(|_| !endless)
    }

    /// Returns the number that the counters of fencing tokens have reached on a quorum of nodes. While the lock is held, that is
    /// its holder's token, unless another attempt is being counted. `None` if no quorum of nodes has a counter.
    pub fn counter(&self) -> Option<u64> {
        let mut counters: Vec<u64> = self.states().filter_map(|state| state.counter?.value).collect();
        counters.sort_unstable_by(|a, b| b.cmp(a));
        counters.get(quorum(self.nodes.len()) - 1).copied()
    }

    /// Returns the end of the last [`Period`](crate::Period) in which the resource's work was done. `None` if no node has one marked.
    pub fn done_until(&self) -> Option<SystemTime> {
        self.states().filter_map(|state| state.done_until).max()
    }

    /// Returns what does not belong on the nodes. An empty list: nothing.
    ///
    /// `retention` is whether counters are meant to expire, as they do by default.
    pub fn leaks(&self, retention: bool) -> Vec<Leak> {
        let mut leaks = Vec::new();
        if self.states().any(|state| state.value == KeyValue::WrongType) {
            leaks.push(Leak::WrongType);
        }
        if self
            .states()
            .any(|state| state.value != KeyValue::WrongType && state.is_endless())
        {
            leaks.push(Leak::Endless);
        }
        if self.status == LockStatus::Partial {
            leaks.push(Leak::Partial);
        }
        let endless = |counter: Counter| counter.remaining.is_none();
        if retention && self.states().filter_map(|state| state.counter).any(endless) {
            leaks.push(Leak::EndlessCounter);
        }
        leaks
    }

    fn states(&self) -> impl Iterator<Item = &KeyState> {
        self.nodes.iter().filter_map(|node| node.key.as_ref().ok())
    }

    /// Returns what the keys hold, of the nodes that have one.
    fn values(&self) -> impl Iterator<Item = &KeyValue> {
        let values = self.states().map(|state| &state.value);
        values.filter(|value| **value != KeyValue::Free)
    }
}

/// Something that does not belong on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leak {
    /// A key without an expiry: the lock stays held.
    Endless,
    /// Data that is no string under the lock's name: the lock cannot be taken on that node.
    WrongType,
    /// Keys on too few nodes: an attempt that is under way, or whose client has died.
    Partial,
    /// A counter of fencing tokens without an expiry.
    EndlessCounter,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Leak::Endless => "a key has no expiry: it never ends by itself",
            Leak::WrongType => "a key holds data that is no lock",
            Leak::Partial => "keys on too few nodes: an attempt under way, or a dead client's",
            Leak::EndlessCounter => "a counter of fencing tokens has no expiry",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(2);

    fn inspection(keys: &[Option<KeyValue>]) -> Inspection {
        let node = |value: &Option<KeyValue>| NodeInspection {
            node: "n".into(),
            key: match value {
                Some(value) => {
                    let remaining = (*value != KeyValue::Free).then_some(LIFE);
                    Ok(KeyState::new(value.clone(), remaining, None))
                }
                None => Err(Fault::Busy),
            },
        };
        Inspection::new("r".into(), keys.iter().map(node).collect())
    }

    #[test]
    fn the_status_is_that_of_a_quorum() {
        let (a, b) = (KeyValue::Owner(1.into()), KeyValue::Owner(2.into()));
        let (free, other) = (KeyValue::Free, KeyValue::Other("x".into()));
        for (keys, expected) in [
            ([Some(&a), Some(&a), None], LockStatus::Held),
            ([Some(&other), Some(&other), Some(&free)], LockStatus::Held),
            ([Some(&free), Some(&free), None], LockStatus::Free),
            ([Some(&free), Some(&free), Some(&a)], LockStatus::Partial),
            ([Some(&a), Some(&b), Some(&free)], LockStatus::Partial),
            ([Some(&a), Some(&b), None], LockStatus::Unknown),
            ([Some(&a), Some(&free), None], LockStatus::Unknown),
            ([Some(&a), None, None], LockStatus::Unknown),
            ([None, None, None], LockStatus::Unknown),
        ] {
            let keys = keys.map(|key| key.cloned());
            assert_eq!(inspection(&keys).status, expected, "{keys:?}");
        }
        for (keys, owner) in [
            ([&b, &a, &b], Some(2.into())),
            ([&a, &other, &other], None),
            ([&a, &free, &free], Some(1.into())),
            ([&other, &free, &free], None),
        ] {
            let keys = keys.map(|key| Some(key.clone()));
            assert_eq!(inspection(&keys).owner(), owner, "{keys:?}");
        }
    }

    #[test]
    fn leaks_are_what_nobody_cleans_up() {
        let endless = Counter::new(Some(1), None);
        let with = |value, remaining, counter| {
            let node = NodeInspection {
                node: "n".into(),
                key: Ok(KeyState::new(value, remaining, counter)),
            };
            Inspection::new("r".into(), vec![node])
        };
        let owner = KeyValue::Owner(1.into());
        let lives = Some(LIFE);
        for (inspection, leaks) in [
            (with(owner.clone(), lives, None), vec![]),
            (with(owner, None, None), vec![Leak::Endless]),
            (with(KeyValue::WrongType, None, None), vec![Leak::WrongType]),
            (
                with(KeyValue::Free, None, Some(endless)),
                vec![Leak::EndlessCounter],
            ),
        ] {
            assert_eq!(inspection.leaks(true), leaks, "{inspection:?}");
        }
        assert_eq!(with(KeyValue::Free, None, Some(endless)).leaks(false), vec![]);
    }
}
