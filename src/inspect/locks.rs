//! Lists the locks of all nodes, a page of keys at a time.
//!
//! Nodes list their keys in no common order, so they cannot be merged. Instead, one node after the other is listed, and a lock is
//! returned with the first node that has it. What a page holds in memory does not depend on the number of locks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::future::join_all;
use futures_util::stream::{self, Stream};

use super::inspection::{Inspection, NodeInspection};
use super::inspector::{Inspector, in_time};
use crate::node::{Fault, KeyState, KeyValue};
use crate::options::{COUNTER_SUFFIX, is_reserved, literal};

/// The locks of all nodes under a prefix. Returned by [`Redlock::locks`](crate::Redlock::locks).
///
/// A lock that is held all the time while it is listed is returned. A lock that is acquired or released meanwhile may be missed.
/// It may be returned twice if a node fails meanwhile, or resizes its table of keys.
pub struct Locks {
    inspector: Inspector,
    /// Matches the keys of locks.
    pattern: String,
    /// Whether locks are listed that have nothing but a counter.
    counters: bool,
    /// The node that is being listed, and where its next page begins.
    node: usize,
    from: u64,
    faults: Vec<Option<Fault>>,
    ready: VecDeque<Inspection>,
}

impl Locks {
    pub(crate) fn new(inspector: Inspector, pattern: &str, counters: bool) -> Locks {
        let faults = vec![None; inspector.nodes.len()];
        Locks {
            pattern: format!("{}{pattern}", literal(&inspector.prefix)),
            inspector,
            counters,
            node: 0,
            from: 0,
            faults,
            ready: VecDeque::new(),
        }
    }

    /// Returns the next lock; `None` after the last one.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call is repeated by the next one.
    pub async fn next(&mut self) -> Option<Inspection> {
        loop {
            if let Some(lock) = self.ready.pop_front() {
                return Some(self.inspector.with_holder(lock).await);
            }
            if self.node == self.inspector.nodes.len() {
                return None;
            }
            self.read_page().await;
        }
    }

    /// Returns the nodes that could not be listed to the end, and why. Their locks are known as far as other nodes have them.
    pub fn faults(&self) -> impl Iterator<Item = (&Arc<str>, &Fault)> {
        let names = self.inspector.nodes.iter().map(|node| node.name());
        names
            .zip(&self.faults)
            .filter_map(|(name, fault)| Some((name, fault.as_ref()?)))
    }

    /// Returns the same as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Inspection> + Send {
        stream::unfold(self, async |mut locks| Some((locks.next().await?, locks)))
    }

    async fn read_page(&mut self) {
        let node = self.node;
        let page = in_time(self.inspector.nodes[node].scan(&self.pattern, self.from)).await;
        let page = match page {
            Ok(page) => page,
            Err(fault) => {
                self.faults[node] = Some(fault);
                (self.node, self.from) = (node + 1, 0);
                return;
            }
        };
        let keys = self.keys_of_locks(&page.keys);
        let new = self.without_listed(keys).await;
        let found = self.inspect(new).await;
        // Only now: a call that was dropped is repeated from here.
        self.ready.extend(found);
        match page.next {
            Some(next) => self.from = next,
            None => (self.node, self.from) = (node + 1, 0),
        }
    }

    /// Returns the keys of locks, each once. A counter stands for its lock.
    fn keys_of_locks(&self, keys: &[Arc<str>]) -> Vec<Arc<str>> {
        let mut locks = BTreeSet::new();
        for key in keys {
            match key.strip_suffix(COUNTER_SUFFIX) {
                Some(lock) if self.counters => drop(locks.insert(lock.into())),
                Some(_) => {}
                None if is_reserved(key) => {}
                None => drop(locks.insert(key.clone())),
            }
        }
        // A prefix alone is no lock.
        locks.retain(|lock: &Arc<str>| lock.len() > self.inspector.prefix.len());
        locks.into_iter().collect()
    }

    /// Returns the keys that no node has which was listed before: those were returned with it.
    async fn without_listed(&mut self, mut keys: Vec<Arc<str>>) -> Vec<Arc<str>> {
        for earlier in 0..self.node {
            if keys.is_empty() {
                break;
            }
            if self.faults[earlier].is_some() {
                continue;
            }
            match self.inspector.read(earlier, keys.clone().into()).await {
                Ok(states) => {
                    let mut states = states.iter();
                    keys.retain(|_| !states.next().is_some_and(|state| self.is_listed(state)));
                }
                Err(fault) => self.faults[earlier] = Some(fault),
            }
        }
        keys
    }

    /// Returns whether a node with this would list the lock.
    fn is_listed(&self, state: &KeyState) -> bool {
        state.value != KeyValue::Free || self.counters && state.counter.is_some()
    }

    async fn inspect(&mut self, keys: Vec<Arc<str>>) -> Vec<Inspection> {
        if keys.is_empty() {
            return Vec::new();
        }
        let keys: Arc<[Arc<str>]> = keys.into();
        let nodes = 0..self.inspector.nodes.len();
        let read = async |node: usize| match &self.faults[node] {
            Some(fault) => Err(fault.clone()),
            None => self.inspector.read(node, keys.clone()).await,
        };
        let mut answers = join_all(nodes.map(read)).await;
        let mut found = Vec::with_capacity(keys.len());
        for (number, key) in keys.iter().enumerate() {
            let node = |(node, answer): (usize, &mut Result<Vec<KeyState>, Fault>)| NodeInspection {
                node: self.inspector.nodes[node].name().clone(),
                key: match answer {
                    Ok(states) => Ok(states[number].clone()),
                    Err(fault) => Err(fault.clone()),
                },
            };
            let nodes: Vec<NodeInspection> = answers.iter_mut().enumerate().map(node).collect();
            let is_listed =
                |node: &NodeInspection| node.key.as_ref().is_ok_and(|state| self.is_listed(state));
            // It may have gone since the page was read.
            if nodes.iter().any(is_listed) {
                let resource = key[self.inspector.prefix.len()..].into();
                found.push(Inspection::new(resource, nodes));
            }
        }
        for (number, answer) in answers.into_iter().enumerate() {
            if let Err(fault) = answer {
                self.faults[number].get_or_insert(fault);
            }
        }
        found
    }
}
