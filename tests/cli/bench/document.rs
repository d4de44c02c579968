//! What `--json` says.

use std::process::Output;

use serde_json::Value as Json;

use crate::support::text;

const PERCENTILES: [&str; 5] = ["p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"];

pub(super) fn document(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr)))
}

pub(super) fn count(value: &Json) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

/// Percentiles that rise, or none where nothing was counted. Returns the count.
fn latencies(all: &Json) -> u64 {
    let values: Vec<Option<f64>> = PERCENTILES
        .map(|name| all.get(name).expect(name).as_f64())
        .to_vec();
    let counted = count(&all["count"]);
    assert!(
        values.iter().all(|value| value.is_some() == (counted > 0)),
        "{all}"
    );
    assert!(values.is_sorted(), "{all}");
    counted
}

fn failed(failures: &Json) -> u64 {
    let failures = failures.as_array().unwrap().iter();
    failures
        .map(|failed| {
            assert!(
                failed["operation"].is_string() && failed["kind"].is_string() && failed["first"].is_string()
            );
            count(&failed["count"])
        })
        .sum()
}

/// Everything that is documented is there, and what belongs together adds up.
pub(super) fn check(told: &Json) {
    for name in [
        "ttl_ms",
        "lock_ttl_ms",
        "node_budget_ms",
        "counter_retention_ms",
        "duration_ms",
        "quorum",
    ] {
        assert!(count(&told[name]) > 0, "{name}: {told}");
    }
    assert!(told["keys"].is_string() && told["fencing"].is_boolean() && told["partial"].is_boolean());
    for node in told["nodes"].as_array().unwrap() {
        assert!(
            node["node"].is_string() && node["warnings"].is_array() && node["faults"].is_object(),
            "{node}"
        );
        assert_eq!(node["up"].as_bool().unwrap(), node["trouble"].is_null(), "{node}");
        latencies(&node["round_trip"]);
        latencies(&node["round_trip_with_token"]);
        failed(&node["failures"]);
        let (_, _) = (count(&node["heard"]), count(&node["not_waited_for"]));
    }
    for pairs in told["throughput"].as_array().unwrap() {
        let (begun, done) = (count(&pairs["begun"]), count(&pairs["pairs"]));
        assert_eq!(begun, done + failed(&pairs["failures"]), "{pairs}");
        assert_eq!(latencies(&pairs["release"]), done, "{pairs}");
        assert!(latencies(&pairs["acquire"]) >= done, "{pairs}");
        assert!(
            pairs["pairs_per_second"].is_number() && pairs["client_cpu_percent"].is_number(),
            "{pairs}"
        );
    }
    if let Some(all) = told["hand_over"].as_object() {
        let grants: u64 = all["grants"].as_array().unwrap().iter().map(count).sum();
        assert_eq!(
            count(&all["waiters"]),
            all["grants"].as_array().unwrap().len() as u64
        );
        assert_eq!(grants, latencies(&all["wait"]));
        assert_eq!(grants, latencies(&all["held"]));
        assert!(latencies(&all["gap"]) <= grants);
        assert!(all["most_by_mean"].as_f64().is_none_or(|ratio| ratio >= 1.0));
        assert!(all["hold_ms"].is_number() && all["grants_per_second"].is_number());
        failed(&all["failures"]);
    }
    for finding in told["findings"].as_array().unwrap() {
        assert!(
            ["note", "advice"].contains(&finding["kind"].as_str().unwrap()),
            "{finding}"
        );
        assert!(
            finding["code"].is_string() && finding["text"].is_string(),
            "{finding}"
        );
    }
}

/// The texts of the findings with this code.
pub(super) fn findings(told: &Json, code: &str) -> Vec<String> {
    let found = told["findings"].as_array().unwrap().iter();
    found
        .filter(|finding| finding["code"] == code)
        .map(|finding| finding["text"].as_str().unwrap().to_owned())
        .collect()
}
