//! What the nodes have of one lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::node::{Counter, Fault, Holder, KeyState, KeyValue, OwnerToken};
use crate::protocol::quorum::quorum;

/// What the nodes have of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The lock's name.
    pub resource: Arc<str>,
    /// What all nodes together say.
    pub status: LockStatus,
    /// Who holds it, or has keys on most of the nodes that have any. `None` if there are none, or they do not tell.
    pub holder: Option<Holder>,
    /// Each node, in the order in which the nodes were configured.
    pub nodes: Vec<NodeInspection>,
}

/// What one node has of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInspection {
    /// The node's name: an address without credentials.
    pub node: Arc<str>,
    /// What it has, or why that is unknown.
    pub key: Result<KeyState, Fault>,
}

/// Whether a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// A quorum of nodes has no key.
    Free,
    /// A quorum of nodes has the same key.
    Held,
    /// Neither: an attempt is under way, or has left keys on some nodes. They expire, or are deleted.
    Partial,
    /// Too few nodes answered.
    Unknown,
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockStatus::Free => "free",
            LockStatus::Held => "held",
            LockStatus::Partial => "keys on too few nodes",
            LockStatus::Unknown => "unknown: too few nodes answered",
        })
    }
}

impl Inspection {
    pub(super) fn new(resource: Arc<str>, nodes: Vec<NodeInspection>) -> Inspection {
        let status = status(&nodes);
        Inspection {
            resource,
            status,
            holder: None,
            nodes,
        }
    }

    /// Returns the owner token that most nodes have. `None` if none has one.
    pub fn owner(&self) -> Option<OwnerToken> {
        let mut owners: BTreeMap<OwnerToken, usize> = BTreeMap::new();
        for state in self.states() {
            if let KeyValue::Owner(owner) = state.value {
                *owners.entry(owner).or_default() += 1;
            }
        }
        owners
            .into_iter()
            .max_by_key(|(_, nodes)| *nodes)
            .map(|(owner, _)| owner)
    }

    /// Returns how many nodes have a key.
    pub fn keys(&self) -> usize {
        self.states()
            .filter(|state| state.value != KeyValue::Free)
            .count()
    }

    /// Returns the longest time until a key expires. `None` if there are no keys, or one never expires.
    pub fn remaining(&self) -> Option<Duration> {
        let endless = self.states().any(KeyState::is_endless);
        let longest = self.states().filter_map(|state| state.remaining).max();
        longest.filter(|_| !endless)
    }

    /// Returns the largest counter of fencing tokens. While the lock is held, that is normally its holder's token.
    pub fn counter(&self) -> Option<u64> {
        self.states().filter_map(|state| state.counter?.value).max()
    }

    /// Returns what nobody cleans up: keys and counters that stay until somebody deletes them.
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
}

/// Something that is left on nodes.
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

fn status(nodes: &[NodeInspection]) -> LockStatus {
    let quorum = quorum(nodes.len());
    let mut values: Vec<&KeyValue> = Vec::new();
    let mut free = 0;
    for node in nodes {
        match &node.key {
            Ok(KeyState {
                value: KeyValue::Free,
                ..
            }) => free += 1,
            Ok(state) => values.push(&state.value),
            Err(_) => {}
        }
    }
    let most = |value: &&KeyValue| values.iter().filter(|other| other == &value).count();
    match values.iter().map(most).max().unwrap_or(0) {
        held if held >= quorum => LockStatus::Held,
        _ if free >= quorum => match values.is_empty() {
            true => LockStatus::Free,
            // A minority of keys keeps nobody from the lock.
            false => LockStatus::Partial,
        },
        _ if free + values.len() < quorum => LockStatus::Unknown,
        _ => LockStatus::Partial,
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
            ([Some(&a), Some(&b), None], LockStatus::Partial),
            ([Some(&a), Some(&free), None], LockStatus::Partial),
            ([Some(&a), None, None], LockStatus::Unknown),
            ([None, None, None], LockStatus::Unknown),
        ] {
            let keys = keys.map(|key| key.cloned());
            assert_eq!(inspection(&keys).status, expected, "{keys:?}");
        }
        let owners = inspection(&[Some(b.clone()), Some(a), Some(b)]);
        assert_eq!((owners.owner(), owners.keys()), (Some(2.into()), 3));
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
