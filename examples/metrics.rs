//! Takes locks, and serves their metrics for Prometheus at <http://127.0.0.1:9000/metrics>, or at the address in `METRICS_ADDRESS`.
//!
//! ```text
//! cargo run --features cli -- testbed -- cargo run --features metrics --example metrics
//! ```

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use quorlock::{FenceGate, Redlock};
use tokio::time::sleep;

/// In seconds: from what a lock takes to what a job takes.
const BUCKETS: [f64; 17] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0,
    3600.0,
];

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = env::var("QUORLOCK_NODES").map_err(|_| "set QUORLOCK_NODES to comma-separated node URLs")?;
    let address = env::var("METRICS_ADDRESS").unwrap_or("127.0.0.1:9000".into());
    // First: `connect` registers the metrics of the nodes.
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("quorlock_".into()), &BUCKETS)?
        .with_http_listener(address.parse::<SocketAddr>()?)
        .install()
        .map_err(|error| format!("cannot serve metrics at {address}: {error}"))?;
    let builder = Redlock::builder().urls(nodes.split(','));
    let redlock = builder.ttl(Duration::from_secs(5)).connect().await?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = lead(&redlock) => {}
        () = write_reports(&redlock) => {}
    }
    redlock.shutdown().await;
    Ok(())
}

/// One process leads at a time, until it loses the lock.
async fn lead(redlock: &Redlock) {
    loop {
        let request = redlock.lock("leader").label("leader").forever();
        let led = request.run(|_| std::future::pending::<()>()).await;
        if let Err(error) = led {
            eprintln!("does not lead: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Short work that the processes compete for.
async fn write_reports(redlock: &Redlock) {
    let mut store = FenceGate::new();
    loop {
        let request = redlock
            .lock("report")
            .label("reports")
            .within(Duration::from_secs(5));
        let token = request.run(async |lease| {
            sleep(Duration::from_millis(20)).await;
            lease.fencing_token()
        });
        let written = match token.await {
            Ok(Some(token)) => store.admit(token).map_err(|stale| stale.to_string()),
            Ok(None) => Err("taken without fencing".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = written {
            eprintln!("report not written: {error}");
        }
        sleep(Duration::from_millis(fastrand::u64(20..100))).await;
    }
}
