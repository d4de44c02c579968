//! What all nodes announce of one lock, put together (W2).

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

/// So many releases are remembered as acted upon.
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
    /// Announcements of these releases that come late say nothing new, unless the node was seen to hold them since.
    acted_upon: Vec<OwnerToken>,
}

#[derive(Clone, Copy, Default)]
struct NodeState {
    hears: bool,
    /// Counts how often it began to.
    beginnings: u32,
    released: Option<(OwnerToken, ReleaseKind)>,
}

/// Since when each node is listened to, without interruption: for comparison only. `None` where it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hearing(Vec<Option<u32>>);

impl Hearing {
    pub(crate) fn none(nodes: usize) -> Hearing {
        Hearing(vec![None; nodes])
    }

    /// Whether it is so for a node, and has been since `earlier`.
    pub(crate) fn since(&self, earlier: &Hearing, node: usize) -> bool {
        self.0[node].is_some() && self.0[node] == earlier.0[node]
    }

    pub(crate) fn of(&self, node: usize) -> bool {
        self.0[node].is_some()
    }

    /// Whether a quorum of nodes is listened to.
    pub(crate) fn of_quorum(&self) -> bool {
        self.0.iter().flatten().count() >= quorum(self.0.len())
    }
}

impl ReleaseWatch {
    /// Begins to listen, on whatever nodes announce. On none, it hears nothing. What concerns turns goes to `fairness`.
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

    /// Which nodes are listened to.
    pub(crate) fn hearing(&self) -> Hearing {
        let state = self.heard.state();
        let hears = |node: &NodeState| node.hears.then_some(node.beginnings);
        Hearing(state.nodes.iter().map(hears).collect())
    }

    /// Waits until something was announced, or a node is listened to that was not, or the other way round. Cancel safe.
    pub(crate) async fn changed(&self) {
        self.heard.changed.notified().await;
    }

    /// The nodes are about to be asked: what they have announced before will be in their answers.
    pub(crate) fn forget(&self) {
        self.heard.state().forget();
    }

    /// Whether any node has announced this release since then.
    pub(crate) fn is_released(&self, owner: OwnerToken) -> bool {
        let is_it = |node: &NodeState| node.released.is_some_and(|(released, _)| released == owner);
        self.heard.state().nodes.iter().any(is_it)
    }

    /// Whether a quorum of nodes is free: at least one because it has just said so, the others for that reason or because
    /// `is_free` holds for them. Each release is news once, and once more from a node that `holds` it.
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
        let is = |kind: ReleaseKind| releases.iter().any(|(_, said)| *said == kind);
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
        // The next one of this process knows already that it is.
        if is_anothers || notice.kind != ReleaseKind::HandedOver {
            self.state().nodes[node].released = Some((owner, notice.kind));
            self.changed.notify_one();
        }
    }

    fn waits(&self, notice: WaitNotice) {
        lock(&self.fairness).heard_waits(notice);
    }
}
