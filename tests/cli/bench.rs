//! `quorlock bench`, on real servers. The figures must be consistent, whatever they are.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use quorlock::testbed::{Data, TestNode, Testbed, Value};
use rustix::process::Signal;
use serde_json::Value as Json;

use crate::support::{Running, finish, free, text, with};
use crate::terminal::Terminal;
use crate::testbed;

fn lasting<'a>(duration: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let few = ["bench", "--tasks", "4", "--waiters", "3", "--duration", duration];
    [&few, options].concat()
}

fn short<'a>(options: &[&'a str]) -> Vec<&'a str> {
    lasting("400ms", options)
}

/// Returns the exit code and the document.
async fn measured(urls: &[String], arguments: &[&str]) -> (Option<i32>, Json) {
    let output = finish(with(urls, &[&["--json"], arguments].concat())).await;
    let told = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        told.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr))),
    )
}

async fn ended(mut running: Running) -> (Option<i32>, Json) {
    let told = serde_json::from_str(&running.line().await).unwrap();
    (running.end().await.0, told)
}

/// Returns the texts of these findings, one a line.
fn findings(told: &Json, code: &str) -> String {
    let found = told["findings"].as_array().unwrap().iter();
    let found = found.filter(|finding| finding["code"] == code);
    let texts = found.map(|finding| finding["text"].as_str().unwrap());
    texts.collect::<Vec<_>>().join("\n")
}

/// Checks that percentiles rise, or are null if nothing was counted. Returns the count.
fn count(latencies: &Json) -> u64 {
    let names = ["p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"];
    let values = names.map(|name| latencies[name].as_f64());
    let count = latencies["count"].as_u64().unwrap();
    let rise = values.is_sorted() && values.iter().all(|value| value.is_some() == (count > 0));
    assert!(rise, "{latencies}");
    count
}

async fn only_expiring_counters(testbed: &Testbed, told: &Json) {
    free(testbed).await;
    let staying = "local staying = 0
        for _, key in ipairs(redis.call('KEYS', '*#fence')) do
            local left = redis.call('PTTL', key)
            local ours = string.find(key, 'quorlock:bench:', 1, true) == 1
            if not ours or left < 0 or left > tonumber(ARGV[1]) then staying = staying + 1 end
        end
        return staying";
    let retention = told["counter_retention_ms"].to_string();
    for node in testbed.nodes() {
        let staying = node.command(&["EVAL", staying, "0", &retention]).await.unwrap();
        assert_eq!(staying, Value::Int(0));
    }
}

#[tokio::test]
async fn everything_is_measured_and_nothing_is_left() {
    let testbed = testbed().await;
    let (code, told) = measured(&testbed.urls(), &short(&[])).await;
    assert_eq!(code, Some(0));
    assert_eq!(told["schema_version"], 1);
    assert_eq!(told["partial"], false);
    let spare = "3 of 3 nodes vote in time, and a lock needs 2: 1 of them may fail.";
    assert_eq!(findings(&told, "spare_nodes"), spare);
    let slow_build = findings(&told, "unoptimised_build");
    assert_eq!(slow_build.contains("--release"), cfg!(debug_assertions));
    let nodes = told["nodes"].as_array().unwrap();
    for (node, of_testbed) in nodes.iter().zip(testbed.nodes()) {
        assert_eq!(node["node"], of_testbed.addr().to_string());
        assert!(count(&node["round_trip"]) > 0, "{node}");
        assert!(count(&node["round_trip_with_token"]) > 0, "{node}");
    }
    let [one, four, handed] = [&told["throughput"][0], &told["throughput"][1], &told["hand_over"]];
    for (load, tasks) in [(one, 1), (four, 4), (handed, 3)] {
        assert_eq!(load["tasks"], tasks);
        assert!(count(&load["acquire"]) > 0, "{load}");
        assert_eq!(count(&load["acquire"]), count(&load["release"]), "{load}");
        assert!(load["locks_per_second"].as_f64() > Some(0.0), "{load}");
    }
    assert!(count(&handed["released_to_next_grant"]) > 0, "{told}");
    only_expiring_counters(&testbed, &told).await;
}

#[tokio::test]
async fn bench_says_what_it_is_going_to_do_and_what_came_of_it() {
    let testbed = testbed().await;
    let output = finish(with(&testbed.urls(), &short(&["--no-fencing", "--ttl", "1h"]))).await;
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    assert!(
        said.contains("on 3 nodes, for about 1s 600ms: takes locks quorlock:bench:"),
        "{said}"
    );
    assert_eq!(
        said.lines().count(),
        1,
        "progress was shown without a terminal: {said}"
    );
    for words in [
        "without fencing tokens",
        "round trip",
        "one task",
        "4 tasks",
        "hand-over, 3",
        "\n  3 of 3 nodes",
        "\n  One answer in a hundred takes ",
        "A TTL of 1h is long enough.",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let counters = testbed.nodes()[0].command(&["KEYS", "*#fence"]).await.unwrap();
    assert_eq!(counters, Value::Array(Some(Vec::new())));
    let output = finish(with(&testbed.urls(), &short(&["-q"]))).await;
    assert_eq!(text(&output.stderr), "");
}

#[tokio::test]
async fn a_terminal_shows_how_far_it_is() {
    let testbed = testbed().await;
    let command = [&[env!("CARGO_BIN_EXE_quorlock")], &short(&[])[..]].concat();
    let mut terminal = Terminal::start(&command, |command| {
        command
            .env("TERM", "xterm")
            .env("QUORLOCK_NODES", testbed.urls().join(","));
    });
    for progress in ["1/4", "round trips", "4/4", "hand-over", "nodes vote"] {
        terminal.shows(progress).await;
    }
    assert!(terminal.end().await.0.success());
}

#[tokio::test]
async fn a_testbed_of_its_own_has_as_many_nodes_as_it_is_told() {
    for (options, nodes) in [(&["--testbed"][..], 5), (&["--testbed", "1"], 1)] {
        let (_, told) = measured(&[], &short(options)).await;
        assert_eq!(told["nodes"].as_array().unwrap().len(), nodes);
    }
}

#[tokio::test]
async fn a_node_that_hangs_meanwhile_takes_nothing_with_it() {
    let testbed = testbed().await;
    let mut running = Running::start(with(&testbed.urls(), &short(&["--json", "--ttl", "2s"])));
    while running.event("measuring").await["what"] != "one task" {}
    testbed.nodes()[2].stop().unwrap();
    let (code, told) = ended(running).await;
    assert_eq!(code, Some(0));
    assert!(count(&told["hand_over"]["acquire"]) > 0, "{told}");
    assert_eq!(told["nodes"][2]["failures"][0]["operation"], "vote", "{told}");
    testbed.nodes()[2].resume().unwrap();
    only_expiring_counters(&testbed, &told).await;
}

#[tokio::test]
async fn a_node_that_comes_up_meanwhile_was_not_measured() {
    let testbed = testbed().await;
    let node = &testbed.nodes()[2];
    node.kill().await.unwrap();
    let mut running = Running::start(with(&testbed.urls(), &short(&["--json"])));
    while running.event("measuring").await["what"] != "one task" {}
    node.restart(Data::Keep).await.unwrap();
    let (_, told) = ended(running).await;
    let unmeasured = findings(&told, "node_unmeasured");
    assert!(unmeasured.starts_with(&node.addr().to_string()), "{told}");
    let none = "2 of 3 nodes vote in time, and a lock needs 2: none of them may fail.";
    assert_eq!(findings(&told, "spare_nodes"), none);
}

#[tokio::test]
async fn far_nodes_and_hanging_ones_are_waited_for_and_named() {
    let testbed = Testbed::builder().nodes(5).proxies(true);
    let testbed = testbed.start().await.unwrap();
    let [one, other, hung] = [0, 1, 2].map(|number| &testbed.nodes()[number]);
    let far = async |node: &TestNode, options: &[&str]| {
        node.proxy().unwrap().delay(Duration::from_millis(40));
        // Long enough for far nodes on a busy machine.
        measured(&testbed.urls(), &lasting("1s", options)).await
    };
    let (_, told) = far(one, &["--ttl", "2s"]).await;
    for node in told["nodes"].as_array().unwrap() {
        assert!(count(&node["round_trip"]) > 0, "{told}");
        assert!(count(&node["round_trip_with_token"]) > 0, "{told}");
    }
    // Other nodes may be slow, too.
    let slow = findings(&told, "slow_node");
    let far_one = slow
        .lines()
        .find(|line| line.starts_with(&one.addr().to_string()));
    assert!(
        far_one
            .unwrap()
            .ends_with("Locks do not wait for it while 3 others are up.")
    );
    let longer = findings(&told, "node_budget");
    assert!(
        longer.contains("a node has 200ms") && longer.contains("Use a TTL of"),
        "{longer}"
    );

    hung.stop().unwrap();
    let (code, told) = far(other, &["--connect-timeout", "2s"]).await;
    assert_eq!(code, Some(0));
    let missing = findings(&told, "node_missing");
    assert!(
        missing.starts_with(&format!("{} is missing", hung.addr())),
        "{missing}"
    );
    let slow = findings(&told, "slow_node");
    assert!(slow.matches("Locks wait for it: only ").count() >= 2, "{slow}");
    hung.resume().unwrap();

    // With this TTL, a third far node leaves no quorum.
    let (code, told) = far(hung, &["--ttl", "500ms"]).await;
    assert_eq!(code, Some(69), "{told}");
    let late = findings(&told, "node_late");
    assert_eq!(late.matches("Use a TTL of").count(), 3, "{told}");
    let none = "2 of 5 nodes vote in time, and a lock needs 3: that is no quorum.";
    assert_eq!(findings(&told, "no_quorum"), none);
}

#[tokio::test]
async fn interrupted_it_shows_what_it_has_and_leaves_nothing() {
    let testbed = testbed().await;
    // The parts before the interrupted one take their full duration.
    for (during, duration, signal, code) in [
        ("round trips", "1m", Signal::TERM, 143),
        ("one task", "2s", Signal::INT, 130),
        ("hand-over, 3 waiters", "2s", Signal::INT, 130),
    ] {
        let options = lasting(duration, &["--json", "--hold", "20ms"]);
        let mut running = Running::start(with(&testbed.urls(), &options));
        while running.event("measuring").await["what"] != during {}
        running.signal(signal);
        let (ended, told) = ended(running).await;
        assert_eq!(ended, Some(code));
        assert_eq!(told["partial"], true);
        assert_eq!(findings(&told, "node_unmeasured"), "");
        only_expiring_counters(&testbed, &told).await;
    }
}

#[tokio::test]
async fn where_no_lock_is_to_be_had_it_says_why() {
    let testbed = testbed().await;
    let mut urls = Vec::new();
    for node in testbed.nodes() {
        // No lock with a token can be granted.
        let rights = [
            "ACL", "SETUSER", "app", "on", ">sEcReT", "~*", "&*", "+@all", "-incr",
        ];
        assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
        urls.push(format!("redis://app:sEcReT@{}", node.addr()));
    }
    let chart = testbed.folder().join("nothing.svg");
    let chart = chart.to_str().unwrap();
    let output = finish(with(&urls, &short(&["--json", "-vvv", "--chart", chart]))).await;
    let said = text(&output.stderr) + &text(&output.stdout);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("no lock could be acquired: ") && !said.contains("sEcReT"),
        "{said}"
    );
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["throughput"][0]["failures"][0]["kind"], "no_quorum");
    assert_eq!(told["nodes"][0]["failures"][1]["kind"], "no_permission");
    let unmeasured = findings(&told, "node_unmeasured");
    assert_eq!(unmeasured.matches("NOPERM").count(), 3, "{told}");
    let failed = findings(&told, "failures");
    assert!(failed.starts_with("one task: acquire failed, "), "{told}");
    assert!(told["hand_over"].is_null());

    // Without a quorum, the measurement does not begin.
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

#[tokio::test]
async fn bench_says_what_makes_no_sense() {
    for (options, says) in [
        (&[][..], "QUORLOCK_NODES"),
        (&["--testbed", "--tasks", "0"], "1 to 10000"),
        (&["--testbed", "--waiters", "1"], "2 to 10000"),
        (
            &["--testbed", "--ttl", "1ms"],
            "'--ttl <DURATION>': must be from 10ms",
        ),
        (
            &["--testbed", "--duration", "0s"],
            "'--duration <DURATION>': must be from 1ms",
        ),
        (
            &["--testbed", "--hold", "5s"],
            "--hold 5s is no shorter than --duration 5s",
        ),
        (&["--testbed", "--node", "redis://h"], "cannot be used with"),
        (&["--testbed", "0"], "at least one"),
        (
            &["--testbed", "--chart", "no/such/folder.svg"],
            "cannot write --chart no/such",
        ),
        (&["--testbed", "--chart", "chart.png"], "has to end in .svg"),
    ] {
        let output = finish(with(&[], &[&["bench"], options].concat())).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(says), "{options:?}: {said}");
    }
}

async fn drawn(testbed: &Testbed, chart: &Path) -> Output {
    let mut command = with(&testbed.urls(), &short(&["--connect-timeout", "200ms"]));
    command.arg("--chart").arg(chart);
    finish(command).await
}

#[tokio::test]
async fn the_chart_has_titles_units_and_every_node() {
    let testbed = testbed().await;
    let folder = testbed.folder().join("charts");
    let chart = folder.join("chart.svg");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&chart, "old").unwrap();
    assert_eq!(drawn(&testbed, &chart).await.status.code(), Some(0));
    let svg = std::fs::read_to_string(&chart).unwrap();
    let svg = roxmltree::Document::parse(&svg).unwrap();
    let texts = svg.descendants().filter_map(|node| node.text());
    let words = texts.collect::<Vec<_>>().join("\n");
    let nodes = testbed.nodes().iter().map(|node| node.addr().to_string());
    let fixed = [
        "3 nodes",
        "milliseconds",
        "percentile",
        "one task: acquire",
        "hand-over",
    ];
    for word in nodes.chain(fixed.map(str::to_owned)) {
        assert!(words.contains(&word), "{word:?} is not in {words}");
    }

    // A measurement that fails leaves the folder as it was.
    std::fs::write(&chart, "old").unwrap();
    for node in testbed.nodes() {
        node.kill().await.unwrap();
    }
    for chart in [&chart, &folder.join("new.svg")] {
        assert_eq!(drawn(&testbed, chart).await.status.code(), Some(69));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    assert_eq!(std::fs::read(&chart).unwrap(), b"old");
}
