//! What is measured of each node.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::PrometheusBuilder;
use quorlock::Redlock;
use quorlock::node::Fault;
use quorlock::testbed::Data;

use crate::common::eventually;
use crate::counted::counted;
use crate::{is_up, testbed};

#[tokio::test]
async fn each_node_is_measured() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let prometheus = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let testbed = testbed(3, false).await;
    let redlock = Redlock::builder().urls(testbed.urls()).connect().await.unwrap();
    for _ in 0..10 {
        let lease = redlock.lock("r").acquire().await.unwrap();
        let _ = lease.release().await;
    }
    testbed.nodes()[1].kill().await.unwrap();
    testbed.nodes()[1].restart(Data::Wipe).await.unwrap();
    let waits = |fault: &Fault| fault.gives_locks_in().is_some();
    let is_left_out = || redlock.nodes()[1].left_out.as_ref().is_some_and(waits);
    eventually("a node has lost its data", async || is_left_out()).await;
    testbed.nodes()[2].kill().await.unwrap();
    eventually("a node is down", async || !is_up(&redlock, 2)).await;
    let refused = redlock.lock("r").try_acquire().await;
    assert!(refused.is_err());
    let names: Vec<String> = redlock.nodes().iter().map(|node| node.name.to_string()).collect();

    let of = |counts: &BTreeMap<String, f64>, metric: &str, node: usize| {
        let name = format!("node_{metric} {}", names[node]);
        *counts
            .get(&name)
            .unwrap_or_else(|| panic!("no {name}: {counts:?}"))
    };
    // Measured after each look at the nodes.
    let is_measured = || {
        let counts = counted(&prometheus);
        [0, 1, 2].map(|node| of(&counts, "gives_locks", node)) == [1.0, 0.0, 0.0]
    };
    eventually("all nodes are measured", async || is_measured()).await;
    let counts = counted(&prometheus);
    let of = |metric, node| of(&counts, metric, node);
    assert_eq!([0, 1, 2].map(|node| of("up", node)), [1.0, 1.0, 0.0]);
    for (node, guard) in [(0, 0.0..=0.0), (1, 20.0..=35.0)] {
        assert!(guard.contains(&of("left_out_seconds", node)), "{counts:?}");
        assert!(of("clock_offset_seconds", node).abs() < 1.0, "{counts:?}");
        assert!(of("request_seconds_count", node) >= 1.0, "{counts:?}");
    }
    let missed = format!("node_faults_total {} not_connected", names[2]);
    assert!(counts[&missed] >= 1.0, "{counts:?}");
}
