//! The announcements of all nodes about one lock (W2).

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::node::{
    Listening, Nodes, OwnerToken, ReleaseKind, ReleaseNotice, ReleaseSink, WaitNotice, listen_to_all,
};
use crate::protocol::quorum::quorum;
use crate::sys::mutex::lock;

use super::fairness::Fairness;

/// Most releases that are remembered as acted upon.
const REMEMBERED: usize = 8;

/// Listens to all nodes for releases of one lock, until it is dropped.
pub(crate) struct ReleaseWatch {
    received: Arc<Received>,
    _listening: Vec<Listening>,
}

struct Received {
    nodes: Mutex<State>,
    changed: Notify,
    fairness: Arc<Mutex<Fairness>>,
}

struct State {
    nodes: Vec<NodeState>,
    /// Late announcements of these releases are ignored, unless the node was seen to hold the token since.
    acted_upon: Vec<OwnerToken>,
}

#[derive(Clone, Copy, Default)]
struct NodeState {
    is_subscribed: bool,
    /// Counts how often listening to the node began.
    beginnings: u32,
    released: Option<(OwnerToken, ReleaseKind)>,
}

/// The subscriptions to all nodes: a number for each, `None` without one. A number that differs shows an interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscriptions(Vec<Option<u32>>);

impl Subscriptions {
    pub(crate) fn none(nodes: usize) -> Subscriptions {
        Subscriptions(vec![None; nodes])
    }

    /// Returns whether a node is subscribed to, without interruption since `earlier`.
    pub(crate) fn unbroken_since(&self, earlier: &Subscriptions, node: usize) -> bool {
        self.0[node].is_some() && self.0[node] == earlier.0[node]
    }

    pub(crate) fn include(&self, node: usize) -> bool {
        self.0[node].is_some()
    }

    pub(crate) fn include_quorum(&self) -> bool {
        self.0.iter().flatten().count() >= quorum(self.0.len())
    }
}

impl ReleaseWatch {
    /// Starts to listen to all nodes that can announce. Announcements about turns go to `fairness`.
    pub(crate) fn of(
        key: &Arc<str>,
        nodes: &Nodes,
        runtime: &Handle,
        fairness: &Arc<Mutex<Fairness>>,
    ) -> ReleaseWatch {
        let received = Arc::new(Received {
            nodes: Mutex::new(State {
                nodes: vec![NodeState::default(); nodes.len()],
                acted_upon: Vec::new(),
            }),
            changed: Notify::new(),
            fairness: fairness.clone(),
        });
        let _entered = runtime.enter();
        ReleaseWatch {
            _listening: listen_to_all(nodes, key, received.clone()),
            received,
        }
    }

    pub(crate) fn subscriptions(&self) -> Subscriptions {
        let state = self.received.state();
        let subscription = |node: &NodeState| node.is_subscribed.then_some(node.beginnings);
        Subscriptions(state.nodes.iter().map(subscription).collect())
    }

    /// Waits until a node announces a release, or listening to a node begins or ends. Cancel safe.
    pub(crate) async fn changed(&self) {
        self.received.changed.notified().await;
    }

    /// Forgets the announcements so far. Called before the nodes are asked, whose answers will include them.
    pub(crate) fn forget(&self) {
        self.received.state().forget();
    }

    /// Returns whether any node has announced this release since then.
    pub(crate) fn is_released(&self, owner: OwnerToken) -> bool {
        let is_it = |node: &NodeState| node.released.is_some_and(|(released, _)| released == owner);
        self.received.state().nodes.iter().any(is_it)
    }

    /// Returns how the lock was released, if a quorum of nodes is free: at least one because it has announced the release,
    /// others perhaps because `is_free` says so. Each release counts once, and once more from a node that `holds` its token.
    pub(crate) fn release(
        &self,
        is_free: impl Fn(usize) -> bool,
        holds: impl Fn(usize, OwnerToken) -> bool,
    ) -> Option<ReleaseKind> {
        let mut state = self.received.state();
        let is_new =
            |node: usize, owner: OwnerToken| !state.acted_upon.contains(&owner) || holds(node, owner);
        let new = |node: usize| {
            state.nodes[node]
                .released
                .filter(|(owner, _)| is_new(node, *owner))
        };
        let nodes = 0..state.nodes.len();
        let free = nodes
            .clone()
            .filter(|node| new(*node).is_some() || is_free(*node))
            .count();
        let releases: Vec<(OwnerToken, ReleaseKind)> = nodes.filter_map(new).collect();
        if releases.is_empty() || free < quorum(state.nodes.len()) {
            return None;
        }
        state.forget();
        for (owner, _) in &releases {
            if !state.acted_upon.contains(owner) {
                state.acted_upon.push(*owner);
            }
        }
        let excess = state.acted_upon.len().saturating_sub(REMEMBERED);
        state.acted_upon.drain(..excess);
        let is = |kind: ReleaseKind| releases.iter().any(|(_, announced)| *announced == kind);
        let most = [ReleaseKind::Free, ReleaseKind::Abandoned, ReleaseKind::HandedOver];
        most.into_iter().find(|kind| is(*kind))
    }
}

impl State {
    fn forget(&mut self) {
        for node in &mut self.nodes {
            node.released = None;
        }
    }
}

impl Received {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.nodes)
    }
}

impl ReleaseSink for Received {
    fn set_subscribed(&self, node: usize, subscribed: bool) {
        {
            let node = &mut self.state().nodes[node];
            node.is_subscribed = subscribed;
            node.beginnings = node.beginnings.wrapping_add(u32::from(subscribed));
        }
        self.changed.notify_one();
    }

    fn released(&self, node: usize, owner: OwnerToken, notice: ReleaseNotice) {
        let is_anothers = lock(&self.fairness).heard_release(notice, Instant::now());
        // If this process hands the lock over, its next waiter is notified directly.
        if is_anothers || notice.kind != ReleaseKind::HandedOver {
            self.state().nodes[node].released = Some((owner, notice.kind));
            self.changed.notify_one();
        }
    }

    fn waits(&self, notice: WaitNotice) {
        lock(&self.fairness).heard_waits(notice);
    }
}
