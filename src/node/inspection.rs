//! A lock's key and counter on one node, read without taking the lock (H4).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::owner::OwnerToken;

/// A lock's key and counter on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyState {
    /// What the key holds.
    pub value: KeyValue,
    /// How long until the key expires. `None` if it never does, or if there is no key.
    pub remaining: Option<Duration>,
    /// The counter of fencing tokens. `None` if there is none.
    pub counter: Option<Counter>,
    /// The end of the last [`Period`](crate::Period) in which the resource's work was done. `None` if none is marked, or the mark is
    /// too far in the future to be right by this machine's clock: no client then relies on it.
    pub done_until: Option<SystemTime>,
}

/// What a lock's key holds on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KeyValue {
    /// There is no key.
    Free,
    /// An owner token of this library, or of another one that uses UUIDs.
    Owner(OwnerToken),
    /// Another text: another library's lock, or data. At most its first 64 bytes, lossily decoded.
    Other(Arc<str>),
    /// Data that is no string: no lock can be taken here.
    WrongType,
}

/// A node's counter of a resource's grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counter {
    /// The last token that it counted. `None` if it is no number.
    pub value: Option<u64>,
    /// How long until it expires. `None` if it never does.
    pub remaining: Option<Duration>,
}

impl KeyState {
    pub(crate) fn new(value: KeyValue, remaining: Option<Duration>, counter: Option<Counter>) -> KeyState {
        KeyState {
            value,
            remaining,
            counter,
            done_until: None,
        }
    }

    /// Returns whether there is a key that never expires: the lock stays held until somebody deletes it.
    pub fn is_endless(&self) -> bool {
        self.value != KeyValue::Free && self.remaining.is_none()
    }
}

impl Counter {
    pub(crate) fn new(value: Option<u64>, remaining: Option<Duration>) -> Counter {
        Counter { value, remaining }
    }
}

/// One page of a node's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyPage {
    /// Keys, in no order. A key may occur on two pages.
    pub keys: Vec<Arc<str>>,
    /// Where the next page begins. `None` after the last one.
    pub next: Option<u64>,
}

impl KeyPage {
    pub(crate) fn new(keys: Vec<Arc<str>>, next: Option<u64>) -> KeyPage {
        KeyPage { keys, next }
    }
}
