use std::time::Duration;

use clap::Parser;
use quorlock::NodeStatus;
use quorlock::node::{Fault, NodeState};

use super::super::hand_over::HandOver;
use super::super::pairs::Pairs;
use super::super::plan::Plan;
use super::super::round_trips::Node;
use super::super::tally::{Latencies, Part};
use super::super::text::text;
use super::*;
use crate::args::{Arguments, Command};

const MS: Duration = Duration::from_millis(1);

fn every(took: Duration) -> Latencies {
    let mut latencies = Latencies::default();
    (0..100).for_each(|_| latencies.record(took));
    latencies
}

/// A node with this round trip, or one that is down.
fn node(name: &str, took: Option<Duration>) -> Node {
    let state = match took {
        Some(_) => NodeState::Up { warnings: Vec::new() },
        None => NodeState::Down(Fault::Disconnected {
            reason: "refused".into(),
        }),
    };
    let mut node = Node::new(NodeStatus {
        name: name.into(),
        state,
        left_out: None,
    });
    if let Some(took) = took {
        (node.plain, node.fenced) = (every(took), every(took));
    }
    node
}

fn results(options: &[&str], round_trips: &[Option<Duration>]) -> Results {
    let arguments = [&["quorlock", "bench"], options].concat();
    let Command::Bench(bench) = Arguments::parse_from(arguments).command else {
        panic!("another command");
    };
    let mut one = Pairs::default();
    (one.tasks, one.acquire, one.release) = (1, every(2 * MS), every(MS));
    let named = |(number, took): (usize, &Option<Duration>)| node(&format!("n{number}"), *took);
    Results {
        plan: Plan::new(&bench).unwrap(),
        nodes: round_trips.iter().enumerate().map(named).collect(),
        pairs: vec![one],
        hand_over: None,
        interrupted: None,
    }
}

/// The texts of all findings with this code.
fn texts(results: &Results, code: &str) -> Vec<String> {
    let found = findings(results).into_iter();
    found
        .filter(|finding| finding.code == code)
        .map(|finding| finding.text)
        .collect()
}

#[test]
fn where_nothing_is_wrong_there_is_no_advice() {
    let results = results(&[], &[Some(MS); 3]);
    let advice: Vec<_> = findings(&results)
        .into_iter()
        .filter(|finding| finding.is_advice && finding.code != "unoptimised_build")
        .collect();
    assert!(advice.is_empty(), "{advice:?}");
    assert!(texts(&results, "cost")[0].starts_with("A lock costs 3.0"));
    assert!(texts(&results, "spare_nodes")[0].contains("a lock needs 2 of them: one may fail"));
    assert!(texts(&results, "node_budget")[0].contains("With a TTL of 30s a node has 3s to answer"));
}

#[test]
fn a_missing_node_is_named_with_what_is_left() {
    let results = results(&[], &[Some(MS), None, Some(MS), Some(MS), Some(MS)]);
    assert_eq!(
        texts(&results, "node_missing"),
        ["n1 is missing (not connected: refused)."]
    );
    assert_eq!(
        texts(&results, "spare_nodes"),
        ["4 of 5 nodes vote in time, and a lock needs 3: one may fail besides."]
    );
}

#[test]
fn where_no_quorum_is_left_that_is_said_once() {
    let results = results(&[], &[Some(MS), None, None, Some(MS), None]);
    assert_eq!(texts(&results, "node_missing").len(), 3);
    assert_eq!(texts(&results, "spare_nodes"), [""; 0]);
    assert_eq!(
        texts(&results, "no_quorum"),
        ["Only 2 of 5 nodes vote in time, and a lock needs 3: that is no quorum, and no lock can be had."]
    );
}

/// Also where it is measured, for that allows more than a lock does.
#[test]
fn a_node_that_is_too_far_away_for_the_ttl_is_not_counted_on() {
    let far = Some(80 * MS);
    let one = results(
        &["--ttl", "500ms"],
        &[Some(MS), Some(MS), far, Some(MS), Some(MS)],
    );
    assert_eq!(
        texts(&one, "node_late"),
        [
            "n2 does not answer in time: it usually takes 80.02 ms, and with a TTL of 500ms a node has 50ms (a tenth). Use a TTL of 9s or more, or bring the node nearer."
        ]
    );
    assert!(texts(&one, "spare_nodes")[0].starts_with("4 of 5 nodes vote in time"));
    assert_eq!(texts(&one, "slow_node"), [""; 0]);

    let mut three = results(&["--ttl", "500ms"], &[far, Some(MS), far, Some(MS), far]);
    assert!(texts(&three, "no_quorum")[0].ends_with("a lock is had by luck."));
    three.pairs.clear();
    assert!(texts(&three, "no_quorum")[0].ends_with("no lock can be had."));
    assert_eq!(texts(&three, "spare_nodes"), [""; 0]);
}

#[test]
fn a_node_that_is_up_and_was_not_measured_is_named() {
    let mut all = results(&[], &[Some(MS); 3]);
    all.nodes[1].plain = Latencies::default();
    all.nodes[1].fenced = Latencies::default();
    assert!(texts(&all, "node_unmeasured")[0].starts_with("n1 is up, but was not measured"));
    assert!(texts(&all, "spare_nodes")[0].starts_with("2 of 3 nodes vote in time"));
    // Unless it is known to answer in time.
    all.nodes[1].first = Some(MS);
    assert_eq!(texts(&all, "node_unmeasured").len(), 1);
    assert!(texts(&all, "spare_nodes")[0].starts_with("All 3 nodes"));
    all.nodes[1].first = None;
    // Two of these, and it is not known whether there is a quorum.
    all.nodes[0].plain = Latencies::default();
    all.nodes[0].fenced = Latencies::default();
    assert!(texts(&all, "no_quorum")[0].contains("is not known of the others"));
    // Whoever ends it early knows why there are no figures.
    all.interrupted = Some(rustix::process::Signal::INT);
    assert_eq!(texts(&all, "node_unmeasured"), [""; 0]);
    assert!(texts(&all, "spare_nodes")[0].starts_with("All 3 nodes are there"));

    all.interrupted = None;
    all.nodes[0]
        .failures
        .add("acquire", "no_quorum", "the reason".to_owned());
    assert_eq!(
        texts(&all, "node_silent"),
        ["n0 is up, but no lock got its vote. The first: the reason"]
    );
    assert_eq!(texts(&all, "failures"), [""; 0]);
}

#[test]
fn a_slow_node_is_named_and_whether_it_is_waited_for() {
    let one = results(&[], &[Some(MS), Some(12 * MS), Some(MS)]);
    assert_eq!(
        texts(&one, "slow_node"),
        ["n1 is slow: 12.00 ms, 12 x as long as the others. Locks do not wait for it while 2 others are up."]
    );
    let mut waited = results(&[], &[Some(MS), Some(12 * MS), Some(MS), None, None]);
    assert!(texts(&waited, "slow_node")[0].contains("Locks wait for it, for only 2 nodes are faster and 3"));
    // Whatever has not been measured may be fast.
    for index in [3, 4] {
        waited.nodes[index].trouble = None;
    }
    assert!(
        texts(&waited, "slow_node")[0]
            .contains("is not known: 3 are needed, 2 are faster, and 2 were not measured")
    );
    // What a busy processor does is no news.
    let near = results(&[], &[Some(MS / 20), Some(MS / 4), Some(MS / 20)]);
    assert!(texts(&near, "slow_node").is_empty());
}

#[test]
fn an_answer_that_takes_nearly_as_long_as_it_may_asks_for_a_longer_ttl() {
    let results = results(&["--ttl", "1s"], &[Some(MS), Some(MS), Some(40 * MS)]);
    let found = findings(&results);
    let budget: Vec<_> = found
        .iter()
        .filter(|finding| finding.code == "node_budget")
        .collect();
    assert_eq!(budget.len(), 1, "{found:?}");
    assert!(
        budget[0].is_advice && budget[0].text.starts_with("n2 takes 40.0"),
        "{found:?}"
    );
    assert!(budget[0].text.contains("Use a TTL of 5s or more"), "{found:?}");
}

#[test]
fn an_even_number_of_nodes_bears_no_more_than_one_less() {
    assert!(
        texts(&results(&[], &[Some(MS); 4]), "spare_nodes")[0].contains("With 3 nodes it would be as many")
    );
}

#[test]
fn failures_are_told_by_kind() {
    let mut results = results(&[], &[Some(MS); 3]);
    let failures = &mut results.pairs[0].failures;
    (0..1_234).for_each(|_| failures.add("acquire", "no_quorum", "the reason".to_owned()));
    failures.add("release", "uncertain", "another".to_owned());
    assert_eq!(
        texts(&results, "failures"),
        [
            "one task: acquire failed, 1,234 x no_quorum. The first: the reason",
            "one task: release failed, 1 x uncertain. The first: another"
        ]
    );
}

#[test]
fn a_node_that_never_voted_is_not_said_to_have_failed_some_locks() {
    let mut all = results(&[], &[Some(MS), None, Some(MS)]);
    for (heard, told) in [
        (0, &[][..]),
        (5, &["n1 gave no vote for some of the locks: 1,661 x auth."]),
    ] {
        let faults = [("auth", 1_661), ("not_connected", 3)].into();
        let part = Part {
            heard,
            faults,
            ..Part::default()
        };
        all.pairs[0].nodes.set("n1", part);
        assert_eq!(texts(&all, "node_faults"), told);
    }
}

#[test]
fn what_one_task_does_is_told_once() {
    let mut all = results(&[], &[Some(MS); 3]);
    all.pairs[0].set_rate(241);
    all.pairs.push(all.pairs[0].clone());
    all.pairs[1].tasks = 8;
    all.pairs[1].set_rate(240);
    assert_eq!(
        texts(&all, "throughput"),
        [
            "This process takes and releases 241 locks a second, one after the other, and no more with more tasks."
        ]
    );
    all.pairs[1].set_rate(480);
    assert!(
        texts(&all, "throughput")[0]
            .ends_with("up to 480 locks a second, with 8 tasks; one after the other, 241.")
    );
}

#[test]
fn whoever_gets_more_than_a_fair_share_is_noticed() {
    let mut all = results(&[], &[Some(MS); 3]);
    for (grants, unfair) in [(vec![10, 10, 10], 0), (vec![40, 10, 10], 1)] {
        let mut handed = HandOver::default();
        (handed.grants, handed.held, handed.gap) = (grants, every(MS), every(MS));
        all.hand_over = Some(handed);
        assert_eq!(texts(&all, "unfair").len(), unfair);
    }
}

#[test]
fn ratios_have_two_digits() {
    for (ratio, text) in [(1.26, "1.3"), (12.4, "12"), (987.0, "990"), (4_049.0, "4,000")] {
        assert_eq!(times(ratio), text);
    }
}

#[test]
fn a_dash_in_a_table_is_explained() {
    for (round_trip, explained) in [(Some(MS), false), (None, true)] {
        let all = results(&[], &[Some(MS), round_trip, Some(MS)]);
        let text = text(&all);
        assert_eq!(text.contains("\n-: nothing was timed"), explained, "{text}");
    }
}

#[test]
fn nodes_without_measurements_make_no_findings() {
    let mut all = results(&[], &[None, None, None]);
    all.pairs.clear();
    let codes: Vec<_> = findings(&all).iter().map(|finding| finding.code).collect();
    assert!(
        codes
            .iter()
            .all(|code| ["node_missing", "no_quorum", "unoptimised_build"].contains(code)),
        "{codes:?}"
    );
}
