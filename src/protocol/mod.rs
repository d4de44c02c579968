//! The decisions, as pure functions of data: no runtime, no client library, no clock, no randomness of its own.
//!
//! Everything here takes what was observed and returns what follows from it. Reading clocks, sending bytes and
//! drawing random numbers happen further up; `tests/purity.rs` keeps it that way.

pub(crate) mod backoff;
pub(crate) mod election;
pub(crate) mod expiry;
pub(crate) mod fencing;
pub(crate) mod memory;
pub(crate) mod node_clock;
pub(crate) mod quorum;
pub(crate) mod token;
pub(crate) mod validity;
pub(crate) mod view;
