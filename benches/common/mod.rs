//! Common parts of the benchmarks.
#![allow(dead_code)] // Each uses only a part.

pub(crate) mod charts;
pub(crate) mod report;
pub(crate) mod stats;

use quorlock::{Lease, ReleaseOutcome};

pub(crate) async fn release(lease: Lease) -> Result<(), String> {
    match lease.release().await {
        ReleaseOutcome::Released => Ok(()),
        other => Err(other.to_string()),
    }
}
