//! `quorlock bench`, on real servers. What the figures are does not matter here, but that they belong together.

use std::path::Path;
use std::process::Output;

use quorlock::testbed::{Testbed, Value};
use rustix::process::Signal;
use serde_json::Value as Json;

use crate::support::{Running, finish, free, quorlock, text, with};

/// Short, and as little as there can be.
const SHORT: [&str; 7] = ["bench", "--duration", "400ms", "--tasks", "4", "--waiters", "3"];
const PERCENTILES: [&str; 5] = ["p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"];

fn short<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&SHORT, options].concat()
}

fn document(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr)))
}

fn count(value: &Json) -> u64 {
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
fn check(told: &Json) {
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
fn findings(told: &Json, code: &str) -> Vec<String> {
    let found = told["findings"].as_array().unwrap().iter();
    found
        .filter(|finding| finding["code"] == code)
        .map(|finding| finding["text"].as_str().unwrap().to_owned())
        .collect()
}

/// Nothing is left of it but counters, and those will go.
async fn only_expiring_counters(testbed: &Testbed, told: &Json) {
    free(testbed).await;
    let staying = "local staying = 0
        for _, key in ipairs(redis.call('KEYS', '*#fence')) do
            local left = redis.call('PTTL', key)
            local ours = string.find(key, 'quorlock:bench:', 1, true) == 1
            if not ours or left < 0 or left > tonumber(ARGV[1]) then staying = staying + 1 end
        end
        return staying";
    let retention = count(&told["counter_retention_ms"]).to_string();
    for node in testbed.nodes() {
        let staying = node.command(&["EVAL", staying, "0", &retention]).await.unwrap();
        assert_eq!(staying, Value::Int(0));
    }
}

#[tokio::test]
async fn everything_is_measured_and_nothing_is_left() {
    let testbed = Testbed::start(3).await.unwrap();
    let output = finish(with(&testbed.urls(), &short(&["--json"]))).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = document(&output);
    check(&told);
    assert_eq!(told["partial"], false);
    assert_eq!(told["fencing"], true);
    let nodes = told["nodes"].as_array().unwrap();
    for (node, of_testbed) in nodes.iter().zip(testbed.nodes()) {
        assert_eq!(node["node"], of_testbed.addr().to_string());
        assert!(
            count(&node["round_trip"]["count"]) > 0 && count(&node["round_trip_with_token"]["count"]) > 0
        );
    }
    let tasks: Vec<u64> = told["throughput"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pairs| count(&pairs["tasks"]))
        .collect();
    assert_eq!(tasks, [1, 4]);
    assert!(count(&told["hand_over"]["wait"]["count"]) > 0);
    for code in ["cost", "spare_nodes", "node_budget", "throughput", "hand_over"] {
        assert!(!findings(&told, code).is_empty(), "{code}: {told}");
    }
    only_expiring_counters(&testbed, &told).await;
}

#[tokio::test]
async fn it_says_what_it_is_going_to_do_and_what_came_of_it() {
    let testbed = Testbed::start(3).await.unwrap();
    let output = finish(with(&testbed.urls(), &short(&["--no-fencing"]))).await;
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("takes locks quorlock:bench:") && said.contains("on 3 nodes"),
        "{said}"
    );
    assert_eq!(
        said.lines().count(),
        1,
        "no progress where there is no terminal: {said}"
    );
    for words in [
        "without fencing tokens",
        "round trip",
        "one task",
        "locks/s",
        "hand-over, 3 waiters",
        "A lock costs",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains("PARTIAL"), "{shown}");
    free(&testbed).await;
    let counters = testbed.nodes()[0].command(&["KEYS", "*#fence"]).await.unwrap();
    assert_eq!(counters, Value::Array(Some(Vec::new())));
    // And nothing with -q but the results.
    let output = finish(with(&testbed.urls(), &short(&["-q"]))).await;
    assert_eq!(text(&output.stderr), "");
    assert!(text(&output.stdout).contains("A lock costs"));
}

#[tokio::test]
async fn a_testbed_of_its_own_has_as_many_nodes_as_it_is_told() {
    for (options, nodes) in [(&["--testbed"][..], 5), (&["--testbed", "1"], 1)] {
        let output = finish(with(&[], &short(&[&["--json"], options].concat()))).await;
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let told = document(&output);
        check(&told);
        assert_eq!(told["nodes"].as_array().unwrap().len(), nodes);
    }
}

#[tokio::test]
async fn nodes_that_are_dead_or_hang_are_named() {
    let testbed = Testbed::start(5).await.unwrap();
    let (dead, hung) = (&testbed.nodes()[1], &testbed.nodes()[3]);
    dead.kill().await.unwrap();
    hung.stop().unwrap();
    let output = finish(with(&testbed.urls(), &short(&["--json"]))).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = document(&output);
    check(&told);
    let missing = findings(&told, "node_missing");
    assert_eq!(missing.len(), 2, "{told}");
    for (node, finding) in [(dead, &missing[0]), (hung, &missing[1])] {
        assert!(
            finding.starts_with(&format!("{} is missing", node.addr())),
            "{finding}"
        );
        assert!(finding.contains("needs 3: none may fail"), "{finding}");
    }
    assert_eq!(told["nodes"][1]["up"], false);
    hung.resume().unwrap();
}

#[tokio::test]
async fn a_node_that_hangs_meanwhile_takes_nothing_with_it() {
    let testbed = Testbed::start(3).await.unwrap();
    let mut running = Running::start(with(&testbed.urls(), &short(&["--json", "--ttl", "2s"])));
    while running.event("measuring").await["what"] != "one task" {}
    testbed.nodes()[2].stop().unwrap();
    let told: Json = serde_json::from_str(&running.line().await).unwrap();
    assert_eq!(running.end().await.0, Some(0));
    check(&told);
    assert!(count(&told["hand_over"]["wait"]["count"]) > 0, "{told}");
    testbed.nodes()[2].resume().unwrap();
    only_expiring_counters(&testbed, &told).await;
}

#[tokio::test]
async fn interrupted_it_shows_what_it_has_and_leaves_nothing() {
    let testbed = Testbed::start(3).await.unwrap();
    let chart = testbed.folder().join("partial.svg");
    for (during, signal, code) in [
        ("round trips", Signal::TERM, 143),
        ("one task", Signal::INT, 130),
        ("hand-over", Signal::INT, 130),
    ] {
        // Those before the one that is interrupted are waited for.
        let duration = if during == "round trips" { "1m" } else { "2s" };
        let options = [
            "bench",
            "--json",
            "--tasks",
            "1",
            "--duration",
            duration,
            "--hold",
            "20ms",
        ];
        let mut command = with(&testbed.urls(), &options);
        command.arg("--chart").arg(&chart);
        let mut running = Running::start(command);
        while running.event("measuring").await["what"] != during {}
        running.signal(signal);
        let told: Json = serde_json::from_str(&running.line().await).unwrap();
        assert_eq!(running.end().await.0, Some(code));
        check(&told);
        assert_eq!(told["partial"], true);
        only_expiring_counters(&testbed, &told).await;
        assert!(svg(&chart).contains(&"PARTIAL".to_owned()), "{:?}", svg(&chart));
    }
}

#[tokio::test]
async fn where_no_lock_is_to_be_had_it_says_why() {
    let testbed = Testbed::builder().nodes(3).arg("maxmemory", "1");
    let testbed = testbed.start().await.unwrap();
    let output = finish(with(&testbed.urls(), &short(&["--json"]))).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("no lock could be acquired") && said.contains("OOM"),
        "{said}"
    );
    let told = document(&output);
    check(&told);
    assert!(count(&told["throughput"][0]["begun"]) > 0);
    assert_eq!(told["throughput"][0]["pairs"], 0);
    assert_eq!(told["throughput"][0]["failures"][0]["kind"], "no_quorum");
    assert!(count(&told["nodes"][0]["faults"]["out_of_memory"]) > 0, "{told}");
    assert!(told["hand_over"].is_null());

    // And where there is no quorum of nodes, it does not even begin.
    for node in &testbed.nodes()[..2] {
        node.kill().await.unwrap();
    }
    let output = finish(with(&testbed.urls(), &short(&["--connect-timeout", "200ms"]))).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("no quorum of nodes") && output.stdout.is_empty(),
        "{said}"
    );
}

/// The words in a chart, which is well-formed.
fn svg(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    let words = texts.filter_map(|node| node.text());
    words
        .flat_map(|text| text.split("; "))
        .map(|text| text.trim().to_owned())
        .collect()
}

#[tokio::test]
async fn the_chart_has_titles_units_and_every_node() {
    let testbed = Testbed::start(3).await.unwrap();
    let chart = testbed.folder().join("chart.svg");
    // Longer than what it is replaced with.
    std::fs::write(&chart, "x".repeat(1 << 20)).unwrap();
    let mut command = with(&testbed.urls(), &SHORT);
    command.arg("--chart").arg(&chart);
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let words = svg(&chart);
    let nodes: Vec<String> = testbed
        .nodes()
        .iter()
        .map(|node| node.addr().to_string())
        .collect();
    let fixed = [
        "milliseconds",
        "percentile",
        "tasks at once",
        "locks a second",
        "acquire",
        "release",
        "wait",
    ];
    for word in nodes.iter().map(String::as_str).chain(fixed) {
        assert!(
            words.iter().any(|text| text == word),
            "{word:?} is not in {words:?}"
        );
    }
    assert!(
        words.iter().any(|text| text.contains("One lock, 3 waiters")),
        "{words:?}"
    );
}

#[tokio::test]
async fn a_chart_that_cannot_be_written_is_told_before_anything_is_measured() {
    let testbed = Testbed::start(1).await.unwrap();
    for path in [
        testbed.folder().join("no/such/folder.svg"),
        testbed.folder().to_owned(),
    ] {
        let mut command = with(&testbed.urls(), &SHORT);
        command.arg("--chart").arg(&path);
        let output = finish(command).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--chart") && !said.contains("measuring"), "{said}");
        assert!(output.stdout.is_empty());
    }
    // One that could be, and to which it did not come, is as it was.
    testbed.nodes()[0].kill().await.unwrap();
    let (fresh, old) = (
        testbed.folder().join("fresh.svg"),
        testbed.folder().join("old.svg"),
    );
    std::fs::write(&old, "old").unwrap();
    for chart in [&fresh, &old] {
        let mut command = with(&testbed.urls(), &short(&["--connect-timeout", "100ms"]));
        command.arg("--chart").arg(chart);
        assert_eq!(finish(command).await.status.code(), Some(69));
    }
    assert!(!fresh.exists());
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
}

#[tokio::test]
async fn bench_says_what_makes_no_sense() {
    for (options, says) in [
        (&[][..], &["--node", "QUORLOCK_NODES"][..]),
        (&["--testbed", "--tasks", "0"], &["--tasks", "1 to 10000"]),
        (&["--testbed", "--tasks", "8,many"], &["--tasks", "many"]),
        (&["--testbed", "--waiters", "1"], &["--waiters", "2 to 10000"]),
        (&["--testbed", "--ttl", "1ms"], &["--ttl 1ms", "10ms"]),
        (&["--testbed", "--duration", "0s"], &["--duration 0s"]),
        (&["--testbed", "--hold", "5s"], &["--hold 5s", "--duration 5s"]),
        (&["--testbed", "--node", "redis://h"], &["--testbed", "--node"]),
        (&["--testbed", "0"], &["at least one"]),
    ] {
        let output = finish(with(&[], &[&["bench"], options].concat())).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        for word in says {
            assert!(said.contains(word), "{options:?}: no {word:?} in {said}");
        }
    }
}

#[tokio::test]
async fn the_help_is_complete() {
    let output = finish(with(&[], &["bench", "--help"])).await;
    let shown = text(&output.stdout);
    for words in [
        "--node",
        "--testbed",
        "--duration",
        "--tasks",
        "--waiters",
        "--hold",
        "--ttl",
        "--key-prefix",
        "--no-fencing",
        "--chart",
        "--json",
        "--connect-timeout",
        "Exit codes",
        "Ctrl-C",
        "expire by themselves",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(text(&finish(with(&[], &["--help"])).await.stdout).contains("bench"));
}

#[tokio::test]
async fn a_password_is_not_shown() {
    let testbed = Testbed::builder().nodes(1).password("sEcReT");
    let testbed = testbed.start().await.unwrap();
    for options in [&[][..], &["--json", "-vvv"]] {
        let mut command = quorlock(&testbed.urls());
        command.args(short(options));
        let output = finish(command).await;
        assert_eq!(output.status.code(), Some(0));
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(!said.contains("sEcReT"), "{said}");
    }
}
