//! What the benchmarks share.
#![allow(dead_code)] // Each takes a part of it.

pub(crate) mod charts;
pub(crate) mod report;
pub(crate) mod stats;

use quorlock::{Lease, ReleaseOutcome};

/// Gives back a lock of quorlock. What went wrong, in words.
pub(crate) async fn release(lease: Lease) -> Result<(), String> {
    match lease.release().await {
        ReleaseOutcome::Released => Ok(()),
        other => Err(other.to_string()),
    }
}
