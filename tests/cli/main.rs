//! The command-line tool, with real servers.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod detached;
mod doctor;
mod exporter;
mod holders;
#[path = "../common/http.rs"]
mod http;
mod interrupts;
mod losing;
mod manual;
mod nodes;
mod options;
mod periods;
#[path = "../common/program.rs"]
mod program;
mod recipes;
mod running;
mod schema;
#[path = "../common/server.rs"]
mod server;
mod settings;
mod signals;
mod status;
mod support;
mod suspending;
mod terminal;
mod testbeds;
mod top;

use quorlock::testbed::Testbed;

async fn testbed() -> Testbed {
    Testbed::start(3).await.unwrap()
}

async fn secured(nodes: usize, password: &str) -> Testbed {
    let testbed = Testbed::builder().nodes(nodes).password(password);
    testbed.start().await.unwrap()
}
