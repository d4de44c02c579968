//! What may stand on the nodes in this manager's name, and its removal.
//!
//! Entry point: [`claim::Claim`], which every attempt and every lease owns. `claim/deletion.rs` releases it. When it is dropped, it
//! hands the keys that may be left to `cleanup.rs`. `late_grants.rs` collects grants that come after the lock was won. This folder
//! knows nothing of waiting or leases.
//! Rules: A6, A8, F4, L.

pub(crate) mod claim;
pub(crate) mod cleanup;
pub(crate) mod late_grants;
mod pending_delete;
