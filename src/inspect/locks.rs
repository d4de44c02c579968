//! Lists the locks of all nodes, a page of keys at a time.
//!
//! Nodes list their keys in no common order, so the lists cannot be merged. Instead, one node after the other is listed, and a lock
//! is returned with the first node that has it. Only one page of keys is in memory at a time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, Stream};
use tokio::time::Instant;

use super::inspection::{Inspection, LockStatus, NodeInspection};
use super::inspector::Inspector;
use crate::node::{Fault, KeyState, KeyValue};
use crate::options::{COUNTER_SUFFIX, is_reserved, literal};
use crate::sys::timer::sleep_until;

/// How many locks are looked at together. It takes a server well below a tenth of a millisecond.
const MOST_AT_ONCE: usize = 16;
/// The longest rest, also if this process was stopped meanwhile.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// The locks of all nodes under a prefix. Returned by [`Redlock::locks`](crate::Redlock::locks).
///
/// A lock whose keys stay on the same nodes during the listing is returned. A lock may be missed if it is acquired, released or
/// repaired meanwhile. It is returned twice if a node fails meanwhile, or resizes its table of keys.
///
/// Nodes are read for half of the time, because other clients' requests matter more: in a fast network, about a thousand locks a second.
///
/// A node that fails is no error: locks that only this node has are missing. Read [`faults`](Self::faults) after the last lock.
pub struct Locks {
    inspector: Inspector,
    /// Matches the keys of locks; then, to list locks that have nothing but a counter, the keys of counters.
    patterns: Vec<String>,
    /// The node that is being listed, by which pattern, and where the next page begins.
    node: usize,
    pattern: usize,
    from: u64,
    /// The connection over which its list began. A server that has restarted would go on with another order of its keys.
    connection: Option<u64>,
    faults: Vec<Option<Fault>>,
    ready: VecDeque<Inspection>,
    /// The keys of the last page that were not looked at yet, and where the next page begins.
    page: Option<(VecDeque<Arc<str>>, Option<u64>)>,
    rests_until: Instant,
}

impl Locks {
    pub(crate) fn new(inspector: Inspector, pattern: &str, counters: bool) -> Locks {
        let faults = vec![None; inspector.nodes.len()];
        let pattern = format!("{}{pattern}", literal(&inspector.prefix));
        let of_counters = counters.then(|| format!("{pattern}{COUNTER_SUFFIX}"));
        Locks {
            inspector,
            patterns: [pattern].into_iter().chain(of_counters).collect(),
            node: 0,
            pattern: 0,
            from: 0,
            connection: None,
            faults,
            ready: VecDeque::new(),
            page: None,
            rests_until: Instant::now(),
        }
    }

    /// Returns the next lock; `None` after the last one.
    ///
    /// # Cancel safety
    /// Cancel safe. If a call is dropped, the next one returns the same lock.
    pub async fn next(&mut self) -> Option<Inspection> {
        loop {
            if let Some(lock) = self.ready.front().cloned() {
                let lock = self.inspector.with_holder(lock).await;
                self.ready.pop_front();
                return Some(lock);
            }
            if self.node == self.inspector.nodes.len() {
                return None;
            }
            match &self.page {
                None => self.read_page().await,
                Some((keys, next)) if keys.is_empty() => self.next_page(*next),
                Some((keys, _)) => {
                    let keys = keys.iter().take(MOST_AT_ONCE).cloned().collect();
                    self.read_locks(keys).await;
                }
            }
        }
    }

    /// Returns the nodes that could not be listed to the end, and why. Their locks are known as far as other nodes have them.
    pub fn faults(&self) -> impl Iterator<Item = (&Arc<str>, &Fault)> {
        let names = self.inspector.nodes.iter().map(|node| node.name());
        names
            .zip(&self.faults)
            .filter_map(|(name, fault)| Some((name, fault.as_ref()?)))
    }

    /// Returns the nodes that have been listed to the end by now. Once a quorum has been, no lock is missed that was held all the time,
    /// unless such a node has lost its data.
    pub fn listed(&self) -> impl Iterator<Item = &Arc<str>> {
        let names = self.inspector.nodes.iter().map(|node| node.name());
        let listed = names.zip(&self.faults).take(self.node);
        listed.filter_map(|(name, fault)| fault.is_none().then_some(name))
    }

    /// Turns the list into a stream. Its faults cannot be read then.
    pub fn into_stream(self) -> impl Stream<Item = Inspection> + Send {
        stream::unfold(self, async |mut locks| Some((locks.next().await?, locks)))
    }

    /// Reads one page of keys.
    async fn read_page(&mut self) {
        let node = &self.inspector.nodes[self.node];
        let connection = node.connection();
        if self.from == 0 && self.pattern == 0 {
            self.connection = connection;
        }
        let scan = node.scan(&self.patterns[self.pattern], self.from);
        let page = match self.inspector.in_time(scan).await {
            Ok(_) if self.connection != connection => Err(Fault::Disconnected {
                reason: "connected anew during the list".into(),
            }),
            page => page,
        };
        match page {
            Ok(page) => self.page = Some((self.keys_of_locks(&page.keys).into(), page.next)),
            Err(fault) => {
                self.faults[self.node] = Some(fault);
                self.next_node();
            }
        }
    }

    /// Looks at the next keys of the page. Then rests for as long as that took: locks matter more than lists.
    async fn read_locks(&mut self, keys: Vec<Arc<str>>) {
        sleep_until(&self.inspector.context.runtime, self.rests_until).await;
        let (count, began) = (keys.len(), Instant::now());
        let new = self.without_listed(keys).await;
        let found = self.inspect(new).await;
        self.rests_until = Instant::now() + began.elapsed().min(LONGEST_REST);
        // Only now: a call that was dropped is repeated from here.
        self.ready.extend(found);
        if let Some((keys, _)) = &mut self.page {
            keys.drain(..count);
        }
    }

    /// Goes on behind the page.
    fn next_page(&mut self, next: Option<u64>) {
        self.page = None;
        match next {
            Some(next) => self.from = next,
            None if self.pattern + 1 < self.patterns.len() => {
                (self.pattern, self.from) = (self.pattern + 1, 0)
            }
            None => self.next_node(),
        }
    }

    fn next_node(&mut self) {
        (self.node, self.pattern, self.from) = (self.node + 1, 0, 0);
    }

    fn counters(&self) -> bool {
        self.patterns.len() > 1
    }

    /// Returns the keys of locks, each once. A counter stands for its lock.
    fn keys_of_locks(&self, keys: &[Arc<str>]) -> Vec<Arc<str>> {
        let mut locks = BTreeSet::new();
        for key in keys {
            match key.strip_suffix(COUNTER_SUFFIX) {
                Some(lock) if self.pattern == 1 => drop(locks.insert(lock.into())),
                None if self.pattern == 0 && !is_reserved(key) => drop(locks.insert(key.clone())),
                _ => {}
            }
        }
        // A prefix alone is no lock. A server that lies may list other keys.
        locks.retain(|lock: &Arc<str>| self.resource(lock).is_some_and(|name| !name.is_empty()));
        locks.into_iter().collect()
    }

    fn resource<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&*self.inspector.prefix)
    }

    /// Returns the keys of locks that were not returned yet: with a node that was listed before, or by this node's first pattern.
    async fn without_listed(&mut self, mut keys: Vec<Arc<str>>) -> Vec<Arc<str>> {
        for earlier in 0..self.node + self.pattern {
            if keys.is_empty() {
                break;
            }
            if self.faults[earlier].is_some() {
                continue;
            }
            match self.inspector.read(earlier, keys.clone().into()).await {
                Ok(states) => {
                    let mut states = states.iter();
                    let is_listed = |state: &KeyState| match earlier < self.node {
                        true => self.is_listed(state),
                        false => state.value != KeyValue::Free,
                    };
                    keys.retain(|_| !states.next().is_some_and(is_listed));
                }
                Err(fault) => self.faults[earlier] = Some(fault),
            }
        }
        keys
    }

    /// Returns whether a node with this would list the lock.
    fn is_listed(&self, state: &KeyState) -> bool {
        state.value != KeyValue::Free || self.counters() && state.counter.is_some()
    }

    async fn inspect(&mut self, keys: Vec<Arc<str>>) -> Vec<Inspection> {
        if keys.is_empty() {
            return Vec::new();
        }
        let keys: Arc<[Arc<str>]> = keys.into();
        let nodes = 0..self.inspector.nodes.len();
        // One node after the other: an acquire does not wait for a single busy node.
        let mut answers = Vec::with_capacity(nodes.len());
        for node in nodes.clone() {
            let answer = self.read(node, keys.clone()).await;
            // At once: the caller may stop waiting before the others have answered.
            self.record_fault(node, &answer);
            answers.push(answer);
        }
        let (doubted, mut found): (Vec<Inspection>, Vec<Inspection>) = self
            .inspections(&keys, &answers)
            .partition(|lock| lock.status == LockStatus::Partial);
        if !doubted.is_empty() {
            // Locks that are taken or released meanwhile look as if few nodes had them. All nodes at once tell.
            let key = |lock: &Inspection| format!("{}{}", self.inspector.prefix, lock.resource).into();
            let keys: Arc<[Arc<str>]> = doubted.iter().map(key).collect();
            let again = join_all(nodes.map(|node| self.read(node, keys.clone()))).await;
            for (node, answer) in again.iter().enumerate() {
                self.record_fault(node, answer);
            }
            found.extend(self.inspections(&keys, &again));
        }
        let is_listed = |node: &NodeInspection| node.key.as_ref().is_ok_and(|state| self.is_listed(state));
        // It may have gone since the page was read.
        found.retain(|lock| lock.nodes.iter().any(is_listed));
        found
    }

    /// Keeps the node's first fault.
    fn record_fault(&mut self, node: usize, answer: &Result<Vec<KeyState>, Fault>) {
        if let Err(fault) = answer {
            self.faults[node].get_or_insert_with(|| fault.clone());
        }
    }

    /// Reads keys from one node. A node that has failed before is not asked.
    async fn read(&self, node: usize, keys: Arc<[Arc<str>]>) -> Result<Vec<KeyState>, Fault> {
        match &self.faults[node] {
            Some(fault) => Err(fault.clone()),
            None => self.inspector.read(node, keys).await,
        }
    }

    fn inspections(
        &self,
        keys: &[Arc<str>],
        answers: &[Result<Vec<KeyState>, Fault>],
    ) -> impl Iterator<Item = Inspection> {
        keys.iter().enumerate().map(|(number, key)| {
            let resource = self.resource(key).unwrap_or(key);
            Inspection::new(resource.into(), self.inspector.on_each_node(answers, number))
        })
    }
}

#[cfg(feature = "simulation")]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use futures_util::future::{BoxFuture, FutureExt, ready};

    use super::*;
    use crate::Redlock;
    use crate::node::{KeyPage, OwnerToken, Reply, Request};
    use crate::simulation::Node;

    /// A node with one lock, which is released once it has been read so many times, on any node.
    #[derive(Debug)]
    struct Read {
        name: Arc<str>,
        reads: Arc<AtomicUsize>,
        held_for: usize,
    }

    impl Node for Read {
        fn name(&self) -> &Arc<str> {
            &self.name
        }

        fn call(&self, _: Request, _: Duration) -> BoxFuture<'static, Result<Reply, Fault>> {
            ready(Err(Fault::Loading)).boxed()
        }

        fn inspect(&self, keys: Arc<[Arc<str>]>) -> BoxFuture<'static, Result<Vec<KeyState>, Fault>> {
            let value = match self.reads.fetch_add(1, SeqCst) < self.held_for {
                true => KeyValue::Owner(OwnerToken::from(1)),
                false => KeyValue::Free,
            };
            let state = KeyState::new(value, Some(Duration::from_secs(1)), None);
            ready(Ok(vec![state; keys.len()])).boxed()
        }

        fn scan(&self, _: &str, _: u64) -> BoxFuture<'static, Result<KeyPage, Fault>> {
            ready(Ok(KeyPage::new(vec!["quorlock:job".into()], None))).boxed()
        }
    }

    async fn listed(held_for: usize) -> Option<Inspection> {
        let reads = Arc::new(AtomicUsize::new(0));
        let node = |number| -> Arc<dyn Node> {
            Arc::new(Read {
                name: format!("node{number}").into(),
                reads: reads.clone(),
                held_for,
            })
        };
        let redlock = Redlock::builder()
            .custom_nodes((0..5).map(node).collect())
            .unwrap();
        redlock.locks("*").next().await
    }

    #[tokio::test]
    async fn a_lock_that_is_released_meanwhile_is_not_left_on_few_nodes() {
        assert_eq!(listed(2).await, None);
        assert_eq!(listed(5).await.map(|lock| lock.status), Some(LockStatus::Held));
    }
}
