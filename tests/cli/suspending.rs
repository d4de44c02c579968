//! Ctrl-Z suspends the command as well, and the shell learns by which signal.

use std::path::Path;

use quorlock::testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Running, eventually, finish, free, holder, numbers, with};
use crate::terminal::Terminal;
use crate::testbed;

const SUSPEND: &str = "\x1a";

/// Starts a shell in which `$Q` runs a command under a lock.
async fn shell(testbed: &Testbed, options: &str) -> Terminal {
    let run = format!("{} run {options} r --", env!("CARGO_BIN_EXE_quorlock"));
    let mut terminal = Terminal::start(&["bash", "--norc", "--noprofile", "-i"], |command| {
        command
            .env("QUORLOCK_NODES", testbed.urls().join(","))
            .env("HISTFILE", "/dev/null")
            .env("PS1", "> ")
            .env("Q", run);
    });
    terminal.shows("> ").await;
    terminal
}

/// The command first writes its pid to a file.
fn job(folder: &Path, then: &str) -> String {
    format!("sh -c 'echo $$ >> {}/pids; {then}'", folder.display())
}

fn is_suspended(folder: &Path) -> bool {
    let Some(pid) = numbers(&folder.join("pids")).pop() else {
        return false;
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:\tT")
}

async fn suspend(terminal: &mut Terminal, folder: &Path, status: &str) {
    terminal.press(SUSPEND);
    terminal.shows("Stopped").await;
    eventually("the command is suspended", || async { is_suspended(folder) }).await;
    terminal.press("echo \"status:\" $?\n");
    terminal.shows(&format!("status: {status}")).await;
}

async fn end(mut terminal: Terminal) {
    terminal.press("exit 0\n");
    assert!(terminal.end().await.0.success());
}

#[tokio::test]
async fn a_command_is_suspended_and_resumed() {
    let testbed = testbed().await;
    let folder = testbed.folder();
    // For a pipeline, bash always shows 128.
    for (pipe, status) in [("", "148"), (": | ", "128")] {
        let mut terminal = shell(&testbed, "").await;
        let input = testbed.folder().join("input");
        let _ = std::fs::remove_file(&input);
        let wait = format!("mkfifo {0}; echo rea\"\"dy; exec cat {0}", input.display());
        terminal.press(&format!("{pipe}$Q {}\n", job(folder, &wait)));
        terminal.shows("ready").await;
        suspend(&mut terminal, folder, status).await;
        terminal.press("fg\n");
        eventually("the command goes on", || async { !is_suspended(folder) }).await;
        tokio::fs::write(&input, "after that\n").await.unwrap();
        terminal.shows("after that").await;
        end(terminal).await;
        free(&testbed).await;
    }
}

#[tokio::test]
async fn a_run_that_waits_is_suspended_and_resumed() {
    let testbed = testbed().await;
    let mut holder = holder(&testbed.urls(), "r").await;
    let mut terminal = shell(&testbed, "--wait forever").await;
    terminal.press("$Q echo hel\"\"d\n");
    terminal.shows("waiting: r is held").await;
    terminal.press(SUSPEND);
    terminal.shows("Stopped").await;
    terminal.press("echo \"status:\" $?\n");
    terminal.shows("status: 148").await;
    holder.close_input();
    assert_eq!(holder.end().await, (Some(0), String::new()));
    terminal.press("fg\n");
    terminal.shows("held").await;
    end(terminal).await;
}

#[tokio::test]
async fn one_that_is_suspended_for_too_long_is_said_to_have_been() {
    let testbed = testbed().await;
    let folder = testbed.folder();
    let mut terminal = shell(&testbed, "--ttl 3s").await;
    terminal.press(&format!("$Q {}\n", job(folder, "echo rea\"\"dy; exec sleep 600")));
    terminal.shows("ready").await;
    terminal.press(SUSPEND);
    terminal.shows("Stopped").await;
    let other = ["run", "--wait", "forever", "r", "--", "true"];
    assert_eq!(finish(with(&testbed.urls(), &other)).await.status.code(), Some(0));
    terminal.press("fg\n");
    terminal.shows("quorlock did not run for").await;
    terminal.press("echo \"status:\" $?\n");
    terminal.shows("status: 79").await;
    terminal.press("exit 0\n");
    let (_, shown) = terminal.end().await;
    // The guard has done its work.
    assert!(!shown.contains("the guard process exited"), "{shown}");
}

#[tokio::test]
async fn a_stop_by_another_process_is_said() {
    let testbed = testbed().await;
    let script = "echo $$; read -r _; exit 7";
    for signal in [Signal::STOP, Signal::TSTP] {
        let mut running = Running::start(with(&testbed.urls(), &["run", "r", "--", "sh", "-c", script]));
        let command = Pid::from_raw(running.line().await.parse().unwrap()).unwrap();
        kill_process(command, signal).unwrap();
        let said = running.said().await;
        assert!(said.contains("the command was stopped by"), "{said}");
        kill_process(command, Signal::CONT).unwrap();
        running.close_input();
        assert_eq!(running.end().await, (Some(7), String::new()));
        free(&testbed).await;
    }
}

/// The lease outlives the suspension. Then no node answers any more.
#[tokio::test]
async fn a_loss_is_not_put_down_to_an_earlier_suspension() {
    let testbed = testbed().await;
    let folder = testbed.folder();
    // A loop that runs 1.5 s late counts as paused.
    let mut terminal = shell(&testbed, "--ttl 12s --kill-after 1s -vv").await;
    terminal.press(&format!("$Q {}\n", job(folder, "echo rea\"\"dy; exec sleep 600")));
    terminal.shows("ready").await;
    terminal.press(SUSPEND);
    terminal.shows("Stopped").await;
    tokio::time::sleep(std::time::Duration::from_millis(3_500)).await;
    terminal.press("fg\n");
    terminal.shows("renewed r").await;
    for node in testbed.nodes() {
        node.stop().unwrap();
    }
    terminal.shows("the lease could not be renewed").await;
    for node in testbed.nodes() {
        node.resume().unwrap();
    }
    terminal.press("echo \"status:\" $?\n");
    terminal.shows("status: 79").await;
    end(terminal).await;
}
