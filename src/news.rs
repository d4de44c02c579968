//! What nodes tell of their own accord: that a lock was released (W2).

use std::fmt;
use std::sync::Arc;

use crate::node::OwnerToken;

/// What those who wait elsewhere are told of a release.
///
/// It only ever shortens a wait: nobody relies on being told, and nobody takes it for a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The lock is anybody's.
    Free,
    /// Somebody in the process that released it takes it next. If they do not, it is anybody's.
    PassedOn,
    /// Whoever gives it back has hardly had it, if at all: an attempt was given up, or came to nothing. No reason to hurry.
    GivenBack,
}

/// Whom a node tells of the releases of one key.
///
/// Handed to [`Node::listen`](crate::node::Node::listen).
#[derive(Clone)]
pub struct Listener {
    node: usize,
    ear: Arc<dyn Ear>,
}

/// Who listens to all nodes.
pub(crate) trait Ear: Send + Sync {
    fn hears(&self, node: usize, hears: bool);
    fn heard(&self, node: usize, owner: OwnerToken, news: News);
}

impl Listener {
    pub(crate) fn new(node: usize, ear: Arc<dyn Ear>) -> Listener {
        Listener { node, ear }
    }

    /// From here on the node tells of every release, until [`deaf`](Self::deaf). To be called after each interruption.
    pub fn listening(&self) {
        self.ear.hears(self.node, true);
    }

    /// From here on it may not.
    pub fn deaf(&self) {
        self.ear.hears(self.node, false);
    }

    /// The key is free on this node: it held this token, which was released.
    pub fn released(&self, owner: OwnerToken, news: News) {
        self.ear.heard(self.node, owner, news);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Dropping it ends the listening.
pub type Listening = Box<dyn Send + Sync>;
