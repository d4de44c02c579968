//! The results for programs, as one document. `docs/tool.md` lists its members.

use std::time::Duration;

use serde_json::{Value, json};

use super::Results;
use super::findings::findings;
use super::load::Load;
use super::tally::{Failures, Latencies, PERCENTILES};
use crate::format::millis;

pub(crate) fn document(results: &Results) -> Value {
    let plan = &results.plan;
    let nodes = results.nodes.iter().map(|node| {
        json!({
            "node": &*node.name,
            "up": node.state.is_ok(),
            "trouble": node.state.as_ref().err().map(ToString::to_string),
            "warnings": node.state.as_ref().ok().into_iter().flatten().collect::<Vec<_>>(),
            "round_trip": latencies(&node.plain),
            "round_trip_with_token": latencies(&node.fenced),
            "failures": failures(&node.failures),
        })
    });
    let (apart, contended): (Vec<_>, Vec<_>) = results.loads.iter().partition(|load| !load.contended);
    let throughput: Vec<_> = apart.into_iter().map(of_load).collect();
    let findings = findings(results).into_iter().map(|finding| {
        let kind = if finding.is_advice { "advice" } else { "note" };
        json!({"kind": kind, "code": finding.code, "text": finding.text})
    });
    json!({
        "keys": plan.keys(),
        "ttl_ms": millis(plan.args.ttl),
        "node_budget_ms": millis(plan.args.ttl / 10),
        "lock_ttl_ms": millis(plan.lock_ttl),
        "counter_retention_ms": millis(plan.retention),
        "fencing": !plan.args.no_fencing,
        "duration_ms": millis(plan.args.duration),
        "hold_ms": plan.args.hold.as_secs_f64() * 1e3,
        "quorum": results.quorum(),
        "nodes": nodes.collect::<Vec<_>>(),
        "throughput": throughput,
        "hand_over": contended.first().map(|load| of_load(load)),
        "findings": findings.collect::<Vec<_>>(),
        "partial": results.interrupted.is_some(),
    })
}

fn of_load(load: &Load) -> Value {
    json!({
        "tasks": load.tasks,
        "locks_per_second": rounded(load.per_second),
        "client_cpu_percent": rounded(load.cpu_percent),
        "acquire": latencies(&load.acquire),
        "release": latencies(&load.release),
        "released_to_next_grant": latencies(&load.gap),
        "failures": failures(&load.failures),
    })
}

/// Returns the percentiles; null if nothing was timed.
fn latencies(all: &Latencies) -> Value {
    let mut members = json!({"count": all.count()});
    for (name, percent) in PERCENTILES {
        let micros = |took: Duration| rounded(took.as_secs_f64() * 1e6);
        members[name.replace('.', "_") + "_us"] = json!(all.percentile(percent).map(micros));
    }
    members
}

fn failures(all: &Failures) -> Value {
    let entry = |(operation, kind, count, first)| json!({"operation": operation, "kind": kind, "count": count, "first": first});
    all.iter().map(entry).collect()
}

fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
