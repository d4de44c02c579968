//! The port: what a lock needs of a node, whatever is behind it.
//!
//! [`crate::Redlock::connect`] fills it with Redis and Valkey masters, a simulation with nodes of its own.
#![cfg_attr(not(feature = "simulation"), allow(unreachable_pub))]

pub(crate) mod announcement;
mod client;
mod fault;
mod inspection;
pub(crate) mod owner;
pub(crate) mod port;
pub(crate) mod request;

pub(crate) use announcement::{
    Announcement, LONGEST_SLOT, Listener, Listening, ReleaseKind, ReleaseNotice, ReleaseSink, Sender,
    Successor, Turn, WaitNotice, WaiterId,
};
pub(crate) use client::LocalClient;
pub use client::{ClientId, ClientInfo, Holder};
pub use fault::{Fault, ListConflict, Unfit};
pub use inspection::{Counter, KeyPage, KeyState, KeyValue};
pub use owner::OwnerToken;
pub use port::NodeState;
pub(crate) use port::{Node, Nodes, listen_to_all};
pub use request::Reply;
pub(crate) use request::{Action, Answer, Fencing, Request, SetMark, time_left};
