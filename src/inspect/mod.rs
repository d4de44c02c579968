//! Looks at locks without taking them (H4), and ends a lock of another client (H5).
//!
//! Entry points: [`Inspector`] for one lock, [`Locks`] for those of all nodes. `inspection.rs` is what was read. Nothing here votes,
//! or relies on what it has read.

mod inspection;
mod inspector;
mod locks;

pub use inspection::{Inspection, Leak, LockStatus, NodeInspection};
pub(crate) use inspector::Inspector;
pub use locks::Locks;
