//! The port: what a lock needs of a node, whatever is behind it.
//!
//! [`crate::Redlock::connect`] fills it with Redis and Valkey masters, a simulation with nodes of its own.
#![cfg_attr(not(feature = "simulation"), allow(unreachable_pub))]

pub(crate) mod announcement;
mod fault;
mod owner;
pub(crate) mod port;
pub(crate) mod request;

pub(crate) use announcement::{
    Announcement, LONGEST_SLOT, Listener, Listening, ReleaseKind, ReleaseNotice, ReleaseSink, Sender,
    Successor, Turn, WaitNotice, WaiterId,
};
pub use fault::{Fault, ListConflict, Unfit};
pub use owner::OwnerToken;
pub(crate) use port::{Node, Nodes};
pub use request::Reply;
pub(crate) use request::{Action, Answer, Fencing, Request};

/// A node's state, as far as it is known without asking the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// The first attempt to connect has not ended yet.
    Connecting,
    /// Connected, probed, votes.
    Up {
        /// Settings with which the node may vote, but should not run: for instance an eviction policy.
        warnings: Vec<String>,
    },
    /// Out of reach, or refused by the probe. Tried again in the background.
    Down(Fault),
}
