//! `quorlock bench`, on real servers. What the figures are does not matter here, but that they belong together.

mod chart;
mod document;

use std::time::Duration;

use quorlock::testbed::{Data, Testbed, Value};
use rustix::process::Signal;
use serde_json::Value as Json;

use chart::svg;
use document::{check, count, document, findings};

use crate::support::{Running, finish, free, quorlock, text, with};

/// Short, and as little as there can be.
const SHORT: [&str; 7] = ["bench", "--duration", "400ms", "--tasks", "4", "--waiters", "3"];

fn short<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&SHORT, options].concat()
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
    // And nothing with -q but the results, wherever that is said.
    for arguments in [short(&["-q"]), [&["-q"], &SHORT[..]].concat()] {
        let output = finish(with(&testbed.urls(), &arguments)).await;
        assert_eq!(text(&output.stderr), "");
        assert!(text(&output.stdout).contains("A lock costs"));
    }
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
    let options = short(&["--json", "--connect-timeout", "2s"]);
    let output = finish(with(&testbed.urls(), &options)).await;
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
    }
    let spare = &findings(&told, "spare_nodes")[0];
    assert!(
        spare.starts_with("3 of 5 nodes") && spare.contains("needs 3: none may fail"),
        "{spare}"
    );
    assert_eq!(told["nodes"][1]["up"], false);
    hung.resume().unwrap();
}

/// What is behind such a delay is connected to only well after a quorum is.
const FAR: Duration = Duration::from_millis(40);

async fn with_far_ones(far: usize) -> Testbed {
    let testbed = Testbed::builder().nodes(5).proxies(true);
    let testbed = testbed.start().await.unwrap();
    for node in &testbed.nodes()[..far] {
        node.proxy().unwrap().delay(FAR);
    }
    testbed
}

/// And does not take the time of the others.
#[tokio::test]
async fn a_node_that_is_far_away_is_waited_for_and_measured_like_the_others() {
    let testbed = with_far_ones(1).await;
    // Long enough for it to have a turn on a busy machine, too.
    let longer = [
        "bench",
        "--json",
        "--duration",
        "1s",
        "--tasks",
        "1",
        "--waiters",
        "2",
    ];
    let output = finish(with(&testbed.urls(), &longer)).await;
    let told = document(&output);
    check(&told);
    for node in told["nodes"].as_array().unwrap() {
        let counts = ["round_trip", "round_trip_with_token"].map(|kind| count(&node[kind]["count"]));
        assert!(counts.iter().all(|&count| count > 0), "{told}");
    }
    let slow = &findings(&told, "slow_node")[0];
    assert!(slow.starts_with(&testbed.nodes()[0].addr().to_string()), "{slow}");
    assert!(
        slow.contains("Locks do not wait for it while 3 others are up"),
        "{slow}"
    );
}

#[tokio::test]
async fn nodes_that_are_too_far_away_for_the_ttl_are_not_counted_on() {
    let testbed = with_far_ones(1).await;
    let options = short(&["--json", "--ttl", "500ms"]);
    let output = finish(with(&testbed.urls(), &options)).await;
    let told = document(&output);
    check(&told);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let late = &findings(&told, "node_late")[0];
    assert!(late.starts_with(&testbed.nodes()[0].addr().to_string()), "{late}");
    let spare = &findings(&told, "spare_nodes")[0];
    assert!(
        spare.contains("4 of 5 nodes") && spare.contains("one may fail"),
        "{spare}"
    );

    for node in &testbed.nodes()[1..3] {
        node.proxy().unwrap().delay(FAR);
    }
    let output = finish(with(&testbed.urls(), &options)).await;
    let told = document(&output);
    check(&told);
    assert_eq!(output.status.code(), Some(69), "{told}");
    assert_eq!(findings(&told, "node_late").len(), 3, "{told}");
    assert!(
        findings(&told, "no_quorum")[0].contains("no lock can be had"),
        "{told}"
    );
}

#[tokio::test]
async fn a_node_that_comes_up_meanwhile_is_said_not_to_have_been_measured() {
    let testbed = Testbed::start(3).await.unwrap();
    let node = &testbed.nodes()[2];
    node.kill().await.unwrap();
    let mut running = Running::start(with(&testbed.urls(), &short(&["--json", "--tasks", "1,2,3,4"])));
    while running.event("measuring").await["what"] != "one task" {}
    node.restart(Data::Keep).await.unwrap();
    let told: Json = serde_json::from_str(&running.line().await).unwrap();
    assert_eq!(running.end().await.0, Some(0));
    check(&told);
    let unmeasured = &findings(&told, "node_unmeasured")[0];
    assert!(unmeasured.starts_with(&node.addr().to_string()), "{told}");
}

#[tokio::test]
async fn nodes_that_go_away_meanwhile_leave_no_quorum() {
    let testbed = Testbed::start(3).await.unwrap();
    let mut running = Running::start(with(&testbed.urls(), &short(&["--json", "--ttl", "1s"])));
    while running.event("measuring").await["what"] != "hand-over" {}
    for node in &testbed.nodes()[1..] {
        node.kill().await.unwrap();
    }
    let told: Json = serde_json::from_str(&running.line().await).unwrap();
    running.end().await;
    check(&told);
    assert_eq!(findings(&told, "node_missing").len(), 2, "{told}");
    assert!(findings(&told, "spare_nodes").is_empty(), "{told}");
    let none = findings(&told, "no_quorum");
    assert_eq!(none.len(), 1, "{told}");
    assert!(
        none[0].starts_with("Only one of 3 nodes votes in time, and a lock needs 2"),
        "{told}"
    );
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
    let testbed = Testbed::start(3).await.unwrap();
    let mut urls = Vec::new();
    for node in testbed.nodes() {
        // Nothing can be counted, so no lock with a token is to be had.
        let rights = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-incr"];
        assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
        urls.push(format!("redis://app:pw@{}", node.addr()));
    }
    let output = finish(with(&urls, &short(&["--json"]))).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("no lock could be acquired") && said.contains("NOPERM"),
        "{said}"
    );
    let told = document(&output);
    check(&told);
    assert!(count(&told["throughput"][0]["begun"]) > 0);
    assert_eq!(told["throughput"][0]["pairs"], 0);
    assert_eq!(told["throughput"][0]["failures"][0]["kind"], "no_quorum");
    assert!(count(&told["nodes"][0]["faults"]["no_permission"]) > 0, "{told}");
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
        "from 2 to 10000",
        "from 10ms to 365days",
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
