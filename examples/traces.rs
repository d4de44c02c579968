//! Hands the spans of locks to OpenTelemetry. This program prints them; in a service, take the exporter of the crate
//! `opentelemetry-otlp` instead.
//!
//! ```text
//! cargo run --features cli -- testbed -- cargo run --example traces
//! ```

use std::env;
use std::error::Error;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use quorlock::Redlock;
use tokio::time::sleep;
use tracing::Instrument;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let exporter = opentelemetry_stdout::SpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name("billing").build())
        .with_simple_exporter(exporter)
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("billing"));
    // INFO has the spans `acquire` and `hold`; DEBUG also `attempt`, `renew` and `release`.
    tracing_subscriber::registry()
        .with(layer.with_filter(LevelFilter::DEBUG))
        .init();

    let nodes = env::var("QUORLOCK_NODES").map_err(|_| "set QUORLOCK_NODES to comma-separated node URLs")?;
    let redlock = Redlock::connect(nodes.split(',')).await?;
    let job = async {
        let request = redlock.lock("invoice:42").label("invoices");
        request.run(|_| sleep(Duration::from_millis(300))).await
    };
    // The spans of the lock belong to the job's.
    job.instrument(tracing::info_span!("job")).await?;
    redlock.shutdown().await;
    provider.shutdown()?;
    Ok(())
}
