//! `quorlock run`: the command, its lock and its token.

use std::io::Write;
use std::path::Path;

use tokio::process::Command;

use crate::support::{Running, finish, free, holder, text, with};
use crate::testbed;

/// A tool within a trial must not reach the nodes of variables and files.
#[tokio::test]
async fn the_command_of_a_trial_uses_the_testbed() {
    let testbed = testbed().await;
    let inner = format!(
        "{} status; printenv QUORLOCK_NODES",
        env!("CARGO_BIN_EXE_quorlock")
    );
    let output = finish(with(
        &testbed.urls(),
        &["run", "--testbed", "r", "--", "sh", "-c", &inner],
    ))
    .await;
    let shown = text(&output.stdout);
    assert!(shown.contains("5 of 5 nodes up"), "{shown}");
    let other = |url: &String| !shown.contains(url.trim_start_matches("redis://"));
    assert!(testbed.urls().iter().all(other), "{shown}");
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

/// Another process writes the file: a file that is open for writing cannot be executed, and processes that other tests start may
/// inherit it.
fn executable(file: &Path, text: &[u8]) -> String {
    let mut child = std::process::Command::new("sh")
        .args(["-c", "cat >\"$0\"; chmod 755 \"$0\""])
        .arg(file)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    assert!(child.wait().unwrap().success());
    file.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_script_that_does_not_name_an_interpreter_is_run_by_sh() {
    let testbed = testbed().await;
    let script = executable(&testbed.folder().join("script"), b"echo \"$0|$1|$2\"; exit 4\n");
    let arguments = ["a b", "*"];
    let env = Command::new("env")
        .arg(&script)
        .args(arguments)
        .output()
        .await
        .unwrap();
    for name in [&*script, "script"] {
        let run = [&["run", "r", "--", name], &arguments[..]].concat();
        let mut command = with(&testbed.urls(), &run);
        let path = format!(
            "{}:{}",
            testbed.folder().display(),
            std::env::var("PATH").unwrap()
        );
        command.env("PATH", path);
        let output = finish(command).await;
        assert_eq!(text(&output.stdout), format!("{script}|a b|*\n"));
        assert_eq!(
            (output.status, &output.stdout),
            (env.status, &env.stdout),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_missing_program_or_interpreter_is_named() {
    let testbed = testbed().await;
    let script = executable(
        &testbed.folder().join("script"),
        b"#!/no/such/shell -e\necho ran\n",
    );
    // A program contains its loader's path.
    let shell = std::fs::read("/bin/sh").unwrap();
    let loader = b"/lib64/ld-";
    let at = shell.windows(loader.len()).position(|part| part == loader);
    let mut cases = vec![(script, "/no/such/shell")];
    if let Some(at) = at {
        let mut other = shell.clone();
        other[at + 1] = b'L';
        cases.push((executable(&testbed.folder().join("program"), &other), "loader"));
    }
    for (program, lacking) in cases {
        let output = finish(with(&testbed.urls(), &["run", "r", "--", &program])).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "{said}");
        assert!(said.contains(&program) && said.contains(lacking), "{said}");
    }
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

/// Prints the lock's name and token; `-` for a missing variable.
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

    // Each lock has its own tokens.
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
            &["run", "--testbed", "--ttl", "39ms", "r", "--", "true"],
            &["--ttl 39ms", "40ms"],
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
        assert!(said.contains("is already held"), "{said}");
        assert_eq!(said.contains("waiting:"), waiting.len() > 1, "{said}");
        assert!(output.stdout.is_empty());
    }
    // Another name or prefix is another lock.
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
    assert_eq!(
        (&events[0]["attempts"], &events[2]["renewals"]),
        (&1.into(), &0.into())
    );
}
