//! Tests of the protocol against simulated nodes, on tokio's paused clock: each test decides when every answer comes, and
//! compares moments exactly.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod announcing;
mod attempts;
mod breaking;
mod cancelling;
mod certifying;
mod cleaning;
mod contention;
#[cfg(feature = "metrics")]
#[path = "../common/counted.rs"]
mod counted;
mod crowd;
mod healing;
mod jumps;
mod leftovers;
mod lock_script;
#[path = "../common/log.rs"]
mod log;
mod logging;
mod memories;
#[cfg(feature = "metrics")]
mod metrics;
#[path = "../common/node_model/mod.rs"]
mod node_model;
mod nodes;
mod own_leftovers;
#[path = "../common/polled.rs"]
mod polled;
mod queueing;
mod renewing;
mod splits;
mod traces;
mod turns;
mod worlds;
