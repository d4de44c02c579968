//! The announcements of all nodes about one lock (W2).

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::node::{
    Listener, Listening, Nodes, OwnerToken, ReleaseKind, ReleaseNotice, ReleaseSink, WaitNotice,
};
use crate::protocol::quorum::quorum;
use crate::sys::mutex::lock;

use super::fairness::Fairness;

/// Most releases that are remembered as acted upon.
const REMEMBERED: usize = 8;

/// Listens to all nodes for releases of one lock, until it is dropped.
pub(crate) struct ReleaseWatch {
    heard: Arc<Heard>,
    _listening: Vec<Listening>,
}

struct Heard {
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
    hears: bool,
    /// Counts how often listening to the node began.
    beginnings: u32,
    released: Option<(OwnerToken, ReleaseKind)>,
}

/// Which nodes are listened to. `None` if a node is not; a number that differs shows an interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hearing(Vec<Option<u32>>);

impl Hearing {
    pub(crate) fn none(nodes: usize) -> Hearing {
        Hearing(vec![None; nodes])
    }

    /// Returns whether a node is listened to, without interruption since `earlier`.
    pub(crate) fn since(&self, earlier: &Hearing, node: usize) -> bool {
        self.0[node].is_some() && self.0[node] == earlier.0[node]
    }

    pub(crate) fn of(&self, node: usize) -> bool {
        self.0[node].is_some()
    }

    pub(crate) fn of_quorum(&self) -> bool {
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
        let heard = Arc::new(Heard {
            nodes: Mutex::new(State {
                nodes: vec![NodeState::default(); nodes.len()],
                acted_upon: Vec::new(),
            }),
            changed: Notify::new(),
            fairness: fairness.clone(),
        });
        let _entered = runtime.enter();
        let listen = |number: usize| nodes[number].listen(key, Listener::new(number, heard.clone()));
        let listening = (0..nodes.len()).filter_map(listen).collect();
        ReleaseWatch {
            heard,
            _listening: listening,
        }
    }

    pub(crate) fn hearing(&self) -> Hearing {
        let state = self.heard.state();
        let hears = |node: &NodeState| node.hears.then_some(node.beginnings);
        Hearing(state.nodes.iter().map(hears).collect())
    }

    /// Waits until a node announces a release, or listening to a node begins or ends. Cancel safe.
    pub(crate) async fn changed(&self) {
        self.heard.changed.notified().await;
    }

    /// Forgets the announcements so far. Called before the nodes are asked, whose answers will include them.
    pub(crate) fn forget(&self) {
        self.heard.state().forget();
    }

    /// Returns whether any node has announced this release since then.
    pub(crate) fn is_released(&self, owner: OwnerToken) -> bool {
        let is_it = |node: &NodeState| node.released.is_some_and(|(released, _)| released == owner);
        self.heard.state().nodes.iter().any(is_it)
    }

    /// Returns how the lock was released, if a quorum of nodes is free: at least one because it has announced the release,
    /// others perhaps because `is_free` says so. Each release counts once, and once more from a node that `holds` its token.
    pub(crate) fn release(
        &self,
        is_free: impl Fn(usize) -> bool,
        holds: impl Fn(usize, OwnerToken) -> bool,
    ) -> Option<ReleaseKind> {
        let mut state = self.heard.state();
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

impl Heard {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.nodes)
    }
}

impl ReleaseSink for Heard {
    fn hears(&self, node: usize, hears: bool) {
        {
            let node = &mut self.state().nodes[node];
            node.hears = hears;
            node.beginnings = node.beginnings.wrapping_add(u32::from(hears));
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
