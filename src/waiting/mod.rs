//! Waiting for a lock: the queue of one process, and what it knows of other processes that wait.
//!
//! Entry points: [`Queues::enter`] returns a place in a queue; [`FrontWaiter`] decides when the first waiter asks the nodes.
//! Nothing here sets or deletes a key. No lock depends on this folder to be safe. Rules: W1, W2, W4.

mod fairness;
mod front;
mod local_holder;
mod queue;
mod registry;
mod releases;
mod retry;
mod ticket;

pub(crate) use front::FrontWaiter;
pub(crate) use local_holder::HolderSlot;
pub(crate) use queue::LocalLease;
pub(crate) use registry::{QueueId, Queues};
pub(crate) use retry::Retry;
pub(crate) use ticket::Ticket;
