//! A command that loses its lock is ended in time, even by a tool that is killed or stopped.

use std::path::Path;

use quorlock::testbed::Testbed;
use rustix::process::{Pid, Signal};

use crate::support::{
    Group, PATIENCE, Running, alive, at_least, eventually, finish, free, nanos, numbers, program, text, with,
};
use crate::testbed;

/// Returns a script that writes its pid and its grandchild's to `pids`. The grandchild resists TERM, and writes the time to
/// `beats` again and again.
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

/// Returns a script that prints which processes live. Zombies do no harm, and some wait long for init.
fn seen_alive(pids: &[u32]) -> String {
    let files: String = pids.iter().map(|pid| format!(" /proc/{pid}/status")).collect();
    format!("grep 'State:.[^Z]' {files} 2>/dev/null; true")
}

#[tokio::test]
async fn a_command_that_lost_its_lease_ends_before_the_next_holder() {
    let testbed = Testbed::builder().nodes(5).proxies(true).start().await.unwrap();
    let folder = testbed.folder().to_owned();
    let script = stubborn(&folder);
    let mut running = Running::start(with(
        &testbed.urls(),
        &["run", "--json", "--ttl", "3s", "r", "--", "sh", "-c", &script],
    ));
    let pids = stubborn_pids(&folder).await;

    // The other client's connections are not cut.
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
    assert!(
        last < deadline,
        "the last beat {last} is not before the deadline {deadline}"
    );
    assert_eq!(running.end().await.0, Some(79));

    let other = other.await.unwrap();
    assert_eq!(other.status.code(), Some(0), "{}", text(&other.stderr));
    let (seen, rest) = text(&other.stdout)
        .split_once('\n')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(
        last < seen.parse().unwrap(),
        "the last beat {last} is not before the next holder's start {seen}"
    );
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
        // Does not apply to a loss, which ends all processes of the command.
        "--signal",
        "command",
        "r",
        "--",
        "sh",
        "-c",
        "sleep 600 & wait",
    ];
    let mut running = Running::start(with(&testbed.urls(), &arguments));
    assert_eq!(running.event("lost").await["reason"], "max_hold");
    running.event("stopped").await;
    assert_eq!(running.end().await.0, Some(79));
    free(&testbed).await;
}

/// The reverse of `sudo`: a user without the right to signal others runs a command as another user.
#[tokio::test]
async fn a_command_of_another_user_is_said_to_go_on() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: only root can become another user");
    }
    let testbed = testbed().await;
    let mut command = program("setpriv", &testbed.urls());
    command
        .args(["--bounding-set=-kill", env!("CARGO_BIN_EXE_quorlock")])
        .args(["run", "--json", "--ttl", "3s", "r", "--"])
        .args(["setpriv", "--reuid=65534", "--clear-groups"])
        .args(["sh", "-c", "echo ready; exec sleep 600"]);
    let mut running = Running::start(command);
    let pid = running.event("started").await["pid"].as_i64().unwrap();
    let group = Group(Pid::from_raw(pid.try_into().unwrap()).unwrap());
    assert_eq!(running.line().await, "ready");
    running.signal(Signal::USR1);
    let warning = running.event("log").await;
    assert!(
        warning["message"].as_str().unwrap().contains("another user"),
        "{warning}"
    );
    for node in testbed.nodes() {
        node.command(&["DEL", "quorlock:r"]).await.unwrap();
    }
    running.event("lost").await;
    assert_eq!(running.event("not_stopped").await["reason"], "other_user");
    drop(group);
    assert_eq!(running.end().await.0, Some(79));
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
    eventually("all processes of the command are gone", || async {
        !pids.iter().any(|&pid| alive(pid))
    })
    .await;
}

#[tokio::test]
async fn stopped_it_does_not_leave_the_command_without_a_lock() {
    let testbed = testbed().await;
    let folder = testbed.folder().to_owned();
    let arguments = [
        "run",
        "--json",
        "--ttl",
        "1s",
        "r",
        "--",
        "sh",
        "-c",
        &stubborn(&folder),
    ];
    let mut running = Running::start(with(&testbed.urls(), &arguments));
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
    assert_eq!(running.event("lost").await["reason"], "paused");
    assert_eq!(running.end().await.0, Some(79));
}

#[tokio::test]
async fn a_stderr_that_nobody_reads_holds_up_nothing() {
    let testbed = testbed().await;
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while std::io::Write::write(&mut writer, &[b'x'; 512]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    // Longer than a TTL.
    let mut command = with(
        &testbed.urls(),
        &["run", "-vv", "--ttl", "2s", "r", "--", "sleep", "3"],
    );
    let mut child = command.stderr(writer).spawn().unwrap();
    let status = tokio::time::timeout(PATIENCE, child.wait())
        .await
        .expect("the tool did not end in time");
    assert_eq!(status.unwrap().code(), Some(0));
    drop(reader);
}

/// Connections die while the command runs, and just before the release.
#[tokio::test]
async fn connections_that_die_silently_do_not_end_a_command() {
    let testbed = Testbed::builder().nodes(5).proxies(true).start().await.unwrap();
    let strand = || {
        for node in testbed.nodes() {
            node.proxy().unwrap().strand();
        }
    };
    let done = testbed.folder().join("done");
    let script = format!("echo ready; until [ -e {} ]; do sleep 0.05; done", done.display());
    let arguments = [
        "run", "-v", "--json", "--ttl", "3s", "r", "--", "sh", "-c", &script,
    ];
    let mut running = Running::start(with(&testbed.urls(), &arguments));
    assert_eq!(running.line().await, "ready");
    for _ in 0..2 {
        strand();
        running.event("renewed").await;
    }
    strand();
    std::fs::write(done, "").unwrap();
    assert_eq!(running.event("released").await["outcome"], "released");
    assert_eq!(running.end().await.0, Some(0));
    free(&testbed).await;
}
