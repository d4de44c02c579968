//! The command-line tool, with real servers.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cli/bench.rs"]
mod bench;
#[path = "common/mod.rs"]
mod common;
#[path = "cli/losing.rs"]
mod losing;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/options.rs"]
mod options;
#[path = "cli/running.rs"]
mod running;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/support.rs"]
mod support;
#[path = "cli/testbeds.rs"]
mod testbeds;

use quorlock::testbed::Testbed;

async fn testbed() -> Testbed {
    Testbed::start(3).await.unwrap()
}
