//! `run --once-per` and `run --min-hold`: once, and not one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Output;
use std::time::Duration;

use quorlock::testbed::{Data, Testbed};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::support::{Running, finish, holder, text, with};
use crate::testbed;

/// Longer than any test, and ends in the year 2031.
const PERIOD: &str = "--once-per=365days";

async fn run(urls: &[String], options: &[&str], script: &str) -> Output {
    let command = [&["run"], options, &["nightly", "--", "sh", "-c", script]].concat();
    finish(with(urls, &command)).await
}

/// Returns the exit code, and what the command printed.
fn result(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), text(&output.stdout))
}

#[tokio::test]
async fn a_period_is_done_when_the_command_has_succeeded() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let year = "echo ran $QUORLOCK_PERIOD";
    let failed = run(&urls, &[PERIOD], "echo tried; exit 3").await;
    assert_eq!(result(&failed), (3, "tried\n".into()), "{failed:?}");
    let (code, ran) = result(&run(&urls, &[PERIOD], year).await);
    assert!(
        code == 0 && ran.starts_with("ran 20") && ran.ends_with("T00:00:00Z\n"),
        "{code} {ran}"
    );
    for (options, code, said) in [
        (&[][..], 0, "nightly is done until 20"),
        (&["-q"], 0, ""),
        (&["-E", "5"], 5, "the command was not run"),
        (&["--json"], 0, r#""event":"done""#),
    ] {
        let again = run(&urls, &[options, &[PERIOD]].concat(), year).await;
        assert_eq!(result(&again), (code, String::new()), "{options:?}");
        let err = text(&again.stderr);
        assert!(
            err.contains(said) && err.is_empty() == said.is_empty(),
            "{options:?}: {err}"
        );
    }
    let shown = text(&finish(with(&urls, &["show", "nightly"])).await.stdout);
    assert!(
        shown.starts_with("nightly: free, last token ") && shown.contains(", done until 20"),
        "{shown}"
    );
    // Other periods, and runs without one, are not concerned.
    for options in [&[][..], &["--once-per=300days"]] {
        assert_eq!(
            result(&run(&urls, options, "echo ran").await),
            (0, "ran\n".into())
        );
    }
    for wrong in ["999ms", "366days"] {
        let refused = run(&urls, &["--once-per", wrong], "echo ran").await;
        assert_eq!(result(&refused), (2, String::new()));
        assert!(text(&refused.stderr).contains("1s to 365days"), "{refused:?}");
    }
}

/// Whether the period is done is not guessed.
#[tokio::test]
async fn without_a_quorum_the_period_stays_open() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let script = "echo started; read line; exit 0";
    let options = [
        "run", "--json", "--ttl=3s", PERIOD, "nightly", "--", "sh", "-c", script,
    ];
    let mut running = Running::start(with(&urls, &options));
    assert_eq!(running.line().await, "started");
    let memory = async |limit| {
        for node in testbed.nodes() {
            node.command(&["CONFIG", "SET", "maxmemory", limit])
                .await
                .unwrap();
        }
    };
    // Marks are refused, renewals are not: it must not try for ever.
    memory("1").await;
    running.child.stdin.take();
    let event = running.event("not_marked").await;
    assert!(
        event["detail"].as_str().unwrap().contains("out of memory"),
        "{event}"
    );
    assert_eq!(running.end().await.0, Some(0));
    memory("0").await;
    assert_eq!(
        result(&run(&urls, &[PERIOD], "echo ran").await),
        (0, "ran\n".into())
    );
}

/// A command that ends well because it was told to end may have left work undone.
#[tokio::test]
async fn a_command_that_was_told_to_end_leaves_the_period_open() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = Running::start(with(&urls, &["run", PERIOD, "nightly", "--", "sh", "-c", script]));
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(0));
    assert_eq!(
        result(&run(&urls, &[PERIOD], "echo ran").await),
        (0, "ran\n".into())
    );
}

/// Starts a run that has just acquired the lock, and now waits for a node that hangs: is the period done?
async fn asks(testbed: &Testbed, options: &[&str]) -> Running {
    let urls = testbed.urls();
    let mut holder = holder(&urls, "nightly").await;
    let run = ["run", "--json", "--wait=forever", PERIOD];
    let command = [&run, options, &["nightly", "--", "echo", "ran"]].concat();
    let mut running = Running::start(with(&urls, &command));
    running.event("waiting").await;
    testbed.nodes()[2].stop().unwrap();
    holder.close_input();
    running.event("acquired").await;
    running
}

/// The run may be faster than this test, so each has several tries.
#[tokio::test]
async fn no_command_is_started_after_an_interrupt_or_on_a_lease_that_is_lost() {
    for (signal, code) in [(Signal::INT, 130), (Signal::STOP, 79)] {
        let mut tries = 0;
        loop {
            tries += 1;
            let testbed = testbed().await;
            let running = asks(&testbed, &["--ttl=3s"]).await;
            running.signal(signal);
            if signal == Signal::STOP {
                // The lease is over when another run has the lock.
                let other = run(&testbed.urls(), &["--wait=forever"], "true").await;
                assert_eq!(other.status.code(), Some(0), "{}", text(&other.stderr));
                running.signal(Signal::CONT);
            }
            let (ended, events) = running.end().await;
            if !events.contains("\"started\"") {
                assert_eq!(ended, Some(code), "{events}");
                break;
            }
            assert!(tries < 5, "started in spite of {signal:?}: {events}");
        }
    }
}

#[tokio::test]
async fn a_minimum_hold_outlasts_a_short_command() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let first = run(&urls, &["--ttl=5m", "--min-hold=4m"], "echo ran").await;
    assert_eq!(result(&first), (0, "ran\n".into()));
    let second = run(&urls, &["--json", "--no-wait"], "echo ran").await;
    assert_eq!(result(&second), (75, String::new()));
    let error: serde_json::Value = serde_json::from_slice(&second.stderr).unwrap();
    let left = error["remaining_ms"].as_u64().unwrap();
    assert!((120_000..=240_001).contains(&left), "{error}");
    // What was not run needs no minimum.
    let minimum = ["--ttl=5m", "--min-hold=4m"];
    for (options, command, code) in [
        (&[PERIOD][..], "true", 0),
        (&[PERIOD, minimum[0], minimum[1]], "true", 0),
        (&minimum, "/etc/passwd", 126),
    ] {
        let output = finish(with(
            &urls,
            &[&["run"], options, &["other", "--", command]].concat(),
        ))
        .await;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let shown = text(&finish(with(&urls, &["show", "other"])).await.stdout);
        assert!(shown.starts_with("other: free"), "{shown}");
    }
    let refused = run(&urls, &["--min-hold=31s"], "echo ran").await;
    assert_eq!(result(&refused), (2, String::new()));
    assert!(text(&refused.stderr).contains("use --ttl 31s"), "{refused:?}");
}

/// Five hosts want each of twenty periods, nodes hang and die meanwhile.
#[tokio::test]
async fn one_of_five_processes_runs_in_each_of_twenty_periods() {
    const PERIODS: usize = 20;
    let testbed = Testbed::start(5).await.unwrap();
    let urls = testbed.urls();
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let script = format!("echo $QUORLOCK_PERIOD >> {}", runs.display());
    let ran = || -> Vec<String> {
        let text = fs::read_to_string(&runs).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let give_up = Instant::now() + Duration::from_secs(200);
    let is_over = || ran().len() > PERIODS || Instant::now() > give_up;

    let host = async |number: u64| {
        let mut done = BTreeSet::new();
        while !is_over() {
            sleep(Duration::from_millis(fastrand::u64(0..200 * (number + 1)))).await;
            let options = [
                "--json",
                "--once-per=1s",
                "--no-restart-guard",
                "--ttl=2s",
                "--wait=30s",
            ];
            let output = run(&urls, &options, &script).await;
            let events = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{events}");
            let events = events
                .lines()
                .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            for event in events {
                assert_ne!(event["event"], "not_marked", "{event}");
                if event["event"] == "done" {
                    done.insert(event["until"].as_str().unwrap().to_owned());
                }
            }
        }
        done
    };
    let trouble = async {
        for (node, dies) in testbed
            .nodes()
            .iter()
            .cycle()
            .zip([false, true].into_iter().cycle())
        {
            if is_over() {
                break;
            }
            match dies {
                true => node.kill().await.unwrap(),
                false => node.stop().unwrap(),
            }
            sleep(Duration::from_millis(600)).await;
            match dies {
                true => node.restart(Data::Keep).await.unwrap(),
                false => node.resume().unwrap(),
            }
            // A client may still be connecting to this node when the next one fails. The other three are up.
            sleep(Duration::from_millis(400)).await;
        }
    };
    let hosts = futures_util::future::join_all((0..5).map(host));
    let (done, ()) = tokio::join!(hosts, trouble);

    let mut times = BTreeMap::<String, usize>::new();
    for period in ran() {
        *times.entry(period).or_default() += 1;
    }
    assert!(times.len() > PERIODS, "too slow: {times:?}");
    assert!(
        times.values().all(|runs| *runs == 1),
        "run more than once: {times:?}"
    );
    // A host that found a period done found that it was run, or a later one while the host waited.
    for until in done.into_iter().flatten() {
        let end = humantime::parse_rfc3339(&until).unwrap();
        let start = humantime::format_rfc3339_seconds(end - Duration::from_secs(1)).to_string();
        assert!(
            times.range(start.clone()..).next().is_some(),
            "{start} is said to be done: {times:?}"
        );
    }
}
