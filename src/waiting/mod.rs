//! Waiting for a lock: the queue of one process, and what is known of other processes that wait (W1, W2, W4).
//!
//! Entry point: [`Queues::enter`] returns a place in the queue of a key; [`Head`] decides when the first of a queue asks.
//!
//! Nothing here sets or deletes a key, and nothing here is needed for a lock to be safe: it only decides when to ask.

mod fairness;
mod front;
mod local_holder;
mod queue;
mod registry;
mod releases;
mod retry;

pub(crate) use front::Head;
pub(crate) use local_holder::Held;
pub(crate) use queue::Place;
pub(crate) use registry::Queues;
pub(crate) use retry::Waiting;
