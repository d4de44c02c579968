//! The scripts and commands of `docs/recipes.md`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use quorlock::testbed::{Data, Testbed};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::{Group, Running, eventually, finish, free, holder, program, text, with};
use crate::testbed;

/// Returns the document's block of this language that contains `text`.
fn block(language: &str, text: &str) -> String {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md")).unwrap();
    let blocks: Vec<&str> = document
        .split(&format!("```{language}\n"))
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| block.contains(text))
        .collect();
    assert_eq!(blocks.len(), 1, "blocks of {language} with {text:?}");
    blocks[0].to_owned()
}

/// Runs a script in a folder, with quorlock on its path.
fn sh(urls: &[String], folder: &TempDir, script: &str) -> Command {
    let tool = Path::new(env!("CARGO_BIN_EXE_quorlock")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = program("sh", urls);
    command
        .args(["-c", script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", tool.display()));
    command
}

fn executable(folder: &TempDir, name: &str, script: &str) {
    let file = folder.path().join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn lines(folder: &TempDir, name: &str) -> usize {
    fs::read_to_string(folder.path().join(name)).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn of_three_hosts_one_runs_the_scheduled_job() {
    let (testbed, folder) = (testbed().await, tempfile::tempdir().unwrap());
    let urls = testbed.urls();
    executable(&folder, "report.sh", "echo ran >> runs");
    let config = block("toml", "nodes");
    let (start, _) = config.split_once('[').unwrap();
    fs::write(folder.path().join("config.toml"), format!("{start}{urls:?}\n")).unwrap();
    let line = block("crontab", "nightly-report");
    let (_, command) = line.split_once("* * *").unwrap();
    let command = command
        .replace("/usr/local/bin/quorlock", "quorlock")
        .replace("/opt/report.sh", "./report.sh");
    let host = || {
        let mut host = sh(&[], &folder, &command);
        host.env("QUORLOCK_CONFIG", "config.toml");
        finish(host)
    };
    let hosts = (0..3).map(|_| host());
    for output in futures_util::future::join_all(hosts).await {
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(0), ""));
    }
    assert_eq!(lines(&folder, "runs"), 1);
}

#[tokio::test]
async fn the_second_host_leads_when_the_first_is_stopped() {
    let (testbed, folder) = (testbed().await, tempfile::tempdir().unwrap());
    executable(&folder, "scheduler", "echo $HOST >> leaders; exec sleep 1000");
    let script = block("sh", "# leader");
    let host = |number: usize| {
        let mut command = sh(&testbed.urls(), &folder, &script);
        command.env("HOST", number.to_string());
        let child = command.process_group(0).stdin(Stdio::null()).spawn().unwrap();
        let group = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
        (child, Group(group))
    };
    let mut hosts = [host(0), host(1)];
    let leaders = || fs::read_to_string(folder.path().join("leaders")).unwrap_or_default();
    eventually("one host leads", || async { lines(&folder, "leaders") == 1 }).await;
    let first: usize = leaders().trim().parse().unwrap();
    let second = 1 - first;
    // TERM goes to all of a host: its loop, too.
    for number in [first, second] {
        let (child, group) = &mut hosts[number];
        kill_process_group(group.0, Signal::TERM).unwrap();
        child.wait().await.unwrap();
        eventually("the second host leads", || async {
            leaders() == format!("{first}\n{second}\n")
        })
        .await;
    }
    free(&testbed).await;
}

#[tokio::test]
async fn a_service_ends_by_term_and_gives_the_lock_up() {
    let (testbed, folder) = (testbed().await, tempfile::tempdir().unwrap());
    executable(
        &folder,
        "scheduler",
        "trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done",
    );
    let unit = block("ini", "ExecStart");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let in_pod = block("yaml", "command");
    let in_pod = in_pod
        .lines()
        .find_map(|line| line.trim().strip_prefix("command: ["))
        .unwrap();
    assert_eq!(
        in_pod.trim_end_matches(']').replace(", ", " "),
        start.trim_start_matches("/usr/local/bin/"),
        "the pod runs another command than the service"
    );
    let program = folder.path().join("scheduler");
    let command = start.replace("/opt/scheduler", program.to_str().unwrap());
    let arguments: Vec<&str> = command.split(' ').skip(1).collect();
    let mut running = Running::start(with(&testbed.urls(), &arguments));
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    let (code, said) = running.end().await;
    assert_eq!(code, Some(143), "{said}");
    free(&testbed).await;
}

#[tokio::test]
async fn a_pipeline_holds_its_lock_from_step_to_step() {
    let (testbed, folder) = (testbed().await, tempfile::tempdir().unwrap());
    let urls = testbed.urls();
    let is_held = "quorlock show --json deploy-production | grep -c '\"status\":\"held\"' >> held";
    let script = block("sh", "# deploy");
    for (smoke_test, code) in [(is_held, 0), ("exit 4", 4)] {
        executable(&folder, "deploy.sh", is_held);
        executable(&folder, "smoke-test.sh", smoke_test);
        let output = finish(sh(&urls, &folder, &script)).await;
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        free(&testbed).await;
    }
    assert_eq!(
        fs::read_to_string(folder.path().join("held")).unwrap(),
        "1\n1\n1\n"
    );
    // Without the lock, no step runs.
    let mut other = holder(&urls, "deploy-production").await;
    let impatient = script.replace("--wait 30m", "--no-wait");
    let output = finish(sh(&urls, &folder, &impatient)).await;
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
    assert_eq!(lines(&folder, "held"), 3);
    other.close_input();
    assert_eq!(other.end().await.0, Some(0));
}

/// A lock is held all the time.
#[tokio::test]
async fn nodes_are_restarted_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut holder = holder(&urls, "job").await;
    let restart = "restart() { echo \"$1\"; read answer; }\n";
    let script = format!("{restart}{}echo done", block("sh", "# rolling-restart"));
    let mut rolling = Running::start(sh(&urls, &folder, &script));
    for node in testbed.nodes() {
        assert_eq!(rolling.line().await, node.url());
        node.kill().await.unwrap();
        node.restart(Data::Keep).await.unwrap();
        rolling
            .child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"done\n")
            .await
            .unwrap();
    }
    assert_eq!(rolling.line().await, "done");
    holder.close_input();
    let (code, said) = holder.end().await;
    assert_eq!(code, Some(0), "{said}");
}
