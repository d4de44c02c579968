//! The command-line tool, with real servers.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cli/bench.rs"]
mod bench;
#[path = "common/mod.rs"]
mod common;
#[path = "cli/options.rs"]
mod options;
#[path = "cli/support.rs"]
mod support;

use std::path::Path;

use quorlock::testbed::Testbed;
use rustix::process::Signal;
use support::{
    PATIENCE, Running, alive, at_least, eventually, finish, free, holder, marked, nanos, numbers, quorlock,
    text, with,
};

async fn testbed() -> Testbed {
    Testbed::start(3).await.unwrap()
}

/// A command that writes its pid and that of a grandchild to `pids`, and from the grandchild, which resists TERM,
/// the time to `beats`, again and again.
fn stubborn(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "sh -c 'trap \"\" TERM; echo $$ >> {folder}/pids
        while :; do date +%s%N >> {folder}/beats; sleep 0.02; done' & echo $$ >> {folder}/pids; wait"
    )
}

async fn stubborn_pids(folder: &Path) -> Vec<u32> {
    at_least(1, &folder.join("beats")).await;
    let pids = at_least(2, &folder.join("pids")).await;
    pids.into_iter().map(|pid| pid.try_into().unwrap()).collect()
}

/// A script that prints those of the processes that exist. Zombies do no harm; some wait long for init.
fn seen_alive(pids: &[u32]) -> String {
    let files: String = pids.iter().map(|pid| format!(" /proc/{pid}/status")).collect();
    format!("grep 'State:.[^Z]' {files} 2>/dev/null; true")
}

#[tokio::test]
async fn the_exit_code_is_that_of_the_command() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    for (command, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["true"], 0),
        (&["quorlock-no-such-command"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = finish(with(&urls, &[&["run", "r", "--"], command].concat())).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
        assert_eq!(said.is_empty(), !matches!(code, 126 | 127), "{said}");
        free(&testbed).await;
    }
}

#[tokio::test]
async fn a_run_on_a_testbed_leaves_nothing() {
    let mark = format!("QUORLOCK_TEST_MARK=run-{}", std::process::id());
    let (name, value) = mark.split_once('=').unwrap();
    let mut command = with(&[], &["run", "--testbed", "r", "--", "sh", "-c", "exit 7"]);
    command.env(name, value);
    assert_eq!(finish(command).await.status.code(), Some(7));
    // A guard of the testbed may be a moment behind.
    eventually("no process is left", || async { marked(&mark).is_empty() }).await;
}

#[tokio::test]
async fn the_command_gets_input_and_the_name_of_the_lock() {
    let testbed = testbed().await;
    let mut running = Running::start(with(
        &testbed.urls(),
        &[
            "run",
            "my lock",
            "--",
            "sh",
            "-c",
            "echo \"$QUORLOCK_RESOURCE\"; read -r line; echo \"<$line>\"; cat",
        ],
    ));
    assert_eq!(running.line().await, "my lock");
    let mut input = running.child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut input, b"a line\nthe rest\n")
        .await
        .unwrap();
    drop(input);
    assert_eq!(running.line().await, "<a line>");
    assert_eq!(running.line().await, "the rest");
    assert_eq!(running.end().await, (Some(0), String::new()));
}

/// What a run's command finds in its environment; `-` where there is no such variable.
const SHOW: &str = "echo ${QUORLOCK_RESOURCE--} ${QUORLOCK_FENCING_TOKEN--}";

fn token(shown: &str) -> u64 {
    let (_, token) = shown.trim().split_once(' ').unwrap();
    token.parse().unwrap_or_else(|_| panic!("no token: {shown:?}"))
}

#[tokio::test]
async fn each_run_gives_its_command_a_larger_fencing_token() {
    let testbed = testbed().await;
    let mut before = 0;
    for _ in 0..2 {
        let output = finish(with(
            &testbed.urls(),
            &["run", "--json", "r", "--", "sh", "-c", SHOW],
        ))
        .await;
        let (shown, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{said}");
        let token = token(&shown);
        assert!((1..1 << 53).contains(&token), "{token}");
        assert!(token > before, "{token} is not larger than {before}");
        let acquired: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&acquired["event"], &acquired["fencing_token"]),
            (&"acquired".into(), &token.into())
        );
        before = token;
    }
    let output = finish(with(&testbed.urls(), &["run", "-v", "r", "--", "sh", "-c", SHOW])).await;
    let words = format!("fencing token {}", token(&text(&output.stdout)));
    assert!(
        text(&output.stderr).contains(&words),
        "{words:?}: {}",
        text(&output.stderr)
    );
}

#[tokio::test]
async fn a_nested_run_passes_on_nothing_of_the_outer_one() {
    let testbed = testbed().await;
    let own = env!("CARGO_BIN_EXE_quorlock");
    let outer = ["run", "outer", "--", own, "run"];
    let inner = ["inner", "--", "sh", "-c", SHOW];

    let output = finish(with(
        &testbed.urls(),
        &[&outer[..], &["--no-fencing", "--json"], &inner].concat(),
    ))
    .await;
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "inner -\n", "{said}");
    let acquired: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert!(acquired["fencing_token"].is_null(), "{said}");

    // Each lock has tokens of its own; the command gets those of the lock it runs under.
    let script = format!("{SHOW}; exec {own} run inner -- sh -c '{SHOW}'");
    let output = finish(with(
        &testbed.urls(),
        &["run", "outer", "--", "sh", "-c", &script],
    ))
    .await;
    let shown = text(&output.stdout);
    let (outer, inner) = shown.split_once('\n').unwrap();
    assert!(
        outer.starts_with("outer ") && inner.starts_with("inner "),
        "{shown}"
    );
    assert_ne!(token(outer), token(inner), "{shown}");
}

#[tokio::test]
async fn usage_errors_say_what_to_do() {
    for (arguments, says) in [
        (
            &["run", "r", "--", "true"][..],
            &["--node", "QUORLOCK_NODES", "--testbed"][..],
        ),
        (&["run", "--testbed", "r"], &["<COMMAND>"]),
        (
            &["run", "--testbed", "--ttl", "soon", "r", "--", "true"],
            &["--ttl", "soon"],
        ),
        (
            &["run", "--testbed", "--wait", "1s", "--no-wait", "r", "--", "true"],
            &["--no-wait"],
        ),
        (
            &[
                "run",
                "--testbed",
                "--ttl",
                "4s",
                "--kill-after",
                "3s",
                "r",
                "--",
                "true",
            ],
            &["--ttl 4s", "--kill-after 3s"],
        ),
        (
            &[
                "run",
                "--testbed",
                "--max-hold",
                "2s",
                "--kill-after",
                "5s",
                "r",
                "--",
                "true",
            ],
            &["--max-hold 2s", "--kill-after 5s"],
        ),
        (
            &["run", "--testbed", "--ttl", "1ms", "r", "--", "true"],
            &["--ttl 1ms", "10ms"],
        ),
        (&["testbed", "-n", "2", "--dead", "3"], &["--dead 3 of 2"]),
        (&["run", "--testbed", "", "--", "true"], &["empty"]),
        (&["run", "--node", "http://h", "r", "--", "true"], &["scheme"]),
        (
            &[
                "run",
                "--node",
                "redis://h",
                "--node",
                "redis://h",
                "r",
                "--",
                "true",
            ],
            &["twice"],
        ),
        (&["status"], &["QUORLOCK_NODES"]),
        (&["testbed", "-n", "0"], &["at least one"]),
    ] {
        let output = finish(with(&[], arguments)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        for word in says {
            assert!(said.contains(word), "{arguments:?}: no {word:?} in {said}");
        }
    }
}

#[tokio::test]
async fn concurrent_runs_never_overlap() {
    let testbed = testbed().await;
    for count in [2, 8] {
        let file = testbed.folder().join(format!("order-{count}"));
        let script = format!("echo start >> {0}; sleep 0.02; echo end >> {0}", file.display());
        let runs: Vec<_> = (0..count)
            .map(|_| {
                let command = with(
                    &testbed.urls(),
                    &["run", "--wait", "forever", "r", "--", "sh", "-c", &script],
                );
                tokio::spawn(finish(command))
            })
            .collect();
        for run in runs {
            let output = run.await.unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
        let order = std::fs::read_to_string(file).unwrap();
        assert_eq!(order, "start\nend\n".repeat(count));
    }
}

/// Servers that were just started, and of which nobody can tell whether they have forgotten anything.
#[tokio::test]
async fn nodes_that_have_just_started_are_said_to_be_waited_for() {
    let testbed = Testbed::builder().nodes(1).arg("appendonly", "no");
    let testbed = testbed.start().await.unwrap();
    let urls = testbed.urls();
    let output = finish(with(&urls, &["run", "--no-wait", "r", "--", "true"])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("may have forgotten locks") && said.contains("--wait"),
        "{said}"
    );
    let short = ["--ttl", "1s", "--guard-window", "1s", "--wait", "30s"];
    let waiting = [&["run"], &short[..], &["r", "--", "true"]].concat();
    assert_eq!(finish(with(&urls, &waiting)).await.status.code(), Some(0));
    let at_once = ["run", "--no-wait", "--no-restart-guard", "r", "--", "true"];
    assert_eq!(finish(with(&urls, &at_once)).await.status.code(), Some(0));
}

#[tokio::test]
async fn a_name_does_nothing_to_a_terminal() {
    let testbed = testbed().await;
    let name = "a\x1b]0;owned\x07\nquorlock: released b\u{9b}31m";
    let output = finish(with(&testbed.urls(), &["-v", "run", name, "--", "true"])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("\\u{1b}]0;owned\\u{7}\\nquorlock"), "{said}");
    assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
    assert!(!said.contains("\nquorlock: released b"), "{said}");
}

#[tokio::test]
async fn a_held_lock_is_said_to_be_held() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holder(&urls, "r").await;
    for waiting in [&["--no-wait"][..], &["--wait", "50ms"]] {
        let output = finish(with(
            &urls,
            &[&["run"], waiting, &["r", "--", "echo", "ran"]].concat(),
        ))
        .await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(75), "{said}");
        assert!(said.contains("is held"), "{said}");
        assert_eq!(said.contains("waiting:"), waiting.len() > 1, "{said}");
        assert!(output.stdout.is_empty());
    }
    // Another lock is another lock, and another prefix too.
    for other in [&["s"][..], &["--no-restart-guard", "--key-prefix", "other:", "r"]] {
        let output = finish(with(
            &urls,
            &[&["run", "--no-wait"], other, &["--", "true"]].concat(),
        ))
        .await;
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    holder.close_input();
    assert_eq!(holder.end().await, (Some(0), String::new()));
    free(&testbed).await;
}

#[tokio::test]
async fn without_a_quorum_every_node_is_named_and_no_password() {
    let testbed = Testbed::builder()
        .nodes(5)
        .password("sEcReT")
        .start()
        .await
        .unwrap();
    let urls = testbed.urls();
    assert_eq!(
        finish(with(&urls, &["run", "r", "--", "true"]))
            .await
            .status
            .code(),
        Some(0)
    );
    let dead = &testbed.nodes()[..3];
    for node in dead {
        node.kill().await.unwrap();
    }
    let options: Vec<&str> = urls.iter().flat_map(|url| ["--node", url]).collect();
    for output in [&[][..], &["-vvv"], &["--json", "-vvv"]] {
        for (mut arguments, held) in [
            (vec!["run", "--connect-timeout", "200ms", "r"], true),
            (vec!["status", "--connect-timeout", "200ms"], false),
        ] {
            arguments.extend(output);
            arguments.extend(&options);
            if held {
                arguments.extend(["--", "echo", "ran"]);
            }
            let output = finish(with(&[], &arguments)).await;
            let said = text(&output.stderr) + &text(&output.stdout);
            assert_eq!(output.status.code(), Some(69), "{said}");
            for node in dead {
                assert!(said.contains(&node.addr().to_string()), "{said}");
            }
            assert!(!said.contains("sEcReT"), "{said}");
            assert!(!said.contains("\nran"), "{said}");
        }
    }
}

#[tokio::test]
async fn a_wrong_password_is_named_but_not_shown() {
    let testbed = Testbed::builder()
        .nodes(1)
        .password("right")
        .start()
        .await
        .unwrap();
    let url = testbed.urls()[0].replace("right", "wRoNg");
    for output in [&[][..], &["--json"], &["-vvv"]] {
        let arguments = ["run", "--connect-timeout", "200ms", "--node", &url];
        let arguments = [&arguments[..], output, &["r", "--", "env"]].concat();
        let output = finish(with(&[], &arguments)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("authentication failed"), "{said}");
        assert!(!said.contains("wRoNg"), "{said}");
    }
    // Nor does the command get to know the right one.
    let arguments = ["run", "-vvv", "--node", &testbed.urls()[0], "r", "--", "env"];
    let output = finish(with(&[], &arguments)).await;
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stderr) + &text(&output.stdout);
    assert!(
        said.contains("QUORLOCK_RESOURCE=r") && !said.contains("right"),
        "{said}"
    );
}

#[tokio::test]
async fn what_is_lost_is_ended_before_somebody_else_has_it() {
    let testbed = Testbed::builder().nodes(5).proxies(true).start().await.unwrap();
    let folder = testbed.folder().to_owned();
    let script = stubborn(&folder);
    let mut running = Running::start(with(
        &testbed.urls(),
        &["run", "--json", "--ttl", "3s", "r", "--", "sh", "-c", &script],
    ));
    let pids = stubborn_pids(&folder).await;

    // The others see the nodes all the time.
    let direct: Vec<String> = testbed.nodes().iter().map(|node| node.direct_url()).collect();
    let check = format!("date +%s%N; {}", seen_alive(&pids));
    let other = tokio::spawn(finish(with(
        &direct,
        &["run", "--wait", "forever", "r", "--", "sh", "-c", &check],
    )));
    for node in testbed.nodes() {
        node.proxy().unwrap().blackhole();
    }
    let lost = running.event("lost").await;
    assert_eq!(lost["reason"], "not_renewed");
    assert_eq!(running.event("stopped").await["killed"], true);
    for pid in pids {
        assert!(!alive(pid));
    }
    let last = *numbers(&folder.join("beats")).last().unwrap();
    let deadline = nanos(&lost["valid_until"]);
    assert!(last < deadline, "{last} is not before {deadline}");
    assert_eq!(running.end().await.0, Some(79));

    let other = other.await.unwrap();
    assert_eq!(other.status.code(), Some(0), "{}", text(&other.stderr));
    let (seen, rest) = text(&other.stdout)
        .split_once('\n')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(last < seen.parse().unwrap(), "{last} is not before {seen}");
    assert_eq!(rest, "");
}

#[tokio::test]
async fn a_lock_deleted_by_hand_ends_the_command_in_an_orderly_way() {
    let testbed = testbed().await;
    let script = "exec 2>&-; trap 'echo tidying; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(with(
        &testbed.urls(),
        &["run", "--json", "--ttl", "3s", "r", "--", "sh", "-c", script],
    ));
    assert_eq!(running.line().await, "ready");
    for node in testbed.nodes() {
        node.command(&["DEL", "quorlock:r"]).await.unwrap();
    }
    assert_eq!(running.event("lost").await["reason"], "gone");
    assert_eq!(running.line().await, "tidying");
    assert_eq!(running.event("stopped").await["killed"], false);
    assert_eq!(running.end().await.0, Some(79));
}

#[tokio::test]
async fn max_hold_ends_the_command() {
    let testbed = testbed().await;
    let arguments = [
        "run",
        "--json",
        "--ttl",
        "8s",
        "--max-hold",
        "3s",
        "r",
        "--",
        "sleep",
        "600",
    ];
    let mut running = Running::start(with(&testbed.urls(), &arguments));
    assert_eq!(running.event("lost").await["reason"], "max_hold");
    assert_eq!(running.end().await.0, Some(79));
    free(&testbed).await;
}

#[tokio::test]
async fn signals_go_to_the_whole_group_and_the_lock_is_released() {
    let testbed = testbed().await;
    let file = testbed.folder().join("signals");
    let script = format!(
        "exec 2>&-; sh -c 'trap \"echo 2 >> {0}; exit\" TERM; echo 1 >> {0}; while :; do sleep 0.02; done' &
        trap 'wait; exit 3' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.02; done",
        file.display()
    );
    let mut running = Running::start(with(&testbed.urls(), &["run", "r", "--", "sh", "-c", &script]));
    assert_eq!(running.line().await, "ready");
    at_least(1, &file).await;
    running.signal(Signal::TERM);
    assert_eq!(running.end().await, (Some(3), String::new()));
    assert_eq!(numbers(&file), [1, 2]);
    free(&testbed).await;
}

#[tokio::test]
async fn each_signal_is_passed_on() {
    let testbed = testbed().await;
    let script =
        "exec 2>&-; for s in HUP INT QUIT USR1 USR2; do trap \"echo $s\" $s; done; trap 'exit 9' TERM
        echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(with(&testbed.urls(), &["run", "r", "--", "sh", "-c", script]));
    assert_eq!(running.line().await, "ready");
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        running.signal(signal);
        assert_eq!(running.line().await, name);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().await, (Some(9), String::new()));
}

#[tokio::test]
async fn what_was_ignored_stays_ignored() {
    let testbed = testbed().await;
    let mut command = tokio::process::Command::new("sh");
    command
        .env("QUORLOCK_NODES", testbed.urls().join(","))
        .args([
            "-c",
            "trap '' HUP; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_quorlock"),
        ])
        .args([
            "run",
            "r",
            "--",
            "sh",
            "-c",
            "echo ready; read -r _; kill -HUP $$; echo still here",
        ])
        .kill_on_drop(true);
    let mut running = Running::start(command);
    assert_eq!(running.line().await, "ready");
    running.signal(Signal::HUP);
    running.close_input();
    assert_eq!(running.line().await, "still here");
    assert_eq!(running.end().await, (Some(0), String::new()));
}

#[tokio::test]
async fn killed_it_does_not_leave_the_command_without_a_lock() {
    let testbed = testbed().await;
    let folder = testbed.folder().to_owned();
    let arguments = [
        "run",
        "--kill-after",
        "100ms",
        "r",
        "--",
        "sh",
        "-c",
        &stubborn(&folder),
    ];
    let mut running = Running::start(with(&testbed.urls(), &arguments));
    let pids = stubborn_pids(&folder).await;
    running.child.kill().await.unwrap();
    eventually("the whole group is gone", || async {
        !pids.iter().any(|&pid| alive(pid))
    })
    .await;
}

#[tokio::test]
async fn stopped_it_does_not_leave_the_command_without_a_lock() {
    let testbed = testbed().await;
    let folder = testbed.folder().to_owned();
    let arguments = ["run", "--ttl", "1s", "r", "--", "sh", "-c", &stubborn(&folder)];
    let running = Running::start(with(&testbed.urls(), &arguments));
    let pids = stubborn_pids(&folder).await;
    running.signal(Signal::STOP);
    let check = seen_alive(&pids);
    let other = finish(with(
        &testbed.urls(),
        &["run", "--wait", "forever", "r", "--", "sh", "-c", &check],
    ))
    .await;
    assert_eq!(text(&other.stdout), "");
    running.signal(Signal::CONT);
    assert_eq!(running.end().await.0, Some(79));
}

#[tokio::test]
async fn a_stderr_that_nobody_reads_holds_up_nothing() {
    let testbed = testbed().await;
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while std::io::Write::write(&mut writer, &[b'x'; 512]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    // For longer than a TTL: without renewals it would be lost.
    let mut command = with(
        &testbed.urls(),
        &["run", "-vv", "--ttl", "2s", "r", "--", "sleep", "3"],
    );
    let mut child = command.stderr(writer).spawn().unwrap();
    let status = tokio::time::timeout(PATIENCE, child.wait())
        .await
        .expect("an end");
    assert_eq!(status.unwrap().code(), Some(0));
    drop(reader);
}

#[tokio::test]
async fn interrupted_while_waiting_it_leaves_nothing() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holder(&urls, "r").await;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut waiting = Running::start(with(
            &urls,
            &["run", "--json", "--wait", "forever", "r", "--", "echo", "ran"],
        ));
        let event = waiting.event("waiting").await;
        assert_eq!(
            (&event["reason"], &event["resource"]),
            (&"held".into(), &"r".into())
        );
        waiting.signal(signal);
        assert_eq!(waiting.end().await, (Some(code), String::new()));
    }
    holder.close_input();
    assert_eq!(holder.end().await, (Some(0), String::new()));
    free(&testbed).await;
}

#[tokio::test]
async fn verbose_shows_votes_and_the_release() {
    let testbed = testbed().await;
    let output = finish(with(&testbed.urls(), &["run", "-v", "r", "--", "true"])).await;
    let said = text(&output.stderr);
    for words in [
        "acquired r: ",
        "of 3 nodes",
        "valid 29s",
        ": granted",
        "released r",
    ] {
        assert!(said.contains(words), "{said}");
    }
    for node in testbed.nodes() {
        assert!(said.contains(&node.addr().to_string()), "{said}");
    }
    assert!(!said.contains('\x1b'), "colours without a terminal: {said:?}");

    let output = finish(with(&testbed.urls(), &["run", "--json", "r", "--", "true"])).await;
    let events: Vec<serde_json::Value> = text(&output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["acquired", "started", "released"]);
    assert_eq!(events[0]["nodes"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn warnings_reach_the_user() {
    let testbed = Testbed::builder()
        .nodes(1)
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .await
        .unwrap();
    let output = finish(with(&testbed.urls(), &["run", "r", "--", "true"])).await;
    let said = text(&output.stderr);
    assert!(
        said.contains("warning: 127.0.0.1:") && said.contains("allkeys-lru"),
        "{said}"
    );
    let output = finish(with(&testbed.urls(), &["status"])).await;
    assert!(text(&output.stdout).contains("allkeys-lru"));
}

#[tokio::test]
async fn status_tells_the_nodes_that_are_down() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    testbed.nodes()[1].kill().await.unwrap();
    let output = finish(with(&urls, &["status"])).await;
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    assert!(
        said.contains(&format!("{}: up\n", testbed.nodes()[0].addr())),
        "{said}"
    );
    assert!(
        said.contains(&format!("{}: not connected", testbed.nodes()[1].addr())),
        "{said}"
    );
    assert!(said.contains("2 of 3 nodes up, 2 needed: quorum"), "{said}");

    let output = finish(with(&urls, &["--json", "status"])).await;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["up"], &told["quorum"]), (&2.into(), &2.into()));
    assert_eq!(told["nodes"][1]["up"], false);
}

#[tokio::test]
async fn a_testbed_runs_a_command() {
    let mut command = quorlock(&[]);
    command.args([
        "testbed",
        "-n",
        "3",
        "--",
        "sh",
        "-c",
        "echo $QUORLOCK_NODES; exit 5",
    ]);
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let urls = text(&output.stdout);
    assert_eq!(
        urls.trim()
            .split(',')
            .filter(|url| url.starts_with("redis://"))
            .count(),
        3,
        "{urls}"
    );

    // A run in a testbed, by way of the environment.
    let own = env!("CARGO_BIN_EXE_quorlock");
    let nested = [
        "testbed", "-n", "1", "--", own, "run", "r", "--", "sh", "-c", "exit 6",
    ];
    assert_eq!(finish(with(&[], &nested)).await.status.code(), Some(6));
}

#[tokio::test]
async fn a_testbed_lasts_until_it_is_told_to_end() {
    for (name, signal) in [("term", Signal::TERM), ("kill", Signal::KILL)] {
        let mark = format!("QUORLOCK_TEST_MARK=testbed-{name}-{}", std::process::id());
        let (variable, value) = mark.split_once('=').unwrap();
        let mut command = quorlock(&[]);
        command
            .args(["testbed", "-n", "3", "--export"])
            .env(variable, value);
        let mut running = Running::start(command);
        let line = running.line().await;
        let urls = line
            .strip_prefix("export QUORLOCK_NODES='")
            .unwrap()
            .strip_suffix('\'')
            .unwrap();
        let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
        assert_eq!(
            finish(with(&urls, &["run", "r", "--", "true"]))
                .await
                .status
                .code(),
            Some(0)
        );
        assert!(marked(&mark).len() > 3);
        running.signal(signal);
        let code = (signal == Signal::TERM).then_some(0);
        assert_eq!(running.end().await, (code, String::new()));
        eventually("no process is left", || async { marked(&mark).is_empty() }).await;
    }
}

#[tokio::test]
async fn a_testbed_without_a_server_says_how_to_get_one() {
    let output = finish(with(&[], &["testbed", "--server", "/no/such/server"])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("/no/such/server") && said.contains("install"),
        "{said}"
    );
}
