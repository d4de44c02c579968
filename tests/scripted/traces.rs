//! The spans that OpenTelemetry gets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use opentelemetry::trace::{SpanId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use quorlock::{Redlock, ReleaseOutcome};
use tokio::time::sleep;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::log::Log;
use crate::logging::{TTL, nodes};
use crate::nodes::{ms, redlock};

const FIELDS: [&str; 7] = ["resource", "label", "outcome", "attempts", "yes", "no", "faults"];

/// Returns a line for each span, in the order in which they began: the names from the root on, and the fields.
fn tree(mut spans: Vec<SpanData>) -> Vec<String> {
    spans.sort_by_key(|span| span.start_time);
    let mut paths: HashMap<SpanId, String> = HashMap::new();
    let line = |span: &SpanData| {
        let path = match paths.get(&span.parent_span_id) {
            Some(parent) => format!("{parent}/{}", span.name),
            None => span.name.to_string(),
        };
        let fields = FIELDS.iter().filter_map(|name| {
            let field = span.attributes.iter().find(|field| field.key.as_str() == *name)?;
            Some(format!(" {name}={}", field.value))
        });
        let line = path.clone() + &fields.collect::<String>();
        paths.insert(span.span_context.span_id(), path);
        line
    };
    spans.iter().map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn a_contended_acquire_and_a_failed_renewal_are_a_tree() {
    // Without a second subscriber, tests without one would switch spans off for all.
    let (_log, _logging) = Log::start();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _guard = tracing_subscriber::registry().with(layer).set_default();
    let out = Arc::new(AtomicBool::new(false));
    let redlock = redlock(&nodes(1, &out), Redlock::builder().ttl(TTL));
    let job = async {
        let lease = redlock.lock("nightly").label("reports").acquire().await.unwrap();
        out.store(true, SeqCst);
        sleep(ms(1_500)).await;
        out.store(false, SeqCst);
        sleep(ms(500)).await;
        assert_eq!(lease.release().await, ReleaseOutcome::Released);
    };
    job.instrument(tracing::info_span!("job")).await;
    // Until the lease's task has ended, and with it the span.
    sleep(ms(1)).await;
    let mut lines = tree(exporter.get_finished_spans().unwrap());
    // How often a failed renewal is tried again is random.
    lines.dedup();
    assert_eq!(
        lines,
        [
            "job",
            "job/acquire resource=nightly label=reports outcome=acquired attempts=2",
            "job/acquire/attempt outcome=held yes=0 no=3 faults=0",
            "job/acquire/attempt outcome=acquired yes=3 no=0 faults=0",
            "job/hold resource=nightly label=reports",
            "job/hold/renew outcome=no_quorum",
            "job/hold/renew outcome=renewed",
            "job/hold/release outcome=released",
        ]
    );
}
