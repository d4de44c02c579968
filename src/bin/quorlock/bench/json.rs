//! The results for programs: one document. `docs/tool.md` says what is in it.

use serde_json::{Map, Value, json};

use super::Results;
use super::findings::findings;
use super::hand_over::HandOver;
use super::pairs::Pairs;
use super::round_trips::Node;
use super::tally::{Failures, Latencies};
use crate::event::millis;

pub(crate) fn document(results: &Results) -> Value {
    let plan = &results.plan;
    let found = findings(results);
    let findings: Vec<Value> = found
        .iter()
        .map(|finding| {
            let kind = if finding.is_advice { "advice" } else { "note" };
            json!({"kind": kind, "code": finding.code, "text": finding.text})
        })
        .collect();
    json!({
        "keys": plan.keys(),
        "ttl_ms": millis(plan.ttl),
        "lock_ttl_ms": millis(plan.lock_ttl),
        "node_budget_ms": millis(plan.ttl / 10),
        "counter_retention_ms": millis(plan.retention),
        "fencing": plan.fencing,
        "duration_ms": millis(plan.duration),
        "quorum": results.quorum(),
        "nodes": results.nodes.iter().map(|node| of_node(results, node)).collect::<Vec<_>>(),
        "throughput": results.pairs.iter().map(of_pairs).collect::<Vec<_>>(),
        "hand_over": results.hand_over.as_ref().map(|all| of_hand_over(results, all)),
        "findings": findings,
        "partial": results.interrupted.is_some(),
    })
}

fn of_node(results: &Results, node: &Node) -> Value {
    let part = results.part(&node.name);
    json!({
        "node": &*node.name,
        "up": node.trouble.is_none(),
        "trouble": node.trouble,
        "warnings": node.warnings,
        "round_trip": latencies(&node.plain),
        "round_trip_with_token": latencies(&node.fenced),
        "failures": failures(&node.failures),
        "heard": part.heard,
        "not_waited_for": part.not_waited_for,
        "faults": part.faults,
    })
}

fn of_pairs(pairs: &Pairs) -> Value {
    json!({
        "tasks": pairs.tasks,
        "begun": pairs.begun,
        "pairs": pairs.done(),
        "pairs_per_second": rounded(pairs.per_second()),
        "acquire": latencies(&pairs.acquire),
        "release": latencies(&pairs.release),
        "failures": failures(&pairs.failures),
        "client_cpu_percent": rounded(pairs.cpu_percent()),
    })
}

fn of_hand_over(results: &Results, all: &HandOver) -> Value {
    json!({
        "waiters": results.plan.waiters,
        "hold_ms": results.plan.hold.as_secs_f64() * 1e3,
        "grants_per_second": rounded(all.per_second()),
        "grants": all.grants,
        "most_by_mean": all.unfairness().map(|ratio| (ratio * 1e3).round() / 1e3),
        "wait": latencies(&all.wait),
        "held": latencies(&all.held),
        "gap": latencies(&all.gap),
        "failures": failures(&all.failures),
    })
}

/// Null where there is none.
fn latencies(all: &Latencies) -> Value {
    let mut fields = Map::new();
    fields.insert("count".to_owned(), all.count().into());
    for (name, percent) in [
        ("p50_us", 50.0),
        ("p90_us", 90.0),
        ("p99_us", 99.0),
        ("p99_9_us", 99.9),
        ("max_us", 100.0),
    ] {
        let micros = all
            .percentile(percent)
            .map(|took| rounded(took.as_secs_f64() * 1e6));
        fields.insert(name.to_owned(), json!(micros));
    }
    fields.into()
}

fn failures(all: &Failures) -> Value {
    all.iter()
        .map(|(operation, kind, failed)| {
            json!({"operation": operation, "kind": kind, "count": failed.count, "first": failed.first})
        })
        .collect()
}

/// To a tenth.
fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
