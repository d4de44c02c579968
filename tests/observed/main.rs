//! A real Prometheus scrapes three services and `quorlock exporter`, with the configuration and the alert rules of `deploy/`: each
//! panel of the dashboard gets data, and alerts fire and end. Needs `prometheus` and `promtool` on the PATH; `make test` installs
//! them.
//!
//! Starts itself as the services. `QUORLOCK_PICTURE` names an SVG file that the run is drawn into.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/http.rs"]
mod http;
mod picture;
#[path = "../common/program.rs"]
mod program;
mod prometheus;
#[path = "../../examples/metrics.rs"]
mod service;
mod tool;

use std::env;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use common::eventually;
use libtest_mimic::{Arguments, Trial};
use program::program;
use prometheus::{Prometheus, promtool, promtool_on};
use quorlock::testbed::{Data, Testbed};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::process::Child;
use tool::{Exporter, quorlock};

const SERVICE: &str = "QUORLOCK_OBSERVED_SERVICE";
const DASHBOARD: &str = include_str!("../../deploy/grafana/quorlock.json");

fn main() -> ExitCode {
    if env::var_os(SERVICE).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        service::main().unwrap();
        return ExitCode::SUCCESS;
    }
    let trial = |name: &str, work: fn()| {
        Trial::test(name, move || {
            work();
            Ok(())
        })
    };
    let trials = vec![
        trial("the_rules_are_right", the_rules_are_right),
        trial("panels_have_data_and_alerts_fire_and_end", || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(panels_have_data_and_alerts_fire_and_end());
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn the_rules_are_right() {
    promtool(&["check", "config", "deploy/prometheus/prometheus.yml"]);
    promtool(&["check", "rules", "deploy/prometheus/alerts.yml"]);
    promtool(&["test", "rules", "deploy/prometheus/alerts_test.yml"]);
}

async fn panels_have_data_and_alerts_fire_and_end() {
    let testbed = Testbed::start(5).await.unwrap();
    let urls = testbed.urls();
    let services: Vec<(SocketAddr, Child)> = (0..3).map(|_| start_service(&urls)).collect();
    let services_at: Vec<SocketAddr> = services.iter().map(|(address, _)| *address).collect();
    let exporter = Exporter::start(&urls).await;
    let prometheus = Prometheus::start(&services_at, exporter.address).await;
    eventually("all are scraped", async || {
        prometheus.value("sum(up)").await == Some(4.0)
    })
    .await;
    for address in services_at.iter().chain([&exporter.address]) {
        let (status, metrics) = http::ask(&address.to_string(), "GET", "/metrics").await.unwrap();
        assert_eq!(status, 200, "{metrics}");
        promtool_on(&["check", "metrics"], &metrics);
    }
    for address in &services_at {
        let (_, metrics) = http::ask(&address.to_string(), "GET", "/metrics").await.unwrap();
        // The first one would be no increase otherwise.
        for name in [
            r#"acquires_total{outcome="no_quorum",lock_label=""}"#,
            r#"leases_lost_total{reason="not_renewed",lock_label=""}"#,
            "stale_writes_refused_total",
        ] {
            assert!(metrics.contains(&format!("\nquorlock_{name} 0\n")), "{metrics}");
        }
    }

    let [killed, stopped, ..] = testbed.nodes() else {
        unreachable!()
    };
    killed.kill().await.unwrap();
    stopped.stop().unwrap();
    for node in [killed, stopped] {
        let down = format!("QuorlockNodeGivesNoLocks\",node=\"{}", node.addr());
        prometheus.fires(&down).await;
    }
    killed.restart(Data::Keep).await.unwrap();
    stopped.resume().unwrap();
    prometheus.ends("QuorlockNodeGivesNoLocks").await;
    // The next renewal sets the key again.
    killed.command(&["DEL", "quorlock:leader"]).await.unwrap();
    let healed = "sum(quorlock_heals_total) > 0";
    eventually("the key is set again", async || {
        prometheus.value(healed).await.is_some()
    })
    .await;

    let shown = quorlock(&urls, &["show", "leader", "--json"]).await;
    let owner = shown["owner"].as_str().unwrap();
    quorlock(&urls, &["break", "leader", "--owner", owner, "--json"]).await;
    prometheus.fires("QuorlockLeaseLost\",reason=\"gone").await;
    prometheus.ends("QuorlockLeaseLost").await;

    // A quorum of nodes was there all the time.
    for never in [
        "QuorlockNoQuorum",
        "QuorlockNobodyGetsLocks",
        "QuorlockStaleWriteRefused",
    ] {
        assert!(!prometheus.has_fired(never).await, "{never}");
    }
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap().replace("$job", ".*"))
        .collect();
    assert!(queries.len() > 20, "{queries:?}");
    for query in &queries {
        eventually(query, async || prometheus.value(query).await.is_some()).await;
    }
    for query in documented_queries() {
        // Panics if Prometheus does not understand it.
        prometheus.value(&query).await;
    }
    if let Some(file) = env::var_os("QUORLOCK_PICTURE") {
        picture::draw(&prometheus, file.as_ref()).await;
    }
}

/// Returns the queries in the last table of the document, as a reader sees them.
fn documented_queries() -> Vec<String> {
    let document = include_str!("../../docs/metrics.md");
    let (_, table) = document.split_once("| question | query |").unwrap();
    let queries = table.lines().filter_map(|row| row.split('`').nth(1));
    let queries: Vec<String> = queries.map(|query| query.replace("\\|", "|")).collect();
    assert!(queries.len() >= 5, "{queries:?}");
    queries
}

/// Starts a service. It ends with this process, and when it is dropped.
fn start_service(urls: &[String]) -> (SocketAddr, Child) {
    let address = free_address();
    let mut command = program(env::current_exe().unwrap(), urls);
    command
        .env(SERVICE, "")
        .env("METRICS_ADDRESS", address.to_string());
    (address, command.spawn().unwrap())
}

/// Returns an address on which nobody listens. Programs that cannot say which one they chose get one.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
