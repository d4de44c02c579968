//! What the benchmarks share.
#![allow(dead_code)] // Each takes a part of it.

pub(crate) mod report;
pub(crate) mod stats;
