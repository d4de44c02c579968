//! Nodes of your own making, for simulations: implement [`Node`], and pass the nodes to
//! [`RedlockBuilder::custom_nodes`](crate::RedlockBuilder::custom_nodes).
//!
//! This module is not covered by semantic versioning: it changes whenever the protocol does.

pub use crate::node::announcement::{
    Announcement, Listener, Listening, ReleaseKind, ReleaseNotice, Sender, Successor, Turn, WaitNotice,
    WaiterId,
};
pub use crate::node::port::Node;
pub use crate::node::request::{Action, Fencing, Request, SetMark};
pub use crate::node::{
    ClientId, ClientInfo, Fault, KeyPage, KeyState, ListConflict, NodeState, OwnerToken, Reply, Unfit,
};
#[doc(hidden)]
pub use crate::redis::exchange as lock_script;
