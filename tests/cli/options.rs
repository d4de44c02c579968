//! Options, their conflicts, and messages about nodes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use quorlock::testbed::{Testbed, Value};
use serde_json::Value as Json;

use crate::support::{finish, text, with};

async fn testbed() -> Testbed {
    Testbed::start(3).await.unwrap()
}

#[tokio::test]
async fn one_option_takes_several_nodes() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let (first, others) = (urls[0].as_str(), urls[1..].join(", "));
    for nodes in [
        &["--node", &urls.join(",")][..],
        &["--nodes", &urls.join(" ")],
        &["--node", first, "--node", &others],
    ] {
        let status = finish(with(&[], &[&["status", "--json"], nodes].concat())).await;
        let told: Json = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!((&told["up"], &told["verdict"]), (&3.into(), &"quorum".into()));
        let run = [&["run"], nodes, &["r", "--", "true"]].concat();
        assert_eq!(finish(with(&[], &run)).await.status.code(), Some(0));
    }
    let output = finish(with(&[], &["status", "--node", " , "])).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no nodes"));
}

#[tokio::test]
async fn a_password_may_have_a_comma_and_is_not_shown() {
    let testbed = Testbed::builder().nodes(2).password("sEc,ReT%41");
    let testbed = testbed.start().await.unwrap();
    let nodes = testbed.urls().join(",").replace("%2C", ",");
    assert!(nodes.contains("sEc,ReT"), "{nodes}");
    let output = finish(with(&[], &["status", "--node", &nodes])).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    for nodes in [
        "redis://u:sEc,ReT",
        "redis://:sEc,ReT@127.0.0.1:x,redis://h",
        "redis://h,redis://u:sEc,ReT@",
        "redis://127.0.0.1:1,127.0.0.1:2",
    ] {
        let output = finish(with(&[], &["status", "--node", nodes])).await;
        let said = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(!said.contains("sEc") && !said.contains("ReT"), "{said}");
    }
}

#[tokio::test]
async fn the_command_does_not_get_the_nodes_if_they_are_to_be_hidden() {
    let testbed = testbed().await;
    for (option, seen) in [(&[][..], true), (&["--hide-nodes"], false)] {
        let run = [&["run"], option, &["r", "--", "env"]].concat();
        let output = finish(with(&testbed.urls(), &run)).await;
        let shown = text(&output.stdout);
        assert!(shown.contains("QUORLOCK_RESOURCE=r\n"), "{shown}");
        assert_eq!(shown.contains("QUORLOCK_NODES="), seen, "{shown}");
        assert_eq!(shown.contains("redis://"), seen, "{shown}");
    }
}

#[tokio::test]
async fn a_list_of_nodes_that_is_no_text_is_said_to_be_none() {
    let mut command = with(&[], &["status"]);
    command.env("QUORLOCK_NODES", OsStr::from_bytes(b"redis://:p\xfcss@h"));
    let output = finish(command).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("QUORLOCK_NODES is not UTF-8") && !said.contains("ss@h"),
        "{said}"
    );
}

/// No node is contacted: there is none.
#[tokio::test]
async fn a_name_that_no_lock_can_have_is_told_at_once() {
    let long = "x".repeat(quorlock::MAX_RESOURCE_BYTES + 1);
    for (name, words) in [("", "empty"), ("job#fence", "#fence"), (&*long, "bytes")] {
        let mut run = with(&["redis://127.0.0.1:1".to_owned()], &["run", name, "--", "true"]);
        let output = run.output().await.unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(words), "{told}");
    }
}

#[tokio::test]
async fn warnings_are_told_once() {
    let testbed = Testbed::builder().nodes(1).arg("maxmemory-policy", "allkeys-lru");
    let testbed = testbed.start().await.unwrap();
    let short = ["bench", "--duration", "100ms", "--tasks", "1"];
    for (command, on_stderr) in [
        (&["run", "r", "--", "true"][..], true),
        (&["status"], false),
        (&["status", "--json"], false),
        (&short, false),
    ] {
        let output = finish(with(&testbed.urls(), command)).await;
        let (said, shown) = (text(&output.stderr), text(&output.stdout));
        assert_eq!(output.status.code(), Some(0), "{said}");
        let counts = [&said, &shown].map(|text| text.matches("allkeys-lru").count());
        assert_eq!(
            counts,
            if on_stderr { [1, 0] } else { [0, 1] },
            "{command:?}: {said} {shown}"
        );
    }
}

#[tokio::test]
async fn status_tells_the_nodes_that_are_left_out() {
    let testbed = Testbed::builder().nodes(3).arg("appendonly", "no");
    let testbed = testbed.start().await.unwrap();
    let urls = testbed.urls();
    let output = finish(with(&urls, &["status"])).await;
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(69), "{shown}");
    let node = testbed.nodes()[0].addr();
    assert!(
        shown.contains(&format!("{node}: up, but its memory began or was restored ")),
        "{shown}"
    );
    assert!(
        shown.contains("3 of 3 nodes up, 2 needed: NO QUORUM YET: 0 of them give locks now"),
        "{shown}"
    );
    assert_eq!(shown.matches("appendonly is off").count(), 3, "{shown}");

    let output = finish(with(&urls, &["status", "--json", "--guard-window", "1h"])).await;
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&told["up"], &told["ready"], &told["verdict"]),
        (&3.into(), &0.into(), &"restart_guard".into())
    );
    assert!(told["quorum_in_ms"].as_u64().unwrap() > 60_000, "{told}");
    for node in told["nodes"].as_array().unwrap() {
        assert_eq!(
            (&node["up"], &node["reason"]),
            (&true.into(), &"restart_guard".into())
        );
        assert!(
            node["trouble"]
                .as_str()
                .unwrap()
                .contains("may have forgotten locks"),
            "{node}"
        );
    }

    for node in &testbed.nodes()[..2] {
        node.kill().await.unwrap();
    }
    let output = finish(with(&urls, &["status", "--json", "--connect-timeout", "200ms"])).await;
    let told: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(69), "{told}");
    assert_eq!(
        (&told["verdict"], &told["quorum_in_ms"]),
        (&"no_quorum".into(), &Json::Null)
    );
    assert_eq!(told["nodes"][0]["reason"], "not_connected");
}

#[tokio::test]
async fn each_command_warns_of_a_guard_window_that_does_not_fit_the_ttl() {
    let testbed = testbed().await;
    for (options, warned) in [
        (&["--guard-window", "29s"][..], Some("--guard-window")),
        (&["--guard-window", "30s"], None),
        (&["--ttl", "2m"], Some("--ttl")),
        (&["--ttl", "2m", "--guard-window", "1m"], Some("--guard-window")),
    ] {
        let run = [&["run"], options, &["r", "--", "true"]].concat();
        for command in [
            run,
            [&["status"], options].concat(),
            [&["doctor"], options].concat(),
        ] {
            let output = finish(with(&testbed.urls(), &command)).await;
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{said}");
            let warns = |option| said.contains(&format!("warning: {option}"));
            assert_eq!(
                (warns("--guard-window"), warns("--ttl")),
                (warned == Some("--guard-window"), warned == Some("--ttl")),
                "{command:?}: {said}"
            );
        }
    }
}

#[tokio::test]
async fn counters_are_kept_for_as_long_as_told() {
    let testbed = Testbed::start(1).await.unwrap();
    let left = |resource: &'static str| {
        let node = &testbed.nodes()[0];
        async move {
            match node
                .command(&["PTTL", &format!("quorlock:{resource}#fence")])
                .await
                .unwrap()
            {
                Value::Int(left) => left,
                other => panic!("{other:?}"),
            }
        }
    };
    for (resource, options, bounds) in [
        ("usual", &[][..], 86_000_000..=86_400_000),
        ("hour", &["--counter-retention", "1h"], 3_000_000..=3_600_000),
        ("forever", &["--counter-retention", "forever"], -1..=-1),
    ] {
        let run = [&["run"], options, &[resource, "--", "true"]].concat();
        assert_eq!(finish(with(&testbed.urls(), &run)).await.status.code(), Some(0));
        let left = left(resource).await;
        assert!(bounds.contains(&left), "{resource}: {left}");
    }
    for command in [
        &["run", "--counter-retention", "1m", "r", "--", "true"][..],
        &["status", "--counter-retention", "1m"],
        &["doctor", "--counter-retention", "1m"],
        &["run", "--counter-retention", "soon", "r", "--", "true"],
        &[
            "run",
            "--counter-retention",
            "1h",
            "--no-fencing",
            "r",
            "--",
            "true",
        ],
    ] {
        let output = finish(with(&testbed.urls(), command)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(said.contains("retention"), "{said}");
    }
}

/// The help of a command lists only its own exit codes.
#[tokio::test]
async fn each_command_tells_its_own_exit_codes() {
    for (command, codes) in [
        ("run", &[0, 2, 69, 71, 75, 78, 79, 126, 127][..]),
        ("acquire", &[0, 2, 69, 71, 75, 78]),
        ("extend", &[0, 2, 69, 71, 78, 79]),
        ("release", &[0, 2, 69, 71, 78, 79]),
        ("status", &[0, 2, 69, 71, 78]),
        ("doctor", &[0, 1, 2, 69, 71]),
        ("locks", &[0, 2, 69, 71, 78]),
        ("show", &[0, 2, 69, 71, 78]),
        ("break", &[0, 2, 69, 71, 75, 78]),
        ("members", &[0, 2, 69, 71, 78]),
        ("exporter", &[0, 2, 71]),
        ("top", &[0, 2, 71]),
        ("bench", &[0, 2, 69, 71, 78]),
        ("testbed", &[0, 2, 69, 71, 126, 127]),
        ("completions", &[0, 2, 71]),
        ("man", &[0, 2, 71]),
    ] {
        let shown = text(&finish(with(&[], &[command, "--help"])).await.stdout);
        let (_, table) = shown.split_once("Exit codes:").unwrap();
        let first = |line: &str| line.split_whitespace().next()?.parse::<u8>().ok();
        let told: Vec<u8> = table.lines().filter_map(first).collect();
        // A line that clap wrapped starts with neither a code nor the indentation of a second line.
        let rows = table.lines().skip_while(|line| first(line).is_none());
        for row in rows {
            let code = row.trim_start().starts_with(|c: char| c.is_ascii_digit());
            assert!(code || row.starts_with("       "), "{command}: {row}");
        }
        assert_eq!(told, codes, "{command}: {table}");
    }
}

/// Help and version stay text: they are no errors.
#[tokio::test]
async fn a_wrong_command_line_is_an_event_for_programs() {
    for (arguments, words) in [
        (&["--json"][..], "requires a subcommand"),
        (&["run", "--json"], "<RESOURCE> <COMMAND>..."),
        (&["--json", "run", "--frob", "r", "--", "true"], "'--frob'"),
        (
            &["run", "--ttl", "soon", "--json", "r", "--", "true"],
            "invalid value 'soon' for '--ttl <DURATION>': expected",
        ),
        (
            &["acquire", "--export", "--json", "r"],
            "'--export' cannot be used with '--json'",
        ),
        (&["status", "--json"], "no nodes"),
        (
            &["status", "--json", "--config", "/no/such/file"],
            "/no/such/file",
        ),
    ] {
        let output = finish(with(&[], arguments)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let error: Json = serde_json::from_str(&said).unwrap_or_else(|_| panic!("not one event: {said}"));
        assert_eq!(
            (&error["event"], &error["code"]),
            (&"error".into(), &2.into()),
            "{said}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(words) && !message.contains(['\n', '\u{1b}']),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    }
    for arguments in [&["--json", "--version"][..], &["run", "--json", "--help"]] {
        let output = finish(with(&[], arguments)).await;
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).starts_with(if arguments[1] == "--version" {
            "quorlock 0"
        } else {
            "Run a"
        }));
    }
    // This option is the command's.
    let output = finish(with(&[], &["run", "--frob", "r", "--", "env", "--json"])).await;
    assert!(text(&output.stderr).starts_with("error: unexpected"));
}
