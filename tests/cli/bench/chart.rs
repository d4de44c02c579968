//! What `--chart` draws.

use std::path::Path;

use quorlock::testbed::Testbed;

use super::document::document;
use super::{SHORT, short};
use crate::support::{finish, text, with};

/// The words in a chart, which is well-formed.
pub(super) fn svg(file: &Path) -> Vec<String> {
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
    for part in ["One lock, 3 waiters", "Round trip to each node: SET NX PX"] {
        assert!(words.iter().any(|text| text.contains(part)), "{words:?}");
    }
    // Whoever is sent the chart without the text sees it as well.
    assert_eq!(
        words.iter().any(|text| text == "UNOPTIMISED BUILD"),
        cfg!(debug_assertions),
        "{words:?}"
    );
}

/// Whoever reads both compares them.
#[tokio::test]
async fn the_chart_has_the_rates_of_the_document() {
    let testbed = Testbed::start(1).await.unwrap();
    let chart = testbed.folder().join("chart.svg");
    let mut command = with(&testbed.urls(), &short(&["--json"]));
    command.arg("--chart").arg(&chart);
    let output = finish(command).await;
    let words = svg(&chart);
    for pairs in document(&output)["throughput"].as_array().unwrap() {
        let rate = pairs["pairs_per_second"].as_f64().unwrap();
        // The document's is rounded to a tenth: .5 there may be less.
        let rates = [rate - 0.05, rate + 0.05].map(|rate| rate.round() as u64);
        let is_it = |text: &String| {
            text.replace(',', "")
                .parse()
                .is_ok_and(|shown| rates.contains(&shown))
        };
        assert!(words.iter().any(is_it), "{rate} is not in {words:?}");
    }
}

#[tokio::test]
async fn a_chart_that_cannot_be_written_is_told_before_anything_is_measured() {
    let testbed = Testbed::start(1).await.unwrap();
    for path in [
        testbed.folder().join("no/such/folder.svg"),
        testbed.folder().to_owned(),
        testbed.folder().join("chart.png"),
    ] {
        let mut command = with(&testbed.urls(), &SHORT);
        command.arg("--chart").arg(&path);
        let output = finish(command).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--chart") && !said.contains("measuring"), "{said}");
        assert!(output.stdout.is_empty());
    }
    assert!(!testbed.folder().join("chart.png").exists());
    // A pipe has no such name, and need not.
    let mut command = with(&testbed.urls(), &SHORT);
    command.args(["--chart", "/dev/null"]);
    assert_eq!(finish(command).await.status.code(), Some(0));
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
