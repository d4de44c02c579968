//! What nodes announce of a lock: that it was released, and that a process waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::owner::OwnerToken;

/// What is announced when a key is deleted.
///
/// It only ever shortens a wait, or lets another process go first for a moment. No client relies on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseNotice {
    /// Whether the lock is free for all.
    pub kind: ReleaseKind,
    /// Which process released it, and which is next. `None` where processes do not take turns.
    pub turn: Option<Turn>,
}

/// Whether a released lock is free for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseKind {
    /// Any process may take it.
    Free,
    /// Another task of the same process takes it next. If it does not, any process may.
    HandedOver,
    /// An attempt failed or was cancelled: the lock was hardly held, if at all. Or it stays held for its minimum, and expires
    /// earlier than waiters know. A waiter asks once more, after its current back-off.
    Abandoned,
}

/// Which process released a lock, and which is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The process that released it.
    pub from: Sender,
    /// The process that is next when the turn of this one ends. `None` if no other is known to wait.
    pub next: Option<Successor>,
}

/// A process that has said that it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitNotice {
    /// The process.
    pub from: Sender,
    /// How long the others wait for it when it is next.
    pub slot: Duration,
}

/// A process that announces something, and how many announcements of this lock it had sent when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The process.
    pub id: WaiterId,
    /// Larger in each of its announcements.
    pub count: u32,
}

/// A process that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    /// The process.
    pub id: WaiterId,
    /// How long the others wait for it.
    pub slot: Duration,
}

/// A random number for each process and lock. It proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(pub u64);

/// The longest time that the others wait for a process that is next.
pub(crate) const LONGEST_SLOT: Duration = Duration::from_millis(500);

/// One announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// A lock was released, which this token held.
    Release(OwnerToken, ReleaseNotice),
    /// A process waits for the lock.
    Wait(WaitNotice),
}

/// Receives what a node announces of one key.
///
/// Handed to [`Node::listen`](crate::node::Node::listen).
#[derive(Clone)]
pub struct Listener {
    node: usize,
    sink: Arc<dyn ReleaseSink>,
}

/// Receives what all nodes announce of one lock.
pub(crate) trait ReleaseSink: Send + Sync {
    fn set_subscribed(&self, node: usize, subscribed: bool);
    fn released(&self, node: usize, owner: OwnerToken, notice: ReleaseNotice);
    fn waits(&self, notice: WaitNotice);
}

impl Listener {
    pub(crate) fn new(node: usize, sink: Arc<dyn ReleaseSink>) -> Listener {
        Listener { node, sink }
    }

    /// From now on, the node delivers every announcement, until [`unsubscribed`](Self::unsubscribed). To be called after each
    /// interruption.
    pub fn subscribed(&self) {
        self.sink.set_subscribed(self.node, true);
    }

    /// From now on, announcements may be missing.
    pub fn unsubscribed(&self) {
        self.sink.set_subscribed(self.node, false);
    }

    /// The node has deleted the key, which held this token.
    pub fn released(&self, owner: OwnerToken, notice: ReleaseNotice) {
        self.sink.released(self.node, owner, notice);
    }

    /// A process says that it waits for the lock.
    pub fn waits(&self, notice: WaitNotice) {
        self.sink.waits(notice);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// A subscription. Dropping it ends it.
pub type Listening = Box<dyn Send + Sync>;
