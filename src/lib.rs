//! quorlock: a lock on a quorum of independent Redis masters.

#[cfg(feature = "testbed")]
pub mod testbed;
