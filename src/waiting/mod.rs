//! Waiting for a lock: the queue of one process, and what is known of other processes that wait (W1, W2, W4).
//!
//! Entry point: [`Queues::enter`] returns a place in the queue of a key; [`FrontWaiter`] decides when the first of a queue asks.
//!
//! Nothing here sets or deletes a key, and nothing here is needed for a lock to be safe: it only decides when to ask.

mod fairness;
mod front;
mod local_holder;
mod queue;
mod registry;
mod releases;
mod retry;
mod ticket;

pub(crate) use front::FrontWaiter;
pub(crate) use queue::LocalLease;
pub(crate) use registry::{QueueId, Queues};
pub(crate) use retry::Retry;
pub(crate) use ticket::Ticket;
